"""Chips by name: peak rates per precision, memory, latency, power, price."""

from __future__ import annotations

import numpy as np

from dmodel.catalog.loader import Entry, field, number, resolve, table
from dmodel.records import Chip
from dmodel.types import HOUR, InputError

NUMBERS = {
    "exponentials_per_s": "1/s",
    "hbm_bytes": "byte",
    "hbm_bytes_per_s": "byte/s",
    "kernel_latency": "s",
    "idle_power": "W",
    "peak_power": "W",
    "price": "dollar/hour",
}
"""Numbers of one chip beside its rates, and the unit of each in the data file."""


def precisions(name: str) -> list[str]:
    """Matmul precisions of a chip, as the traces write them."""
    return list(table("chips")[resolve("chips", name)]["flops_per_s"])


def _rate(main: str, precision: str) -> float:
    """Dense peak rate of a chip at a precision [FLOP/s]."""
    rates = table("chips")[main]["flops_per_s"]
    key = str(precision).strip().lower()
    if key not in rates:
        raise InputError(
            f"chip {main} has no {precision!r} matmuls; it has: {', '.join(rates)}. Choose "
            "one of "
            "these or another chip"
        )
    return number(rates[key], "FLOP/s", f"chips/{main}/flops_per_s/{key}")


def chip(name: str, precision: str = "bf16") -> Chip:
    """Build the chip of that name for a matmul precision; vendor units become SI here.

    Args:
      name: a name or alias of the catalog, case and hyphens ignored ("H100-80GB", "h100", "TPU
        v5p").
      precision: precision of the matmuls, as in traces ("bf16", "fp16", "fp8", "mxfp8", "nvfp4",
        "int8", "fp8-blockwise128").

    Returns:
      The record with float64 scalars; peaks are dense, without structured sparsity.

    Raises:
      InputError: unknown chip (with the nearest names), or the chip lacks the precision (with those
        it has).

    >>> float(chip("H100-80GB").flops_per_s)
    989400000000000.0
    """
    main = resolve("chips", name)
    entry = table("chips")[main]
    v = {
        key: np.float64(number(entry[key], unit, f"chips/{main}/{key}"))
        for key, unit in NUMBERS.items()
    }
    half = next(
        (p for p in ("bf16", "fp16") if p in entry["flops_per_s"]), next(iter(entry["flops_per_s"]))
    )
    return Chip(
        flops_per_s=np.float64(_rate(main, precision)),
        attention_flops_per_s=np.float64(_rate(main, half)),
        exponentials_per_s=v["exponentials_per_s"],
        hbm_bytes=v["hbm_bytes"],
        hbm_bytes_per_s=v["hbm_bytes_per_s"],
        kernel_latency_s=v["kernel_latency"],
        idle_watts=v["idle_power"],
        peak_watts=v["peak_power"],
        price_per_s=np.float64(v["price"] / HOUR),
    )


def fields(entry: Entry) -> list[Entry]:
    """Every number of one chip as rows for display."""
    rates = [
        field(f"flops_per_s/{precision}", rate) for precision, rate in entry["flops_per_s"].items()
    ]
    return rates + [field(key, entry[key]) for key in NUMBERS]
