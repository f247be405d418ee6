"""Shares of each kind of parallelism in the best layouts.

Claim: large runs need every kind of parallelism at once: the share log N_x / log N of each,
against training compute.

Best layouts of the smallest clusters in time, by GPU, dense and sparse; dense ones against the
authors' degrees (exact ties exist: layouts of one time with other degrees). `python -m
experiments.data_movement_limits_parallelism [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np

from dmodel.report import style
from dmodel.theory import Best
from experiments import data_movement as shared
from experiments.data_movement import Curve, compared, curve
from experiments.study import COLORS, options
from experiments.study import run as run_study

KINDS = {
    "dp": "data",
    "tp_model": "tensor, d_model",
    "tp_ff": "tensor, d_ff",
    "pp": "pipeline",
    "ep": "expert",
}
COLUMNS = {"dp": "N_DP", "tp_model": "N_TP_model", "tp_ff": "N_TP_ff", "pp": "N_PP", "ep": "N_EP"}
GPUS = ("V100 SXM", "A100 SXM", "H100 SXM")


def shares(best: Best) -> dict[str, float]:
    """log N_x / log N of every kind; they add up to one."""
    return {
        kind: log(float(np.prod(getattr(best.degrees, kind)))) / log(best.n_gpus) for kind in KINDS
    }


def theirs(row: dict[str, str]) -> dict[str, float]:
    """The same of a run of the authors."""
    return {kind: log(int(row[name])) / log(int(row["n_gpus"])) for kind, name in COLUMNS.items()}


def against_runs(c: Curve) -> list[dict[str, Any]]:
    """Mean distance of the shares from the authors', and how many layouts have the same degrees."""
    published = {
        int(r["d_model"]): theirs(r)
        for r in shared.reference("theory_runs_dense")
        if r["gpu"] == c.gpu and not c.sparse
    }
    known = [b for b in c.known if int(b.run.d_model) in published]
    if not known:
        return []
    ours, others = [shares(b) for b in known], [published[int(b.run.d_model)] for b in known]
    same = sum(alike(a, b) for a, b in zip(ours, others, strict=True))
    lines = [
        compared(f"{c.label}: layouts of the same degrees", len(known), same, "others tie in time")
    ]
    return lines + [
        compared(f"{c.label}: mean share, {words}", mean(others, kind), mean(ours, kind))
        for kind, words in KINDS.items()
    ]


def alike(ours: dict[str, float], others: dict[str, float]) -> bool:
    """Whether all shares are the same."""
    return max(abs(ours[kind] - others[kind]) for kind in KINDS) < 1e-12


def mean(found: list[dict[str, float]], kind: str) -> float:
    """Mean share of a kind."""
    return float(np.mean([each[kind] for each in found]))


def points(c: Curve) -> list[dict[str, Any]]:
    """Lines of a curve's table, with the share of every kind."""
    return [
        {**point, **{f"share_{kind}": share for kind, share in shares(b).items()}}
        for point, b in zip(shared.points(c), c.known, strict=True)
    ]


def draw(curves: list[Curve], rows: int, columns: int) -> Any:
    """One panel for each GPU and kind of model."""
    figure = style.new_figure(3.5 * columns + 0.8, 2.7 * rows + 0.6)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes, c in zip(grid.ravel(), curves, strict=True):
        _panel(axes, c)
        axes.set_xlabel("training compute [FLOP]" if axes in grid[-1] else "")
    for row in grid:
        row[0].set_ylabel("log N_x / log N")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    return figure


def _panel(axes: Any, c: Curve) -> None:
    x = [float(b.run.flop) for b in c.known]
    layers = [[shares(b)[kind] for b in c.known] for kind in KINDS]
    look = {"colors": COLORS, "alpha": 0.85, "linewidth": 0}
    axes.stackplot(x, layers, labels=list(KINDS.values()), **look)
    shared.compute_axis(axes)
    axes.set(ylim=(0, 1), xlim=(min(x), max(x)))
    axes.set_title(c.label)


def main() -> None:
    """Sweep, compare, draw one panel for each GPU and kind of model."""
    args = options(__doc__ or "")
    names, kinds = (GPUS[-1:], (False,)) if args.quick else (GPUS, (False, True))
    curves = [curve(n, sparse=sparse) for sparse in kinds for n in names]
    comparison = [line for c in curves for line in against_runs(c)]
    lines = [point for c in curves for point in points(c)]
    figure = draw(curves, len(kinds), len(names))
    shared.deliver("data_movement_limits_parallelism", comparison, lines, figure, args)


if __name__ == "__main__":
    run_study(main)
