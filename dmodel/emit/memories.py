"""What a stack of one's own may hold in the memory of device and host, and what frameworks do."""

from __future__ import annotations

from dmodel.emit.sheet import Sheet

HOSTED = (
    "optimizer and weights are offloaded by settings of their own (Megatron-Core: "
    "--optimizer-cpu-offload, FSDP: CPUOffloadPolicy, DeepSpeed: offload_optimizer); write them "
    "yourself"
)

OWN_MEMORY = {
    "update_bytes": "the framework's optimizer updates in place",
    "raw_gradient_bytes": "the framework's gradients add up in one place",
    "whole_logits": "the framework's ranks of tp have their columns of the logits for the loss",
    "whole_ends": "the framework gathers embedding and head when they are at work",
    "boundary_copies": "the framework's pipeline drops what it has sent",
    "freed_gradients": "the memory of the framework's gradients stays",
    "eager": "the framework fuses or compiles norms, activations and gates",
    **dict.fromkeys(("offload_optimizer", "offload_weights"), HOSTED),
    **dict.fromkeys(
        ("end_bytes", "whole_bytes", "dequantize"),
        "weights in 4 bits are a matter of the library that holds them",
    ),
}
"""Fields that are 0 in frameworks, and why."""


def own_memory(sheet: Sheet) -> None:
    """Fields of what a stack holds where; of how the host does its part there is nothing to set."""
    for name, reason in OWN_MEMORY.items():
        sheet.keeps(name, not sheet[name], reason)
    sheet.tell("host_sums overlap_offload host_update")
