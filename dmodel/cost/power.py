"""Power of one device from what it is busy with."""

from __future__ import annotations

from dmodel.hardware import Chip
from dmodel.types import Array

ARITHMETIC_SHARE, MEMORY_SHARE, NETWORK_SHARE = 0.6, 0.25, 0.15
"""Shares of the dynamic power at full use of arithmetic, memory and network: assumed, not measured."""

HOST_SHARE, COOLING_FACTOR = 1.82, 1.1
"""Whole server over its accelerators at full load (DGX H100: 10.2 kW for 8 × 0.7 kW, NVIDIA data sheet 2023), and facility over servers
(a PUE of 1.1: assumed)."""


def watts(chip: Chip, arithmetic: Array, memory: Array, network: Array) -> Array:
    """Mean power of one accelerator [W]: `idle + (peak − idle) · Σ share · activity`.

    Limits: idle when nothing is busy, peak when everything is.

    Args:
      arithmetic, memory, network: shares of the time in which they are busy, 0 to 1.
    """
    activity = ARITHMETIC_SHARE * arithmetic + MEMORY_SHARE * memory + NETWORK_SHARE * network
    return chip.idle_watts + (chip.peak_watts - chip.idle_watts) * activity
