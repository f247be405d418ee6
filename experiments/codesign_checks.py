"""Co-design checked: the search against a grid of every combination with every plan, prices against
solving again, a plan under doubt.

    python -m experiments.codesign_checks            all three, minutes
    python -m experiments.codesign_checks --quick    a coarse grid

The run: the lowest loss that a budget of dollars and days buys on H100s, with depth, width, batch,
tokens, devices, the memory of a device and the bandwidth between nodes free, the last two at the
prices of `dmodel.codesign.bill`.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from dmodel import profiles
from dmodel.codesign import (
    CoDesign,
    Limits,
    Question,
    check_marginal_values,
    exhaustive,
    marginal_values,
    profile_samples,
    question,
    robust,
    solve_question,
)
from dmodel.codesign.lattice import rungs
from dmodel.design import Choices
from dmodel.records import leaf
from dmodel.types import InputError
from experiments.design_common import DAY_S, machine, model, options
from experiments.study import run, say, write

FREE = ("n_layers", "d_model", "global_batch", "devices", "tokens", "hbm_bytes", "bytes_per_s[1]")
BOUNDS = {
    "n_layers": (16.0, 64.0),
    "d_model": (2048.0, 8192.0),
    "global_batch": (64.0, 1024.0),
    "devices": (32.0, 256.0),
}
PLANS = Choices(zero=(1, 3), sp=(1,), shards="whole", recompute=(0.0, 1.0), schedules=("1f1b",))
SAMPLES = 128


def stated(profile: str | None) -> Question:
    """The run."""
    at = machine("H100-DGX", profile)
    return question(
        at.system,
        model("llama-3-8b", 4096),
        at.coefficients,
        objective="loss",
        limits=Limits(dollars=1e5, seconds=30.0 * DAY_S),
        free=FREE,
        devices=128.0,
        global_batch=256.0,
        bounds=BOUNDS,
        choices=PLANS,
    )


def axes(asked: Question, quick: bool) -> dict[str, np.ndarray]:
    """Values of the grid: every n-th rung of what is discrete; of hardware half, once and twice the
    catalog's."""
    every = dict(zip(BOUNDS, (6, 3, 5, 3) if quick else (3, 2, 4, 3), strict=True))
    u, sizes = asked.unknowns, asked.unknowns.values(np.log(asked.unknowns.value))
    found = {name: rungs(name, sizes, u, asked.world.fixed)[:: every[name]] for name in BOUNDS}
    return found | {
        name: sizes[name] * np.geomspace(0.5, 2.0, 3) for name in ("hbm_bytes", "bytes_per_s[1]")
    }


def against_grid(asked: Question, quick: bool) -> tuple[list[dict[str, Any]], CoDesign]:
    """The search and the grid side by side; also the answer of the search."""
    answer = solve_question(asked, n_starts=4)

    def tell(done: int, of: int) -> None:
        if done % 1000 == 0 or done == of:
            say(f"grid: {done} of {of} combinations")

    grid = exhaustive(asked, axes(asked, quick), progress=tell)
    if answer.found is None or grid.best is None or answer.value is None or grid.value is None:
        raise InputError("no design keeps the limits: choose a larger budget")
    say(f"grid's best: {', '.join(f'{n} {float(grid.best.sizes[n]):.4g}' for n in FREE)}")
    say(f"search's best: {', '.join(f'{n} {float(answer.found.sizes[n]):.4g}' for n in FREE)}")
    mine, theirs = answer.evaluations, grid.evaluations
    say(
        f"loss {answer.value:.5f} with {mine.total:,} evaluations; grid: {grid.value:.5f} with "
        f"{theirs:,}, {theirs / mine.total:.0f} times"
    )
    return [
        _line(
            "loss of the search, and of the grid",
            answer.value,
            grid.value,
            answer.value / grid.value - 1.0,
            f"{FREE}",
        ),
        _line(
            "evaluations, a gradient as 4",
            float(mine.total),
            float(theirs),
            theirs / mine.total,
            f"{grid.combinations} combinations",
        ),
        _line(
            "gradients and plans, each as 1",
            float(mine.gradients + mine.plans + mine.other),
            float(theirs),
            theirs / (mine.gradients + mine.plans + mine.other),
            f"{mine}",
        ),
    ], answer


def _line(what: str, value: float, against: float, relative: float, worth: str) -> dict[str, Any]:
    return {
        "check": "grid",
        "what": what,
        "value": value,
        "against": against,
        "relative": relative,
        "worth": worth,
    }


def priced(asked: Question, answer: CoDesign) -> list[dict[str, Any]]:
    """Every price by its multiplier, and by solving again a little to either side."""
    prices = marginal_values(asked, answer.found)  # type: ignore[arg-type]
    checked = check_marginal_values(asked, answer.found, prices)  # type: ignore[arg-type]
    return [
        {
            "check": "price",
            "what": f"one more {p.unit} of {p.name}, at {p.at:.4g}",
            "value": p.elasticity,
            "against": c.resolved,
            "relative": c.error,
            "worth": f"{p.per_unit:+.3g} {prices.unit}, {p.dollars or 0.0:,.4g} dollars",
        }
        for p, c in zip(prices.prices, checked, strict=True)
    ]


def doubted(asked: Question, answer: CoDesign) -> list[dict[str, Any]]:
    """The plans that are best in some sample of the coefficients, against the one that is best at
    their center."""
    at = machine("H100-DGX")
    samples = profile_samples(profiles.load(at.profile), at.accelerator, None, SAMPLES)
    found = robust(asked, answer.found.sizes, samples)  # type: ignore[union-attr]
    say(found.statement)
    names = ("dp", "tp", "cp", "pp", "zero", "micro_batch")
    return [
        {
            "check": "doubt",
            "what": " ".join(f"{n}={float(leaf(c.plan, n)):g}" for n in names),
            "value": c.mean,
            "against": found.nominal.mean,
            "relative": c.regret,
            "worth": (
                f"best in {c.best_share:.0%} of {found.samples} samples; {c.low:.4f} to "
                f"{c.high:.4f}"
            ),
        }
        for c in found.candidates[:6]
    ]


def main() -> None:
    """Print one table: what, by the search or multipliers, against what, and their difference or
    ratio."""
    about = options(__doc__ or "")
    asked = stated(about.profile)
    rows, answer = against_grid(asked, about.quick)
    say(answer.statement)
    lines = [*rows, *priced(asked, answer), *doubted(asked, answer)]
    about.out.mkdir(parents=True, exist_ok=True)
    path = write(about.out / "codesign_checks.csv", lines)
    if about.json:
        print(
            json.dumps(
                {"study": "codesign_checks", "table": str(path), "rows": lines}, allow_nan=False
            )
        )
        return
    for line in ({name: name for name in lines[0]}, *lines):
        print(
            "  ".join(
                f"{x:.6g}".ljust(12) if isinstance(x, float) else str(x).ljust(12)
                for x in line.values()
            )
        )
    print(f"table: {path}")


if __name__ == "__main__":
    run(main)
