"""Kernels of a layer: how many run in turn, and how many the host launches one by one."""

from __future__ import annotations

from dmodel.counts import mean_layer
from dmodel.records import Model, Plan
from dmodel.smooth import ramp
from dmodel.types import Array


def kernels(model: Model, plan: Plan) -> Array:
    """Kernels of one forward layer [count]: 4 products, 2 norms, 2 residuals, rotary (1, or 12),
    activation, attention (1 fused, 6 not), 1 more for each of the 2 tensor-parallel collectives,
    sorting of tokens (6) when there are experts. Latents add 2 products, 2 norms and a
    concatenation, those of experts 2 products, shared experts 3; a Mamba-2 mixer has 10, not
    attention's 6. An adapter has 5 in a pass
    (2 products, scale, addition; 6 backward), 1 for dropout, under tp a collective, or 2 where it
    returns h. Nominal: `launch` scales."""
    mean, several = mean_layer(model), ramp(plan.layout.tp - 1.0)
    collective = 2.0 * several
    adapters = (5.0 + model.adapter_dropout + several) * (
        model.first_adapters + model.last_adapters
    ) + several * model.last_adapters
    experts = (6.0 + 3.0 * ramp(model.n_shared_experts) + 2.0 * mean.latents) * mean.routed
    attention = model.attention_share * (
        6.0 + 5.0 * mean.up + 5.0 * (1.0 - plan.software.flash) + 11.0 * plan.software.split_rotary
    )
    return (
        attention
        + 10.0 * model.mamba_share
        + 5.0 * model.mlp_share
        + collective
        + experts
        + adapters
    )


LOOP = 0.25
"""What a launch from a loop in C++ takes of one from Python [1]: Transformer Engine hands all
experts of a rank to one call. With 1, 64 experts on a rank (Nemotron 3 Super on B300) were to take
14.7 s where a step takes 8.3, of which their products alone are 2; of 1, 0.5, 0.25 and 0.1 the fit
of all rows prefers 0.5 by 4 nats, rows held out by group 0.25."""


CASTS = 3.0
"""Launches that a product below 16 bits takes beside its own [count]: a cast of each operand, and
what keeps its scales (copies and reciprocals, a fifth of the time of a small product in Transformer
Engine, NVIDIA/TransformerEngine#1016). Scheduling a linear layer takes its host more than twice as
long in 8 bits, a forward pass that waits for it 140 ms for 77 (the same, #761); counted so, a layer
has 23 launches for 11. Of 0, 3 and 5 the fit of all rows prefers 3, by 14 and 12 nats. What XLA and
graphs launch is not of these (`Software.graphed`)."""


def expert_casts(model: Model, plan: Plan) -> Array:
    """Casts of one forward layer that go through the experts of a rank one after the other [count]:
    `2 looped low E / ep`, of what either product reads."""
    low = plan.precision.low_precision * (1.0 - plan.precision.wide_layers)
    return (
        2.0
        * plan.software.looped_experts
        * low
        * model.n_experts
        / plan.layout.ep
        * mean_layer(model).routed
    )


def launches(model: Model, plan: Plan) -> Array:
    """Kernels of one forward layer that the host launches one by one [count]: `(kernels + CASTS low
    products) (1 − graphed) +
    LOOP (2 looped (1 + b) E / ep + casts)`, low the share of products below 16 bits. Attention has
    2 of these, and 2 from latents, a Mamba-2 mixer 2, an MLP 2, grouped or not. Of experts
    (Transformer Engine's GroupedLinear goes through those of a rank) two products each, two for a
    bias (b), beside each other, so they are not among the `kernels` that fill and drain the device
    in turn, and two casts below 16 bits (`expert_casts`), which do."""
    beside = (
        2.0
        * plan.software.looped_experts
        * (1.0 + model.expert_biases)
        * model.n_experts
        / plan.layout.ep
        * mean_layer(model).routed
    )
    low = plan.precision.low_precision * (1.0 - plan.precision.wide_layers)
    products = (
        model.attention_share * (2.0 + 2.0 * mean_layer(model).up)
        + 2.0 * model.mamba_share
        + 2.0 * model.mlp_share
    )
    each = (kernels(model, plan) + CASTS * low * products) * (1.0 - plan.software.graphed)
    return each + LOOP * (beside + expert_casts(model, plan))
