"""What a host takes for a device: copies over the link between both, and an update of states in the
host's memory."""

from __future__ import annotations

from dmodel.records import Chip, Plan
from dmodel.types import Array

LINK = 0.82
"""Share of a link's rate that copies of pinned memory reach [1]: 12.4 to 13.2 of 15.75 GB/s on PCIe
3, 25.1 to 26.3 of 31.5 on PCIe 4, 55.4 to 57.4 of 63 on PCIe 5, 295 to 338 of 450 on NVLink-C2C
(printed by nvbandwidth on A10, A100, H100 and GH200)."""


def copy_time(nbytes: Array, chip: Chip) -> Array:
    """Time of a copy over the link to the host, in one direction [s]: `bytes / (LINK · rate)`."""
    return nbytes / (LINK * chip.host_bytes_per_s)


def update_time(parameters: Array, plan: Plan, chip: Chip) -> Array:
    """Time of the host's update [s]: `u N (2 states + gradient + weight) / bandwidth of the host's
    memory per device`, u as `Software.host_update`.

    Limits: the memory decides, not the processor's arithmetic; copies do not slow it.

    Args:
      parameters: N, updated for this device [count].
    """
    bits = plan.precision
    moved = 2.0 * bits.optimizer_bytes + bits.gradient_bytes + bits.weight_bytes
    return plan.software.host_update * parameters * moved / chip.host_memory_bytes_per_s
