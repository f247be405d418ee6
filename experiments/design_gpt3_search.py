"""Every plan of GPT-3 175B on 512 and 4,096 A100, decided.

Claim: every valid plan of GPT-3 175B on 512 and 4,096 A100 can be decided in seconds, and the
best one beats the usual one.

All plans of the usual space one by one, then all that a plan can vary by proven bounds; the usual
plan is 8-way tensor and 8- or 16-way pipeline parallelism of Narayanan et al. 2021. `python -m
experiments.design_gpt3_search [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dmodel import step_time
from dmodel.design import EVERYTHING, Problem, candidates, evaluate, exact, excess, merits, problem
from dmodel.design.rows import batches
from dmodel.question import Question
from dmodel.records import leaf
from dmodel.report import style
from dmodel.resolve import resolve
from experiments import design_common as shared
from experiments.counted import peak_memory
from experiments.study import run as run_study
from experiments.study import say

SYSTEM, MODEL, SEQ_LEN, BATCH = "A100-DGX", "gpt-3-175b", 2048, 1536
CHIP = "A100-80GB"

USUAL = {
    512: {"tp": 8, "pp": 8, "interleave": 12, "micro_batch": 1, "zero_stage": 1},
    4096: {"tp": 8, "pp": 16, "interleave": 6, "micro_batch": 1, "zero_stage": 1},
}
"""Devices → the usual plan: one layer a chunk, micro-batches of one sequence, distributed
optimizer, everything recomputed."""


def asked(devices: int, at: shared.Machine, everything: bool = False) -> Problem:
    """The problem of one size."""
    model = shared.model(MODEL, SEQ_LEN)
    return problem(
        at.system,
        model,
        devices,
        BATCH,
        at.coefficients,
        choices=EVERYTHING if everything else None,
    )


def all_times(stated: Problem) -> np.ndarray:
    """Step times of all plans that fit, ascending [s]."""
    kept = []
    for rows in batches(stated.space):
        found = evaluate(stated, rows)
        kept.append(merits(stated, found)[excess(stated, rows, found) <= 0.0])
    return np.sort(np.concatenate(kept))


def usual(devices: int, at: shared.Machine) -> tuple[float, str]:
    """Step time of the usual plan, and the plan in words."""
    model = shared.model(MODEL, SEQ_LEN)
    sizes = {"n_accel": devices, "global_batch": BATCH, "accelerator": CHIP, "model": MODEL}
    question = Question({**sizes, **USUAL[devices], "recompute": "full"}, model=model)
    plan = resolve(question).plan
    words = (
        f"tp {USUAL[devices]['tp']} · pp {USUAL[devices]['pp']} · v "
        f"{USUAL[devices]['interleave']} · b 1 · zero 1 · recompute full"
    )
    return float(step_time(at.system, model, plan, at.coefficients).total), words


def label(plan: Any) -> str:
    """A plan in a few words."""
    names = {
        "tp": "tp",
        "cp": "cp",
        "pp": "pp",
        "dp": "dp",
        "interleave": "v",
        "micro_batch": "b",
        "zero": "zero",
        "shard": "shard",
    }
    words = [f"{short} {float(leaf(plan, name)):g}" for name, short in names.items()]
    order = (
        ""
        if plan.layout.placement == ("tp", "cp", "ep", "dp", "pp")
        else f" · order {'-'.join(plan.layout.placement)}"
    )
    return (
        " · ".join(words)
        + f" · recompute {float(plan.layout.recompute_layers):.2f} · {plan.layout.schedule}{order}"
    )


def line_of(space: str, devices: int, at: shared.Machine) -> dict[str, Any]:
    """One search: how many plans, how long, how good."""
    stated, clock = asked(devices, at, space == "everything"), shared.Clock()
    exact(stated, 5)
    first = clock.lap()
    found = exact(stated, 5)
    warm = clock.lap()
    best = candidates(stated, found.rows)[0]
    reference, words = usual(devices, at)
    return {
        "space": space,
        "devices": devices,
        "plans": found.considered,
        "checked one by one": found.evaluated,
        "that fit": found.feasible,
        "first_s": first,
        "warm_s": warm,
        "step_time_s": float(best.step_time_s),
        "mfu": float(best.mfu),
        "best": label(best.plan),
        "usual_s": reference,
        "usual": words,
        "faster_than_usual": reference / float(best.step_time_s) - 1.0,
        "peak_memory_gib": peak_memory() / 2**30,
    }


def draw(times: dict[int, np.ndarray], lines: list[dict[str, Any]]) -> Any:
    """How many plans come how close to the best one."""
    figure = style.new_figure(10.2, 4.0)
    panels = np.atleast_1d(figure.subplots(1, len(times)))
    for axes, (devices, seconds) in zip(panels, times.items(), strict=True):
        line = next(x for x in lines if x["devices"] == devices and x["space"] == "usual")
        axes.hist(seconds / seconds[0], bins=np.geomspace(1.0, 30.0, 60), color=style.SKY)
        axes.set_xscale("log")
        axes.set_xticks([1, 2, 3, 5, 10, 20], ["1", "2", "3", "5", "10", "20"])
        axes.set_xticks([], minor=True)
        top = axes.get_ylim()[1]
        for at, words, color, side in (
            (1.0, "best", style.GREEN, "right"),
            (line["usual_s"] / seconds[0], "usual", style.VERMILLION, "left"),
        ):
            axes.axvline(at, color=color, linewidth=1.4)
            shift = (4 if side == "left" else -4, 0)
            axes.annotate(
                words,
                (at, 0.96 * top),
                color=color,
                fontsize=8,
                xytext=shift,
                textcoords="offset points",
                va="top",
                ha=side,
            )
        near = (seconds <= 1.05 * seconds[0]).sum()
        axes.set_title(f"{devices:,} A100: {line['plans']:,} plans, {len(seconds):,} fit")
        axes.set_xlabel(f"step time over that of the best plan ({near:,} within 5 %)")
        axes.set_ylabel("plans")
        shared.quiet_grid(axes)
    return figure


def main() -> None:
    """Search both sizes and both spaces, compare with the usual plan, draw all plans."""
    args = shared.options(__doc__ or "")
    at = shared.machine(SYSTEM, args.profile)
    sizes = (512,) if args.quick else (512, 4096)
    lines = []
    for devices in sizes:
        for space in ("usual",) if args.quick else ("usual", "everything"):
            lines.append(line_of(space, devices, at))
            say(
                f"{devices} devices, {space}: {lines[-1]['plans']:,} plans, "
                f"{lines[-1]['warm_s']:.2f} s warm"
            )
    times = {devices: all_times(asked(devices, at)) for devices in sizes}
    shared.deliver("design_gpt3_search", lines, draw(times, lines), args)


if __name__ == "__main__":
    run_study(main)
