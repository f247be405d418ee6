"""How the work is spread over devices and time: what a planner or a search chooses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dmodel import struct
from dmodel.records.schedule import MIXED
from dmodel.types import Array

PLACEMENT = ("tp", "cp", "ep", "dp", "pp")
"""Default order of the groups on the network, innermost first. Experts are laid over the ranks of
tp, cp and dp in this order, whatever those are for: `ep` before `dp` makes the ranks that share a
layer's experts neighbours, after it the ranks that hold the same ones."""

OPEN: Any = None
"""What a layout leaves to the stack, or to a rule; `dmodel.resolve` fills it."""

NEUTRAL = {
    "tp": 1.0,
    "cp": 1.0,
    "pp": 1.0,
    "ep": 1.0,
    "etp": 1.0,
    "sp": 0.0,
    "zero": 0.0,
    "shard": 1.0,
    "reshard": 1.0,
    "interleave": 1.0,
    "stage_excess": 0.0,
    "head_displaces": 0.0,
    "micro_batch": 1.0,
    "recompute_layers": 0.0,
    "recompute_attention": 0.0,
    "recompute_products": 0.0,
    "recompute_elementwise": 0.0,
    "recompute_bytes": 0.0,
    "offload": 0.0,
}
"""Values of what is neither chosen nor open, in a plan."""


class Layout(struct.PyTreeNode, kw_only=True):
    """Degrees, sharding, micro-batch, recomputation. dp · tp · cp · pp is the number of devices.

    In a question a field may be `OPEN`; in a plan every field is a number.

    Attributes:
      dp: data-parallel degree [count]; 1 = off.
      tp: tensor-parallel degree [count]; 1 = off.
      cp: context-parallel degree [count]; 1 = off.
      pp: pipeline stages [count]; 1 = off.
      ep: ranks of tp · cp · dp that hold different experts [count]; 1 = off.
      etp: tensor-parallel degree inside an expert; ep · etp divides tp · cp · dp [count]; 1 = off.
      sp: 1 = sequence parallelism beside tp; 0 = off.
      zero: ZeRO stage, 0 to 3 (3 = FSDP), linear between two stages [1]; 0 = off.
      shard: ranks of dp that ZeRO shards over (below dp: HSDP) [count]; 1 = none.
      reshard: 1 = ZeRO-3 gathers weights again for the backward pass; 0 = keeps them.
      interleave: v, model chunks of a pipeline stage [count]; 1 = off.
      stage_excess: layers of the fullest stage beyond the mean one [count]; 0 = stages are alike.
      head_displaces: layers that the head's stage holds below the fullest [count]; 0 = none.
      micro_batch: b, sequences of a data-parallel rank in a micro-batch [sequence].
      recompute_layers: share of the layers recomputed in full [1]; 0 = none.
      recompute_attention: share of the others whose attention core is recomputed [1]; 0 = none.
      recompute_products: share of the others' products that is done again [1]; 0 = none.
      recompute_elementwise: share of the others' streaming kernels done again [1]; 0 = none.
      recompute_bytes: share of a layer's kept bytes that recomputed modules drop [1]; 0 = none.
      offload: share of the kept bytes that waits in the host's memory, in no time [1]; 0 = none.
      schedule: of the pipeline, one of `schedule.SCHEDULES` (static).
      placement: order of the groups on the network, innermost first (static).
    """

    CHOICES = frozenset(
        ("sp zero reshard recompute_products recompute_elementwise recompute_bytes offload").split()
    )
    """Fields that are choices, not sizes: no derivative is asked for."""

    OF_EXPERTS = frozenset("ep etp".split())
    """Fields that say nothing of a model without experts."""

    dp: Array = OPEN
    tp: Array = OPEN
    cp: Array = OPEN
    pp: Array = OPEN
    ep: Array = OPEN
    etp: Array = OPEN
    sp: Array = OPEN
    zero: Array = OPEN
    shard: Array = OPEN
    reshard: Array = OPEN
    interleave: Array = OPEN
    stage_excess: Array = OPEN
    head_displaces: Array = OPEN
    micro_batch: Array = OPEN
    recompute_layers: Array = OPEN
    recompute_attention: Array = OPEN
    recompute_products: Array = OPEN
    recompute_elementwise: Array = OPEN
    recompute_bytes: Array = OPEN
    offload: Array = OPEN
    schedule: str = struct.field(pytree_node=False, default="1f1b")
    placement: tuple[str, ...] = struct.field(pytree_node=False, default=PLACEMENT)

    @property
    def devices(self) -> Array:
        """dp · tp · cp · pp."""
        return self.dp * self.tp * self.cp * self.pp


class Mixed(Layout, kw_only=True):
    """A layout whose schedule is numbers: one program then holds all schedules, side by side.

    Attributes:
      mix: share of each schedule of `schedule.MIXED` [1]; what is left is 1F1B, interleaved or not.
    """

    CHOICES = Layout.CHOICES | {"mix"}

    mix: Mapping[str, Array]

    @classmethod
    def of(cls, layout: Layout) -> Mixed:
        """The layout with its schedule as numbers."""
        mix = {leaf: float(name == layout.schedule) for leaf, name in MIXED.items()}
        return cls(**vars(layout), mix=mix)
