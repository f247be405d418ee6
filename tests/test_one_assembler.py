"""Files, the shell and the API ask alike: each way makes the same case, to the last bit, of every
row of the shipped table."""

from typing import Any

import jax
import numpy as np
import pytest

from calibration.traces import read, to_cases
from calibration.traces.published import PUBLISHED
from calibration.traces.table import Row, TraceTable
from dmodel import api
from dmodel.cli.app import loaded
from dmodel.cli.options import Degrees, Job
from dmodel.cli.question import question_of
from dmodel.columns import BY_NAME, CONFIGURATION
from dmodel.errors import InputError
from dmodel.question import Question
from dmodel.records import Layout, Plan, leaf
from dmodel.resolve import assemble, resolve
from dmodel.settings import parse, shown

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


class Shell:
    """`dmodel predict` as the shell finds it, without what it does."""

    def __init__(self):
        self.command = loaded("predict")
        self.context = self.command.make_context("predict", [])
        parser = self.command.make_parser(self.context)
        # the command makes one for each call
        self.command.make_parser = lambda _: parser

    def asks(self, arguments: list[str]) -> Question:
        """The question that arguments ask."""
        self.context.params.clear()
        # the parser takes arguments off the list
        self.command.parse_args(self.context, list(arguments))
        found = self.context.params
        return question_of(
            *(kind(**{n: found[n] for n in kind._fields}) for kind in (Job, Degrees))
        )


@pytest.fixture(scope="module")
def shell() -> Shell:
    return Shell()


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


def bits(case: Any) -> dict[str, np.ndarray]:
    """Every leaf of a batch of cases as bits, `[..., rows]`, by its path."""
    leaves = jax.tree_util.tree_leaves_with_path((case.system, case.model, case.plan))
    return {jax.tree_util.keystr(path): np.asarray(leaf).view(np.uint64) for path, leaf in leaves}


def differing(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> dict[str, list[int]]:
    """Leaves that are not the same to the last bit, and in which rows."""
    assert one.keys() == other.keys()
    off = {name: np.atleast_2d(one[name] != other[name]).any(0) for name in one}
    return {name: np.flatnonzero(rows).tolist() for name, rows in off.items() if rows.any()}


@pytest.fixture(scope="module")
def table() -> TraceTable:
    return read(PUBLISHED, require_time=False)


def test_every_row_is_the_same_case_from_the_file_the_shell_and_the_api(table, shell):
    rows = table.rows
    of_file = [row.question for row in rows]
    batch = assemble([*of_file, *(shell.asks(typed(row)) for row in rows), *map(by_api, rows)])
    every = bits(batch)
    assert {leaf.shape[-1] for leaf in every.values()} == {3 * 1793}
    file, by_shell, by_python = (
        {name: leaf[..., i * 1793 : (i + 1) * 1793] for name, leaf in every.items()}
        for i in range(3)
    )
    assert differing(file, by_shell) == {}
    assert differing(file, by_python) == {}
    cases = to_cases(table)
    assert differing(file, bits(cases)) == {}
    assert cases.plan.layout.schedule == batch.plan.layout.schedule
    assert cases.plan.layout.placement == batch.plan.layout.placement


def test_each_way_says_what_it_assumes(table, shell):
    row = next(row for row in table.rows if not row.text("zero_stage"))
    for question in (row.question, shell.asks(typed(row)), by_api(row)):
        assert "zero_stage blank" in " ".join(map(str, resolve(question).assumptions))


PLAIN = ["--devices", "64", "--model", "llama-2-7b", "--global-batch", "128", "--stack", "nemo"]
HERE = ["--set", "accelerator=H100-80GB"]


def answered(shell: Shell, *more: str) -> Plan:
    """The plan of a plain job with more arguments."""
    return resolve(shell.asks([*PLAIN, *HERE, *more])).plan


def python(**overrides: Any) -> Question:
    """The same job by the API."""
    job, site = api.Job("llama-2-7b", None, 128), api.Site("", "H100-80GB", 64)
    return api.question(job, site, Layout(tp=2), stack="nemo", overrides=overrides)


def test_an_unknown_name_gets_the_nearest_and_the_list_of_all(shell):
    for ask in (lambda: answered(shell, "--set", "graphd=1"), lambda: python(graphd=1)):
        with pytest.raises(InputError, match="'graphd'; nearest: graphed.*dmodel catalog settings"):
            ask()
    with pytest.raises(InputError, match="set: unknown name 'graphd'; nearest: graphed"):
        parse("graphd=1")


def test_a_column_in_the_cell_of_settings_is_an_error_that_names_it():
    with pytest.raises(InputError, match="tp is a column of its own; write 4 into tp"):
        parse("graphed=1; tp=4")
    with pytest.raises(InputError, match="zero is a column of its own; write 3 into zero_stage"):
        parse("zero=3")


def test_zero_is_the_column_zero_stage(shell):
    question = shell.asks([*PLAIN, *HERE, "--set", "zero=3"])
    assert question.columns["zero_stage"] == 3.0 and "zero" not in question.settings
    assert python(zero=3).columns["zero_stage"] == 3.0
    assert float(resolve(question).plan.layout.zero) == 3.0


@pytest.mark.parametrize("pair", [("tp=2", "tp=4"), ("zero=3", "zero_stage=1")])
def test_two_values_for_one_name_are_refused(shell, pair):
    with pytest.raises(InputError, match="give it once"):
        answered(shell, *(part for text in pair for part in ("--set", text)))
    assert answered(shell, "--set", "tp=2", "--set", "tp=2").layout.tp == 2.0


def test_two_values_for_one_column_are_refused_in_python_and_in_a_cell():
    with pytest.raises(InputError, match="zero_stage: given as 3 and as 1; give it once"):
        python(zero=3, zero_stage=1)
    with pytest.raises(InputError, match="graphed once, got it twice"):
        parse("graphed=1; graphed=1")


def test_set_wins_over_options(shell):
    found = answered(shell, "--tp", "2", "--set", "tp=4", "--zero", "1", "--set", "zero=3")
    assert (float(found.layout.tp), float(found.layout.zero)) == (4.0, 3.0)
    found = answered(shell, "--recompute", "0.5", "--set", "recompute=none")
    assert float(found.layout.recompute_layers) == 0.0
    found = answered(shell, "--attention", "flash", "--set", "attention=none")
    assert float(found.software.flash) == 0.0
    assert shell.asks([*PLAIN, *HERE, "--set", "n_accel=32"]).number("n_accel") == 32.0


def test_overrides_win_over_arguments():
    assert python(tp=4).number("tp") == 4.0
    assert python(precision="fp8", seq_len=1024).text("precision") == "fp8"


def test_a_setting_decides_the_same_leaf_each_way(shell):
    for name, value in (("graphed", 1.0), ("gather_bytes", 1.0), ("overlap_tp", 0.25)):
        by_shell = answered(shell, "--set", f"{name}={value}", "--tp", "2")
        by_python = resolve(python(**{name: value})).plan
        assert float(leaf(by_shell, name)) == float(leaf(by_python, name)) == value
