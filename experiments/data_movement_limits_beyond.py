"""Beyond the study: attention, failures, today's chips.

Beyond the study: attention in the layers, failures and checkpoints, and today's chips, each
against the study's H100.

Attention: projections, core and their all-reduces (`theory.attention`). Failures: the rate of the
Llama 3 report's 16,384 H100, Daly's checkpoint interval, and a deadline that they shorten; then 10
to 10,000 times rarer ones. Chips: H200, B200, GB200 NVL72, TPU v5p and
v7x by their public rates, the rest assumed and listed. `python -m
experiments.data_movement_limits_beyond [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from typing import Any

from dmodel.goodput import (
    LLAMA_3,
    Reliability,
    goodput,
    largest_cluster,
    mean_time_between_failures,
)
from dmodel.report import style
from dmodel.theory import Best, gpu_names, laws
from dmodel.theory.gpus import assumptions
from experiments import data_movement as shared
from experiments.data_movement import Curve, compared, curve
from experiments.study import COLORS, options
from experiments.study import run as run_study

BASE = "H100 SXM"
RARER = (1.0, 10.0, 100.0, 10_000.0)
"""By how much rarer failures are than those of the Llama 3 report."""

SMALL = tuple(float(f * 2**i) for i in range(11, 14) for f in (2, 3, 4) if f * 2**i < 12288)
"""Widths below the study's, where runs are small enough for failures of today."""


def chips(quick: bool) -> list[Curve]:
    """The study's H100 and the chips of today, dense."""
    names = [name for name in gpu_names(beyond=True) if not name.startswith("GTX")]
    return [curve(name, name) for name in (BASE, *(names[:1] if quick else names))]


def with_attention(quick: bool) -> list[Curve]:
    """H100 without attention and with it, at the study's sequences and at longer ones."""
    found = [curve(BASE, "no attention")]
    for seq_len in (2048.0,) if quick else (2048.0, 32768.0):
        law = laws.STUDY.replace(attention=True, seq_len=seq_len)
        found.append(curve(BASE, f"attention, {seq_len:.0f} tokens", law=law))
    return found


def with_failures(quick: bool) -> list[Curve]:
    """H100 that never fails, and that fails as in the Llama 3 report or more rarely."""
    widths = (*sorted(set(SMALL)), *laws.WIDTHS)
    found = [curve(BASE, "never fails", widths=widths)]
    for rarer in RARER[:2] if quick else RARER:
        label = "as Llama 3's" if rarer == 1.0 else f"{rarer:,.0f} times rarer"
        reliability = Reliability(failures_per_device_s=LLAMA_3 / rarer)
        found.append(
            useful(curve(BASE, label, widths=widths, reliability=reliability), reliability)
        )
    return found


def useful(c: Curve, reliability: Reliability) -> Curve:
    """The curve with utilization of all wall time, failures and checkpoints in it."""
    best = [
        cluster.best and cluster.best._replace(utilization=_of_wall_time(cluster.best, reliability))
        for cluster in c.clusters
    ]
    return c._replace(
        clusters=[cluster._replace(best=b) for cluster, b in zip(c.clusters, best, strict=True)]
    )


def _of_wall_time(best: Best, reliability: Reliability) -> float:
    return best.utilization * float(goodput(float(best.n_gpus), reliability))


def goodput_lines() -> list[dict[str, Any]]:
    """The Llama 3 report's figures, and the cluster that failures leave half of its time."""
    hours = 54.0 * 24.0 * 3600.0 / float(mean_time_between_failures(16384.0, Reliability()))
    lines = [
        compared(
            "Llama 3, 16,384 H100: interruptions in 54 days",
            419.0,
            hours,
            "the rate is taken from it",
        ),
        compared(
            "Llama 3: share of time that trains",
            0.9,
            float(goodput(16384.0, Reliability())),
            "published: more than this",
        ),
    ]
    for rarer in RARER:
        half = largest_cluster(Reliability(failures_per_device_s=LLAMA_3 / rarer))
        lines.append(
            compared(
                f"devices that train half of the time, failures {rarer:,.0f} times rarer",
                None,
                half,
            )
        )
    return lines


ENDS = {"linear_end": "linear scaling ends at", "largest": "largest run"}


def over_base(curves: list[Curve]) -> list[dict[str, Any]]:
    """Both ends of every curve, and how they compare with the first one's."""
    lines = []
    for c in curves:
        times = {} if c is curves[0] else shared.growth(c, curves[0])
        for what, flop in shared.ends(c).items():
            known = what in times
            note = f"{times[what]:.3g} times that of {curves[0].label}" if known else ""
            lines.append(compared(f"{c.label}: {ENDS[what]} [FLOP]", None, flop, note))
    return lines


def assumed() -> list[dict[str, Any]]:
    """What is not published of today's chips, one line each."""
    return [
        {**compared(f"{name}: {key}", None, None, text), "assumed": True}
        for name in gpu_names(beyond=True)
        for key, text in assumptions(name).items()
    ]


def draw(groups: dict[str, list[Curve]]) -> Any:
    """A panel for each group."""
    figure = style.new_figure(13.2, 4.4)
    grid = figure.subplots(1, 3, sharey=False)
    for axes, (title, curves) in zip(grid, groups.items(), strict=True):
        colors = {c.label: color for c, color in zip(curves, COLORS, strict=False)}
        shared.draw_curves(axes, curves, colors, of_ceiling=True)
        axes.set_title(title)
        axes.set_xlim(1e23 if title.startswith("Failures") else 3e24, None)
        shared.legend(axes, loc="lower left")
    for axes in grid[1:]:
        axes.set_ylabel("")
    return figure


def main() -> None:
    """Sweep, list what is assumed, draw three panels."""
    args = options(__doc__ or "")
    attention = with_attention(args.quick)
    groups = {
        "Chips, share of the ceiling": chips(args.quick),
        "Attention in the layers, H100": attention,
        "Failures within the utilization, H100": with_failures(args.quick),
    }
    shown = [*shared.headlines(attention[0]), *goodput_lines()]
    shown += [line for curves in groups.values() for line in over_base(curves)]
    lines = [
        {"group": title, **p}
        for title, curves in groups.items()
        for c in curves
        for p in shared.points(c)
    ]
    comparison, figure = [*shown, *assumed()], draw(groups)
    shared.deliver("data_movement_limits_beyond", comparison, lines, figure, args, shown=shown)


if __name__ == "__main__":
    run_study(main)
