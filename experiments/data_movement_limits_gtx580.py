"""Could 16 million GTX 580 have trained 1e26 FLOP?

Claim to check: 16 million GTX 580 of 2012 could have trained 1e26 FLOP in three months, as was
published.

The largest dense run that 2^24 of them finish, with a network that nobody had with this card
(InfiniBand FDR for each), and with one port of 10 Gigabit Ethernet for four. Memory is checked by
the study's rule, which counts no activations.
`python -m experiments.data_movement_limits_gtx580 [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from typing import Any

from dmodel.report import style
from dmodel.theory import Best, Problem, best_layouts, gpu, laws, training
from dmodel.theory.gpus import assumptions
from dmodel.theory.study import DEADLINE_S, MONTH_S, ceiling
from experiments import data_movement as shared
from experiments.data_movement import compared
from experiments.study import COLORS, options, say
from experiments.study import run as run_study

PUBLISHED_FLOP, PUBLISHED_GPUS = 1e26, 1.6e7
NAMES = ("GTX 580", "GTX 580 Ethernet")
WIDTHS = tuple(
    sorted(
        float(f * 2**i) for i in range(9, 14) for f in (5, 6, 7, 8, 9) if 8192 <= f * 2**i <= 40960
    )
)


def answers(name: str, widths: tuple[float, ...], n_gpus: int) -> list[Best]:
    """The best layout of every width on the cluster."""
    found = best_layouts([Problem(laws.run(w), n_gpus) for w in widths], gpu(name))
    return [b for b in found if isinstance(b, Best)]


def fits(best: Best, name: str) -> bool:
    """Whether weights and optimizer state fit into the memory of the cards."""
    took = training(gpu(name), best.run, best.layout)
    return float(took.mem_required_bytes) <= float(took.mem_available_bytes)


def lines_of(name: str, found: list[Best]) -> list[dict[str, Any]]:
    """What the cluster finishes in time, and what the published run takes."""
    in_time = [b for b in found if b.train_time_s < DEADLINE_S]
    largest = max(in_time, key=lambda b: float(b.run.flop), default=None)
    nearest = min(found, key=lambda b: abs(float(b.run.flop) / PUBLISHED_FLOP - 1.0))
    lines = [
        compared(
            f"{name}: largest run in three months on {found[0].n_gpus:,} [FLOP]",
            PUBLISHED_FLOP,
            shared.flop(largest),
        )
    ]
    if largest is not None:
        room = "fits in memory" if fits(largest, name) else "does not fit in memory"
        lines.append(compared(f"{name}: its utilization", None, largest.utilization, room))
    months = nearest.train_time_s / MONTH_S
    return [*lines, compared(f"{name}: months for {float(nearest.run.flop):.2g} FLOP", 3.0, months)]


def smallest(name: str, width: float) -> dict[str, Any]:
    """The smallest cluster for the run nearest to the published one."""
    c = shared.curve(name, name, widths=(width,))
    n = float(c.known[0].n_gpus) if c.known else None
    return compared(
        f"{name}: smallest cluster for {float(laws.run(width).flop):.2g} FLOP", PUBLISHED_GPUS, n
    )


def main() -> None:
    """Ask both networks, compare, draw training time against compute."""
    args = options(__doc__ or "")
    n_gpus, widths = 2**24, WIDTHS[::2] if args.quick else WIDTHS
    peak = float(gpu(NAMES[0]).chip.flops_per_s)
    needed = PUBLISHED_FLOP / (PUBLISHED_GPUS * peak * DEADLINE_S)
    comparison = [
        compared("peak of one card [FLOP/s]", 1.58e12, peak),
        compared(
            "utilization that the claim needs",
            None,
            needed,
            f"products reach {ceiling(gpu(NAMES[0])):.2f}",
        ),
    ]
    figure = style.new_figure(6.4, 4.2)
    axes, table = figure.subplots(), []
    nearest = min(widths, key=lambda w: abs(float(laws.run(w).flop) / PUBLISHED_FLOP - 1.0))
    for name, color in zip(NAMES, COLORS, strict=False):
        found = answers(name, widths, n_gpus)
        say(f"{name}: {len(found)} widths")
        comparison += [*lines_of(name, found), smallest(name, nearest)]
        x, y = [float(b.run.flop) for b in found], [b.train_time_s / MONTH_S for b in found]
        axes.loglog(x, y, color=color, linewidth=1.8, label=f"{name}, 2^24 of them")
        table += [
            {
                "gpu": name,
                "d_model": int(b.run.d_model),
                "training_flop": float(b.run.flop),
                "n_gpus": b.n_gpus,
                "train_time_months": b.train_time_s / MONTH_S,
                "utilization": b.utilization,
                "fits_in_memory": fits(b, name),
            }
            for b in found
        ]
    comparison += [
        compared(f"assumed, {key}", None, None, text) for key, text in assumptions(NAMES[1]).items()
    ]
    axes.plot(
        PUBLISHED_FLOP,
        3.0,
        "*",
        color=style.INK,
        markersize=12,
        label="published: 1e26 FLOP in three months",
    )
    axes.axhline(DEADLINE_S / MONTH_S, color=style.GREY, linewidth=0.8, linestyle=":")
    axes.set(xlabel="training compute [FLOP]", ylabel="training time [months]")
    axes.set_title("Sixteen million GTX 580")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    shared.deliver("data_movement_limits_gtx580", comparison, table, figure, args)


if __name__ == "__main__":
    run_study(main)
