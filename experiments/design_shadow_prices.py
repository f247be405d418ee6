"""What limits are worth: multipliers against solving again.

Claim: multipliers say what one more unit of a limit is worth, as well as solving the problem
again does.

Runs that a budget, a deadline, a loss or the hardware holds back; each price by its multiplier and
by solving again a little below and above, the plan held; and what the prices are, per natural unit.
`python -m experiments.design_shadow_prices [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from typing import Any

from dmodel.codesign import (
    Limits,
    Question,
    check_marginal_values,
    marginal_values,
    question,
    solve_question,
)
from dmodel.report import style
from experiments import design_common as shared
from experiments.study import run as run_study
from experiments.study import say

DAY = shared.DAY_S
CASES: dict[str, dict[str, Any]] = {
    "least loss for $2 million in 30 days": {
        "objective": "loss",
        "limits": Limits(dollars=2e6, seconds=30 * DAY),
    },
    "cheapest run to a loss of 2.05 in 30 days": {
        "objective": "cost",
        "limits": Limits(loss=2.05, seconds=30 * DAY),
    },
    "fastest run to a loss of 2.05 for $1 million": {
        "objective": "time",
        "limits": Limits(loss=2.05, dollars=1e6),
    },
    "least energy to a loss of 2.1 in 20 days": {
        "objective": "energy",
        "limits": Limits(loss=2.1, seconds=20 * DAY),
    },
}
LEAST = 1e-3
"""Elasticities below this are not compared: nothing hangs on them."""


def stated(at: shared.Machine, objective: str, limits: Limits) -> Question:
    """A case with shape, batch, tokens and devices free."""
    return question(
        at.system,
        shared.model("llama-3-70b", 8192),
        at.coefficients,
        objective=objective,
        limits=limits,
        free=("shape", "batch", "tokens", "devices"),
        bounds={"devices": (64.0, 4096.0)},
        devices=512.0,
        global_batch=1024.0,
    )


def lines_of(name: str, at: shared.Machine, starts: int) -> list[dict[str, Any]]:
    """Prices of one case, each checked by solving again."""
    asked = stated(at, **CASES[name])
    answer = solve_question(asked, n_starts=starts)
    if answer.found is None:
        say(f"{name}: nothing keeps the limits")
        return []
    prices = marginal_values(asked, answer.found)
    checked = {c.name: c for c in check_marginal_values(asked, answer.found, prices)}
    lines = []
    for price in prices.prices:
        again = checked.get(price.name)
        if abs(price.elasticity) < LEAST or again is None:
            continue
        lines.append(
            {
                "case": name,
                "of": price.name,
                "kind": price.kind,
                "at": price.at,
                "unit": price.unit,
                "elasticity": price.elasticity,
                "resolved": again.resolved,
                "error": again.error,
                "per_unit": price.per_unit,
                "dollars": price.dollars,
                "residual": prices.local.residual,
            }
        )
    say(
        f"{name}: {len(lines)} prices, largest difference "
        f"{100 * max(abs(line['error']) for line in lines):.3f} %"
    )
    return lines


def draw(lines: list[dict[str, Any]]) -> Any:
    """Elasticities by multipliers against those by solving again; the relative difference of
    each."""
    figure = style.new_figure(10.0, 4.2)
    left, right = figure.subplots(1, 2)
    for name, color in zip(
        dict.fromkeys(line["case"] for line in lines), shared.COLORS, strict=False
    ):
        mine = [line for line in lines if line["case"] == name]
        x, y = [abs(line["resolved"]) for line in mine], [abs(line["elasticity"]) for line in mine]
        left.plot(x, y, "o", color=color, markersize=5, alpha=0.85, label=name)
        right.plot(
            y,
            [max(100.0 * abs(line["error"]), 1e-5) for line in mine],
            "o",
            color=color,
            markersize=5,
            alpha=0.85,
        )
    ends = [LEAST, 2.0 * max(abs(line["elasticity"]) for line in lines)]
    left.plot(ends, ends, color=style.GREY, linewidth=0.8)
    right.axhline(1.0, color=style.GREY, linewidth=0.8, linestyle=":")
    right.annotate("1 %", (ends[1], 1.0), ha="right", va="bottom", fontsize=8, color=style.GREY)
    right.set_xlim(*left.get_xlim())
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_yscale("log")
        shared.quiet_grid(axes)
    left.set_xlabel("|elasticity|, by solving again")
    left.set_ylabel("|elasticity|, by the multiplier")
    left.set_title("What a limit is worth")
    left.legend(frameon=False, fontsize=7.5)
    right.set_xlabel("|elasticity|, by the multiplier")
    right.set_ylabel("difference [%]")
    right.set_title("Difference of the two")
    return figure


def main() -> None:
    """Price all cases."""
    args = shared.options(__doc__ or "")
    at = shared.machine("H100-DGX", args.profile)
    names, starts = (list(CASES)[:1], 2) if args.quick else (list(CASES), 8)
    lines = [line for name in names for line in lines_of(name, at, starts)]
    shared.deliver("design_shadow_prices", lines, draw(lines), args)


if __name__ == "__main__":
    run_study(main)
