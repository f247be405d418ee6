"""The three figures of the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dmodel.report.bars import Bar, breakdown
from dmodel.report.scatter import Point, scatter
from dmodel.report.sections import Document, plans
from dmodel.report.text import percent
from dmodel.report.tornado import Elasticity, tornado

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figures(d: Document) -> dict[str, Figure]:
    """The figures of a demo by file name."""
    bars = [
        Bar(f"{name}:  {_wrapped(p['label'])}", _terms(p), f"MFU {percent(p['mfu'], 0)}")
        for name, p in plans(d["design"])
    ]
    inputs = [
        Elasticity(_readable(e["name"]), e["group"], e["elasticity"])
        for e in d["sensitivity"]["elasticities"]
        if e["group"] != "coefficient"
    ]
    return {
        "predicted_vs_measured.png": scatter(
            [Point(p["measured_s"], p["predicted_s"], p["held_out"]) for p in d["points"]]
        ),
        "step_time_breakdown.png": breakdown(bars),
        "elasticities.png": tornado(inputs),
    }


def _terms(plan: Document) -> dict[str, float]:
    return {name.removesuffix("_s"): value for name, value in plan["breakdown"].items()}


def _wrapped(label: str, width: int = 30) -> str:
    """A long label on two lines."""
    if len(label) <= width:
        return label
    cut = label.rfind(" · ", 0, width)
    return label if cut < 0 else label[:cut] + "\n" + label[cut + 3 :]


WORDS = {
    "model.seq_len": "sequence length",
    "model.n_layers": "layers",
    "model.d_model": "width of the model",
    "model.d_ff": "width of the MLP",
    "model.n_heads": "heads",
    "model.n_kv_heads": "KV heads",
    "model.head_dim": "size of a head",
    "model.vocab": "vocabulary",
    "plan.dp": "data parallelism, dp",
    "plan.tp": "tensor parallelism, tp",
    "plan.pp": "pipeline stages, pp",
    "plan.cp": "context parallelism, cp",
    "chip.flops_per_s": "peak FLOP/s, matmuls",
    "chip.attention_flops_per_s": "peak FLOP/s, attention",
    "chip.exponentials_per_s": "exponentials/s, attention",
    "chip.hbm_bytes_per_s": "memory bandwidth",
    "chip.host_bytes_per_s": "link to the host",
    "chip.host_memory_bytes_per_s": "host's memory bandwidth",
    "chip.kernel_latency_s": "kernel latency",
}
"""Inputs in the words of a chart."""


QUANTITIES = {"bytes_per_s": "bandwidth", "latency_s": "latency"}
"""Fields of a network in words."""


def _readable(name: str) -> str:
    """`network.bytes_per_s[NVLink 4]` → `bandwidth of NVLink 4`, `coefficients.launch` →
    `coefficient launch`."""
    if name in WORDS:
        return WORDS[name]
    record, _, rest = name.partition(".")
    field, _, level = rest.partition("[")
    words = QUANTITIES.get(field, field).replace("_", " ")
    if level:
        return f"{words} of {level[:-1]}"
    return f"coefficient {words}" if record == "coefficients" else words
