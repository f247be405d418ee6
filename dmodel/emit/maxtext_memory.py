"""Settings of MaxText for what is held and what is done again: recomputation, number formats."""

from __future__ import annotations

from dmodel.emit import shape
from dmodel.emit.sheet import Setting, Sheet, number_format, scaled_format, where


def write(sheet: Sheet) -> None:
    """Tell recomputation, kernels and formats."""
    _recompute(sheet)
    _kernels(sheet)
    _products(sheet)
    _stored(sheet)


def on_tpu(sheet: Sheet) -> bool:
    """Whether the devices are TPUs, which have kernels of their own."""
    return sheet.job.accelerator.upper().startswith("TPU")


def _policy(sheet: Sheet) -> str:
    """The policy that does again what the plan does: one for all layers."""
    if sheet["recompute_layers"] > 0:
        return "full"
    if sheet["recompute_attention"] > 0:
        return "minimal"
    return "minimal_with_context" if sheet["recompute_elementwise"] == 1 else "none"


def _recompute(sheet: Sheet) -> None:
    s, share = sheet, sheet["recompute_layers"]
    s.settings["remat_policy"] = _policy(s)
    _offload(s)
    for name, why in RESULTS.items():
        s.keeps(f"recompute_{name}", share == 1 or not s[f"recompute_{name}"], why)
    _streams(s)
    s.keeps(
        "recompute_layers",
        share in (0, 1),
        "one policy holds for all layers: all are recomputed in full",
    )
    shape.recomputed_end(
        s,
        not shape.is_mixture(s),
        "compiled, recomputation ends once the backward pass has what it needs",
    )
    s.keeps(
        "recompute_attention",
        share > 0 or s["recompute_attention"] in (0, 1),
        "one policy holds for all layers: the core of attention is recomputed in all",
    )


RESULTS = {
    "bytes": "no policy recomputes modules by Megatron-Core's names",
    "products": "the policy keeps results of all products",
}
"""Parts of a layer that no policy does again → why."""


def _offload(sheet: Sheet) -> None:
    """Activations in the host's memory."""
    share, again = sheet["offload"], sheet["recompute_layers"]
    inputs: dict[str, Setting] = {"remat_policy": "custom", "decoder_layer_input": "offload"}
    sheet.keeps(
        "offload",
        not share or (share == 1 and again == 1),
        "policies offload the inputs of layers that are recomputed in full, or results by name",
        where(share, inputs),
    )


def _streams(sheet: Sheet) -> None:
    """What streams through memory, done again alone."""
    streams = sheet["recompute_elementwise"]
    kept = not streams and sheet.settings["remat_policy"] == "none"
    sheet.keeps(
        "recompute_elementwise",
        kept or streams == 1 or sheet["recompute_layers"] == 1,
        "beside products and the core of attention, policies keep nothing of a layer",
    )


def _kernels(sheet: Sheet) -> None:
    s = sheet
    fused = "flash" if on_tpu(s) else "cudnn_flash_te"
    s.tell("flash", {"attention": fused if s["flash"] else "dot_product"})
    shape.buckets(s, 0.0, "XLA combines messages by thresholds of its own")
    shape.copies(s, False, "the loop over layers waits for sums over replicas")
    s.keeps(
        "boundary_buffers",
        not s["boundary_buffers"],
        "a stage receives into memory that it takes as it goes",
    )
    shape.launched(
        s,
        False,
        False,
        "XLA decides what it fuses, and one kernel does the products of all experts",
        compiled=True,
    )


QUANTIZED: dict[str, dict[str, Setting]] = {
    "bf16": {"quantization": ""},
    "fp8": {"quantization": "fp8"},
    "int8": {"quantization": "int8"},
    "fp16": {},
}
"""Format of the products → settings."""


def _products(sheet: Sheet) -> None:
    """Format of the products."""
    s, words = sheet, number_format(sheet)
    s.settings["dtype"] = "bfloat16" if words != "fp16" else "float16"
    s.either(
        "operand_bytes",
        QUANTIZED.get(scaled_format(s)),
        f"of the narrow formats, fp8 and int8; not {scaled_format(s)}",
    )
    for name in ("wide_layers", "scale_passes"):
        told = s["operand_bytes"] >= 2 or not s[name]
        s.keeps(name, told, "follows from the quantization library")


STATES: dict[float, dict[str, Setting]] = {
    12: {"weight_dtype": "float32"},
    10: {"weight_dtype": "float32", "mu_dtype": "bfloat16"},
}
"""Bytes of a weight and its two moments → settings."""

GRADIENTS: dict[float, dict[str, Setting]] = {
    4.0: {"grad_dtype": "float32"},
    2.0: {"grad_dtype": "bfloat16"},
}
"""Bytes of a gradient → settings."""


def _stored(sheet: Sheet) -> None:
    """How weights, states of the optimizer and gradients are stored."""
    s = sheet
    s.keeps(
        "gather_bytes",
        s["gather_bytes"] == 2,
        "weights are cast to dtype, and gathered as XLA places the cast",
    )
    s.settings["weight_dtype"] = "float32"
    s.either(
        "weight_bytes optimizer_bytes",
        STATES.get(s["weight_bytes"] + s["optimizer_bytes"]),
        "one 4-byte copy of the weights and two moments are stored: 12 bytes per parameter in all "
        "(10 with mu_dtype bfloat16)",
    )
    s.either(
        "gradient_bytes",
        GRADIENTS.get(s["gradient_bytes"]),
        "gradients are kept in 4 or 2 bytes",
    )
    s.keeps(
        "reduce_bytes",
        s["reduce_bytes"] == s["gradient_bytes"],
        "gradients are reduced in the type XLA finds them in",
    )
