"""The gradient search against the best of all plans, 64 jobs.

Claim: the search by gradient finds the best of all valid plans, after rounding and polish, on
nearly every case, and misses by little.

The 64 jobs of `experiments.search_cases`: thirteen models on ten systems; on each all valid plans
are decided exactly and the plan by gradient is held against the best. `python -m
experiments.design_benchmark [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dmodel.design import by_gradient, exact
from dmodel.report import style
from experiments import design_common as shared
from experiments.search_cases import CASES, Case, stated
from experiments.study import run as run_study
from experiments.study import say

SAME, NEAR = 1e-9, 0.01


def line_of(case: Case, profile: str | None) -> dict[str, Any] | None:
    """Both searches of one case; None when no plan fits."""
    asked, clock = stated(case, profile), shared.Clock()
    all_plans = exact(asked, 1)
    exact_s = clock.lap()
    if not len(all_plans.merits):
        return None
    found = by_gradient(asked)
    best = float(all_plans.merits[0])
    return {
        **case._asdict(),
        "plans": all_plans.considered,
        "exact_s": exact_s,
        "gradient_s": clock.lap(),
        "step_time_s": best,
        "gap": found.merit / best - 1.0 if found.fits else None,
        "plans_polished": found.evaluated,
    }


def summary(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Shares of cases found and nearly found, and the largest gap."""
    gaps = np.array([np.inf if line["gap"] is None else line["gap"] for line in lines])
    worst = max(lines, key=lambda line: np.inf if line["gap"] is None else line["gap"])
    return [
        {"what": "cases with a plan that fits", "value": float(len(lines))},
        {"what": "optimum found, share", "value": float((gaps <= SAME).mean()), "aim": "0.95"},
        {"what": "within 1 %, share", "value": float((gaps <= NEAR).mean()), "aim": "1"},
        {
            "what": "largest gap [%]",
            "value": float(100.0 * gaps.max()) if np.isfinite(gaps.max()) else None,
            "aim": "",
            "where": f"{worst['model']}, {worst['devices']} × {worst['system']}",
        },
        {"what": "plans decided, all cases", "value": float(sum(line["plans"] for line in lines))},
        {
            "what": "exact search, median [s]",
            "value": float(np.median([line["exact_s"] for line in lines])),
        },
        {
            "what": "gradient search, median [s]",
            "value": float(np.median([line["gradient_s"] for line in lines])),
        },
    ]


def kind(line: dict[str, Any]) -> str:
    """What a case is in the figure."""
    if line["everything"]:
        return "all that a plan can vary"
    return (
        "usual choices, mixtures of experts"
        if line["model"].startswith(("mixtral", "deepseek"))
        else "usual choices, dense models"
    )


def draw(lines: list[dict[str, Any]]) -> Any:
    """Gap of every case against the number of its plans."""
    figure = style.new_figure(7.4, 4.0)
    axes = figure.subplots()
    kinds = sorted({kind(line) for line in lines}, reverse=True)
    for name, color in zip(kinds, shared.COLORS[: len(kinds)], strict=True):
        mine = [line for line in lines if kind(line) == name and line["gap"] is not None]
        gaps = [max(100.0 * line["gap"], 1e-3) for line in mine]
        axes.plot(
            [line["plans"] for line in mine],
            gaps,
            "o",
            color=color,
            markersize=5,
            alpha=0.8,
            label=name,
        )
    axes.axhline(1.0, color=style.GREY, linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(6e-4, 30.0)
    axes.set_yticks([1e-3, 1e-2, 0.1, 1.0, 10.0], ["found", "0.01", "0.1", "1", "10"])
    axes.set_xlabel("valid plans, all decided")
    axes.set_ylabel("above the best of all plans [%]")
    axes.set_title(f"Search by gradient on {len(lines)} cases")
    axes.legend(frameon=False, fontsize=7.5)
    shared.quiet_grid(axes)
    return figure


def main() -> None:
    """Solve all cases both ways."""
    args = shared.options(__doc__ or "")
    cases = [case for case in CASES if case.model == "llama-3-8b"][:4] if args.quick else CASES
    lines = []
    for case in cases:
        line = line_of(case, args.profile)
        if line is None:
            say(f"{case.name}: no plan fits")
            continue
        lines.append(line)
        gap = "no plan that fits" if line["gap"] is None else f"{100.0 * line['gap']:.3f} %"
        say(
            f"{case.name}: {line['plans']:,} plans in {line['exact_s']:.1f} s, gradient {gap} "
            "in "
            f"{line['gradient_s']:.1f} s"
        )
    shared.deliver("design_benchmark", lines, draw(lines), args, summary=summary(lines))


if __name__ == "__main__":
    run_study(main)
