"""Gradients against searches that see values only.

Question: what do gradients buy over checking everything and over searches that see values only,
for plans and for whole runs?

Gradient search, exhaustive search, random search, differential evolution and CMA-ES at equal
evaluations of the model (a gradient counts as four), on the plans of GPT-3 175B on 512 A100, and on
the cheapest run to a loss with shape, batch, tokens, devices and plan free.
`python -m experiments.design_search_methods [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dmodel.codesign import Limits, Question, laws, question, solve_question
from dmodel.codesign.answer import GRADIENT
from dmodel.design import Problem, by_gradient, evaluate, excess, merits, problem
from dmodel.design import relax as relaxed
from dmodel.design.rows import batches
from dmodel.report import style
from experiments import blackbox
from experiments import design_common as shared
from experiments.codesign_box import Box
from experiments.study import run as run_study
from experiments.study import say

PLANS = "plans of GPT-3 175B on 512 A100"
RUNS = "cheapest run to a loss, H100"
STARTS = (1, 4, 16)
COLORS = {
    "gradient": style.BLUE,
    "random": style.GREY,
    "differential evolution": style.ORANGE,
    "CMA-ES": style.GREEN,
}


def plan_problem(at: shared.Machine) -> Problem:
    """The plans of GPT-3 175B on 512 devices."""
    return problem(at.system, shared.model("gpt-3-175b", 2048), 512, 1536, at.coefficients)


def table_of(stated: Problem) -> blackbox.Table:
    """All plans with the logarithms of their step times; those that do not fit count more, the more
    memory they lack."""
    rows, values = [], []
    for part in batches(stated.space):
        found = evaluate(stated, part)
        rows.append(part)
        values.append(
            np.log(merits(stated, found)) + 10.0 * np.maximum(excess(stated, part, found), 0.0)
        )
    return blackbox.Table(np.concatenate(rows), np.concatenate(values))


def race(
    where: str, objective: Any, dimension: int, budget: int, best: float, seeds: int
) -> list[dict[str, Any]]:
    """Searches that see logarithms of the objective only: their gap to the best known (a logarithm
    too) as evaluations grow."""
    lines = []
    for method in blackbox.METHODS:
        runs = [
            blackbox.run(method, objective, dimension, budget, seed).best for seed in range(seeds)
        ]
        curves = np.expm1(np.minimum(np.array(runs) - best, 30.0))
        marks = [int(n) for n in np.unique(np.geomspace(32, budget, 24).astype(int))]
        for n in marks:
            at = curves[:, n - 1]
            lines.append(
                {
                    "problem": where,
                    "method": method,
                    "evaluations": n,
                    "gap": float(np.median(at)),
                    "worst_gap": float(at.max()),
                    "found": float((at <= 1e-9).mean()),
                    "seeds": seeds,
                }
            )
        say(
            f"{where}: {method}, {seeds} seeds: median {100 * np.median(curves[:, -1]):.2f} % "
            f"above {np.exp(best):.5g} after {budget:,}"
        )
    return lines


def gradients_on_plans(
    stated: Problem, best: float, starts: tuple[int, ...], seeds: int
) -> list[dict[str, Any]]:
    """Gradient search with few and many starts."""
    lines = []
    arms = len(relaxed.arms(stated.space, stated.system).zero)
    for n in starts:
        found = [by_gradient(stated, n_starts=n, seed=seed) for seed in range(seeds)]
        gaps = np.array([f.merit / best - 1.0 if f.fits else np.inf for f in found])
        cost = GRADIENT * relaxed.ROUNDS * relaxed.STEPS * n * arms + int(
            np.mean([f.evaluated for f in found])
        )
        lines.append(
            {
                "problem": PLANS,
                "method": "gradient",
                "evaluations": cost,
                "gap": float(np.median(gaps)),
                "worst_gap": float(gaps.max()),
                "found": float((gaps <= 1e-9).mean()),
                "seeds": seeds,
            }
        )
        say(
            f"{PLANS}: gradient, {n} starts, {cost:,} evaluations: median gap "
            f"{100 * np.median(gaps):.2f} %"
        )
    return lines


def on_plans(quick: bool) -> list[dict[str, Any]]:
    """All methods on plans alone."""
    at = shared.machine("A100-DGX")
    stated = plan_problem(at)
    table = table_of(stated)
    best = float(table.values.min())
    lines = race(PLANS, table, table.dimension, 2048 if quick else 2**14, best, 2 if quick else 5)
    lines += gradients_on_plans(
        stated, float(np.exp(best)), (2,) if quick else STARTS, 1 if quick else 3
    )
    whole = {
        "problem": PLANS,
        "method": "exhaustive",
        "evaluations": len(table.rows),
        "gap": 0.0,
        "worst_gap": 0.0,
        "found": 1.0,
        "seeds": 1,
    }
    return [*lines, whole]


def run_problem(at: shared.Machine) -> Question:
    """The cheapest run to a loss of 2.05 in 30 days."""
    return question(
        at.system,
        shared.model("llama-3-70b", 8192),
        at.coefficients,
        objective="cost",
        limits=Limits(seconds=30.0 * shared.DAY_S, loss=2.05),
        free=("shape", "batch", "tokens", "devices"),
        bounds={
            "n_layers": (8.0, 128.0),
            "d_model": (1024.0, 16384.0),
            "global_batch": (16.0, 8192.0),
            "tokens": (1e10, 1e14),
        },
        devices=512.0,
        global_batch=1024.0,
        law=laws(),
    )


def on_runs(quick: bool) -> list[dict[str, Any]]:
    """All methods on sizes and plan together; the best known is the best that any of them found."""
    stated = run_problem(shared.machine("H100-DGX"))
    lines, values = [], []
    for starts in (2,) if quick else (1, 2, 4):
        answer = solve_question(stated, n_starts=starts)
        assert answer.value is not None
        values.append(answer.value)
        lines.append(
            {
                "problem": RUNS,
                "method": "gradient",
                "evaluations": answer.evaluations.total,
                "value": answer.value,
                "seeds": 1,
            }
        )
        say(
            f"{RUNS}: gradient, {starts} starts: {answer.value:,.0f} dollars, "
            f"{answer.evaluations.total:,} evaluations"
        )
    box = Box(stated)
    budget = 4096 if quick else int(min(line["evaluations"] for line in lines))
    reached = min(values)
    raced = race(RUNS, box, box.dimension, budget, float(np.log(reached)), 2 if quick else 1)
    best = min(reached, *(reached * (1.0 + line["gap"]) for line in raced))
    for line in raced:
        ratio = reached / best
        line |= {
            "gap": ratio * (1.0 + line["gap"]) - 1.0,
            "worst_gap": ratio * (1.0 + line["worst_gap"]) - 1.0,
        }
        line |= {"value": best * (1.0 + line["gap"]), "found": float(line["worst_gap"] <= 1e-9)}
    for line in lines:
        line |= {
            "gap": line["value"] / best - 1.0,
            "worst_gap": line["value"] / best - 1.0,
            "found": float(line["value"] <= best * (1 + 1e-9)),
        }
    sizes = {"n_layers": 30, "d_model": 60, "global_batch": 20, "devices": 40}
    whole = int(np.prod(list(sizes.values()))) * box.plans_each
    return [
        *lines,
        *raced,
        {
            "problem": RUNS,
            "method": "exhaustive",
            "evaluations": whole,
            "gap": None,
            "worst_gap": None,
            "found": None,
        },
    ]


def draw(lines: list[dict[str, Any]]) -> Any:
    """Gap to the best known against evaluations."""
    figure = style.new_figure(10.4, 4.2)
    for axes, where in zip(figure.subplots(1, 2), (PLANS, RUNS), strict=True):
        _panel(axes, [line for line in lines if line["problem"] == where])
        axes.set_title(where[0].upper() + where[1:])
    return figure


def _panel(axes: Any, lines: list[dict[str, Any]]) -> None:
    for method, color in COLORS.items():
        mine = sorted(
            (line for line in lines if line["method"] == method), key=lambda x: x["evaluations"]
        )
        x = [line["evaluations"] for line in mine]
        y = [max(100.0 * line["gap"], 1e-3) for line in mine]
        marks = "o-" if method == "gradient" else "-"
        axes.plot(x, y, marks, color=color, markersize=4.5, linewidth=1.5, label=method)
    whole = next(line["evaluations"] for line in lines if line["method"] == "exhaustive")
    axes.axvline(whole, color=style.INK, linewidth=0.9, linestyle=":")
    axes.annotate(
        f"all of them: {whole:,.3g}" if whole > 1e7 else f"all of them: {whole:,}",
        (whole, 30.0),
        rotation=90,
        fontsize=7.5,
        ha="right",
        va="center",
        xytext=(-3, 0),
        textcoords="offset points",
    )
    axes.set(xscale="log", yscale="log", ylim=(7e-4, 300.0))
    axes.set_yticks([1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0], ["found", "0.01", "0.1", "1", "10", "100"])
    axes.set_xlabel("evaluations of the model (a gradient counts as four)")
    axes.set_ylabel("above the best known [%], median of seeds")
    axes.legend(frameon=False, fontsize=7.5, loc="lower left")
    shared.quiet_grid(axes)


def main() -> None:
    """Race on both problems."""
    args = shared.options(__doc__ or "")
    lines = [*on_plans(args.quick), *on_runs(args.quick)]
    ends: dict[tuple, dict[str, Any]] = {}
    for line in lines:
        ends[
            line["problem"],
            line["method"],
            line["evaluations"] if line["method"] == "gradient" else 0,
        ] = line
    shared.deliver("design_search_methods", lines, draw(lines), args, summary=list(ends.values()))


if __name__ == "__main__":
    run_study(main)
