"""Questions, and their records by Python, for the page's interpreter to answer alike."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from calibration.traces.published import published
from dmodel.catalog.loader import table
from dmodel.catalog.models import transformer
from dmodel.catalog.stack import names as stacks
from dmodel.errors import InputError
from dmodel.explore.data import document
from dmodel.explore.structures import case_of, offered, programs, structure
from dmodel.footprint import LEAST
from dmodel.question import Question
from dmodel.records import SCHEDULES, Mixed
from dmodel.resolve import resolve
from tests.javascript import run

BUNDLE = Path(__file__).parents[1] / "dmodel/explore/bundle/cases.js"

ANSWER = """
const fs = require('fs');
const { answers, infinite } = require(process.argv[2]);
const given = JSON.parse(fs.readFileSync(process.argv[3], 'utf8'), infinite);
const found = answers(given.data, given.texts, given.usual, given.asked, (text) => (0, eval)(text));
process.stdout.write(JSON.stringify(found, (_, x) => (x === Infinity ? 'inf' : x)));
"""


class Answer(NamedTuple):
    """What a question comes to: numbers of its case and words of its facts; empty with an error."""

    structure: str = ""
    inputs: tuple[float, ...] = ()
    facts: tuple[str, ...] = ()
    error: str = ""


@cache
def _texts(name: str) -> dict[str, Any]:
    of = offered()[name]
    made = programs(transformer(of.model), slopes=False, levels=of.levels)
    return {key: one._asdict() for key, one in made._asdict().items()}


def texts(names: Iterable[str]) -> dict[str, Any]:
    """Programs of some structures of the catalog, without slopes."""
    return {name: _texts(name) for name in sorted({*names} & {*offered()})}


def usual() -> dict[str, Any]:
    """Coefficients and the footprint by default."""
    case = case_of(transformer("llama-3-8b"))
    return {"coefficients": _plain(case.coefficients), "footprint": _plain(LEAST)}


def _plain(record: Any) -> dict[str, float]:
    return {name: float(value) for name, value in vars(record).items()}


def by_python(question: Question) -> Answer:
    """The records of a question as numbers."""
    try:
        found = resolve(question)
    except InputError as error:
        return Answer(error=str(error))
    of, plan = case_of(found.model), found.plan.replace(layout=Mixed.of(found.plan.layout))
    case = of.replace(cluster=found.cluster, model=found.model.replace(order=()), plan=plan)
    leaves = [np.ravel(x) for x in jax.tree.leaves((case, 1.0))]
    inputs = tuple(np.concatenate(leaves).astype(float).tolist())
    facts = tuple(a.text for a in found.assumptions if a.source)
    return Answer(structure(found.model), inputs, facts)


def by_page(questions: Sequence[Question], structures: Iterable[str], folder: Path) -> list[Answer]:
    """The same by the page's interpreter, run by Node, which knows models of some structures."""
    asked = [{"columns": q.columns, "settings": q.settings, "system": q.system} for q in questions]
    known = texts(structures)
    given = {"data": document(), "texts": known, "usual": usual(), "asked": asked}
    (folder / "given.json").write_text(json.dumps(given))
    (folder / "answer.cjs").write_text(ANSWER)
    printed = run([str(folder / "answer.cjs"), str(BUNDLE), str(folder / "given.json")])
    return [_read(each) for each in json.loads(printed)]


def _read(found: dict[str, Any]) -> Answer:
    if "error" in found:
        return Answer(error=found["error"])
    inputs = tuple(float("nan" if x is None else x) for x in found["inputs"])
    return Answer(found["structure"], inputs, tuple(found["facts"]))


def of_rows() -> list[Question]:
    """Questions of the published rows."""
    return [row.question for row in published().rows]


def at_random(rng: random.Random, rows: Sequence[Question]) -> Question:
    """A published row with some of its words otherwise, or a model of the catalog."""
    if rng.random() < 0.5:
        row = rng.choice(rows)
        return _changed(rng, row._replace(where="", settings=dict(row.settings)))
    devices = 2 ** rng.randrange(0, 12)
    columns = {"model": rng.choice([*table("models")]), "n_accel": devices}
    columns["global_batch"] = devices * 2 ** rng.randrange(0, 4)
    columns["accelerator"] = rng.choice([*table("chips")])
    columns["stack"] = rng.choice(["", *stacks(), "megatron-bridge/26.02", "nemo/25.09"])
    return _changed(rng, Question(columns))


DEGREES = ("tp", "pp", "cp", "ep", "etp", "interleave", "micro_batch", "shard", "accel_per_node")


def _changed(rng: random.Random, question: Question) -> Question:
    columns, settings = dict(question.columns), dict(question.settings)
    for name in rng.sample(DEGREES, rng.randrange(0, 4)):
        columns[name] = float(2 ** rng.randrange(0, 4))
    columns.pop(rng.choice([*DEGREES, "dp", "recompute", "zero_stage", "sp", "head_dim"]), None)
    words = {
        "precision": ("bf16", "fp8", "mxfp8", "fp16", "fp8-rowwise"),
        "recompute": ("none", "selective", "full"),
        "zero_stage": (0.0, 1.0, 2.0, 3.0),
        "stack": [*stacks()],
        "attention": ("none", "flash"),
        "seq_len": (2048.0, 4096.0, 8192.0, 131072.0),
        "domain_size": (4.0, 8.0, 64.0, 72.0, 256.0),
    }
    for name in rng.sample([*words], rng.randrange(0, 3)):
        columns[name] = rng.choice(words[name])
    if rng.random() < 0.2:
        settings |= {rng.choice(("graphed", "overlap_tp", "offload", "flash")): 1.0}
    if rng.random() < 0.1:
        settings |= {"recompute_keeps": ("qkv", "core"), "bandwidth.intra": 4e11}
    if rng.random() < 0.2:
        settings |= {"schedule": rng.choice(SCHEDULES)}
    columns = {name: value for name, value in columns.items() if value != ""}
    return question._replace(columns=columns, settings=settings)
