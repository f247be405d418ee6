"""Commands of the shell agree: `design` judges a plan as `predict` does the same degrees; what was
fitted is what is used."""

import dataclasses

import numpy as np
import pytest

from calibration.fit import fit
from calibration.traces import published, to_cases
from dmodel import varying
from dmodel.api import Job as ApiJob
from dmodel.api import cluster, design
from dmodel.asked import provenance
from dmodel.cli.design_plan import search, stated_of
from dmodel.cli.options import Degrees, Job
from dmodel.cli.question import plan, setting
from dmodel.design import Limits, evaluate, rows
from dmodel.errors import InputError
from dmodel.prediction import answer
from dmodel.profiles import load, save
from dmodel.records import LEAVES, SCHEDULES, having, leaf
from dmodel.searching import space_of, usable
from tests.stack_files import stack_file

NODE = {"system": "H100-DGX", "devices": 16, "model": "llama-3-8b", "global_batch": 32}
NAMES = ("micro_batch", "tp", "pp", "cp", "ep", "interleave", "zero", "shard")


def degrees_of(row: np.ndarray, schedule: str) -> Degrees:
    """A row of the space as options."""
    at = {name: int(row[rows.INDEX[name]]) for name in NAMES}
    share = float(row[rows.INDEX["recompute_layers"]])
    sharded = {
        "shard": at["shard"] if at["zero"] else None,
        "reshard": at["zero"] < 3 or bool(row[rows.INDEX["reshard"]]),
    }
    return Degrees(
        **{**at, **sharded},
        sp=bool(row[rows.INDEX["sp"]]),
        schedule=schedule,
        offload=0.0,
        recompute=repr(share) if share else "none",
    )


EXPERTS = {"system": "GB200-NVL72", "devices": 64, "model": "deepseek-v3", "global_batch": 512}
STAGED = {
    "nemo-launcher": ("fp8", NODE, "optimizer_bytes", 3),
    "mlperf-train-v4.0": ("bf16", NODE, "gradient_bytes", 3),
    "ultrascale-playbook": ("bf16", NODE, "reduce_bytes", 2),
    "torchtitan": ("bf16", NODE, "weight_bytes", 3),
    "megatron-bridge/26.06": ("mxfp8", EXPERTS, "route_bytes", 3),
    "deepspeed": ("bf16", NODE, "update_bytes", 3),
}
"""Stacks → precision, job, a leaf that differs from plan to plan, and how many ZeRO stages."""


@pytest.mark.parametrize("stack", STAGED)
def test_design_judges_plans_as_predict_does(stack):
    """Random plans of the space, one by one: all leaves, step time and memory."""
    precision, asked_for, differs, stages = STAGED[stack]
    job = setting(Job(**asked_for, precision=precision, stack=stack))
    found = space_of(job, "flash")
    known = found.choices.stack
    assert differs in known.leaves
    stated = stated_of(job, "flash", "usual", Limits(), "time")
    offered = rows.all_rows(stated.space)
    chosen = offered[np.random.default_rng(0).permutation(len(offered))[:24]]
    assert len(set(chosen[:, rows.INDEX["zero"]])) >= stages
    judged, plans = evaluate(stated, chosen), rows.plans(stated.space, stated.system, chosen)
    for i, (row, own) in enumerate(zip(chosen, plans, strict=True)):
        other = plan(job, degrees_of(row, own.layout.schedule))[0]
        for name in LEAVES:
            mine, theirs = leaf(own, name), leaf(other, name)
            same = mine if isinstance(mine, str | tuple) else pytest.approx(float(mine), rel=1e-12)
            assert theirs == same, name
        told = answer(job, other) if i % 3 == 0 else None
        if told is not None:
            assert told["step_time_s"] == pytest.approx(float(judged.step_time_s[i]), rel=1e-9)
            assert told["memory_bytes_per_device"] == pytest.approx(
                float(judged.memory_bytes[i]), rel=1e-9
            )


def test_a_recipe_for_stage_1_is_found_where_there_is_nothing_to_shard():
    """GPT-3 175B on 32 H100 in 8 bits fits with the 10 bytes of NeMo's optimizer alone, on one
    data-parallel rank."""
    asked = {
        **NODE,
        "devices": 32,
        "model": "gpt-3-175b",
        "seq_len": 4096,
        "precision": "fp8",
        "stack": "nemo-launcher",
    }
    found, said = search(setting(Job(**asked)), "exact", 1)
    best = found.exact[0].plan
    assert (
        float(best.layout.zero),
        float(best.layout.dp),
        float(best.precision.optimizer_bytes),
    ) == (1.0, 1.0, 10.0)
    assert any("each plan's ZeRO stage" in text for text in said) and not any(
        "gradients held and reduced in" in text or " blank: 1" in text for text in said
    )


@pytest.mark.parametrize(
    ("stack", "model", "devices", "pp"),
    [
        ("ultrascale-playbook", "llama-3-8b", 16, 4),
        ("megatron-bridge/26.02", "deepseek-v3", 512, 16),
    ],
)
def test_stages_lie_as_the_stack_lays_them_out(stack, model, devices, pp):
    """nanotron's by cost, those of Megatron-Bridge's recipe for DeepSeek-V3: a search has what one
    plan has, and tells of it."""
    job = setting(
        Job(system="H100-DGX", devices=devices, model=model, global_batch=4 * devices, stack=stack)
    )
    found = space_of(job)
    code = np.array([float(SCHEDULES.index("1f1b"))])
    laid = varying.stages(found.choices.stack, job.model, np.array([pp]), np.array([1.0]), code)
    own = float(laid["stage_excess"][0]), float(laid["head_displaces"][0])
    one = plan(job, Degrees(pp=pp, ep=8 if having(job.model, "n_experts") else 1))[0]
    assert (float(one.layout.stage_excess), float(one.layout.head_displaces)) == own != (0.0, 0.0)
    told = "as the stack lays them out"
    assert any(told in str(each) for each in found.assumptions)
    others = space_of(setting(Job(**NODE, stack="vtrain"))).assumptions
    assert not any(told in str(each) for each in others)


def test_torchtitan_runs_stage_2_as_stage_1():
    job = setting(Job(**NODE, stack="torchtitan"))
    (one, _), (two, said) = (plan(job, Degrees(tp=2, zero=zero)) for zero in (1, 2))
    assert float(two.layout.zero) == 1.0 and "reduced once a step" in " ".join(said)
    assert float(one.precision.reduce_bytes) == float(two.precision.reduce_bytes)
    found = space_of(job)
    assert found.choices.zero == (0, 1, 3)
    assert "reduced once a step" in " ".join(map(str, found.assumptions))


def test_a_search_proposes_what_the_stack_runs():
    """By the file of a stack: ZeRO stages, schedules, degrees, stages that are not alike; what is
    left out is said."""
    runs = 'zero = [0, 1]\ndegrees = ["tp", "pp"]\nuneven = false'
    own = stack_file([({"graphed": 1}, {"tp": ">1"})], runs)
    found = space_of(setting(Job(**NODE, stack=own)))
    assert (found.choices.zero, found.choices.degrees) == ((0, 1), ("tp", "pp"))
    assert not found.choices.uneven
    said = " ".join(map(str, found.assumptions))
    assert "ZeRO stages 0, 1" in said and "no cp, ep: the stack has none" in said
    assert "all stages hold as many layers" in said
    assert "graphed: as the stack has them with each plan's tp" in said
    with pytest.raises(InputError, match="tp: the search chooses this"):
        space_of(setting(Job(**NODE, settings=["tp=2"])))


def test_the_api_designs_as_the_shell_does():
    job = setting(Job(**NODE, stack="torchtitan"))
    shell, _ = search(job, "exact", 1, limits=Limits(memory=usable(job)))
    site = cluster("H100-DGX", 16)
    found = design(
        ApiJob("llama-3-8b", global_batch=32),
        site,
        stack="torchtitan",
        precision="bf16",
        method="exact",
        top=1,
    )
    assert float(found.best.step_time_s) == float(shell.best.step_time_s)
    assert found.considered == shell.considered
    assert float(found.best.memory.total) <= usable(job) * float(job.cluster.chip.hbm_bytes)
    with pytest.raises(InputError, match="max_risk"):
        design(ApiJob("llama-3-8b", global_batch=32), site, max_risk=0.7)


def test_a_plan_fits_by_all_that_a_device_holds():
    """Of a stack with measured peaks: memory, whether it fits and how likely it does not are of one
    device, as `design` has it."""
    job = setting(Job(**{**NODE, "devices": 64, "global_batch": 128}, stack="torchtitan"))
    told = answer(job, plan(job, Degrees(zero=3))[0])
    assert sum(told["memory"].values()) == pytest.approx(told["memory_bytes_per_device"], rel=1e-12)
    assert told["fits"] == (told["oom_probability"] < 0.5)


def test_a_share_of_layers_is_recomputed():
    job = setting(Job(**NODE))
    whole, none, some = (
        plan(job, Degrees(zero=3, recompute=text))[0] for text in ("full", "none", "0.25")
    )
    assert [float(p.layout.recompute_layers) for p in (whole, none, some)] == [1.0, 0.0, 0.25]
    for text in ("1.5", "-0.1", "nan", "some"):
        with pytest.raises(InputError, match="recompute: expected"):
            plan(job, Degrees(zero=3, recompute=text))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A profile of eight rows of one stack, as the shell writes it."""
    cases = to_cases(
        published().select(
            lambda row: row.stack == "llm-foundry" and row.accelerator == "H100-80GB"
        )
    )
    path = tmp_path_factory.mktemp("fitted") / "mine.json"
    save(fit(cases.take(np.arange(8)), load("h100-megatron"), starts=1), path)
    return path


def test_a_fitted_profile_answers_for_its_own_stack(fitted):
    """Without `--stack` a profile fitted to rows of one stack answers for that one, and says so; of
    several it asks, naming them first."""
    asked, named = (
        setting(Job(**NODE, profile=str(fitted), stack=stack)) for stack in ("", "llm-foundry")
    )
    assert asked.stack == "llm-foundry" and "llm-foundry" in provenance(asked)
    assert answer(asked, plan(asked, Degrees())[0]) == answer(named, plan(named, Degrees())[0])
    two = dataclasses.replace(load(str(fitted)), own=("vtrain", "llm-foundry"))
    save(two, fitted.parent / "two.json")
    open_ = setting(Job(**NODE, profile=str(fitted.parent / "two.json")))
    assert open_.stack == "" and "(vtrain, llm-foundry, " in provenance(open_)
