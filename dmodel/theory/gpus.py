"""The GPUs of the study and its variants of them: a chip with the tiers of its memory, and its
network; and chips beyond the study."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator
from importlib import resources
from typing import Any

import numpy as np

from dmodel.catalog.loader import fold, nearest
from dmodel.errors import InputError
from dmodel.records import Chip, Cluster, Network
from dmodel.types import Array

THREADS, BLOCKS = 128, 4
"""Threads of a streaming multiprocessor that count for its arithmetic, and its processing blocks.
"""

REGISTER_BYTES = 65536
"""Registers of one processing block, 4 of which make a multiprocessor [byte]."""

USABLE = 0.75
"""Share of L2 and of registers that a matmul's tiles may fill."""


class Gpu(Chip, kw_only=True):
    """A chip with tiers of memory below its HBM: L2, the multiprocessors' shared memory, registers.

    Attributes:
      flops_per_s: 16-bit peak at the highest clock [FLOP/s]. sustained: share of that clock kept
        under load, the most that any matmul utilizes.
      l2_bytes, l2_bytes_per_s: usable L2 [byte] and its bandwidth [byte/s].
      shared_bytes_per_s: bandwidth of all shared memories at the sustained clock [byte/s].
      register_bytes: usable registers of one processing block [byte]. processors: multiprocessors,
      of 4 blocks each. distributed_shared_memory: 1 when a multiprocessor reads the shared memory
      of others, else 0.
      Watts, price and the rates of attention play no part in the study.
    """

    sustained: Array
    l2_bytes: Array
    l2_bytes_per_s: Array
    shared_bytes_per_s: Array
    register_bytes: Array
    processors: Array
    distributed_shared_memory: Array
    attention_flops_per_s: Array = 0.0
    exponentials_per_s: Array = 0.0
    idle_watts: Array = 0.0
    peak_watts: Array = 0.0
    price_per_s: Array = 0.0


FILES = ("gpus", "beyond")
"""Data files: the study's GPUs, and chips that it does not have."""

WORD_BYTES = 2
"""Word of the study. A chip that computes in larger ones has, counted in such words, less of every
capacity and bandwidth."""


@functools.cache
def _document(file: str) -> dict[str, Any]:
    """A data file."""
    path = resources.files("dmodel.theory").joinpath(f"data/{file}.json")
    return json.loads(path.read_text(encoding="utf-8"))


@functools.cache
def _entries() -> dict[str, dict[str, Any]]:
    """Numbers of every chip of the data files, variants with those of their base."""
    found: dict[str, dict[str, Any]] = {}
    for file in FILES:
        for name, entry in _document(file)["entries"].items():
            base = found.get(entry.get("base"), {})
            assumed = {**base.get("assumed", {}), **entry.get("assumed", {})}
            found[name] = {**base, **entry, "file": file, "assumed": assumed}
    return found


def _folded(name: str) -> str:
    """Fold the spellings of a name, "+" and "and" among them."""
    return fold(name).replace("+", "and")


@functools.cache
def _spellings() -> dict[str, str]:
    """Main name of every folded name and alias, and of the variants' short ones."""
    known = {
        _folded(s): name for name, entry in _entries().items() for s in (name, *entry["aliases"])
    }
    return {s: name for file in FILES for s, name in _short(known, file)} | known


def _short(known: dict[str, str], file: str) -> Iterator[tuple[str, str]]:
    """Variants by what stands in for their base ("Superpod"): `short` of a data file."""
    for base, instead in _document(file).get("short", {}).items():
        start = _folded(base)
        for spelling, name in known.items():
            rest = spelling.removeprefix(start)
            # a digit goes on with the base's own name: "H100 SXM5"
            if spelling.startswith(start) and "base" in _entries()[name] and not rest[0].isdigit():
                yield from ((_folded(each) + rest, name) for each in instead)


def gpu_names(beyond: bool = False) -> list[str]:
    """GPUs and variants of the study, as its tables name them; or the chips beyond it."""
    return [name for name, entry in _entries().items() if entry["file"] == FILES[beyond]]


def assumptions(name: str) -> dict[str, str]:
    """Numbers of a chip that are not public, each with what stands in for it; none for those of the
    study.

    Raises:
      InputError: unknown chip.
    """
    return dict(_entry(name)["assumed"])


def _entry(name: str) -> dict[str, Any]:
    main = _spellings().get(_folded(str(name)))
    if main is None:
        known = [*gpu_names(), *gpu_names(beyond=True)]
        close = nearest(str(name), known)
        raise InputError(
            f"unknown GPU {name!r}; {'nearest' if close else 'known'}: {', '.join(close or known)}"
        )
    return _entries()[main]


def gpu(name: str) -> Cluster:
    """Build a GPU of the study, `Cluster(chip=Gpu, network=Network)`; bidirectional bandwidths
    become those of one direction here.

    Peak FLOP/s: multiprocessors × 128 threads × FLOP per clock and thread × clock; shared memory:
    multiprocessors × 4 × 32 byte per sustained clock.

    Args:
      name: as in the tables of the study ("H100 SXM") or its code ("H100_SXM5"), or a chip beyond
        it ("B200 SXM"); variants also as "Superpod" or "Global NVLink + LL"; case, spaces and
        hyphens ignored. Words of 4 bytes (GTX 580) count as two of the study's: capacities and
        bandwidths are half.

    Returns:
      Records of float64: scalars of the chip, `[level]` of the network; the last level is
        unbounded, and bandwidth may be infinite.

    Raises:
      InputError: unknown GPU, with the nearest names.

    >>> found = gpu("H100 SXM")
    >>> print(f"{found.chip.flops_per_s:.5g} FLOP/s", found.network.bytes_per_s)
    9.8943e+14 FLOP/s [4.5e+11 5.0e+10]
    """
    e = _entry(name)
    clocked = e.get("clocked_processors", e["processors"])
    per_clock = e.get("shared_bytes_per_clock", 32 * BLOCKS)
    counted = WORD_BYTES / e.get("word_bytes", WORD_BYTES)
    figures = {
        "flops_per_s": e["flop_per_clock_and_thread"] * THREADS * clocked * e["max_clock_hz"],
        "hbm_bytes": counted * e["hbm_bytes"],
        "hbm_bytes_per_s": counted * e["hbm_bytes_per_s"],
        "kernel_latency_s": e["matmul_latency_s"],
        "sustained": e["sustained"],
        "l2_bytes": counted * USABLE * e["l2_bytes"],
        "l2_bytes_per_s": counted * e["l2_bytes_per_s"],
        "shared_bytes_per_s": math.inf
        if per_clock is None
        else counted * per_clock * clocked * e["sustained"] * e["max_clock_hz"],
        "register_bytes": counted
        * e.get("usable_register_bytes", USABLE * e.get("register_bytes", REGISTER_BYTES)),
        "processors": e["processors"],
        "distributed_shared_memory": e["distributed_shared_memory"],
    }
    return Cluster(
        chip=Gpu(**{key: np.float64(value) for key, value in figures.items()}),
        network=_network(e, counted),
    )


def _network(e: dict[str, Any], counted: float) -> Network:
    """Levels innermost first; a bandwidth that the file leaves open is infinite. `counted`: words
    of the study in one of the chip's."""
    both_ways = np.array([math.inf if b is None else b for b in e["level_bytes_per_s"]], np.float64)
    return Network(
        size=np.array([*e["level_sizes"], math.inf], np.float64),
        bytes_per_s=0.5 * counted * both_ways,
        latency_s=np.array(e["level_latency_s"], np.float64),
        torus_axes=np.ones_like(both_ways),
        in_network_reduction=np.zeros_like(both_ways),
    )
