"""Memory traffic of kernels that stream beside those of a layer's parts: casts, adapters, loss.
Counts are per device, per layer and per micro-batch."""

from __future__ import annotations

from dmodel.blocks.part import ADDITION, WIDE, WORD, Passes, low_share, split_ranks, tokens
from dmodel.records import Model, Plan
from dmodel.tables import Matmuls
from dmodel.types import Array


def cast_bytes(products: Matmuls, model: Model, plan: Plan) -> Array:
    """Memory traffic of casting below 16 bits, forward and backward of one layer [byte]; 0 in 16
    bits.

    The left operand of each product forward, the gradient of its result backward, each read in 16
    bits, once more for each pass that finds its scale, and written in the operand's bytes twice: by
    rows for its own product, by columns for that of the weight gradient, which frozen weights do
    not have. Weights are cast once per step, not per micro-batch. Fused experts only write what
    lies between their two products. Products of `WIDE` stay in 16 bits.
    """
    bits = plan.precision
    left, _, result = products.elements
    read = WORD * (1.0 + bits.scale_passes)
    narrow = [kind for kind in products.kinds if kind not in WIDE]
    every = (read + (1.0 + model.trainable) * bits.operand_bytes) * products.of(
        left + result, *narrow
    )
    between = products.of(left, "expert_down") + products.of(result, "expert_up")
    return low_share(plan) * (every - plan.software.fused_experts * read * between)


READ, RETURNED, DROPPED = (
    Passes(1.0, 2.0 + ADDITION),
    Passes(1.0 + 2.0 + ADDITION, 2.0 + 2.0),
    Passes(2.5, 2.5),
)
"""Touches of what adapters read and return, and of what they read by a dropout before them, with
its mask of a byte [count]. An adapter's first product reads, its second writes, a scale reads and
writes that and an addition joins it with the frozen product's result (NeMo's
`ParallelLinearAdapter`). Backward both gradients of the second product read what the scale's
gradient wrote; what it read is read once more, its gradient written and added to that of the frozen
product."""


def adapter_bytes(model: Model, plan: Plan) -> Passes:
    """Memory traffic of the low-rank adapters of the mean layer, by pass [byte]: `2 t [(read +
    dropped) in + returned out]` with what they read, `in = n_first h + w_last / tp`, and return,
    `out = w_first / tp + n_last h / split`.

    Every kernel there is counts, so `elementwise_traffic`, which scales least traffic, does not.
    Products of a rank far below the intensity at which arithmetic takes longer are bound by this
    traffic.

    Limits: experts have none; kernels that join an adapter's products, scale and addition
    (Transformer Engine's op fuser) move less.
    """
    given = model.first_adapters * model.d_model + model.last_adapted / plan.layout.tp
    returned = (
        model.first_adapted / plan.layout.tp
        + model.last_adapters * model.d_model / split_ranks(plan)
    )
    moved = WORD * tokens(model, plan)
    return Passes(
        *(
            moved * ((read + dropped * model.adapter_dropout) * given + back * returned)
            for read, back, dropped in zip(READ, RETURNED, DROPPED, strict=True)
        )
    )


def loss_bytes(model: Model, plan: Plan) -> Array:
    """Memory traffic of the loss, forward and backward [byte]: fp32 logits read three times and
    written twice, `20 t V / tp`, and again for each head of further tokens."""
    return 20.0 * (1.0 + model.n_mtp) * tokens(model, plan) * model.vocab / plan.layout.tp
