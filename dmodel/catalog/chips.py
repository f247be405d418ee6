"""Chips by name: peak rates per precision, memory, latency, power, price."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dmodel.catalog.loader import (
    Entry,
    canonical,
    field,
    fold,
    known_name,
    number,
    resolve,
    table,
)
from dmodel.errors import InputError
from dmodel.units import HOUR

if TYPE_CHECKING:
    from dmodel.records import Chip

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

SINGLE = ("matmul_efficiency", "attention_efficiency")
"""Coefficients that single operations on some chips tell: shares of the peak of long products, and
of fused attention."""

COEFFICIENTS = ("power_demand", "grouped_efficiency", *SINGLE)
"""Those and others that some chips have beside. power_demand: power that products ask for at the
full clock over what the limit leaves. grouped_efficiency: share of their rate that products of
experts keep."""

TRAITS = {"last_level_cache": "byte", "parts": "count"} | dict.fromkeys(COEFFICIENTS, "1")
"""Numbers that only some chips have, and the unit of each: `COEFFICIENTS`; last_level_cache, the
largest cache before the memory; parts, dies or cores of which each counts as a device, or that a
name counts ("v5p-8" has four chips)."""


USUAL = ("bf16", "fp16")
"""Precisions in which models are trained unless told, the first that a chip has."""


def usual_precision(name: str) -> str:
    """Precision of products on a chip unless told: of `USUAL` the first that it has, else its
    first; of an unknown chip the first of `USUAL`.

    >>> usual_precision("H100-80GB"), usual_precision("T4"), usual_precision("H101")
    ('bf16', 'fp16', 'bf16')
    """
    main = known_name("chips", name)
    rates = {} if main is None else table("chips")[main]["flops_per_s"]
    return next((p for p in USUAL if p in rates), next(iter(rates), USUAL[0]))


def generation(name: str) -> str:
    """Generation of a chip ("hopper"); "" where the catalog does not know it.

    >>> generation("H100-80GB"), generation("TPU v5p"), generation("H101")
    ('hopper', 'tpu', '')
    """
    main = known_name("chips", name)
    return "" if main is None else table("chips")[main].get("generation", "")


def maker(name: str) -> str:
    """Who makes a chip, or all chips of a generation; of a user's own the maker of the chip that it
    is like, or of its generation; "" where that is unknown.

    >>> maker("H100-80GB"), maker("tpu"), maker("H101")
    ('NVIDIA', 'Google', '')
    """
    main = known_name("chips", name)
    entry = {} if main is None else table("chips")[known_as(main)]
    of = entry.get("generation", "") or (name if main is None else "")
    chips = table("chips").values()
    same = (e.get("maker") for e in chips if of and e.get("generation") == of)
    return entry.get("maker") or next((each for each in same if each), "")


def platform(name: str) -> str:
    """What frameworks call devices of a chip's kind, "gpu" or "tpu"; "" for an unknown chip.

    >>> platform("H100-80GB"), platform("TPU v5p")
    ('gpu', 'tpu')
    """
    main = known_name("chips", name)
    return "" if main is None else table("chips")[main].get("platform", "")


def generations() -> tuple[str, ...]:
    """Generations of all chips, each once."""
    found = (entry.get("generation", "") for entry in table("chips").values())
    return tuple(dict.fromkeys(name for name in found if name))


def trait(name: str, key: str) -> float | None:
    """A number of `TRAITS` in its unit, as far as it is known of a chip.

    >>> trait("H100-80GB", "power_demand"), trait("L40S", "power_demand")
    (1.5, None)
    """
    main = known_name("chips", name)
    entry = {} if main is None else table("chips")[main].get(key)
    return number(entry, TRAITS[key], f"chips/{main}/{key}") if entry else None


def other_counts(name: str) -> dict[str, float]:
    """What else a device of a chip may be, where its parts are counted, or it is one: in words →
    its rates and memory over the chip's.

    >>> other_counts("MI250X"), other_counts("MI250X-GCD"), other_counts("TPU-v4")
    ({'MI250X-GCD': 0.5}, {'MI250X': 2}, {'1/2 of TPU-v4': 0.5})
    """
    main, parts = known_name("chips", name) or "", _with_parts()
    wholes = {whole: of["value"] for whole, of in parts.items() if of.get("each") == main}
    return {**_of_whole(main, parts), **wholes}


def _with_parts() -> dict[str, Entry]:
    """Chips of several parts, and what is said of these."""
    return {name: each["parts"] for name, each in table("chips").items() if "parts" in each}


def _of_whole(main: str, parts: Mapping[str, Entry]) -> dict[str, float]:
    """A part of a chip that has several, in words, and its share."""
    if main not in parts:
        return {}
    count = trait(main, "parts") or 1.0
    return {parts[main].get("each", f"1/{count:g} of {main}"): 1.0 / count}


def processor(name: str) -> str:
    """The chip with the same processor and clock that stands for this one; itself unless told.

    >>> processor("H800"), processor("H200-141GB")
    ('H100-80GB', 'H200-141GB')
    """
    main = resolve("chips", name)
    return table("chips")[main].get("processor", main)


def known_as(name: str) -> str:
    """The chip whose fitted coefficients and facts hold for this one: itself, unless the file that
    describes it says `like`; an unknown name as `loader.canonical` has it.

    >>> known_as("h100"), known_as("Our chip")
    ('H100-80GB', 'our-chip')
    """
    main = canonical("chips", name)
    return table("chips").get(main, {}).get("like", main)


def of_device(kind: str) -> str | None:
    """The chip that a framework calls a kind of device, None where no chip is known by it.

    >>> of_device("TPU7x"), of_device("NVIDIA H100 80GB HBM3"), of_device("H101")
    ('TPU-v7x-core', 'H100-80GB', None)
    """
    called = {
        fold(each): name
        for name, entry in table("chips").items()
        for each in entry.get("device_kinds", ())
    }
    return called.get(fold(kind)) or known_name("chips", kind)


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
    import numpy as np

    from dmodel.catalog.hosts import host
    from dmodel.records import Chip

    main = resolve("chips", name)
    entry = table("chips")[main]
    v = {
        key: np.float64(number(entry[key], unit, f"chips/{main}/{key}"))
        for key, unit in NUMBERS.items()
    }
    its = host(main)
    return Chip(
        flops_per_s=np.float64(_rate(main, precision)),
        attention_flops_per_s=np.float64(_rate(main, usual_precision(main))),
        exponentials_per_s=v["exponentials_per_s"],
        hbm_bytes=v["hbm_bytes"],
        hbm_bytes_per_s=v["hbm_bytes_per_s"],
        kernel_latency_s=v["kernel_latency"],
        idle_watts=v["idle_power"],
        peak_watts=v["peak_power"],
        price_per_s=np.float64(v["price"] / HOUR),
        host_bytes_per_s=np.float64(its.link),
        host_memory_bytes_per_s=np.float64(its.per_device(its.devices)),
    )


def fields(entry: Entry) -> list[Entry]:
    """Every number of one chip as rows for display."""
    rates = [
        field(f"flops_per_s/{precision}", rate) for precision, rate in entry["flops_per_s"].items()
    ]
    return rates + [field(key, entry[key]) for key in (*NUMBERS, *TRAITS) if key in entry]
