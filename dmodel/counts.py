"""What has to be done, whatever the hardware: parameters, FLOPs, what a device holds and sends.

Symbols: L layers, h `d_model`, V vocabulary, s sequence, b micro-batch. Counts are per device, per
layer and per micro-batch unless a name says otherwise.
"""

from __future__ import annotations

from dmodel import struct
from dmodel.blocks.part import WORD, split_ranks, tokens
from dmodel.once import once
from dmodel.records import Model, Plan, value, weight_copies
from dmodel.tables import ends_of, layer, parameter_groups, times
from dmodel.traced import traced_once
from dmodel.types import Array

__all__ = ["WORD", "split_ranks", "tokens"]

CONVENTIONS = ("6N", "6N+12Lhs", "6N+6Lhs")
"""Published conventions of "model FLOPs" per token: without attention, with full attention, with
its causal half."""


def parameters(model: Model) -> Array:
    """Total parameters N [count], all experts counted.

    >>> from dmodel import catalog
    >>> f"{parameters(catalog.transformer('llama-3-70b')):.4g}"
    '7.055e+10'
    """
    n = parameter_groups(model)
    return n.layers * n.layer.total + n.embedding + n.head


def active_parameters(model: Model) -> Array:
    """Parameters that one token uses [count]: equal to `parameters` for a dense model."""
    n = parameter_groups(model)
    each = n.layer.split + n.layer.whole + n.layer.shared + n.layer.active
    return n.layers * each + n.embedding + n.head


def model_flops_per_token(model: Model, convention: str = "6N+12Lhs") -> Array:
    """Model FLOPs of one trained token, forward and backward, without recomputation [FLOP].

    `6 N + c L (a e) s` with N the active parameters (embedding included) and c = 0, 12 or 6 by
    convention. Narayanan et al. 2021 count
    full attention, c = 12; flash kernels on causal masks do half of it, c = 6. Windows are left out
    of the convention; heads whose queries are wider than values count with the mean of both.

    Raises:
      ValueError: the convention is none of `CONVENTIONS`.
    """
    if convention not in CONVENTIONS:
        raise ValueError(
            f"convention: expected one of {', '.join(CONVENTIONS)}; got {convention!r}"
        )
    c = {"6N": 0.0, "6N+12Lhs": 12.0, "6N+6Lhs": 6.0}[convention]
    n, again = parameter_groups(model), model.n_mtp * model.vocab * model.d_model
    core = n.layers * n.layer.core * model.seq_len
    return 6.0 * (active_parameters(model) + again) + 0.5 * c * core


def product_flops_per_token(model: Model) -> Array:
    """Model FLOPs of one trained token that no implementation can do without [FLOP].

    `6 N` with N the active parameters that take part in products: not the input embedding, which is
    looked up, unless it is the output head too. Attention scores and recomputation are left out,
    and so are gradients of frozen weights (4 for 6).
    """
    looked_up = parameter_groups(model).embedding * (1.0 - model.tied_embeddings)
    further = model.n_mtp * model.vocab * model.d_model
    return 2.0 * (2.0 + model.trainable) * (active_parameters(model) + further - looked_up)


def attention_flops(model: Model, plan: Plan) -> Array:
    """FLOPs of the forward core of the mean layer: scores and sums of attention, scans [FLOP]."""
    cores = layer(model, plan).cores
    return 0.0 if cores is None else cores.flops.sum(0)


def stage_layers(model: Model, plan: Plan) -> Array:
    """Layers of the fullest stage [count]: `(L + those in heads of further tokens) / pp`, and
    `stage_excess` where stages are not alike."""
    return model.layers / plan.layout.pp + plan.layout.stage_excess


class Residents(struct.PyTreeNode, kw_only=True):
    """Parameters of one device before ZeRO shards them [count]: `layers` of its pipeline stage
    without the routed experts, `experts`, the routed ones (ranks of ep hold different ones), and
    `ends`, the embedding and head of the fullest stage."""

    layers: Array
    experts: Array
    ends: Array

    @property
    def dense(self) -> Array:
        """layers + ends: what all ranks of dp hold alike."""
        return self.layers + self.ends

    @property
    def total(self) -> Array:
        """dense + experts."""
        return self.dense + self.experts


@once
@traced_once
def residents(model: Model, plan: Plan) -> Residents:
    """Parameters that a device of the mean stage holds, and the ends of the fullest: `L/pp` layers
    over tp (but for what latents come from, which every rank holds), routed experts over ep and etp
    instead (shared ones are on every rank of ep); the embedding on the first stage and the head on
    the last, both when there is one stage."""
    layout = plan.layout
    n = parameter_groups(model)
    layers, each = n.layers / layout.pp, n.layer
    return Residents(
        layers=layers * (each.whole + (each.split + each.shared) / layout.tp),
        experts=layers * each.routed / (layout.etp * layout.ep),
        ends=(n.embedding + n.head * ends_of(plan)) / (layout.tp * weight_copies(layout)),
    )


def activation_bytes(model: Model, plan: Plan) -> Array:
    """Bytes of one activation tensor `t × h` on the wire: the message of tensor parallelism."""
    return WORD * tokens(model, plan) * model.d_model


def between_layers(model: Model, plan: Plan) -> Array:
    """Bytes that go from layer to layer: one activation tensor, or as many as there are residual
    streams (`Compressed.residual_streams`, the mean where layers differ)."""
    return times(value(model, "residual_streams", 1.0), activation_bytes(model, plan))
