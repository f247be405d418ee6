"""Failures, checkpoints and restarts against scale.

Goodput against scale: the share of wall time that a synchronous run trains, failures,
checkpoints and restarts taken off.

Anchor: the Llama 3 report, 419 unexpected interruptions in 54 days on 16,384 H100, more than 90 %
of the time effective (its rate per device is the model's; the share is a prediction under assumed
checkpoint and restart times). Other clusters fail at other rates: OPT-175B (992 A100, two months,
35 restarts by hand and an estimated 70 without), and Meta's research cluster of A100s (6.5 failures
per 1,000 node-days, Kokolis et al. 2024). Assumed in advance: 5 s of standstill for a checkpoint,
10 minutes to restart, Daly's interval.
`python -m experiments.scaling_goodput [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dmodel.goodput import (
    DAY_S,
    LLAMA_3,
    Reliability,
    daly_interval,
    goodput,
    largest_cluster,
    mean_time_between_failures,
)
from dmodel.report import style
from experiments import scaling_compared as compared
from experiments import scaling_figures as figures
from experiments.study import COLORS, options
from experiments.study import run as run_study

SCALES = tuple(float(2**i) for i in range(10, 21))
LLAMA, DAYS = 16384.0, 54.0

RATES = {
    "Llama 3, H100": LLAMA_3,
    "OPT-175B, A100": 105.0 / (60.0 * DAY_S * 992.0),
    "research cluster, A100": 6.5 / (1000.0 * DAY_S * 8.0),
    "ten times rarer": LLAMA_3 / 10.0,
}
"""Failures per device and second [1/s]."""

SETTINGS = {
    "5 s to save, 10 min to restart": (5.0, 600.0),
    "60 s to save": (60.0, 600.0),
    "1 h to restart": (5.0, 3600.0),
    "2 min to restart": (5.0, 120.0),
}
"""Standstill for a checkpoint and time to restart [s]."""

ASSUMPTIONS = {
    "failures": "independent, one rate per device; one device that fails stops all",
    "checkpoint": "5 s of standstill, at Daly's interval",
    "restart": "10 minutes from the failure until training goes on",
}


def reliability(
    rate: float = LLAMA_3, checkpoint: float = 5.0, restart: float = 600.0
) -> Reliability:
    """What failures cost."""
    return Reliability(failures_per_device_s=rate, checkpoint_s=checkpoint, restart_s=restart)


def curves() -> dict[str, dict[str, np.ndarray]]:
    """Goodput by scale: of clusters that fail at several rates, and under other checkpoints and
    restarts."""
    n = np.array(SCALES)
    return {
        "rate of failures": {
            name: np.asarray(goodput(n, reliability(rate))) for name, rate in RATES.items()
        },
        "checkpoint and restart": {
            name: np.asarray(goodput(n, reliability(LLAMA_3, *s))) for name, s in SETTINGS.items()
        },
    }


def findings() -> list[dict[str, Any]]:
    """Anchors, and the scales at which half of the time is left."""
    mtbf = float(mean_time_between_failures(LLAMA, reliability()))
    days = 60.0 * DAY_S
    research, share = (
        reliability(RATES["research cluster, A100"]),
        100.0 * float(goodput(LLAMA, reliability())),
    )
    lines = [
        compared.ratio(
            "Llama 3: interruptions in 54 days",
            "",
            419.0,
            DAYS * DAY_S / mtbf,
            0.01,
            "the rate is taken from it",
        ),
        compared.points(
            "Llama 3: share of time that trains", 90.0, share, 5.0, "published: more than this"
        ),
        compared.ratio(
            "OPT-175B: interruptions in two months",
            "",
            105.0,
            992.0 * days * LLAMA_3,
            None,
            "at the rate of Llama 3's H100",
        ),
        compared.ratio(
            "research cluster: hours between failures, 16,384 devices",
            "h",
            1.8,
            float(mean_time_between_failures(LLAMA, research)) / 3600.0,
            0.05,
            "the rate is taken from smaller jobs",
        ),
    ]
    for name, rate in RATES.items():
        half = largest_cluster(reliability(rate))
        lines.append(
            compared.ratio(
                f"devices that train half of the time, {name}", "devices", None, half, None
            )
        )
    for n in (100_000.0, 1_000_000.0):
        r = reliability()
        minutes = float(daly_interval(mean_time_between_failures(n, r), r.checkpoint_s)) / 60.0
        note = f"a checkpoint every {minutes:.1f} minutes"
        lines.append(
            compared.points(
                f"share of time that trains on {n:,.0f} devices",
                None,
                100.0 * float(goodput(n, r)),
                None,
                note,
            )
        )
    return lines


def table(found: dict[str, dict[str, np.ndarray]]) -> list[dict[str, Any]]:
    """One line per curve and scale."""
    return [
        {"varied": what, "curve": name, "devices": int(n), "goodput": float(y[i])}
        for what, group in found.items()
        for name, y in group.items()
        for i, n in enumerate(SCALES)
    ]


def draw(found: dict[str, dict[str, np.ndarray]]) -> Any:
    """Goodput against scale, a panel for what is varied."""
    figure = style.new_figure(10.6, 4.0)
    grid = figure.subplots(1, 2, sharey=True)
    for axes, (what, group) in zip(grid, found.items(), strict=True):
        for (name, y), color in zip(group.items(), COLORS, strict=False):
            axes.plot(SCALES, 100.0 * y, color=color, linewidth=1.7, label=name)
        figures.published_points(axes, [LLAMA], [90.0], "Llama 3 report: more than 90 %")
        axes.set_title(f"By {what}")
        axes.set_ylim(0.0, 102.0)
        figures.scale_axis(axes, SCALES)
        axes.legend(frameon=False, loc="lower left", fontsize=8)
    grid[0].set_ylabel("share of wall time that trains [%]")
    return figure


def main() -> None:
    """Evaluate, compare, draw."""
    args = options(__doc__ or "")
    found = curves()
    compared.deliver("scaling_goodput", ASSUMPTIONS, findings(), table(found), draw(found), args)


if __name__ == "__main__":
    run_study(main)
