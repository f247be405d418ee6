"""What bandwidth is worth in FLOP/s, by chip generation.

Question: is a network's bandwidth worth more of arithmetic from one chip generation to the next,
or did networks grow along?

At the best plan of each system, how much 1 % more of a rate saves (elasticities by gradient,
checked by solving anew), and so how
many per cent of FLOP/s one per cent of network bandwidth is worth. `python -m
experiments.design_bandwidth [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dmodel.design import design
from dmodel.records import Cluster
from dmodel.report import style
from dmodel.step import step_time
from dmodel.sweep import quick_to_compile
from experiments import design_common as shared
from experiments.design_common import Machine
from experiments.study import run as run_study
from experiments.study import say

GENERATIONS = ("V100-DGX", "A100-DGX", "H100-DGX", "H200-HGX", "B200-DGX", "GB200-NVL72")
DEVICES = (64, 512, 4096)
MODEL, SEQ_LEN, BATCH = "llama-3-70b", 4096, 1024
RATES = ("arithmetic", "HBM bandwidth", "inner network", "outer network", "latencies")
PARTS = {
    "arithmetic": style.BLUE,
    "HBM bandwidth": style.SKY,
    "inner network": style.GREEN,
    "outer network": style.ORANGE,
}
WORTH = "1 % of network bandwidth in % of FLOP/s"
"""Column of what a network is worth."""

STEP = 0.1
"""Relative change by which solving anew checks the slopes."""


def scaled(system: Cluster, part: str, by: float | jax.Array) -> Cluster:
    """A system with one kind of rate (or all latencies) times a factor."""
    chip, net = system.chip, system.network
    if part == "arithmetic":
        names = ("flops_per_s", "attention_flops_per_s", "exponentials_per_s")
        return system.replace(
            chip=chip.replace(**{name: by * getattr(chip, name) for name in names})
        )
    if part == "HBM bandwidth":
        return system.replace(chip=chip.replace(hbm_bytes_per_s=by * chip.hbm_bytes_per_s))
    if part == "latencies":
        return system.replace(network=net.replace(latency_s=by * jnp.asarray(net.latency_s)))
    inner = jnp.arange(net.n_levels) == 0
    chosen = inner if part == "inner network" else ~inner
    return system.replace(
        network=net.replace(bytes_per_s=jnp.where(chosen, by, 1.0) * jnp.asarray(net.bytes_per_s))
    )


@cache
def _slopes():
    """Elasticities of the step time to every part, in one compiled function."""

    def log_time(
        logs: jax.Array, system: Cluster, model: Any, plan: Any, coefficients: Any
    ) -> jax.Array:
        for part, log in zip(RATES, logs, strict=True):
            system = scaled(system, part, jnp.exp(log))
        return jnp.log(step_time(system, model, plan, coefficients).total)

    return jax.jit(jax.grad(log_time), compiler_options=quick_to_compile())


def elasticities(at: Machine, model: Any, plan: Any) -> dict[str, float]:
    """Relative change of the step time per relative change of each part, at a plan."""
    floats = jax.tree.map(
        lambda x: jnp.asarray(x, dtype=float), (at.system, model, plan, at.coefficients)
    )
    found = _slopes()(jnp.zeros(len(RATES)), *floats)
    return dict(zip(RATES, map(float, found), strict=True))


def line_of(at: Machine, devices: int, checked: bool) -> dict[str, Any] | None:
    """One system at one size: its best plan and what rates are worth there; None when the model
    does not fit."""
    model = shared.model(MODEL, SEQ_LEN)

    def best(system: Cluster) -> Any:
        return design(system, model, devices, BATCH, at.coefficients, method="exact", top=1).best

    found = best(at.system)
    if found is None:
        return None
    e = elasticities(at, model, found.plan)
    line: dict[str, Any] = {
        "system": at.name,
        "devices": devices,
        "profile": at.profile,
        "step_time_s": float(found.step_time_s),
    }
    line |= {"mfu": float(found.mfu)} | {f"elasticity: {part}": e[part] for part in RATES}
    network = e["inner network"] + e["outer network"]
    line[WORTH] = network / e["arithmetic"]
    line["exposed_share"] = float(found.breakdown.exposed_communication / found.breakdown.total)
    if checked:
        faster = best(scaled(at.system, "outer network", 1.0 + STEP))
        saved = 1.0 - float(faster.step_time_s) / float(found.step_time_s)
        line["outer network +10 %: saved, solved anew"] = saved
        line["outer network +10 %: saved, by slope"] = 1.0 - (1.0 + STEP) ** e["outer network"]
    return line


def draw(lines: list[dict[str, Any]]) -> Any:
    """Stacked elasticities of each system at the largest size; what bandwidth is worth in FLOP/s
    against size."""
    figure = style.new_figure(10.2, 4.2)
    left, right = figure.subplots(1, 2, width_ratios=(5, 4))
    sizes = sorted({line["devices"] for line in lines})
    _stacked(left, [line for line in lines if line["devices"] == sizes[-1]])
    left.set_title(f"Elasticity of the step at the best plan, {sizes[-1]:,} devices")
    names = dict.fromkeys(line["system"] for line in lines)
    for name, color in zip(names, shared.COLORS, strict=False):
        mine = [line for line in lines if line["system"] == name]
        x, y = ([line[key] for line in mine] for key in ("devices", WORTH))
        right.plot(x, y, "o-", color=color, markersize=4, linewidth=1.4, label=name)
    right.set_xscale("log", base=2)
    right.set_xticks(sizes, [f"{n:,}" for n in sizes])
    right.set_ylim(0.0, None)
    right.set_xlabel("devices")
    right.set_ylabel("1 % of network bandwidth, in % of FLOP/s")
    right.set_title("Network against arithmetic")
    right.legend(frameon=False, fontsize=7.5)
    for axes in (left, right):
        shared.quiet_grid(axes)
    return figure


def _stacked(axes: Any, shown: list[dict[str, Any]]) -> None:
    names = [line["system"] for line in shown]
    bottom = np.zeros(len(shown))
    for part, color in PARTS.items():
        heights = np.array([-100.0 * line[f"elasticity: {part}"] for line in shown])
        axes.bar(names, heights, bottom=bottom, color=color, label=part, width=0.65)
        bottom = bottom + heights
    axes.set_ylabel("share of the step that the rate decides [%]")
    axes.tick_params(axis="x", labelrotation=20)
    axes.set_ylim(0.0, 118.0)
    axes.legend(
        frameon=False, fontsize=7.5, ncols=4, loc="upper left", columnspacing=1.0, handlelength=1.2
    )


def main() -> None:
    """Solve all systems at all sizes, differentiate at the optima, check some by solving anew."""
    args = shared.options(__doc__ or "")
    names, sizes = (GENERATIONS[1:3], DEVICES[:2]) if args.quick else (GENERATIONS, DEVICES)
    lines = []
    for name in names:
        at = shared.machine(name, args.profile)
        for devices in sizes:
            line = line_of(at, devices, checked=True)
            if line is None:
                say(f"{name}, {devices} devices: {MODEL} does not fit")
                continue
            lines.append(line)
        say(f"{name}: {at.profile}")
    shared.deliver("design_bandwidth", lines, draw(lines), args)


if __name__ == "__main__":
    run_study(main)
