"""The page's search finds the plans that `dmodel design` finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dmodel.asked import ask
from dmodel.design import Limits
from dmodel.design.space import splits
from dmodel.explore.data import document
from dmodel.explore.page import profile_document
from dmodel.explore.structures import LEVELS, structure
from dmodel.profiles import load
from dmodel.question import Question
from dmodel.searching import search, space_of, stated, usable
from tests.explored import BUNDLE, texts
from tests.javascript import needs_node, run

TOP = 10

JOBS: dict[str, dict[str, Any]] = {
    "dense": {"model": "llama-3-70b", "n_accel": 512, "stack": "megatron-lm"},
    "many": {"model": "llama-3-405b", "n_accel": 16384, "stack": "megatron-bridge/26.02"},
    "few": {"model": "llama-3-8b", "n_accel": 8, "stack": "torchtitan", "global_batch": 64},
    "fsdp": {"model": "llama-3-8b", "n_accel": 64, "stack": "fsdp", "global_batch": 512},
    "zero": {"model": "gpt-3-175b", "n_accel": 128, "stack": "huggingface", "global_batch": 512},
    "experts": {"model": "mixtral-8x7b", "n_accel": 64, "stack": "nemo/25.09"},
    "latent": {"model": "deepseek-v3", "n_accel": 2048, "stack": "megatron-lm", "precision": "fp8"},
    "nothing fits": {"model": "llama-3-405b", "n_accel": 8, "stack": "megatron-lm"},
    "no stack": {"model": "llama-2-13b", "n_accel": 32, "accelerator": "A100-80GB"},
    "older": {"model": "gpt-3-175b", "n_accel": 96, "stack": "megatron-2021", "global_batch": 96},
    "tpu": {"model": "llama-2-70b", "n_accel": 256, "stack": "maxtext", "accelerator": "TPU-v5p"},
    "both ends": {"model": "mixtral-8x7b", "n_accel": 16, "stack": "hai-llm", "global_batch": 128},
    "no flash": {"model": "llama-2-7b", "n_accel": 16, "stack": "megatron-lm", "attention": "none"},
}
"""Jobs of many kinds: models, software, chips, devices."""

COMMON = {"accelerator": "H100-80GB", "global_batch": 1024.0, "precision": "bf16", "seq_len": 4096}

SLOW = ("many", "latent", "older", "zero", "dense")

BEST = """
const fs = require('fs');
const { best, infinite } = require(process.argv[2]);
const given = JSON.parse(fs.readFileSync(process.argv[3], 'utf8'), infinite);
const found = best(given, given.asked, given.top, (text) => (0, eval)(text));
process.stdout.write(JSON.stringify(found));
"""


def kinds_of(question: Question) -> list[str]:
    """Names of the programs that a job needs: of its model, and of that on its network."""
    asked = ask(question, "generic")
    kinds, levels = structure(asked.model), asked.cluster.network.n_levels
    return [kinds] if levels == LEVELS else [kinds, f"{kinds} {levels}"]


def by_page(questions: list[Question], folder: Path) -> list[dict[str, Any]]:
    """The best plans by the page's search, run by Node."""
    profile = load("generic")
    kinds = {name for question in questions for name in kinds_of(question)}
    asked = [{"columns": q.columns, "settings": q.settings, "system": q.system} for q in questions]
    known = {"data": document(), "texts": texts(kinds), "profile": profile_document(profile)}
    (folder / "given.json").write_text(json.dumps(known | {"asked": asked, "top": TOP}))
    (folder / "best.cjs").write_text(BEST)
    return json.loads(run([str(folder / "best.cjs"), str(BUNDLE), str(folder / "given.json")]))


def check(question: Question, found: dict[str, Any]) -> None:
    """Numbers of plans and the best ones are the same; where the stack runs schedules that the page
    does not know, it looks at plans without a pipeline."""
    asked = ask(question, "generic")
    limits = Limits(memory=usable(asked))
    want = search(asked, space_of(asked), limits=limits, top=TOP, method="exact")
    if found["left"]:
        problem = stated(asked, space_of(asked))
        plain = [of.plans for split, of in splits(problem.space) if split.pp == 1]
        assert found["considered"] == sum(plain)
        return
    assert found["considered"] == want.considered
    if want.feasible is not None:
        assert found["feasible"] == want.feasible
    plans = want.exact or [want.closest]
    mine = found["plans"] or [found["closest"]]
    assert len(mine) == len(plans)
    for one, other in zip(mine, plans, strict=True):
        assert one["seconds"] == pytest.approx(float(other.step_time_s), rel=1e-9)
        assert one["bytes"] == pytest.approx(float(other.memory.total), rel=1e-9)
        layout = vars(other.plan.layout)
        wrong = {n: (x, layout[n]) for n, x in one["layout"].items() if abs(x - layout[n]) > 1e-9}
        assert not wrong


@needs_node
def test_the_best_plans_are_those_of_design(tmp_path):
    jobs = [Question(COMMON | job) for name, job in JOBS.items() if name not in SLOW]
    for question, found in zip(jobs, by_page(jobs, tmp_path), strict=True):
        check(question, found)


@needs_node
@pytest.mark.parametrize("system", ["H100-Superpod"])
def test_a_network_of_three_levels_is_searched_alike(system, tmp_path):
    question = Question(COMMON | JOBS["few"] | {"n_accel": 64}, system=system)
    assert kinds_of(question)[-1].endswith(" 3")
    check(question, by_page([question], tmp_path)[0])


@needs_node
@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_the_best_plans_of_large_jobs_are_those_of_design(name, tmp_path):
    question = Question(COMMON | JOBS[name])
    check(question, by_page([question], tmp_path)[0])
