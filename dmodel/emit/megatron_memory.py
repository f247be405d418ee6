"""Flags of Megatron-LM for what is held and what is done again: recomputation, number formats."""

from __future__ import annotations

from collections.abc import Mapping

from dmodel.emit import shape
from dmodel.emit.sheet import Setting, Sheet, number_format, scaled_format, where
from dmodel.records import BUCKET_GRADIENTS, BUCKET_GRADIENTS_PER_RANK

STATES: dict[float, dict[str, Setting]] = {
    12.0: {},
    8.0: {
        "use-precision-aware-optimizer": True,
        "exp-avg-dtype": "bf16",
        "exp-avg-sq-dtype": "bf16",
    },
    6.0: {"use-precision-aware-optimizer": True, "exp-avg-dtype": "fp8", "exp-avg-sq-dtype": "fp8"},
}
"""Stored optimizer bytes per parameter (master weight and two moments) → flags."""


def write(sheet: Sheet) -> None:
    """Tell recomputation, kernels and formats."""
    _recompute(sheet)
    _kernels(sheet)
    _precision(sheet)
    _weights(sheet)
    _gradients(sheet)


def _recompute(sheet: Sheet) -> None:
    s = sheet
    _layers_again(s)
    shape.leave_parts(
        s,
        "recomputed are whole layers, the core of attention or modules by name",
        "--recompute-modules",
    )
    shape.recomputed_end(s, False, "recomputed layers are done again to their end")
    shape.offloaded_layers(s, "cpu-offloading-num-layers", {})
    _attention_again(s)


def _in_full(method: str, layers: int) -> dict[str, Setting]:
    """Flags of layers that are done again in full."""
    return {
        "recompute-granularity": "full",
        "recompute-method": method,
        "recompute-num-layers": layers,
    }


def _layers_again(sheet: Sheet) -> None:
    """Layers that are done again in full."""
    share = sheet["recompute_layers"]
    if share == 1:
        sheet.tell("recompute_layers", _in_full("uniform", 1))
    elif share > 0:
        sheet.tell("recompute_layers", _in_full("block", shape.block_layers(sheet)[0]))
        shape.leave_part_layers(sheet)
    else:
        sheet.tell("recompute_layers")


def _attention_again(sheet: Sheet) -> None:
    """The core of attention, done again alone."""
    core, share = sheet["recompute_attention"], sheet["recompute_layers"]
    if core == 0 or share == 1:
        sheet.tell("recompute_attention")
        return
    sheet.keeps(
        "recompute_attention",
        core == 1 and share == 0,
        "selective recomputation holds for all layers or none, and not beside full "
        "recomputation of some",
        {"recompute-granularity": "selective", "recompute-modules": "core_attn"},
    )


def _kernels(sheet: Sheet) -> None:
    s = sheet
    s.tell("flash", {"attention-backend": "flash" if s["flash"] else "unfused"})
    why = "buckets hold 40 million gradients, or a million per rank, or what --ddp-bucket-size says"
    shape.buckets(
        s,
        BUCKET_GRADIENTS_PER_RANK * s["reduce_bytes"],
        why,
        {"ddp-bucket-size": int(BUCKET_GRADIENTS)},
    )
    shape.copies(s, True, "sums over replicas run beside the backward pass")
    s.keeps(
        "boundary_buffers",
        not s["boundary_buffers"],
        "a stage receives into memory that it takes as it goes",
    )
    shape.launched(
        s,
        bool(s["fused_sums"]),
        True,
        "Transformer Engine goes through the experts of a rank one after the other",
    )
    if not s["fused_sums"]:
        s.settings["no-gradient-accumulation-fusion"] = True


def _recipe(sheet: Sheet) -> dict[str, Setting] | None:
    """Flags of a narrow format; None where there is none."""
    formats: dict[str, dict[str, Setting]] = {
        "fp8": {
            "fp8-format": "hybrid",
            "fp8-recipe": "tensorwise" if sheet["scale_passes"] else "delayed",
        },
        "fp8-delayed": {"fp8-format": "hybrid", "fp8-recipe": "delayed"},
        "fp8-tensorwise": {"fp8-format": "hybrid", "fp8-recipe": "tensorwise"},
        "fp8-blockwise": {"fp8-format": "e4m3", "fp8-recipe": "blockwise"},
        "mxfp8": {"fp8-format": "e4m3", "fp8-recipe": "mxfp8"},
        "nvfp4": {"fp4-format": "e2m1", "fp4-recipe": "nvfp4"},
    }
    return formats.get(scaled_format(sheet))


def _precision(sheet: Sheet) -> None:
    words = number_format(sheet)
    half = "fp16" if words == "fp16" else "bf16"
    sheet.settings[half] = True
    if sheet["operand_bytes"] == 2:
        sheet.tell("operand_bytes wide_layers scale_passes")
        return
    recipe = _recipe(sheet)
    sheet.either(
        "operand_bytes scale_passes",
        recipe,
        f"Transformer Engine has no {scaled_format(sheet) or 'such'} products; they run in {half}",
    )
    _wide_layers(sheet, recipe)


def _wide_layers(sheet: Sheet, recipe: Mapping[str, Setting] | None) -> None:
    """Layers that stay in 16 bits beside a narrow format."""
    wide = sheet["wide_layers"] * sheet["n_layers"]
    ends: dict[str, Setting] = {
        "first-last-layers-bf16": True,
        "num-layers-at-start-in-bf16": int(wide / 2),
        "num-layers-at-end-in-bf16": -int(-wide // 2),
    }
    if recipe is None or wide != int(wide):
        sheet.leave("wide_layers", "16-bit layers are whole ones, at the two ends")
        return
    sheet.tell("wide_layers", where(wide, ends))
    sheet.rule(
        not wide or recipe.get("fp8-recipe") != "delayed",
        "delayed scaling keeps no layers in 16 bits: use --fp8-recipe tensorwise",
    )


GATHERED: dict[float, dict[str, Setting]] = {
    2.0: {},
    1.0: {"fp8-param-gather": True},
    0.5: {"fp4-param-gather": True},
}
"""Bytes of a gathered weight → flags."""

GRADIENTS: dict[float, dict[str, Setting]] = {
    4.0: {"accumulate-allreduce-grads-in-fp32": True},
    2.0: {"grad-reduce-in-bf16": True},
}
"""Bytes of a stored gradient → flags."""


def _weights(sheet: Sheet) -> None:
    """How weights are gathered and stored."""
    size, stored = sheet["gather_bytes"], sheet["weight_bytes"]
    narrower = sheet["operand_bytes"] == 2 and size != 2
    gathered = None if narrower else GATHERED.get(size)
    sheet.either(
        "gather_bytes",
        gathered,
        f"weights are gathered in the format of the products, not in {size:g} bytes",
    )
    sheet.keeps(
        "weight_bytes",
        stored == 2 or (stored == size and gathered),
        "weights are stored in the format in which they are gathered, 2 bytes by default",
    )


def _gradients(sheet: Sheet) -> None:
    """How gradients and states of the optimizer are stored."""
    s = sheet
    s.either(
        "gradient_bytes",
        GRADIENTS.get(s["gradient_bytes"]),
        "gradients are kept in 4 bytes, or in 2 with --grad-reduce-in-bf16",
    )
    s.keeps(
        "reduce_bytes",
        s["reduce_bytes"] == s["gradient_bytes"],
        "gradients travel in the format in which they are stored (--grad-reduce-in-bf16 makes "
        "both 2 bytes, and memory less than planned)",
    )
    states = STATES.get(s["optimizer_bytes"])
    s.keeps(
        "optimizer_bytes",
        states is not None and (not states or s["zero"] >= 1),
        "optimizer states are 12 bytes, or 8 or 6 with a distributed optimizer",
        states,
    )
