"""Claim: large runs need every kind of parallelism at once: the share log N_x / log N of each,
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


def against_runs(c: Curve) -> list[dict[str, Any]]:
    """Mean distance of the shares from the authors', and how many layouts have the same degrees."""
    theirs = {
        int(r["d_model"]): r
        for r in shared.reference("theory_runs_dense")
        if r["gpu"] == c.gpu and not c.sparse
    }
    found = [
        (shares(b), theirs[int(b.run.d_model)]) for b in c.known if int(b.run.d_model) in theirs
    ]
    if not found:
        return []
    gaps = [
        [abs(mine[k] - log(int(row[COLUMNS[k]])) / log(int(row["n_gpus"]))) for k in KINDS]
        for mine, row in found
    ]
    same = sum(max(gap) < 1e-12 for gap in gaps)
    lines = [
        compared(f"{c.label}: layouts of the same degrees", len(found), same, "others tie in time")
    ]
    for kind in KINDS:
        theirs_mean = float(
            np.mean([log(int(row[COLUMNS[kind]])) / log(int(row["n_gpus"])) for _, row in found])
        )
        lines.append(
            compared(
                f"{c.label}: mean share, {KINDS[kind]}",
                theirs_mean,
                float(np.mean([m[kind] for m, _ in found])),
            )
        )
    return lines


def main() -> None:
    """Sweep, compare, draw one panel for each GPU and kind of model."""
    args = shared.options(__doc__ or "")
    names, kinds = (GPUS[-1:], (False,)) if args.quick else (GPUS, (False, True))
    curves = [curve(n, sparse=sparse) for sparse in kinds for n in names]
    comparison = [line for c in curves for line in against_runs(c)]
    figure = style.new_figure(3.5 * len(names) + 0.8, 2.7 * len(kinds) + 0.6)
    grid = figure.subplots(len(kinds), len(names), squeeze=False, sharex=True, sharey=True)
    for axes, c in zip(grid.ravel(), curves, strict=True):
        x = [float(b.run.flop) for b in c.known]
        layers = [[shares(b)[kind] for b in c.known] for kind in KINDS]
        axes.stackplot(
            x, layers, colors=shared.COLORS, labels=list(KINDS.values()), alpha=0.85, linewidth=0
        )
        shared.compute_axis(axes, "training compute [FLOP]" if c.sparse == kinds[-1] else "")
        axes.set(ylim=(0, 1), xlim=(min(x), max(x)))
        axes.set_title(c.label)
    for row in grid:
        row[0].set_ylabel("log N_x / log N")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    lines = [
        {**point, **{f"share_{kind}": share for kind, share in shares(b).items()}}
        for c in curves
        for point, b in zip(shared.points(c), c.known, strict=True)
    ]
    shared.deliver("data_movement_limits_parallelism", comparison, lines, figure, args)


if __name__ == "__main__":
    run_study(main)
