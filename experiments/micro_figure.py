"""Figure of the micro-benchmark study: predicted against measured times of the held-out half, one
panel for each kind of operation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from calibration.micro.groups import Group

Held = tuple[Group, np.ndarray, np.ndarray]
"""A group, its held-out rows `[row]` bool, and ln(predicted / measured) of those."""


def draw(held: Sequence[Held], path: Path) -> Path:
    """Draw one panel for each kind, one colour for each chip; writes the file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    kinds = list(dict.fromkeys(group.kind for group, _, _ in held))
    chips = sorted({group.chip for group, _, _ in held})
    colors = dict(
        zip(chips, plt.get_cmap("tab20")(np.linspace(0, 1, max(len(chips), 2))), strict=False)
    )
    figure, axes = plt.subplots(
        1,
        max(len(kinds), 1),
        figsize=(4.6 * max(len(kinds), 1), 4.8),
        squeeze=False,
        layout="constrained",
    )
    for axis, kind in zip(axes[0], kinds, strict=False):
        for group, rows, ratio in (h for h in held if h[0].kind == kind):
            measured = 1e6 * group.table.seconds()[rows]
            axis.loglog(
                measured, measured * np.exp(ratio), ".", ms=3, alpha=0.6, color=colors[group.chip]
            )
        low, high = axis.get_xlim()
        ends = np.array([low, high])
        axis.plot(ends, ends, color="0.2", lw=0.8)
        axis.fill_between(ends, ends / 1.25, ends * 1.25, color="0.85", zorder=0)
        axis.set(title=kind, xlabel="measured [µs]", xlim=(low, high))
    axes[0][0].set_ylabel("predicted [µs], shapes not fitted")
    marks = [
        plt.Line2D([], [], ls="", marker="o", color=colors[chip], label=chip) for chip in chips
    ]
    figure.legend(
        handles=marks, loc="outside lower center", ncols=6, frameon=False, title="band: ± 25 %"
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path
