"""Claim: two closed forms say where data movement begins to slow training (T_crit) and where
latency ends it (T_limit).

Against α, by how much faster in compute the critical batch grows than the depth; every published
figure of the authors' notebook beside it. `python -m experiments.data_movement_limits_walls
[--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

import numpy as np

from dmodel.report import style
from dmodel.theory import gpu
from dmodel.theory.closed_form import Wall, t_crit, t_limit
from experiments import data_movement as shared
from experiments.data_movement import compared
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


def main() -> None:
    """Compare with every published figure, draw the two walls against α."""
    args = shared.options(__doc__ or "")
    comparison = []
    for row in shared.reference("theory_closed_form"):
        at = wall(row["gpu"], float(row["alpha"]))
        for what, form, column in (
            ("T_crit", t_crit, "T_crit_flop"),
            ("T_limit", t_limit, "T_limit_flop_9us"),
        ):
            comparison.append(
                compared(
                    f"{row['gpu']}, α = {float(row['alpha']):g}: {what} [FLOP]",
                    float(row[column]),
                    float(form(at)),
                )
            )
    worst = max(abs(line["difference"]) for line in comparison)
    comparison.append(
        {**compared("all of them", None, None, "largest relative difference"), "difference": worst}
    )
    alphas = np.linspace(-0.2, 0.3, 11 if args.quick else 101)
    figure = style.new_figure(6.6, 4.4)
    axes = figure.subplots()
    lines = []
    for color, name in zip(shared.COLORS, GPUS, strict=False):
        crit, limit = ([float(form(wall(name, a))) for a in alphas] for form in (t_crit, t_limit))
        axes.semilogy(
            alphas, crit, color=color, linewidth=1.8, label=f"{name}: data movement slows (T_crit)"
        )
        lines += [
            {"gpu": name, "alpha": float(a), "t_crit_flop": c, "t_limit_flop": x}
            for a, c, x in zip(alphas, crit, limit, strict=True)
        ]
        dots = [
            (float(r["alpha"]), float(r["T_crit_flop"]))
            for r in shared.reference("theory_closed_form")
            if r["gpu"] == name
        ]
        axes.plot(*zip(*dots, strict=True), "o", color=color, markersize=4, markerfacecolor="white")
    axes.semilogy(
        alphas,
        limit,
        color=style.INK,
        linewidth=1.8,
        linestyle="--",
        label="any GPU: latency ends it (T_limit)",
    )
    for label, (batch, depth) in LAWS.items():
        if alphas[0] <= batch - depth <= alphas[-1]:
            axes.axvline(batch - depth, color=style.GREY, linewidth=0.8, linestyle=":")
            look = {"rotation": 90, "fontsize": 7.5, "color": style.GREY}
            axes.text(
                batch - depth + 0.003,
                0.02,
                f" {label}",
                transform=axes.get_xaxis_transform(),
                **look,
            )
    axes.set(
        xlabel="α: exponent of the batch less that of the depth", ylabel="training compute [FLOP]"
    )
    axes.set(xlim=(alphas[0], alphas[-1]), ylim=(1e22, 1e43))
    axes.set_title("Two walls (rings: the authors' notebook)")
    axes.legend(frameon=True, edgecolor="white", framealpha=1.0, fontsize=7.5, loc="upper left")
    shown = [
        r
        for r in comparison
        if any(part in r["what"] for part in ("α = 0:", "α = 0.2:", "all of them"))
    ]
    shared.deliver("data_movement_limits_walls", comparison, lines, figure, args, shown=shown)


if __name__ == "__main__":
    run_study(main)
