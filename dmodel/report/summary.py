"""One prediction in a dozen lines of text: what `print` shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dmodel.breakdown import TERMS
from dmodel.run import CONVENTION
from dmodel.units import GIB

if TYPE_CHECKING:
    from dmodel.prediction import Prediction

WIDTH = 24
"""Characters of the longest bar."""


def summary(found: Prediction) -> str:
    """Step time with its interval, time by cause, memory, utilization and cost."""
    d, asked = found.document, found.asked
    where = f"{asked.devices} × {asked.accelerator}"
    model = asked.model_name or "a model without a name"
    lines = [
        f"{model}, {int(asked.model.seq_len)} tokens, batch {asked.global_batch}, on {where}"
        + (f", {asked.stack}" if asked.stack else ""),
        f"step {_seconds(d['step_time_s'])}{_interval(found)}",
        *_bars(found),
        _memory(found),
        f"MFU {d['mfu'][CONVENTION]:.1%} ({CONVENTION}, peak "
        f"{float(asked.cluster.chip.flops_per_s) / 1e12:.0f} TFLOP/s), "
        f"{d['tokens_per_s_per_device']:,.0f} tokens/s per device, "
        f"{d['dollars_per_million_tokens']:.3g} dollars per million tokens",
        f"{len(found.assumptions)} assumptions (.assumptions); where a term comes from: "
        ".explain(term)",
    ]
    return "\n".join(lines)


def _seconds(x: float) -> str:
    return f"{x:.3g} s" if x >= 1.0 else f"{1e3 * x:.3g} ms"


def _interval(found: Prediction) -> str:
    ends = found.interval
    return "" if ends is None else f" (90 %: {_seconds(ends[0])} to {_seconds(ends[1])})"


def _bars(found: Prediction) -> list[str]:
    """Causes of more than half a percent of the step, each with a bar."""
    total = found.step_time_s
    named = [(name, getattr(found.breakdown, name)) for name in TERMS]
    shown = [(name, x) for name, x in named if x > 0.005 * total]
    most = max(x for _, x in shown)
    return [
        f"  {name.replace('_', ' '):<18}{_seconds(x):>9} {x / total:>6.1%}  "
        f"{'█' * max(round(WIDTH * x / most), 1)}"
        for name, x in shown
    ]


def _memory(found: Prediction) -> str:
    d = found.document
    used, has = d["memory_bytes_per_device"] / GIB, d["device_memory_bytes"] / GIB
    fits = "fits" if d["fits"] else "DOES NOT FIT"
    return f"memory {used:.1f} of {has:.0f} GiB ({fits}; risk {d['oom_probability']:.0%})"
