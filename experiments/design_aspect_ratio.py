"""Do runs get shorter and fatter with scale?

Question: do runs get shorter and fatter with scale, because depth is harder to spread over
devices than width?

The cheapest run to a loss within a deadline, with depth, width, batch, tokens, devices and plan
free, for growing compute; with a law that says what an unusual depth costs in loss, with a tenth of
that penalty, and with none, where the machine alone decides.
`python -m experiments.design_aspect_ratio [--quick] [--json] [--out DIR]`
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
PENALTIES = {1.0: "penalty of the law", 0.1: "a tenth of it", 0.0: "none: the machine decides"}
"""Share of the law's penalty on depth → what it is called."""


def law_depth(width: float) -> float:
    """Depth that the shape law prefers for a width."""
    law = laws().shape
    return float(law.scale * width**law.exponent)


def line_of(at: Machine, penalty: float, flop: float, starts: int) -> dict[str, Any] | None:
    """The cheapest run of one scale under a share of the penalty; None when nothing keeps the
    limits."""
    usual_laws = laws()
    chosen = usual_laws.replace(
        shape=usual_laws.shape.replace(depth=penalty * usual_laws.shape.depth)
    )
    scale = shared.scale_of(flop, chosen)
    answer = shared.cheapest(at, FAMILY, SEQ_LEN, scale, chosen, DAYS, starts)
    if answer.found is None or answer.found.outcome is None or answer.found.plan is None:
        return None
    sizes, out, plan = answer.found.sizes, answer.found.outcome, answer.found.plan
    usual = law_depth(sizes["d_model"])
    return {
        "penalty": penalty,
        "training_flop": flop,
        "loss": scale.loss,
        "parameters": float(out.parameters),
        "n_layers": sizes["n_layers"],
        "d_model": sizes["d_model"],
        "width_over_depth": sizes["d_model"] / sizes["n_layers"],
        "law_width_over_depth": sizes["d_model"] / usual,
        "depth_over_law": sizes["n_layers"] / usual,
        "devices": sizes["devices"],
        "tokens": sizes["tokens"],
        "batch_tokens": sizes["global_batch"] * SEQ_LEN,
        "tp": float(plan.layout.tp),
        "pp": float(plan.layout.pp),
        "mfu": float(out.mfu),
        "dollars": answer.quantities["dollars"],
        "days": answer.quantities["seconds"] / shared.DAY_S,
    }


def draw(lines: list[dict[str, Any]]) -> Any:
    """Aspect ratio and depth against compute."""
    figure = style.new_figure(10.2, 4.0)
    left, right = figure.subplots(1, 2)
    for (penalty, words), color in zip(
        PENALTIES.items(), (style.BLUE, style.GREEN, style.VERMILLION), strict=True
    ):
        mine = [line for line in lines if line["penalty"] == penalty]
        x, ratio, depth = (
            [line[key] for line in mine]
            for key in ("training_flop", "width_over_depth", "n_layers")
        )
        look = {"color": color, "markersize": 4.5, "label": words}
        left.plot(x, ratio, "o-", **look)
        right.plot(x, depth, "o-", **look)
    _by_the_law(left, right, [line for line in lines if line["penalty"] == 1.0])
    for axes, words, title in (
        (left, "width over depth", "Aspect ratio"),
        (right, "layers", "Depth"),
    ):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("training compute that decides the loss [FLOP]")
        axes.set_ylabel(words)
        axes.set_title(f"{title} of the cheapest run, {SYSTEM}, {DAYS:g} days")
        shared.quiet_grid(axes)
        shared.plain_ticks(axes)
    left.legend(frameon=False, fontsize=7.5)
    return figure


def _by_the_law(left: Any, right: Any, mine: list[dict[str, Any]]) -> None:
    x = [line["training_flop"] for line in mine]
    depth = [line["n_layers"] / line["depth_over_law"] for line in mine]
    look = {"color": style.GREY, "label": "what the law alone prefers"}
    left.plot(x, [line["law_width_over_depth"] for line in mine], ":", **look)
    right.plot(x, depth, ":", **look)


def main() -> None:
    """Solve all scales under all penalties."""
    args = shared.options(__doc__ or "")
    at = shared.machine(SYSTEM, args.profile)
    scales, starts = (SCALES[1:3], 2) if args.quick else (SCALES, 8)
    lines = []
    for penalty in (1.0, 0.0) if args.quick else PENALTIES:
        for flop in scales:
            line = line_of(at, penalty, flop, starts)
            if line is None:
                say(f"penalty {penalty:g}, {flop:.0e} FLOP: nothing keeps the limits")
                continue
            lines.append(line)
            say(
                f"penalty {penalty:g}, {flop:.0e} FLOP: {line['n_layers']:g} layers of "
                f"{line['d_model']:g}, {line['devices']:g} devices"
            )
    shared.deliver("design_aspect_ratio", lines, draw(lines), args)


if __name__ == "__main__":
    run_study(main)
