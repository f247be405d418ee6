"""Exact slopes of the largest run in every input.

Claim: what the largest run depends on has exact slopes: the training time and the batch by 2.1,
FLOP/s against linear scaling by −5.

Elasticities ∂ ln C_max / ∂ ln input of the unrounded frontier by implicit differentiation, at 0.8
of the utilization ceiling and where a run only has to finish, beside those of the closed forms
T_crit and T_limit, which are exact but leave out much of the model.
`python -m experiments.data_movement_limits_elasticities [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dmodel.report import style
from dmodel.theory import gpu, laws
from dmodel.theory.closed_form import t_crit, t_limit
from dmodel.theory.elasticity import EXPONENTS, elasticities
from dmodel.theory.frontier import Frontier, case, largest_run
from dmodel.theory.study import LINEAR
from experiments import data_movement as shared
from experiments.data_movement import compared
from experiments.data_movement_limits_walls import LAWS, wall
from experiments.study import COLORS, options, say
from experiments.study import run as run_study

GPUS = ("H100 SXM", "A100 SXM", "V100 SXM")
ENDS = {"linear scaling": LINEAR, "finishing at all": 0.0}

INPUTS = {
    "training time": "deadline_s",
    "batch constant": "batch_tokens",
    "depth constant": "n_layers",
    "FLOP/s": "flops_per_s",
    "network bandwidth": "network_bytes_per_s",
    "HBM bandwidth": "hbm_bytes_per_s",
    "L2 bandwidth": None,
    "shared memory bandwidth": None,
    "register capacity": None,
    "matmul and network latency": "layer_latency_s",
    "tokens per parameter": None,
}
"""Inputs of the frontier, and those of the closed forms that they are."""

NOTHING = 1e-9
"""Elasticities below this are none."""


def closed_form(name: str, end: str) -> dict[str, float]:
    """Elasticities of T_crit or T_limit at the study's exponents, by the frontier's names.

    The frontier's depth constant is that of `L = c (d_model d_ff)^0.3751`: at a given compute L
    goes with c^(1/1.3751).
    """
    batch, depth = LAWS["batch C^(1/6)"]
    at = jax.tree.map(jnp.asarray, wall(name, batch - depth))
    slopes = jax.grad(lambda x: jnp.log((t_crit if ENDS[end] else t_limit)(x)))(at)
    found = {
        mine: float(getattr(slopes, theirs) * getattr(at, theirs))
        for mine, theirs in INPUTS.items()
        if theirs
    }
    return found | {
        "depth constant": found["depth constant"] / (1.0 + float(laws.STUDY.depth_exponent))
    }


def of_frontier(asked: Any, found: Frontier) -> dict[str, float]:
    """Elasticities of the frontier, both kinds of latency together."""
    known = elasticities(asked, found)
    known |= {"matmul and network latency": known["matmul latency"] + known["network latency"]}
    # what a maximum of sharpness 1024 lets through of a term that does not bind
    return {key: 0.0 if abs(value) < NOTHING else value for key, value in known.items()}


def lines_of(name: str, end: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The comparison and the table of one GPU and end."""
    asked = case(gpu(name), threshold=ENDS[end])
    found = largest_run(asked)
    say(
        f"{name}, {end}: {found.flop:.3g} FLOP; {found.pattern.describe()}; "
        f"{'smooth' if found.smooth else 'slopes of one side'}"
    )
    exact, mine = closed_form(name, end), of_frontier(asked, found)
    sweep = [
        r
        for r in shared.reference("theory_headlines")
        if (r["gpu"], r["model_type"], r["batch_law"]) == (name, "dense", "default")
    ]
    column = "linear_end_flop" if ENDS[end] else "largest_flop"
    label = f"{name}, {end}"
    note = (
        "published: the first swept run below the line"
        if ENDS[end]
        else "published: the largest swept run, the next has 1.9 times"
    )
    comparison = [compared(f"{label}: frontier [FLOP]", float(sweep[0][column]), found.flop, note)]
    comparison += [
        compared(
            f"{label}: elasticity to {key}", exact.get(key), mine[key], "against the closed form"
        )
        for key in INPUTS
    ]
    table = [
        {
            "gpu": name,
            "end": end,
            "input": key,
            "elasticity": value,
            "closed_form": exact.get(key),
            "per_unit": key in EXPONENTS,
        }
        for key, value in mine.items()
    ]
    return comparison, table


def main() -> None:
    """Differentiate, compare, draw bars with the closed forms as marks."""
    args = options(__doc__ or "")
    names, ends = (GPUS[:1], list(ENDS)[1:]) if args.quick else (GPUS, list(ENDS))
    comparison, table = [], []
    for end in ends:
        for name in names:
            more, rows = lines_of(name, end)
            comparison, table = comparison + more, table + rows
    figure = style.new_figure(4.4 * len(ends) + 1.4, 5.0)
    grid = figure.subplots(1, len(ends), squeeze=False, sharey=True)[0]
    for axes, end in zip(grid, ends, strict=True):
        _panel(axes, [row for row in table if row["end"] == end], names, end)
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    shared.deliver("data_movement_limits_elasticities", comparison, table, figure, args)


def _panel(axes: Any, rows: list[dict[str, Any]], names: tuple[str, ...], end: str) -> None:
    keys = list(INPUTS)
    y = np.arange(len(keys))[::-1]
    height = 0.8 / len(names)
    for i, name in enumerate(names):
        value = {r["input"]: r for r in rows if r["gpu"] == name}
        offset = y + (len(names) - 1 - 2 * i) * height / 2
        axes.barh(
            offset,
            [value[k]["elasticity"] for k in keys],
            height=0.9 * height,
            color=COLORS[i],
            label=name,
        )
    marks = [
        (value[k]["closed_form"], at)
        for k, at in zip(keys, y, strict=True)
        if value[k]["closed_form"] is not None
    ]
    axes.plot(
        *zip(*marks, strict=True),
        "D",
        color=style.INK,
        markersize=5,
        markerfacecolor="none",
        label="closed form, any GPU",
    )
    axes.axvline(0.0, color=style.GREY, linewidth=0.8)
    axes.set_yticks(y, keys)
    axes.set_xlabel("∂ ln C / ∂ ln input")
    axes.set_title(f"Largest run: {end}")
    axes.grid(axis="x", color=style.PALE, linewidth=0.6)
    axes.set_axisbelow(True)


if __name__ == "__main__":
    run_study(main)
