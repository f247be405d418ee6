"""How the best batch grows with scale.

Question: how does the best batch grow with scale, when larger batches waste data but keep more
devices busy?

The cheapest run to a loss within a deadline, with shape, batch, tokens, devices and plan free,
under published laws of the critical batch. `python -m experiments.design_batch [--quick] [--json]
[--out DIR]`
"""

from __future__ import annotations

from typing import Any

from dmodel.codesign import laws
from dmodel.report import style
from experiments import design_common as shared
from experiments.design_common import Machine
from experiments.study import run as run_study
from experiments.study import say

SYSTEM, FAMILY, SEQ_LEN, DAYS = "H100-DGX", "llama-3-70b", 8192, 60.0
SCALES = (1e21, 1e22, 1e23, 1e24, 1e25)
BATCHES = {"kaplan": "Kaplan et al. 2020", "zhang": "Zhang et al. 2024", "sixth": "C^(1/6)"}


def line_of(at: Machine, batch: str, flop: float, starts: int) -> dict[str, Any] | None:
    """The cheapest run of one scale under one law of the critical batch; None when nothing keeps
    the limits."""
    chosen = laws(batch=batch)
    answer = shared.cheapest(
        at, FAMILY, SEQ_LEN, shared.scale_of(flop, chosen), chosen, DAYS, starts
    )
    if answer.found is None or answer.found.outcome is None or answer.found.plan is None:
        return None
    sizes, out, plan = answer.found.sizes, answer.found.outcome, answer.found.plan
    return {
        "batch_law": batch,
        "training_flop": flop,
        "batch_tokens": sizes["global_batch"] * SEQ_LEN,
        "critical_batch_tokens": float(out.quality.critical),
        "batch_over_critical": answer.quantities["batch"],
        "data_wasted": 1.0 - 1.0 / float(out.quality.waste),
        "devices": sizes["devices"],
        "sequences_per_replica": sizes["global_batch"] / float(plan.layout.dp),
        "parameters": float(out.parameters),
        "tokens": sizes["tokens"],
        "mfu": float(out.mfu),
        "dollars": answer.quantities["dollars"],
        "days": answer.quantities["seconds"] / shared.DAY_S,
    }


def draw(lines: list[dict[str, Any]]) -> Any:
    """Best and critical batch against compute; what of the data is wasted."""
    figure = style.new_figure(10.2, 4.0)
    left, right = figure.subplots(1, 2, width_ratios=(5, 4))
    for (law, words), color in zip(BATCHES.items(), shared.COLORS, strict=False):
        mine = [line for line in lines if line["batch_law"] == law]
        x = [line["training_flop"] for line in mine]
        left.plot(
            x,
            [line["batch_tokens"] for line in mine],
            "o-",
            color=color,
            markersize=4.5,
            label=f"{words}: best",
        )
        left.plot(
            x,
            [line["critical_batch_tokens"] for line in mine],
            ":",
            color=color,
            label=f"{words}: critical",
        )
        right.plot(
            x,
            [100.0 * line["data_wasted"] for line in mine],
            "o-",
            color=color,
            markersize=4.5,
            label=words,
        )
    left.set_yscale("log")
    left.set_ylabel("tokens per step")
    left.set_title(f"Batch of the cheapest run, {SYSTEM}, {DAYS:g} days")
    left.set_ylim(None, 10.0 * left.get_ylim()[1])
    left.legend(frameon=False, fontsize=7.5, ncols=2)
    right.set_ylim(0.0, None)
    right.set_ylabel("data wasted by the batch [%]")
    right.set_title("What it costs in data")
    right.legend(frameon=False, fontsize=7.5)
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xlabel("training compute that decides the loss [FLOP]")
        shared.quiet_grid(axes)
    return figure


def main() -> None:
    """Solve all scales under all laws."""
    args = shared.options(__doc__ or "")
    at = shared.machine(SYSTEM, args.profile)
    scales, starts, chosen = (
        (SCALES[1:3], 2, list(BATCHES)[:1]) if args.quick else (SCALES, 8, list(BATCHES))
    )
    lines = []
    for law in chosen:
        for flop in scales:
            line = line_of(at, law, flop, starts)
            if line is None:
                say(f"{law}, {flop:.0e} FLOP: nothing keeps the limits")
                continue
            lines.append(line)
            say(
                f"{law}, {flop:.0e} FLOP: {line['batch_tokens']:.3g} tokens, "
                f"{line['batch_over_critical']:.2f} of the critical batch"
            )
    shared.deliver("design_batch", lines, draw(lines), args)


if __name__ == "__main__":
    run_study(main)
