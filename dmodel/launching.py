"""Kernels of a layer: how many run in turn, and how many the host launches one by one."""

from __future__ import annotations

from dmodel.blocks.part import low_share
from dmodel.records import Plan
from dmodel.smooth import ramp
from dmodel.tables import Layer
from dmodel.types import Array

LOOP = 0.25
"""What a launch from a loop in C++ takes of one from Python [1]: Transformer Engine hands all
experts of a rank to one call. With 1, 64 experts on a rank (Nemotron 3 Super on B300) were to take
14.7 s where a step takes 8.3, of which their products alone are 2; of 1, 0.5, 0.25 and 0.1 the fit
of all rows prefers 0.5 by 4 nats, rows held out by group 0.25."""


CASTS = 3.0
"""Launches that a product below 16 bits takes beside its own in a forward pass [count]: a cast of
each operand, and what keeps its scales (copies and reciprocals, a fifth of the time of a small
product in Transformer Engine, NVIDIA/TransformerEngine#1016). Scheduling a linear layer takes its
host more than twice as long in 8 bits, a forward pass that waits for it 140 ms for 77 (the same,
#761); counted so, a forward layer has 23 launches for 11. Of 0, 3 and 5 the fit of all rows prefers
3, by 14 and 12 nats. What XLA and graphs launch is not of these (`Software.graphed`)."""

CASTS_BACKWARD = 1.0
"""The same of a backward pass [count]: one kernel casts the gradient of the result along rows and
columns, for the products of both gradients; what else they read was cast in the forward pass
(Transformer Engine 2.x, `module/linear.py`, `_Linear.backward`: one `grad_output_preprocess`).
Where #761 waits for its host in the forward pass, it does not in the backward pass."""


DEQUANTIZES = 3.0
"""Launches before a product whose weight is held in 4 bits with doubly quantized constants [count]:
the constants, their mean, and the weight (bitsandbytes, `functional.dequantize_4bit`)."""


def dequantizations(table: Layer, plan: Plan) -> Array:
    """Kernels of a layer and micro-batch that bring weights to 16 bits [count], of all passes: for
    each product of the forward pass, also where it is done again, and of that for gradients of
    activations; those of a rank's experts count as one."""
    each = DEQUANTIZES * ramp(plan.precision.dequantize) * table.dense
    return each * (2.0 + plan.layout.recompute_layers)


def launches(table: Layer, plan: Plan, trainable: Array = 1.0) -> Array:
    """Kernels of a layer and micro-batch that the host launches one by one [count], of all passes.

    `(kernels (1 − graphed) + LOOP (looped + casts)) n + low products (1 − graphed) (CASTS f +
    CASTS_BACKWARD)`, and `dequantizations`: n as in `passes`, f = 1 + recomputed forward passes,
    low the share of products below 16 bits. Products of experts that are launched one by one run
    beside each other, so they are not among the `kernels` that fill and drain the device in turn;
    their casts are.

    Args:
      trainable: share of the weights that are trained [1].
    """
    forward = 1.0 + plan.layout.recompute_layers
    singly = 1.0 - plan.software.graphed
    cast = low_share(plan) * table.dense * (CASTS * forward + CASTS_BACKWARD)
    each = table.kernels * singly + LOOP * (table.looped + table.casts)
    beside = (cast + dequantizations(table, plan)) * singly
    return each * passes(plan, trainable) + beside


def passes(plan: Plan, trainable: Array = 1.0) -> Array:
    """How often the kernels of a layer's forward pass are started, counting those of the backward
    pass by them: `2 + trainable`, and once more where a layer is recomputed [1]."""
    return 2.0 + trainable + plan.layout.recompute_layers
