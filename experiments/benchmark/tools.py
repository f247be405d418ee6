"""Other tools: what they are, how they are run, and their answers to the rows of the table."""

from __future__ import annotations

import csv
import math
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dmodel.errors import InputError
from experiments.benchmark.answers import Answer, Answers
from experiments.benchmark.protocols import (
    PROBABILITY,
    SECONDS,
    Task,
    protocol,
    row_of,
    size_of,
    tasks,
    usable,
)
from experiments.benchmark.questions import write
from experiments.benchmark.table import inputs, measured, table

ROOT = Path(__file__).parents[2]
"""Folder that adapters are run in."""

ENOUGH = 3
"""Training rows from which a constant is set, at least."""

GRID = 201
"""Constants that are tried between the least and the largest that a tool has answered for."""


class Tool(NamedTuple):
    """A tool that is compared.

    Attributes:
      title: as it is called. adapter: module in `experiments.benchmark.rivals`; "" for what is
        computed here. source: where it is from. checkout: whether it is run from one; where it is
        optional a checkout makes a line of its own. own: its constant as it comes; NaN = it has
        none. constants: further ones that are tried. constant: what that is.
    """

    title: str
    adapter: str
    source: str
    checkout: bool
    own: float
    constants: tuple[float, ...]
    constant: str


TOOLS: dict[str, Tool] = {
    "rule": Tool(
        "6N FLOP per token at 40 % of peak",
        "",
        "a rule of thumb",
        False,
        0.4,
        (0.05, 0.9),
        "share of peak FLOP/s",
    ),
    "llm-analysis": Tool(
        "llm-analysis (index)",
        "llm_analysis",
        "of the package index, as llm-analysis",
        False,
        0.5,
        (0.1, 0.2, 0.35, 0.75, 1.0),
        "share of peak FLOP/s",
    ),
    "llm-analysis-main": Tool(
        "llm-analysis (checkout)",
        "llm_analysis",
        "https://github.com/cli99/llm-analysis",
        True,
        0.5,
        (0.1, 0.2, 0.35, 0.75, 1.0),
        "share of peak FLOP/s",
    ),
    "mlsysim": Tool(
        "mlsysim",
        "mlsysim",
        "of the package index, as mlsysim",
        False,
        0.5,
        (0.1, 0.2, 0.35, 0.75, 1.0),
        "share of peak FLOP/s",
    ),
    "calculon": Tool(
        "Calculon",
        "calculon",
        "https://github.com/calculon-ai/calculon",
        True,
        1.0,
        (0.1, 0.25, 0.5, 0.75, 1.05),
        "factor on the rate of matrix units",
    ),
    "simumax": Tool(
        "SimuMax",
        "simumax",
        "https://github.com/MooreThreads/SimuMax",
        True,
        1.0,
        (0.5, 1.8),
        "factor on the rates of products",
    ),
    "megatron": Tool(
        "Megatron-LM's estimate of memory",
        "megatron",
        "https://github.com/NVIDIA/Megatron-LM",
        True,
        math.nan,
        (),
        "",
    ),
}


class Known(NamedTuple):
    """What a tool says of the rows of the table.

    Attributes:
      version: of the tool. seconds: step time [s] by row and constant, the tool's own among them.
      bytes: peak [byte] by row. reasons: why rows are not covered, with how many.
    """

    version: str
    seconds: dict[str, dict[float, float]]
    bytes: dict[str, float]
    reasons: dict[str, int]


class Failed(Exception):
    """A tool that could not be run; the message says why."""


def ask(name: str, python: str, checkout: Path | None, folder: Path, reuse: bool) -> Known:
    """The answers of a tool to every row, from its adapter or from an earlier run of it.

    Args:
      python: an interpreter that has the tool. checkout: of a tool that is run from one.
      folder: where answers are kept. reuse: take them from there if they are there.
    Raises:
      Failed: it cannot be run.
    """
    tool = TOOLS[name]
    if not tool.adapter:
        return _rule()
    if tool.checkout and checkout is None:
        raise Failed(f"it is run from a checkout: --checkout {name}=FOLDER")
    rows = write(list(inputs().values()), folder / "rows.csv")
    out, told = folder / f"{name}.csv", folder / f"{name}.txt"
    if not (reuse and out.is_file() and told.is_file()):
        said = _run(tool, python, checkout, rows, out)
        told.write_text(said, encoding="utf-8")
    version = told.read_text(encoding="utf-8").strip()
    with out.open(newline="", encoding="utf-8") as file:
        return _known(list(csv.DictReader(file)), tool.own, version)


def _run(tool: Tool, python: str, checkout: Path | None, rows: Path, out: Path) -> str:
    """Run an adapter; the tool's version."""
    command = [python, "-m", f"experiments.benchmark.rivals.{tool.adapter}"]
    command += ["--rows", str(rows.resolve()), "--out", str(out.resolve())]
    command += ["--checkout", str(checkout.resolve())] if checkout else []
    command += ["--constants", *map(str, tool.constants)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
    except OSError as e:
        raise Failed(str(e)) from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise Failed(lines[-1])
    return " ".join([done.stdout.strip(), _commit(checkout)]).strip()


def _commit(checkout: Path | None) -> str:
    """Commit of a checkout, and its date; "" where there is none."""
    if checkout is None:
        return ""
    command = ["git", "-C", str(checkout), "log", "-1", "--format=%h of %cs"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


def _known(lines: Sequence[Mapping[str, str]], own: float, version: str) -> Known:
    seconds: dict[str, dict[float, float]] = {}
    held: dict[str, float] = {}
    for line in lines:
        if line["seconds"]:
            constant = float(line["constant"] or own)
            seconds.setdefault(line["id"], {})[constant] = float(line["seconds"])
        if line["bytes"] and not line["constant"]:
            held[line["id"]] = float(line["bytes"])
    why = Counter(line["reason"] for line in lines if line["reason"])
    return Known(version, seconds, held, dict(why.most_common()))


def _rule() -> Known:
    """The rule of thumb: FLOP of active parameters at a share of peak, nothing else."""
    tool, found = TOOLS["rule"], {}
    for name, row in inputs().items():
        real = {key: float(row[key]) for key in ("active_params", "n_accel", "flops_per_s")}
        tokens = float(row["global_batch"]) * float(row["seq_len"])
        ideal = 6.0 * real["active_params"] * tokens / real["n_accel"] / real["flops_per_s"]
        found[name] = {share: ideal / share for share in (tool.own, *tool.constants)}
    return Known("", found, {}, {})


def answers(name: str, known: Known, own: float, tuned: bool) -> Answers | None:
    """A tool's answers to a protocol; None where it says nothing of the kind, or has no constant.

    Args:
      own: its constant as it comes. tuned: set the constant on the protocol's training rows; of
        memory, a factor.
    """
    kind = protocol(name).answer
    if kind != SECONDS:
        return _of_memory(name, known, tuned) if known.bytes else None
    if not known.seconds or (tuned and math.isnan(own)):
        return None
    found: Answers = {}
    for task in tasks(name):
        constant = _set(name, task, known) if tuned else lambda _: own
        for row in task.judge:
            if row in known.seconds:
                value = _at(known.seconds[row], constant(inputs()[row]["accelerator"]))
                found[row, task.draw] = Answer(float(value))
    return found


def _of_memory(name: str, known: Known, tuned: bool) -> Answers:
    """Answers in bytes; as a probability of running out, the share that the peak has of itself and
    the device: a half where they are alike. Tuned: times one factor, set on the training rows."""
    risky = protocol(name).answer == PROBABILITY
    found: Answers = {}
    for task in tasks(name):
        factor = _factor(name, task, known) if tuned else 1.0
        for question in task.judge:
            if row_of(question) in known.bytes:
                held = factor * known.bytes[row_of(question)]
                value = held / (held + size_of(question)) if risky else held
                found[question, task.draw] = Answer(value)
    return found


def _factor(name: str, task: Task, known: Known) -> float:
    """The middle of measured over predicted peaks of the rows that are not hidden [1]."""
    was, may = measured(table())["bytes"], usable(name, task)
    ratios = [
        was[row] / known.bytes[row]
        for row, allowed in zip(table().ids, may.tolist(), strict=True)
        if allowed and row in known.bytes and was[row] > 0.0
    ]
    return float(np.median(ratios)) if len(ratios) >= ENOUGH else 1.0


def _set(name: str, task: Task, known: Known) -> Callable[[str], float]:
    """The constant of each chip: with the least mean error of ln(time) on the rows given; where
    these are too few, on the rows of the chip that are not hidden, else on all that are not."""
    ids, chips = np.array(table().ids), table().cases.labels.accelerator
    covered = np.isin(ids, list(known.seconds))
    given, others = table().mask(task.train) & covered, usable(name, task) & covered
    found: dict[str, float] = {}

    def constant(chip: str) -> float:
        if chip not in found:
            choices = [given, others & (chips == chip), others]
            chosen = next((rows for rows in choices if rows.sum() >= ENOUGH), None)
            if chosen is None:
                raise InputError(f"no rows to set a constant on for {name}, {task.name}")
            found[chip] = _best(ids[chosen].tolist(), known)
        return found[chip]

    return constant


def _best(rows: Sequence[str], known: Known) -> float:
    """The constant with the least mean |ln(predicted / measured)| of some rows, each source of
    which weighs alike."""
    was, place = measured(table())["seconds"], table().place
    sources = table().cases.labels.source[[place[row] for row in rows]]
    _, of, count = np.unique(sources, return_inverse=True, return_counts=True)
    ends = [[min(known.seconds[row]), max(known.seconds[row])] for row in rows]
    tried = np.geomspace(min(e[0] for e in ends), max(e[1] for e in ends), GRID)
    off = [np.abs(np.log(_at(known.seconds[row], tried) / was[row])) for row in rows]
    return float(tried[np.argmin(np.average(off, 0, weights=1.0 / count[of]))])


def _at(by_constant: Mapping[float, float], constant: np.ndarray | float) -> np.ndarray | float:
    """Step time at a constant, between those that were answered by their logarithms [s]."""
    if isinstance(constant, float) and constant in by_constant:
        return by_constant[constant]
    known = sorted(by_constant)
    times = np.log([by_constant[each] for each in known])
    return np.exp(np.interp(np.log(constant), np.log(known), times))
