"""Files, the shell and the API ask alike: each way makes the same case, to the last bit, of every
row of the shipped table."""

import jax
import numpy as np
import pytest
import typer

from calibration.traces import read, to_cases
from calibration.traces.published import PUBLISHED
from calibration.traces.table import Row
from dmodel import api
from dmodel.cli.app import app
from dmodel.cli.options import Degrees, Job
from dmodel.cli.question import question_of
from dmodel.columns import BY_NAME, CONFIGURATION
from dmodel.question import Question
from dmodel.records import Layout
from dmodel.resolve import Cases, assemble
from dmodel.settings import shown
from dmodel.types import InputError

OPTIONS = {
    "n_accel": "--devices",
    "seq_len": "--seq-len",
    "global_batch": "--global-batch",
    "zero_stage": "--zero",
    "micro_batch": "--micro-batch",
} | {n: f"--{n}" for n in ("tp", "pp", "cp", "dp", "ep", "shard", "interleave")}
"""Columns of counts with an option."""

WORDS = {n: f"--{n}" for n in ("model", "precision", "recompute", "attention")}
"""Columns of words with an option."""

FLAGS = {"lora": ("tuning", "lora"), "composed": ("composed", "1")}

OF_LAYOUT = ("dp", "tp", "pp", "cp", "ep", "etp", "sp", "shard", "interleave", "micro_batch")


def written(row: Row) -> dict[str, str]:
    """Cells of the configuration that the file has, by column."""
    cells = {c.name: row.cells.get(c.name, "").strip() for c in CONFIGURATION}
    return {name: cell for name, cell in cells.items() if cell}


def further(row: Row) -> dict[str, str]:
    """What the flags and the column `set` of a row say, as text."""
    flags = dict(FLAGS[flag] for flag in row.flags if flag in FLAGS)
    return flags | {name: shown(value) for name, value in row.settings.items()}


def whole(name: str, cell: str) -> int:
    """A count as people type it."""
    return round(float(cell))


def typed(row: Row) -> list[str]:
    """Arguments of `dmodel predict` for a row."""
    arguments, sets = ["--stack", row.text("stack") or row.text("source")], further(row)
    for name, cell in written(row).items():
        if name in OPTIONS:
            arguments += [OPTIONS[name], str(whole(name, cell))]
        elif name in WORDS:
            arguments += [WORDS[name], cell]
        elif name == "sp":
            arguments += ["--sp" if whole(name, cell) else "--no-sp"]
        elif name != "stack":
            sets[name] = cell
    return arguments + [part for name, x in sets.items() for part in ("--set", f"{name}={x}")]


@pytest.fixture(scope="module")
def predict_command():
    """The command as the shell finds it."""
    return typer.main.get_command(app).commands["predict"]


def asked(command, arguments: list[str]) -> Question:
    """The question that arguments of the shell ask."""
    # the parser takes arguments off the list
    found = command.make_context("predict", list(arguments)).params
    records = (kind(**{n: found[n] for n in kind._fields}) for kind in (Job, Degrees))
    return question_of(*records)


def by_api(row: Row) -> Question:
    """The question that the API asks about a row."""
    cells = written(row)
    counts = {n: whole(n, c) for n, c in cells.items() if BY_NAME[n].kind == "integer"}
    layout = {n: counts[n] for n in OF_LAYOUT if n in counts}
    layout |= {"zero": counts["zero_stage"]} if "zero_stage" in counts else {}
    job = api.Job(cells.get("model", ""), counts.get("seq_len"), counts["global_batch"])
    site = api.Site("", cells["accelerator"], counts["n_accel"])
    said = ("stack", "model", "seq_len", "global_batch", "accelerator", "n_accel", "zero_stage")
    others = {n: c for n, c in cells.items() if n not in (*said, *OF_LAYOUT, "precision")}
    numbers = {n: float(c) if BY_NAME[n].kind != "text" else c for n, c in others.items()}
    settings = dict(row.settings) | {n: x for n, x in further(row).items() if n not in row.settings}
    return api.question(
        job,
        site,
        Layout(**layout),
        stack=row.text("stack") or row.text("source"),
        precision=cells.get("precision", ""),
        overrides=numbers | settings,
    )


@pytest.fixture(scope="module")
def rows() -> tuple[Row, ...]:
    return read(PUBLISHED, require_time=False).rows


@pytest.fixture(scope="module")
def by_file() -> Cases:
    return to_cases(read(PUBLISHED, require_time=False))


def differing(one: Cases, other: Cases, rows: tuple[Row, ...]) -> list[str]:
    """Leaves and rows that are not the same to the last bit."""
    assert other.plan.layout.schedule == one.plan.layout.schedule
    pairs = zip(
        jax.tree_util.tree_leaves_with_path((one.system, one.model, one.plan)),
        jax.tree_util.tree_leaves_with_path((other.system, other.model, other.plan)),
        strict=True,
    )
    found = []
    for (path, was), (at, now) in pairs:
        assert path == at
        off = np.broadcast_to(np.asarray(was).view(np.uint64) != np.asarray(now).view(np.uint64), np.shape(was))
        lines = [rows[i].line for i in np.flatnonzero(off.any(0) if off.ndim > 1 else off)]
        found += [f"{jax.tree_util.keystr(path)}: {len(lines)} rows, lines {lines[:6]}"] if lines else []
    return found


def test_every_row_is_the_same_case_from_the_shell(rows, by_file, predict_command):
    questions = [asked(predict_command, typed(row)) for row in rows]
    assert len(questions) == 1792
    assert differing(by_file, assemble(questions), rows) == []


def test_every_row_is_the_same_case_from_the_api(rows, by_file):
    questions = [by_api(row) for row in rows]
    assert differing(by_file, assemble(questions), rows) == []
