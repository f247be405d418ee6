"""What the machine is: a chip, and the network that joins chips."""

from __future__ import annotations

from dmodel import struct
from dmodel.types import Array


class Chip(struct.PyTreeNode, kw_only=True):
    """One accelerator, at the precision of the plan's products.

    Attributes:
      flops_per_s: dense peak rate of the plan's products [FLOP/s].
      attention_flops_per_s: dense peak rate in 16 bits, for attention and logits [FLOP/s].
      exponentials_per_s: rate of exponentials; fused attention takes one per score and pass [1/s].
      hbm_bytes: memory [byte].
      hbm_bytes_per_s: bandwidth of the memory [byte/s].
      kernel_latency_s: time from one dependent kernel to the next when both are empty [s].
      idle_watts: power draw at rest [W].
      peak_watts: power draw at full load [W].
      price_per_s: rent [dollar/s].
      host_bytes_per_s: of the link to the host, in one direction [byte/s].
      host_memory_bytes_per_s: a device's part of the bandwidth of its host's memory [byte/s].
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
    host_bytes_per_s: Array = 6.3e10
    host_memory_bytes_per_s: Array = 7.68e10


class Network(struct.PyTreeNode, kw_only=True):
    """Levels 0..K-1 of the network, innermost first; each attribute is `[K]`, or `[K, *batch]`.

    Attributes:
      size: domains of the level below that one domain of the level joins [count]; inf = unbounded.
      bytes_per_s: bandwidth per device and direction [byte/s].
      latency_s: time of one hop of a collective [s].
      torus_axes: axes of a torus, whose rings run along all at once [count]; 1 = a switch.
      in_network_reduction: 1 = the switch adds up an all-reduce; 0 = devices do.
    """

    CHOICES = frozenset("torus_axes in_network_reduction".split())
    """Fields that are choices, not sizes: no derivative is asked for."""

    size: Array
    bytes_per_s: Array
    latency_s: Array
    torus_axes: Array
    in_network_reduction: Array

    @property
    def n_levels(self) -> int:
        """K, static."""
        return self.bytes_per_s.shape[0]  # type: ignore[union-attr]


class Cluster(struct.PyTreeNode, kw_only=True):
    """Chips and the network that joins them.

    Attributes:
      chip: one accelerator.
      network: its levels.
      devices: accelerators [count]; 0 = as many as the plan's degrees multiply to.
    """

    chip: Chip
    network: Network
    devices: Array = 0.0
