"""Layouts by gradient against the exhaustive search.

Claim: descent by gradient finds the best layout that the exhaustive search finds, pricing some
hundred layouts.

Relaxed degrees, micro-batches and placement, rounded and polished, on all rows of the optima and
sweeps, against the times of the authors. `python -m experiments.data_movement_limits_gradient
[--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dmodel.report import style
from dmodel.theory import Problem, gpu, run
from dmodel.theory.rounding import layouts_by_gradient
from dmodel.theory.study import MONTH_S
from experiments import data_movement as shared
from experiments.data_movement import compared
from experiments.study import COLORS, options, say
from experiments.study import run as run_study

SAME = 1e-9
"""Training times closer than this are of the same optimum: layouts among exact ties differ."""

QUICK = 12
"""Rows, of one GPU, in the quick mode."""


def rows_by_gpu(quick: bool) -> dict[str, list[dict[str, str]]]:
    """The study's optima at given numbers of GPUs, and its dense sweeps."""
    found: dict[str, list[dict[str, str]]] = {}
    for row in (*shared.reference("theory_optima"), *shared.reference("theory_runs_dense")):
        found.setdefault(row["gpu"], []).append(row)
    return {name: rows[:QUICK] for name, rows in list(found.items())[:1]} if quick else found


def lines_of(name: str, rows: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Rows of one GPU by gradient: time, its gap to the exact optimum, and what the search took."""
    sparse = [row["model_type"] == "sparse" for row in rows]
    problems = [
        Problem(run(float(row["d_model"]), sparse=s), int(row["n_gpus"]))
        for row, s in zip(rows, sparse, strict=True)
    ]
    lines = []
    for row, problem, found in zip(
        rows, problems, layouts_by_gradient(problems, gpu(name)), strict=True
    ):
        exact, months = float(row["train_time_months"]), found.best.train_time_s / MONTH_S
        lines.append(
            {
                "gpu": name,
                "model_type": row["model_type"],
                "d_model": int(row["d_model"]),
                "training_flop": float(problem.run.flop),
                "n_gpus": problem.n_gpus,
                "exact_months": exact,
                "gradient_months": months,
                "gap": months / exact - 1.0,
                "gradients": found.gradients,
                "evaluated": found.evaluated,
            }
        )
    return lines


def summary(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How many optima were found, how far the others are off, and what it took."""
    gaps = np.array([line["gap"] for line in lines])
    priced = float(np.median([line["evaluated"] for line in lines]))
    same = float(np.mean(np.abs(gaps) <= SAME))
    note = "below 0: better than the exhaustive search, but for rounding"
    return [
        compared("rows", None, float(len(gaps))),
        compared("same optimum [share of rows]", None, same, "aim: 0.95"),
        compared("largest gap", None, float(gaps.max()), "aim: 0.01"),
        compared("smallest gap", None, float(gaps.min()), note),
        compared("layouts priced, median", None, priced),
    ]


def draw(lines: list[dict[str, Any]]) -> Any:
    """What the search priced against compute; gaps are written beside their dots."""
    figure = style.new_figure(6.4, 4.0)
    axes = figure.subplots()
    names = dict.fromkeys(line["gpu"] for line in lines)
    for name, color in zip(names, COLORS, strict=False):
        mine = [line for line in lines if line["gpu"] == name]
        x, y = ([m[key] for m in mine] for key in ("training_flop", "evaluated"))
        axes.plot(x, y, "o", color=color, markersize=4, label=name)
    for line in lines:
        if line["gap"] > SAME:
            at = (line["training_flop"], line["evaluated"])
            axes.annotate(f"+{100 * line['gap']:.2g} %", at, fontsize=7)
    shared.compute_axis(axes)
    axes.set_ylim(0.0, None)
    axes.set_ylabel("layouts priced exactly")
    axes.set_title("Search by gradient")
    axes.legend(frameon=False, fontsize=7.5)
    axes.grid(axis="y", color=style.PALE, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure


def main() -> None:
    """Search all rows, compare, draw what the search priced against compute."""
    args = options(__doc__ or "")
    lines: list[dict[str, Any]] = []
    for name, rows in rows_by_gpu(args.quick).items():
        lines += lines_of(name, rows)
        say(f"{name}: {len(rows)} rows")
    shared.deliver("data_movement_limits_gradient", summary(lines), lines, draw(lines), args)


if __name__ == "__main__":
    run_study(main)
