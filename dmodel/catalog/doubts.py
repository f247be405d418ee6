"""What is doubtful about a machine of a user's own, though not impossible; with arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dmodel.catalog.loader import Entry, is_added, table
from dmodel.units import written

HALF = ("bf16", "fp16")
"""Precisions of 16 bits."""

PROCESSOR = "cpu"
"""Platform of a host's own processor, measured as a device."""

READ_S = (1e-3, 1.0)
"""Seconds in which a memory is read once, beyond those of the catalog (16 ms to 0.47 s)."""

INTENSITY = (5.0, 2000.0)
"""FLOP of 16-bit products per byte of memory bandwidth, a few times beyond the catalog's."""

SAME, ALIKE = 0.01, 0.15
"""Relative difference of rates that are taken for one, and of memories that are."""

FAST_OUTER = 3e11
"""Bandwidth per device that no network between hosts or racks has had so far [byte/s]."""


def half_rate(rates: Mapping[str, Entry]) -> float:
    """Rate of 16-bit products, else the first one [FLOP/s]."""
    name = next((p for p in HALF if p in rates), next(iter(rates)))
    return float(rates[name]["value"])


def of_chip(entry: Entry, name: str) -> list[str]:
    """Doubts about a chip, each as a sentence; none about processors, which differ too much."""
    if entry["platform"] == PROCESSOR:
        return []
    rate = half_rate(entry["flops_per_s"])
    memory, bandwidth = (float(entry[key]["value"]) for key in ("hbm_bytes", "hbm_bytes_per_s"))
    found = list(_sparse(entry))
    read, intensity = memory / bandwidth, rate / bandwidth
    if not READ_S[0] <= read <= READ_S[1]:
        found.append(
            f"memory {written(memory, 'byte')} at {written(bandwidth, 'byte/s')} takes "
            f"{read:.2g} s to read; chips take {READ_S[0]:g} to {READ_S[1]:g} s"
        )
    if not INTENSITY[0] <= intensity <= INTENSITY[1]:
        found.append(
            f"peak {written(rate, 'FLOP/s')} over bandwidth {written(bandwidth, 'byte/s')} is "
            f"{intensity:.3g} FLOP per byte; chips have {INTENSITY[0]:g} to {INTENSITY[1]:,.0f}"
        )
    return [f"doubtful: {name}: {text}" for text in found]


def _sparse(entry: Entry) -> list[str]:
    """Rates that are twice the dense ones of a known chip of as much memory."""
    found = []
    for precision, rate in entry["flops_per_s"].items():
        known = _known_rates(precision, float(entry["hbm_bytes"]["value"]))
        value = float(rate["value"])
        if any(_close(value, r, SAME) for r in known.values()):
            continue
        for main, dense in known.items():
            if _close(value, 2.0 * dense, SAME):
                found.append(
                    f"peak in {precision}, {written(value, 'FLOP/s')}, is twice the dense "
                    f"{written(dense, 'FLOP/s')} of {main}: with sparsity? Peaks here are dense"
                )
                break
    return found


def _known_rates(precision: str, memory: float) -> dict[str, float]:
    """Rates of the shipped chips of about as much memory."""
    return {
        main: float(known["flops_per_s"][precision]["value"])
        for main, known in table("chips").items()
        if not is_added("chips", main)
        and precision in known["flops_per_s"]
        and _close(memory, float(known["hbm_bytes"]["value"]), ALIKE)
    }


def _close(one: float, other: float, relative: float) -> bool:
    return abs(math.log(one / other)) <= relative


def of_system(entry: Entry, name: str) -> list[str]:
    """Doubts about a network, each as a sentence."""
    rates = [float(level["bytes_per_s"]["value"]) for level in entry["levels"]]
    memory = float(table("chips")[entry["chip"]]["hbm_bytes_per_s"]["value"])
    found = []
    for k, (inner, outer) in enumerate(zip(rates, rates[1:], strict=False)):
        if outer > inner:
            found.append(
                f"level {k + 2} at {written(outer, 'byte/s')} is faster than level {k + 1} at "
                f"{written(inner, 'byte/s')}: are levels innermost first?"
            )
        elif outer > FAST_OUTER:
            found.append(
                f"level {k + 2} at {written(outer, 'byte/s')} is {8e-12 * outer:.3g} Tb/s for each "
                "device: is it of a whole host, or in bits?"
            )
    if rates[0] > memory:
        found.append(
            f"level 1 at {written(rates[0], 'byte/s')} is faster than the memory at "
            f"{written(memory, 'byte/s')}"
        )
    return [f"doubtful: {name}: {text}" for text in found]
