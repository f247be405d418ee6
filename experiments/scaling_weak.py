"""FSDP on 8 to 2,048 H100 (findings 1, 2, 3 and 6).

Weak scaling of FSDP on 8 to 2,048 H100: throughput falls by a third from 128 on, power hardly
does (findings 1, 2, 3, 6).

Assumed in advance: Llama-2 7B, sequences of 4,096 tokens, 2 per device in one micro-batch, bf16,
ZeRO-3 over all devices with weights gathered again for the backward pass, gathers prefetched behind
the layer before, DGX H100 with 400 Gb/s InfiniBand per device. Coefficients of the shipped generic
profile for H100 and FSDP; the network between nodes as the study's own all-reduce curves have it,
nearly all of them trees, of which a ring's hops follow by the ratios of NCCL's tuning table.
"Communication-bound": the messages of a step take as long as its compute, which is what the study
says of its collectives; two other readings stand beside it, unjudged: messages no longer hide, and
what they cost, exposed or by slowing compute, is a tenth of the step. `python -m
experiments.scaling_weak [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dmodel.report import style
from experiments import scaling as shared
from experiments import scaling_compared as compared
from experiments import scaling_figures as figures
from experiments.scaling import Answers
from experiments.scaling_weak_cases import (
    BOUND,
    CHIP,
    EFFICIENCY,
    HIGH,
    LOW,
    POWER,
    SYSTEM,
    THROUGHPUT,
    base,
    change,
    variants,
)
from experiments.scaling_weak_why import why
from experiments.study import options
from experiments.study import run as run_study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WATTS = {LOW: 658.0, HIGH: 620.0}
"""Published power of one device [W]."""

ASSUMPTIONS = {
    "model and batch": "Llama-2 7B, 4,096 tokens, 2 sequences per device in one micro-batch",
    "sharding": (
        "ZeRO-3 over all devices, weights gathered again for the backward pass, next layer "
        "prefetched, gradients reduced in bf16"
    ),
    "precision": "bf16, flash attention, no recomputation",
    "communication-bound": (
        "messages of a step take as long as compute; other readings beside it, not judged"
    ),
}


def bound(bare: Answers) -> np.ndarray:
    """Time of all messages over that of compute, by scale, from the cases with nothing hidden
    [1]."""
    return bare.exposed_s / shared.grouped(bare)["compute"]


def burden(found: Answers) -> np.ndarray:
    """Share of the step that communication costs, exposed or by slowing compute [1]."""
    parts = shared.grouped(found)
    return (parts["exposed communication"] + parts["slowed by communication"]) / found.step_time_s


def readings(found: Answers) -> list[dict[str, Any]]:
    """Finding 6 as it may also be read: where 1 % of the step is exposed, and where a tenth is lost
    to communication."""
    scales = shared.WEAK_SCALES
    named = {
        "1 % of the step is exposed": (found.exposed_share, 0.01),
        "exposed or slowed, a tenth of the step": (burden(found), 0.1),
    }
    crossings = {what: compared.crossing(scales, *share) for what, share in named.items()}
    return [
        compared.ratio(f"6 read otherwise: {what}", "H100", BOUND, x, None, "not judged")
        for what, x in crossings.items()
    ]


def findings(found: Answers, binding: np.ndarray) -> list[dict[str, Any]]:
    """Every finding beside its prediction."""
    scales = shared.WEAK_SCALES
    low, high = scales.index(LOW), scales.index(HIGH)
    throughput, power, efficiency = change(found, low, high)
    watts = found.device_watts
    more = 16.0 * (1.0 + throughput / 100.0)
    there = (
        f"order of magnitude; at {HIGH:,.0f} messages take {binding[high]:.3f} of the time of "
        "compute"
    )
    return [
        compared.points("1 throughput per device, 128 → 2,048 H100", THROUGHPUT, throughput, 5.0),
        compared.points("2 power per device, 128 → 2,048 H100", POWER, power, 5.0),
        compared.points("3 tokens per joule, 128 → 2,048 H100", EFFICIENCY, efficiency, 5.0),
        compared.ratio(
            "3 throughput of 16 times the devices", "×", 10.0, more, None, "arithmetic from 1"
        ),
        compared.ratio(
            "6 communication binds from",
            "H100",
            BOUND,
            compared.crossing(scales, binding, 1.0),
            10.0,
            there,
        ),
        *readings(found),
        *(
            compared.ratio(
                f"power of one H100 at {n:,.0f} devices",
                "W",
                published,
                float(watts[scales.index(n)]),
                0.05,
            )
            for n, published in WATTS.items()
        ),
    ]


def table(found: Answers, binding: np.ndarray) -> list[dict[str, Any]]:
    """One line per scale."""
    share = shared.shares(found)
    return [
        {
            "devices": int(scale),
            "tokens_per_s_per_device": float(found.tokens_per_s_per_device[i]),
            "mfu": float(found.mfu[i]),
            "device_watts": float(found.device_watts[i]),
            "tokens_per_device_joule": float(found.tokens_per_device_joule[i]),
            "exposed_share": float(found.exposed_share[i]),
            "messages_over_compute": float(binding[i]),
            "lost_to_communication": float(burden(found)[i]),
            **{f"share_{name}": float(x[i]) for name, x in share.items()},
        }
        for i, scale in enumerate(shared.WEAK_SCALES)
    ]


def draw(found: Answers) -> Any:
    """Throughput and power against scale beside the published ends; and where the step's time
    goes."""
    figure = style.new_figure(12.6, 3.9)
    left, middle, right = figure.subplots(1, 3)
    scales, watts = shared.WEAK_SCALES, found.device_watts
    _relative(left, found, scales.index(LOW))
    middle.plot(scales, watts, color=style.BLUE, linewidth=1.8, label="predicted")
    figures.published_points(middle, list(WATTS), list(WATTS.values()))
    middle.set_title("Power of one device")
    middle.set_ylabel("W")
    middle.set_ylim(0.0, 1.1 * max(*watts, *WATTS.values()))
    middle.legend(frameon=False, loc="lower left")
    figures.draw_shares(right, scales, found)
    right.set_title("Where the step goes")
    right.legend(frameon=True, framealpha=0.9, edgecolor="none", loc="lower left", fontsize=7.5)
    for axes in (left, middle, right):
        figures.scale_axis(axes, scales, "H100")
    return figure


def _relative(axes: Axes, found: Answers, at: int) -> None:
    scales, rate = shared.WEAK_SCALES, found.tokens_per_s_per_device
    efficiency = found.tokens_per_device_joule
    for y, color, label in (
        (rate, style.BLUE, "tokens/s per device"),
        (efficiency, style.ORANGE, "tokens per joule"),
    ):
        axes.plot(scales, 100.0 * y / y[at], color=color, linewidth=1.8, label=label)
    figures.published_points(axes, [LOW, HIGH], [100.0, 100.0 + THROUGHPUT], "published: tokens/s")
    axes.plot(
        [HIGH],
        [100.0 + EFFICIENCY],
        "s",
        color=style.ORANGE,
        markerfacecolor="white",
        label="published: per joule",
        zorder=5,
    )
    axes.set_title("Relative to 128 devices")
    axes.set_ylabel("%")
    axes.set_ylim(0.0, 125.0)
    axes.legend(frameon=False, loc="lower left")


def main() -> None:
    """Evaluate all cases at once, compare, explain, draw."""
    args = options(__doc__ or "")
    found = shared.answers(base() | ({} if args.quick else variants()))
    first, bare = found.pop("curve"), found.pop("nothing hidden")
    assumed = shared.assumed(ASSUMPTIONS, SYSTEM, CHIP)
    binding = bound(bare)
    compared.deliver(
        "scaling_weak",
        assumed,
        findings(first, binding),
        table(first, binding),
        draw(first),
        args,
        why(first, found),
    )


if __name__ == "__main__":
    run_study(main)
