"""Where data movement slows training and latency ends it.

Claim: two closed forms say where data movement begins to slow training (T_crit) and where
latency ends it (T_limit).

Against α, by how much faster in compute the critical batch grows than the depth; every published
figure of the authors' notebook beside it. `python -m experiments.data_movement_limits_walls
[--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dmodel.report import style
from dmodel.theory import gpu
from dmodel.theory.closed_form import Wall, t_crit, t_limit
from experiments import data_movement as shared
from experiments.data_movement import compared
from experiments.study import COLORS, options
from experiments.study import run as run_study

GPUS = ("V100 SXM", "A100 SXM", "H100 SXM")
LAWS = {
    "constant batch": (0.0, 0.1364),
    "batch C^(1/6)": (1 / 6, 0.1364),
    "DeepSeek": (0.3271, 0.1364),
}
"""Exponents of batch and depth in compute, dense models of the study; α is their difference."""


def wall(name: str, alpha: float) -> Wall:
    """The closed forms' inputs for a GPU of the study."""
    chip, network = gpu(name).chip, gpu(name).network
    rates = {
        "flops_per_s": chip.flops_per_s,
        "network_bytes_per_s": 2.0 * np.asarray(network.bytes_per_s)[1],
    }
    return Wall(**rates, hbm_bytes_per_s=chip.hbm_bytes_per_s, batch_exponent=alpha)


FORMS = {"T_crit": (t_crit, "T_crit_flop"), "T_limit": (t_limit, "T_limit_flop_9us")}
"""The two walls, and the columns of their published figures."""


def against_published() -> list[dict[str, Any]]:
    """Every published figure beside its closed form, then the largest difference."""
    found = [
        compared(
            f"{row['gpu']}, α = {float(row['alpha']):g}: {what} [FLOP]",
            float(row[column]),
            float(form(wall(row["gpu"], float(row["alpha"])))),
        )
        for row in shared.reference("theory_closed_form")
        for what, (form, column) in FORMS.items()
    ]
    worst = max(abs(line["difference"]) for line in found)
    last = compared("all of them", None, None, "largest relative difference")
    return [*found, {**last, "difference": worst}]


def lines_of(name: str, alphas: np.ndarray) -> list[dict[str, Any]]:
    """Both walls of a GPU against α."""
    walls = [wall(name, a) for a in alphas]
    return [
        {
            "gpu": name,
            "alpha": float(a),
            "t_crit_flop": float(t_crit(at)),
            "t_limit_flop": float(t_limit(at)),
        }
        for a, at in zip(alphas, walls, strict=True)
    ]


def draw(lines: list[dict[str, Any]], alphas: np.ndarray) -> Any:
    """The two walls against α; rings are published."""
    figure = style.new_figure(6.6, 4.4)
    axes = figure.subplots()
    mine: list[dict[str, Any]] = []
    for color, name in zip(COLORS, GPUS, strict=False):
        mine = [line for line in lines if line["gpu"] == name]
        label = f"{name}: data movement slows (T_crit)"
        axes.semilogy(
            alphas, [x["t_crit_flop"] for x in mine], color=color, linewidth=1.8, label=label
        )
        _rings(axes, name, color)
    axes.semilogy(
        alphas,
        [x["t_limit_flop"] for x in mine],
        color=style.INK,
        linewidth=1.8,
        linestyle="--",
        label="any GPU: latency ends it (T_limit)",
    )
    _name_laws(axes, alphas)
    axes.set(
        xlabel="α: exponent of the batch less that of the depth", ylabel="training compute [FLOP]"
    )
    axes.set(xlim=(alphas[0], alphas[-1]), ylim=(1e22, 1e43))
    axes.set_title("Two walls (rings: the authors' notebook)")
    axes.legend(frameon=True, edgecolor="white", framealpha=1.0, fontsize=7.5, loc="upper left")
    return figure


def _rings(axes: Any, name: str, color: str) -> None:
    dots = [
        (float(r["alpha"]), float(r["T_crit_flop"]))
        for r in shared.reference("theory_closed_form")
        if r["gpu"] == name
    ]
    axes.plot(*zip(*dots, strict=True), "o", color=color, markersize=4, markerfacecolor="white")


def _name_laws(axes: Any, alphas: np.ndarray) -> None:
    look = {"rotation": 90, "fontsize": 7.5, "color": style.GREY}
    for label, (batch, depth) in LAWS.items():
        at = batch - depth
        if alphas[0] <= at <= alphas[-1]:
            axes.axvline(at, color=style.GREY, linewidth=0.8, linestyle=":")
            height = axes.get_xaxis_transform()
            axes.text(at + 0.003, 0.02, f" {label}", transform=height, **look)


def main() -> None:
    """Compare with every published figure, draw the two walls against α."""
    args = options(__doc__ or "")
    comparison = against_published()
    alphas = np.linspace(-0.2, 0.3, 11 if args.quick else 101)
    lines = [line for name in GPUS for line in lines_of(name, alphas)]
    shown = [
        r
        for r in comparison
        if any(part in r["what"] for part in ("α = 0:", "α = 0.2:", "all of them"))
    ]
    figure = draw(lines, alphas)
    shared.deliver("data_movement_limits_walls", comparison, lines, figure, args, shown=shown)


if __name__ == "__main__":
    run_study(main)
