"""Longer context, 2k to 128k tokens (finding 9).

Longer context: more arithmetic per byte sent, less exposed communication, higher utilization
(finding 9); 2k to 128k tokens.

Assumed in advance: Llama-2 7B on 256 H100, bf16, flash attention with causal masks. Three ways to
lengthen: one sequence per device without context parallelism (tokens per device grow; beyond the
memory without recomputation from some length on); 8,192 tokens per device, the sequence spread over
as many devices as that takes; and the fastest plan that fits, by search, at 2.1 million tokens per
step.
MFU by 6N + 12Lhs and by the causal half, 6N + 6Lhs. `python -m experiments.scaling_context
[--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dmodel import catalog
from dmodel.counts import model_flops_per_token
from dmodel.report import style
from experiments import scaling as shared
from experiments import scaling_compared as compared
from experiments import scaling_figures as figures
from experiments.scaling import Answers, Cases, coefficients, fsdp
from experiments.scaling_plans import Choice, every_plan, search
from experiments.study import COLORS, options
from experiments.study import run as run_study

SYSTEM, CHIP, MODEL, DEVICES = "H100-DGX", "H100-80GB", "llama-2-7b", 256.0
LENGTHS = tuple(float(2**i) for i in range(11, 18))
PER_DEVICE = 8192.0
"""Tokens of one device and step where the sequence is spread [token]."""

WAYS = ("one sequence per device", "8,192 tokens per device", "best plan")

ASSUMPTIONS = {
    "workload": "Llama-2 7B on 256 H100, bf16, causal flash attention",
    WAYS[0]: (
        "ZeRO-3 over all devices, no context parallelism, no recomputation: tokens per device "
        "grow with the length"
    ),
    WAYS[1]: (
        "ZeRO-3 over all devices; below 8,192 several sequences, above context parallelism of "
        "length / 8,192"
    ),
    WAYS[2]: (
        "the fastest that fits at 2.1 million tokens per step: tp and pp up to 8, cp up to 16, "
        "ZeRO 1 or 3, recomputation"
    ),
}


class Line(NamedTuple):
    """One way to lengthen: answers by length, the causal MFU [1], and a plan in words where it was
    searched."""

    found: Answers
    causal: np.ndarray
    plans: tuple[str, ...]


def plain(length: float) -> dict[str, Cases]:
    """Both fixed ways at one length."""
    system, c = catalog.system(SYSTEM), coefficients(CHIP)
    model = catalog.transformer(MODEL, seq_len=int(length))
    one = fsdp(np.array([DEVICES]), 1.0)
    cp = max(length / PER_DEVICE, 1.0)
    dp, micro = DEVICES / cp, max(PER_DEVICE / length, 1.0)
    spread = fsdp(np.array([dp]), micro, cp=np.array([cp]))
    return {
        f"{way} {length:.0f}": shared.cases(system, model, plan, c)
        for way, plan in zip(WAYS, (one, spread), strict=False)
    }


def best(length: float, quick: bool) -> tuple[Cases, str]:
    """The fastest plan that fits at one length, and what it is."""
    system, c, model = (
        catalog.system(SYSTEM),
        coefficients(CHIP),
        catalog.transformer(MODEL, seq_len=int(length)),
    )
    degrees = (1, 2, 4, 8)
    choice = Choice(
        tp=degrees, pp=degrees[:2] if quick else degrees, cp=(*degrees, 16), groups=(8,)
    )
    found = search(
        system, model, c, [every_plan(model, DEVICES, DEVICES * PER_DEVICE / length, choice)]
    )
    row = found.best(np.ones(len(found.step_time_s), bool))
    if row is None:
        raise ValueError(f"no plan of Llama-2 7B fits at {length:.0f} tokens; widen the search")
    names = {
        name: float(found.columns[name][row])
        for name in ("tp", "cp", "pp", "dp", "zero", "micro_batch", "recompute_layers")
    }
    return shared.cases(system, model, found.plan([row]), c), ", ".join(
        f"{name} {x:g}" for name, x in names.items() if x not in (0.0, 1.0)
    )


def lines(quick: bool) -> dict[str, Line]:
    """All three ways at all lengths, evaluated as one batch."""
    parts: dict[str, Cases] = {}
    words = []
    for length in LENGTHS:
        case, text = best(length, quick)
        parts |= plain(length) | {f"{WAYS[2]} {length:.0f}": case}
        words.append(text)
    found = shared.answer(shared.join(list(parts.values())))
    names = list(parts)
    share = np.array([causal_share(n) for n in LENGTHS])
    rows = {way: [names.index(f"{way} {n:.0f}") for n in LENGTHS] for way in WAYS}
    return {
        way: Line(found.take(r), found.mfu[r] * share, tuple(words) if way == WAYS[2] else ())
        for way, r in rows.items()
    }


def causal_share(length: float) -> float:
    """Model FLOPs that count the causal half of attention over those that count all of it [1]."""
    model = catalog.transformer(MODEL, seq_len=int(length))
    return float(model_flops_per_token(model, "6N+6Lhs")) / float(model_flops_per_token(model))


def findings(found: dict[str, Line]) -> list[dict[str, Any]]:
    """Directions, and both ends of every way."""
    result = []
    for way, line in found.items():
        values = {
            "exposed communication shrinks": -line.found.exposed_share,
            "utilization rises (6N + 12Lhs)": line.found.mfu,
            "utilization rises (causal half)": line.causal,
        }
        for text, x in values.items():
            first, last = 100.0 * abs(x[[0, -1]])
            result.append(
                compared.direction(
                    f"9 {way}: {text}", bool(x[-1] > x[0]), f"{first:.1f} → {last:.1f} %"
                )
            )
    return result


def why(found: dict[str, Line]) -> list[str]:
    """Where the step goes at both ends, and the best plan at every length."""
    text = ["Largest shares of the step at the shortest and longest context [%]:"]
    for way, line in found.items():
        share = shared.shares(line.found)
        for i in (0, -1):
            parts = sorted(((float(x[i]), name) for name, x in share.items()), reverse=True)[:5]
            text.append(
                f"  {way}, {LENGTHS[i]:,.0f}: "
                + ", ".join(f"{name} {100 * v:.0f}" for v, name in parts)
            )
    text.append("Best plan by length:")
    return text + [
        f"  {n:>7,.0f}: {words}" for n, words in zip(LENGTHS, found[WAYS[2]].plans, strict=True)
    ]


def table(found: dict[str, Line]) -> list[dict[str, Any]]:
    """One line per way and length."""
    return [
        {
            "way": way,
            "tokens": int(n),
            "mfu": float(line.found.mfu[i]),
            "mfu_causal": float(line.causal[i]),
            "exposed_share": float(line.found.exposed_share[i]),
            "tokens_per_s_per_device": float(line.found.tokens_per_s_per_device[i]),
            "headroom_gib": float(line.found.headroom_bytes[i]) / 2**30,
            "plan": line.plans[i] if line.plans else "",
        }
        for way, line in found.items()
        for i, n in enumerate(LENGTHS)
    ]


def draw(found: dict[str, Line]) -> Any:
    """Exposed communication and utilization against length; hollow points do not fit in memory."""
    figure = style.new_figure(11.4, 4.0)
    grid = figure.subplots(1, 3)
    titles = (
        "Exposed communication [% of the step]",
        "MFU, 6N + 12Lhs [%]",
        "MFU, causal half, 6N + 6Lhs [%]",
    )
    for axes, title in zip(grid, titles, strict=True):
        axes.set_title(title, fontsize=9.5)
    for (way, line), color in zip(found.items(), COLORS, strict=False):
        fits = line.found.headroom_bytes >= 0.0
        for axes, y in zip(
            grid, (line.found.exposed_share, line.found.mfu, line.causal), strict=True
        ):
            axes.plot(LENGTHS, 100.0 * y, color=color, linewidth=1.6, label=way)
            for ok in (True, False):
                here = fits == ok
                inside = color if ok else "white"
                axes.plot(
                    np.array(LENGTHS)[here],
                    100.0 * y[here],
                    "o",
                    color=color,
                    markersize=4.5,
                    markerfacecolor=inside,
                )
    grid[0].plot(
        [], [], "o", color=style.GREY, markerfacecolor="white", markersize=4.5, label="does not fit"
    )
    for axes in grid:
        figures.scale_axis(axes, LENGTHS, "tokens of a sequence")
        axes.set_ylim(0.0, None)
    grid[1].legend(
        *grid[0].get_legend_handles_labels(), frameon=False, loc="lower left", fontsize=8
    )
    return figure


def main() -> None:
    """Evaluate every length, compare, draw."""
    args = options(__doc__ or "")
    found = lines(args.quick)
    assumed = shared.assumed(ASSUMPTIONS, SYSTEM, CHIP)
    compared.deliver(
        "scaling_context", assumed, findings(found), table(found), draw(found), args, why(found)
    )


if __name__ == "__main__":
    run_study(main)
