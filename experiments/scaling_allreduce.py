"""All-reduce over 4 to 512 nodes of 8 H100 (finding 7).

All-reduce over 4 to 512 nodes of 8 H100: bandwidth falls with the nodes, as latency does not;
rings pay per member (finding 7).

Published: 77 points read off a figure (± 5 GB/s), bus bandwidth by message and nodes. Predicted
three ways: the law of a single call fitted to all points; the same law fitted to half of them, or
to 64 nodes and less, and judged on the rest; and the step model's own collective with the three
coefficients between nodes that the first fit hands on to every other study of this group, the start
of a call on an idle machine, as the curves are, and the latency inside the node of training steps.
Assumed: DGX H100, 400 Gb/s per device, better of ring and tree.
`python -m experiments.scaling_allreduce [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from calibration.micro import published
from calibration.micro.fitting import fit, take
from calibration.micro.groups import Group, form_of, groups, half_of_shapes, problem_of
from calibration.micro.priors import shipped
from calibration.micro.reader import MicroTable
from dmodel import catalog
from dmodel.cost.collectives import all_reduce_time, fabric, gather_time
from dmodel.report import style
from experiments import scaling as shared
from experiments import scaling_compared as compared
from experiments import scaling_figures as figures
from experiments.scaling import coefficients
from experiments.study import COLORS, middle, options, summary
from experiments.study import run as run_study

CHIP, SYSTEM, VARIANT = "H100-80GB", "H100-DGX", "across nodes, default fabric"
TARGET = 0.10
"""Median error of the curves [1]."""

SHOWN = tuple(float(2**i) for i in (22, 24, 26, 28, 30))
"""Messages of the figure [byte]."""

ASSUMPTIONS = {
    "published": "77 points read off the figure, ± 5 GB/s; 8 H100 per node",
    "law of a call": (
        "α–β by level, better of ring and tree, low-latency and line protocols for small messages"
    ),
    "step model": (
        "better of ring and tree, no protocols; between nodes, and of the start, the coefficients "
        "that the law's fit gives"
    ),
}


def group() -> Group:
    """The published points."""
    (found,) = [
        g for g in groups(published("collective")) if g.chip == CHIP and g.variant == VARIANT
    ]
    return found


def bus(nbytes: np.ndarray, ranks: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Bus bandwidth of an all-reduce, `2 V (n − 1) / (n t)` [byte/s]."""
    return 2.0 * nbytes * (ranks - 1.0) / (ranks * seconds)


def by_step_model(
    nbytes: np.ndarray, nodes: np.ndarray, gather: bool = False, training: bool = False
) -> np.ndarray:
    """Times of the step model's all-reduce, or all-gather, over 8 devices of each node [s]; starts
    of a call, or of training steps."""
    c = coefficients(CHIP)
    start = (
        float(c.collective_start)
        if training
        else shipped("collective", CHIP, VARIANT).values["base"]
    )
    net = fabric(catalog.system(SYSTEM).network, c.replace(collective_start=start))
    law = gather_time if gather else all_reduce_time
    size = jnp.stack([jnp.full(len(nodes), 8.0), jnp.asarray(nodes)])
    return np.asarray(law(jnp.asarray(nbytes), size, net))


def errors(
    points: MicroTable, seconds: np.ndarray, where: np.ndarray | None = None
) -> dict[str, float]:
    """Median, mean and 90th percentile of |predicted / published − 1| of times [%]."""
    off = np.abs(seconds / points.seconds() - 1.0)
    return summary(off if where is None else off[where])


def held_out(g: Group, seeds: int) -> dict[str, list[dict[str, float]]]:
    """Errors of fits to a part, on the rest: half of the shapes for every seed, and 64 nodes and
    less."""
    whole, nodes = problem_of(g), g.table.numbers("nodes")
    parts = [half_of_shapes(g.table, seed) for seed in range(seeds)] + [nodes <= 64.0]
    fits = fit(form_of(g.kind), [take(whole, part) for part in parts])
    found = [
        errors(g.table, f.seconds(whole.cases), ~part) for f, part in zip(fits, parts, strict=True)
    ]
    return {"half of the points": found[:-1], "64 nodes and less": found[-1:]}


def findings(
    g: Group, fitted: np.ndarray, stepped: np.ndarray, kept: dict[str, list[dict[str, float]]]
) -> list[dict[str, Any]]:
    """Errors of all three ways, and the mechanism."""
    nodes = np.array([4.0, 512.0])
    small = np.full(2, 2.0**22)
    tree, ring = (by_step_model(small, nodes, gather=x) for x in (False, True))
    begun = by_step_model(g.table.numbers("message_bytes"), g.table.numbers("nodes"), training=True)
    lines = [compared.error("7 law of a call, all points", errors(g.table, fitted), TARGET)]
    for name, found in kept.items():
        what = f"7 law of a call, fitted to {name}, judged on the rest"
        lines.append(compared.error(what, middle(found), TARGET))
    return [
        *lines,
        compared.error("7 step model's all-reduce", errors(g.table, stepped), TARGET),
        compared.error("7 the same with the start of training steps", errors(g.table, begun), None),
        compared.direction(
            "7 rings pay per member: all-gather slows more than all-reduce, 4 → 512 nodes, 4 MiB",
            bool(ring[1] / ring[0] > 2.0 * tree[1] / tree[0]),
            f"all-gather × {ring[1] / ring[0]:.0f}, all-reduce × {tree[1] / tree[0]:.1f}",
        ),
    ]


def table(g: Group, fitted: np.ndarray, stepped: np.ndarray) -> list[dict[str, Any]]:
    """One line per published point."""
    nbytes, ranks, nodes = (g.table.numbers(name) for name in ("message_bytes", "n_accel", "nodes"))
    rates = [bus(nbytes, ranks, t) / 1e9 for t in (g.table.seconds(), fitted, stepped)]
    return [
        {
            "nodes": int(nodes[i]),
            "message_bytes": int(nbytes[i]),
            **{
                name: float(x[i])
                for name, x in zip(
                    ("published_gb_s", "law_gb_s", "step_model_gb_s"), rates, strict=True
                )
            },
        }
        for i in np.lexsort((nodes, nbytes))
    ]


def draw(lines: list[dict[str, Any]]) -> Any:
    """Bus bandwidth against nodes for some messages; and time of gather and all-reduce against
    nodes."""
    figure = style.new_figure(11.6, 4.4)
    left, right = figure.subplots(1, 2)
    for size, color in zip(SHOWN, COLORS, strict=False):
        _bandwidth(left, size, [line for line in lines if line["message_bytes"] == size], color)
    left.set_title("All-reduce, bus bandwidth [GB/s]")
    left.set_ylim(0.0, None)
    figures.scale_axis(left, [4.0, 512.0], "nodes of 8 H100")
    left.set_xlim(3.4, 1100.0)
    _key(left)
    _times(right, 2.0 ** np.arange(1, 13))
    return figure


def _bandwidth(axes: Any, size: float, mine: list[dict[str, Any]], color: str) -> None:
    nodes = [line["nodes"] for line in mine]
    seen, law, model = (
        [line[f"{name}_gb_s"] for line in mine] for name in ("published", "law", "step_model")
    )
    axes.plot(nodes, seen, "o", color=color, markersize=4.5, markerfacecolor="white")
    axes.plot(nodes, law, color=color, linewidth=1.6)
    axes.plot(nodes, model, color=color, linewidth=1.0, linestyle="--")
    axes.annotate(
        f"{size / 2**20:,.0f} MiB",
        (nodes[-1], law[-1]),
        (6, 0),
        textcoords="offset points",
        color=color,
        fontsize=8,
        va="center",
    )


def _times(axes: Any, nodes: np.ndarray) -> None:
    for size, color in zip((2.0**22, 2.0**28), COLORS, strict=False):
        for gather, dashes in ((True, "-"), (False, "--")):
            seconds = by_step_model(np.full(len(nodes), size), nodes, gather)
            label = f"{'all-gather' if gather else 'all-reduce'}, {size / 2**20:,.0f} MiB"
            look = {"color": color, "linestyle": dashes, "linewidth": 1.6}
            axes.plot(nodes, 1e3 * seconds, label=label, **look)
    axes.set_yscale("log")
    axes.set_title("Time by the step model [ms]: rings pay per node")
    axes.legend(frameon=False, fontsize=8)
    figures.scale_axis(axes, list(nodes), "nodes of 8 H100")


def _key(axes: Any) -> None:
    from matplotlib.lines import Line2D

    marks: list[tuple[str, dict[str, Any]]] = [
        ("published", {"marker": "o", "linestyle": "", "markerfacecolor": "white"}),
        ("law of a call, fitted", {"linestyle": "-"}),
        ("step model", {"linestyle": "--"}),
    ]
    handles = [Line2D([], [], color=style.GREY, label=label, **mark) for label, mark in marks]
    axes.legend(handles=handles, frameon=False, fontsize=8, loc="upper right")


def main() -> None:
    """Compare three predictions with the published points."""
    args = options(__doc__ or "")
    g = group()
    cases = problem_of(g).cases
    fitted = shipped("collective", CHIP, VARIANT).seconds(cases)
    stepped = by_step_model(g.table.numbers("message_bytes"), g.table.numbers("nodes"))
    kept = {} if args.quick else held_out(g, 5)
    lines = table(g, fitted, stepped)
    named = ", ".join(f"{name} {x:.3g}" for name, x in shared.curves_fit().items())
    assumed = ASSUMPTIONS | {"network": shared.catalog_line(SYSTEM), "between nodes": named}
    compared.deliver(
        "scaling_allreduce", assumed, findings(g, fitted, stepped, kept), lines, draw(lines), args
    )


if __name__ == "__main__":
    run_study(main)
