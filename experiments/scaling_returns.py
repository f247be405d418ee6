"""What one more device adds, from 8 to 32,768 H100.

Marginal returns: what one more device adds to throughput, to tokens per joule and to cost,
exactly, from 8 to 32,768 H100.

Assumed in advance: Llama-2 7B by FSDP at 2 sequences of 4,096 tokens per device (weak), and at
2,048 sequences per step whatever the scale (strong); Llama-2 70B by FSDP; the derivative is taken
by the model's own differentiation, at a fixed plan whose data-parallel degree takes every device
that is added, and at the plan chosen anew at every scale (envelope theorem). Energy is that of the
facility.
`python -m experiments.scaling_returns [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dmodel import catalog
from dmodel.design import Choices
from dmodel.goodput import Reliability
from dmodel.records import Plan
from dmodel.report import style
from dmodel.returns import (
    BestReturns,
    HalfReturn,
    Returns,
    best_returns,
    half_return,
    marginal_returns,
)
from experiments import scaling as shared
from experiments import scaling_compared as compared
from experiments import scaling_figures as figures
from experiments.scaling import coefficients, fsdp
from experiments.study import COLORS, options
from experiments.study import run as run_study

SYSTEM, CHIP = "H100-DGX", "H100-80GB"
SCALES = tuple(float(2**i) for i in range(3, 16))
STRONG_BATCH = 2048.0

RUNS = {
    "7B, weak": ("llama-2-7b", "weak"),
    "7B, strong": ("llama-2-7b", "strong"),
    "70B, weak": ("llama-2-70b", "weak"),
}
"""Model and batch of every run; the strong one ends at one sequence per device."""

ASSUMPTIONS = {
    "weak": "FSDP over all devices, 2 sequences of 4,096 tokens per device in one micro-batch",
    "strong": "FSDP over all devices, 2,048 sequences per step, micro-batches of 1",
    "best plan": "the fastest of all valid plans at every scale, 7B, weak",
    "half return": "the scale at which one more device adds half of what it adds at 8 devices",
}


def plan(batch: str) -> Plan:
    """FSDP on 8 devices, to be grown."""
    if batch == "strong":
        return fsdp(8.0, 1.0, global_batch=STRONG_BATCH)
    return fsdp(8.0)


def scales(batch: str, quick: bool) -> tuple[float, ...]:
    """Where the derivative is taken."""
    found = SCALES[::3] if quick else SCALES
    return tuple(n for n in found if batch == "weak" or n <= STRONG_BATCH)


def returns(name: str, quick: bool) -> tuple[Returns, HalfReturn]:
    """Returns of a run at its scales, and the scale of the half return."""
    model_name, batch = RUNS[name]
    given = (
        catalog.system(SYSTEM),
        catalog.transformer(model_name, seq_len=shared.SEQ_LEN),
        plan(batch),
        coefficients(CHIP),
    )
    return marginal_returns(*given, scales(batch, quick), batch=batch), half_return(
        *given, batch=batch
    )


def with_failures() -> HalfReturn:
    """The half return of the weak run that fails as often as Llama 3's."""
    given = (
        catalog.system(SYSTEM),
        catalog.transformer("llama-2-7b", seq_len=shared.SEQ_LEN),
        plan("weak"),
        coefficients(CHIP),
    )
    return half_return(*given, reliability=Reliability())


def best(quick: bool) -> BestReturns:
    """Returns at the best plan of every scale."""
    choices = Choices(zero=(1, 3), recompute=(0.0, 1.0), schedules=("1f1b",))
    where = (64, 512) if quick else tuple(int(n) for n in SCALES if n <= 4096)
    given = (
        catalog.system(SYSTEM),
        catalog.transformer("llama-2-7b", seq_len=shared.SEQ_LEN),
        coefficients(CHIP),
    )
    base = Plan.of(dp=1.0, global_batch=1.0, **shared.kernels())
    return best_returns(*given, where, shared.PER_DEVICE, base=base, choices=choices)


def findings(
    found: dict[str, tuple[Returns, HalfReturn]], chosen: BestReturns, failing: HalfReturn | None
) -> list[dict[str, Any]]:
    """Half returns, and elasticities at both ends."""
    lines = []
    for name, (each, half) in found.items():
        reached = half.devices if np.isfinite(half.devices) else None
        note = f"the first adds {half.first_slope:,.0f} tokens/s" + (
            "" if reached else "; more than half up to the largest scale"
        )
        lines.append(
            compared.ratio(
                f"{name}: one more device returns half from", "H100", None, reached, None, note
            )
        )
        lines.append(diminish(name, each))
        slope = np.asarray(each.slope.tokens_per_joule)
        lines.append(
            compared.direction(
                f"{name}: every device lowers tokens per joule at the largest scale",
                bool(slope[-1] < 0.0),
            )
        )
    if failing is not None:
        lines.append(
            compared.ratio(
                "7B, weak, failing as Llama 3's: half from", "H100", None, failing.devices, None
            )
        )
    return [*lines, diminish("7B, weak, best plan", chosen.returns)]


def diminish(name: str, found: Returns) -> dict[str, Any]:
    """Whether the elasticity of throughput to devices is lower at the largest scale than at the
    smallest."""
    e, n = np.asarray(found.elasticity.tokens_per_s), np.asarray(found.devices)
    text = f"elasticity {n[0]:,.0f} → {n[-1]:,.0f} devices: {e[0]:.2f} → {e[-1]:.2f}"
    return compared.direction(f"{name}: returns diminish", bool(e[-1] < e[0]), text)


def table(
    found: dict[str, tuple[Returns, HalfReturn]], chosen: BestReturns
) -> list[dict[str, Any]]:
    """One line per run and scale."""
    runs = {name: each for name, (each, _) in found.items()} | {
        "7B, weak, best plan": chosen.returns
    }
    return [
        {
            "run": name,
            "devices": float(n),
            **{
                key: float(np.asarray(getattr(each.at, key))[i])
                for key in ("tokens_per_s", "tokens_per_joule", "dollars_per_token")
            },
            "added_tokens_per_s": float(np.asarray(each.slope.tokens_per_s)[i]),
            "added_tokens_per_joule": float(np.asarray(each.slope.tokens_per_joule)[i]),
            "added_dollars_per_token": float(np.asarray(each.slope.dollars_per_token)[i]),
            "elasticity_tokens_per_s": float(np.asarray(each.elasticity.tokens_per_s)[i]),
        }
        for name, each in runs.items()
        for i, n in enumerate(np.asarray(each.devices))
    ]


def draw(lines: list[dict[str, Any]], halves: dict[str, HalfReturn]) -> Any:
    """What one more device adds over the mean and over the first; tokens per joule; cost of a
    token."""
    figure = style.new_figure(13.2, 4.1)
    grid = figure.subplots(1, 3)
    names = list(dict.fromkeys(line["run"] for line in lines))
    for name, color in zip(names, COLORS, strict=False):
        _draw_run(grid, name, [line for line in lines if line["run"] == name], color)
        if name in halves and np.isfinite(halves[name].devices):
            look = {"color": color, "markerfacecolor": "white", "markersize": 6, "zorder": 5}
            grid[0].plot([halves[name].devices], [50.0], "o", **look)
    grid[0].axhline(50.0, color=style.GREY, linewidth=0.8, linestyle=":")
    grid[0].axhline(0.0, color=style.GREY, linewidth=0.8)
    titles = ("Throughput added by one more device", "Tokens per joule", "Cost of a token")
    for axes, title in zip(grid, titles, strict=True):
        axes.set_title(title)
        axes.set_ylabel("% of that at the smallest scale")
        figures.scale_axis(axes, SCALES, "H100")
    grid[2].set_yscale("log")
    grid[2].yaxis.set_major_formatter(lambda v, _: f"{v:,.0f}")
    grid[1].set_ylim(0.0, None)
    grid[1].legend(frameon=False, fontsize=8, loc="lower left")
    return figure


def _draw_run(grid: Any, name: str, mine: list[dict[str, Any]], color: str) -> None:
    n, dashes = [line["devices"] for line in mine], ":" if name.endswith("best plan") else "-"
    columns = ("added_tokens_per_s", "tokens_per_joule", "dollars_per_token")
    for axes, column in zip(grid, columns, strict=True):
        y = [100.0 * line[column] / mine[0][column] for line in mine]
        axes.plot(n, y, color=color, linewidth=1.7, linestyle=dashes, label=name)


def main() -> None:
    """Differentiate every run, search the best plans, draw."""
    args = options(__doc__ or "")
    names = list(RUNS)[:1] if args.quick else list(RUNS)
    found = {name: returns(name, args.quick) for name in names}
    chosen = best(args.quick)
    lines = table(found, chosen)
    text = (
        ["Jumps of the best plan:", *(f"  {jump}" for jump in chosen.jumps)] if chosen.jumps else []
    )
    assumed = shared.assumed(ASSUMPTIONS, SYSTEM, CHIP)
    figure = draw(lines, {name: half for name, (_, half) in found.items()})
    compared.deliver(
        "scaling_returns",
        assumed,
        findings(found, chosen, None if args.quick else with_failures()),
        lines,
        figure,
        args,
        text,
    )


if __name__ == "__main__":
    run_study(main)
