"""What the machine is: a chip and the network that joins chips. Numbers only; names live in the
catalog."""

from __future__ import annotations

from flax import struct

from dmodel.types import Array


class Chip(struct.PyTreeNode, kw_only=True):
    """One accelerator, at the matmul precision of the plan it is to run.

    Attributes:
      flops_per_s: dense peak rate of the plan's matmul precision [FLOP/s].
      attention_flops_per_s: dense peak rate of 16-bit arithmetic, which the attention core and the
      logits keep [FLOP/s]. exponentials_per_s: of which fused attention takes one for each score
      and pass [1/s].
      hbm_bytes: memory [byte].
      hbm_bytes_per_s: memory bandwidth [byte/s].
      kernel_latency_s: time from one dependent kernel to the next when both are empty [s].
      idle_watts, peak_watts: power draw at rest and at full load [W].
      price_per_s: rental price [dollar/s].
    """

    flops_per_s: Array
    attention_flops_per_s: Array
    exponentials_per_s: Array
    hbm_bytes: Array
    hbm_bytes_per_s: Array
    kernel_latency_s: Array
    idle_watts: Array
    peak_watts: Array
    price_per_s: Array


class Network(struct.PyTreeNode, kw_only=True):
    """Levels 0..K-1 of the network, innermost first; each attribute is `[K]` (or `[K, *batch]`).

    Attributes:
      size: members of one domain of the level, counted in domains of the level below [count];
        infinity = unbounded.
      bytes_per_s: bandwidth per device and direction [byte/s].
      latency_s: time of one hop of a collective [s].
      torus_axes: 1 for a switch; d for a torus of d axes, whose rings run along all axes at once
        [count].
      in_network_reduction: 1 when the switch adds up an all-reduce, else 0.
    """

    size: Array
    bytes_per_s: Array
    latency_s: Array
    torus_axes: Array
    in_network_reduction: Array

    @property
    def n_levels(self) -> int:
        """K, static."""
        return self.bytes_per_s.shape[0]  # type: ignore[union-attr]


class System(struct.PyTreeNode, kw_only=True):
    """A chip and its network; the number of devices is the product of the plan's degrees."""

    chip: Chip
    network: Network
