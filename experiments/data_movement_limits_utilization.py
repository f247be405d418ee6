"""Utilization against compute on V100, A100 and H100.

Claim: training scales linearly to about 2e28 FLOP in three months and ends at 3e31: V100, A100
and H100, dense and sparse.

Every swept run of the dense models is held against the authors' own (utilization and GPUs), and the
sparse ones at the cluster sizes of which theirs are known. `python -m
experiments.data_movement_limits_utilization [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from typing import Any

from dmodel.report import style
from dmodel.theory import Best, Problem, best_layouts, gpu, run
from dmodel.theory.study import MONTH_S
from experiments import data_movement as shared
from experiments.data_movement import Curve, compared, curve
from experiments.study import COLORS, options
from experiments.study import run as run_study

GPUS = ("V100 SXM", "A100 SXM", "H100 SXM")


def against_runs(c: Curve) -> list[dict[str, Any]]:
    """Largest distance of a dense curve from the authors' runs: utilization, and how many of the
    cluster sizes are the same."""
    theirs = {
        int(r["d_model"]): r for r in shared.reference("theory_runs_dense") if r["gpu"] == c.gpu
    }
    mine = [b for b in c.known if int(b.run.d_model) in theirs]
    if c.sparse or not mine:
        return []
    gap = max(
        abs(b.utilization / float(theirs[int(b.run.d_model)]["utilization"]) - 1.0) for b in mine
    )
    same = sum(b.n_gpus == int(theirs[int(b.run.d_model)]["n_gpus"]) for b in mine)
    return [
        compared(f"{c.label}: runs with the same cluster", len(mine), same, "runs of the authors"),
        {
            **compared(
                f"{c.label}: utilization of all of them", None, None, "largest relative difference"
            ),
            "difference": gap,
        },
    ]


def against_optima(names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Largest difference of training time at the cluster sizes of the authors' optima, by GPU and
    kind of model."""
    found = []
    rows = [r for r in shared.reference("theory_optima") if r["gpu"] in names]
    for name, kind in dict.fromkeys((r["gpu"], r["model_type"]) for r in rows):
        some = [r for r in rows if (r["gpu"], r["model_type"]) == (name, kind)]
        problems = [
            Problem(
                run(float(r["d_model"]), float(r["d_ff"]), sparse=kind == "sparse"),
                int(r["n_gpus"]),
            )
            for r in some
        ]
        answers = best_layouts(problems, gpu(name))
        gaps = [
            (b.train_time_s / MONTH_S) / float(r["train_time_months"]) - 1.0
            for b, r in zip(answers, some, strict=True)
            if isinstance(b, Best)
        ]
        line = compared(
            f"{name}, {kind}: best time at given clusters",
            len(some),
            len(gaps),
            "optima; largest relative difference",
        )
        found.append({**line, "difference": max(gaps, key=abs)})
    return found


def main() -> None:
    """Sweep all, compare, draw."""
    args = options(__doc__ or "")
    names = GPUS[-1:] if args.quick else GPUS
    curves = [curve(name, sparse=sparse) for sparse in (False, True) for name in names]
    comparison = [line for c in curves for line in (*shared.headlines(c), *against_runs(c))]
    comparison += against_optima(names)
    figure = style.new_figure(7.4, 4.4)
    axes = figure.subplots()
    colors = {c.label: COLORS[names.index(c.gpu)] for c in curves}
    shared.draw_curves(axes, curves, colors)
    axes.set_title("What three months of training can use")
    shared.legend(axes, loc="upper right")
    shared.deliver(
        "data_movement_limits_utilization",
        comparison,
        [p for c in curves for p in shared.points(c)],
        figure,
        args,
    )


if __name__ == "__main__":
    run_study(main)
