"""A machine that the catalog does not have, described by what was measured on it, so that its
traces can be fitted.

A peak rate is the best measured one over the share that the model's coefficients expect of it
without measurements: with those, the model then predicts what was measured, and a fit starts from
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from calibration.collect.assumed import system_at
from calibration.collect.machine import Machine
from calibration.collect.store import Collection, Record
from calibration.traces.systems import ENDING
from dmodel.catalog.toml_text import of_machine
from dmodel.coefficients import SPECS
from dmodel.cost.collectives import OWN_PART

Entry = dict[str, Any]


def describe(found: Collection, folder: Path) -> list[Path]:
    """Write a file for every machine that was measured and is not in the catalog, as `--system`
    takes it and traces beside it are read with it; the files.

    A machine needs measured matmuls to be described: everything else is assumed where it was not
    measured, and says so.
    """
    environments = {e["accelerator"]: e for e in found.environments.values() if not e["in_catalog"]}
    written = []
    for name, environment in environments.items():
        records = _records_of(found, name)
        if any(r["kind"] == "matmul" for r in records):
            path = folder / f"{name}{ENDING}"
            system, chip = _system(name, records, environment), _chip(records, environment)
            path.write_text(of_machine(f"{name}-host", system, chip), encoding="utf-8")
            written.append(path)
    return written


def _records_of(found: Collection, accelerator: str) -> list[Record]:
    """What was measured on an accelerator, by any host and release."""
    ids = {key for key, e in found.environments.items() if e["accelerator"] == accelerator}
    of_these = (r for r in found.measurements.values() if r["environment"] in ids)
    return [r for r in of_these if r["status"] == "ok"]


def _number(value: float | None, unit: str, source: str, date: str) -> Entry:
    return {
        "value": None if value is None else float(f"{value:.6g}"),
        "unit": unit,
        "source": source,
        "date": date,
    }


def _day(records: Iterable[Record]) -> str:
    return max(r["started"] for r in records)[:10]


def _best(
    records: list[Record],
    rate: Callable[[Record], float],
    share: str,
    unit: str,
    what: str,
    otherwise: float,
) -> Entry:
    """The best measured rate over the default of a coefficient, or what is assumed where nothing
    was measured."""
    if not records:
        return _number(otherwise, unit, f"Assumed: no {what} was measured", "2026-01")
    expected = SPECS[share].default
    source = (
        f"Measured by dmodel collect: best of {len(records)} {what}, over the {expected:g} that "
        f"{share} is without a fit"
    )
    return _number(max(map(rate, records)) / expected, unit, source, _day(records))


def _chip(records: list[Record], environment: Record) -> Entry:
    guess = system_at(_machine(environment), "fp32").chip
    streams = _of(records, "memory")
    far = [r for r in streams if r["rotation"]["beyond_cache"]] or streams
    nothing = ("Not measured", "2026-01")
    return {
        "about": f"{environment['device_kind']}, as measured",
        "platform": environment["platform"],
        "flops_per_s": _rates(_of(records, "matmul")),
        "exponentials_per_s": _number(
            float(guess.exponentials_per_s),
            "1/s",
            "Assumed: exponentials are not measured",
            "2026-11",
        ),
        "hbm_bytes": _number(
            environment["memory_bytes"], "byte", "As the system reports", _day(records)
        ),
        "hbm_bytes_per_s": _best(
            far, _bytes, "memory_efficiency", "byte/s", "streams", float(guess.hbm_bytes_per_s)
        ),
        "kernel_latency": _launch(_of(records, "launch"), float(guess.kernel_latency_s)),
        "idle_power": _number(0.0, "W", *nothing),
        "peak_power": _number(0.0, "W", *nothing),
        "price": _number(0.0, "dollar/hour", *nothing),
    }


def _of(records: list[Record], kind: str) -> list[Record]:
    return [r for r in records if r["kind"] == kind]


def _rates(products: list[Record]) -> dict[str, Entry]:
    """The peak of each precision in which products were measured."""
    by_precision: dict[str, list[Record]] = {}
    for record in products:
        by_precision.setdefault(record["parameters"]["dtype"], []).append(record)
    by_precision.pop("tf32", None)
    return {
        precision: _best(found, _flops, "matmul_efficiency", "FLOP/s", "products", 0.0)
        for precision, found in by_precision.items()
    }


def _flops(record: Record) -> float:
    return record["work"]["flops"] / record["time"]["median_s"]


def _bytes(record: Record) -> float:
    return record["work"]["bytes"] / record["time"]["median_s"]


def _launch(records: list[Record], otherwise: float) -> Entry:
    """The slope of time in dependent kernels over the default of `launch`."""
    if len({r["work"]["kernels"] for r in records}) < 2:
        return _number(otherwise, "s", "Assumed: no chains of kernels were measured", "2026-01")
    kernels, times = (
        np.array(x)
        for x in zip(*[(r["work"]["kernels"], r["time"]["median_s"]) for r in records], strict=True)
    )
    slope = max(float(np.polyfit(kernels, times, 1)[0]), 1e-9)
    return _number(
        slope / SPECS["launch"].default,
        "s",
        "Measured by dmodel collect: slope over chains of kernels",
        _day(records),
    )


def _system(name: str, records: list[Record], environment: Record) -> Entry:
    gathers = [
        r
        for r in _of(records, "collectives")
        if r["parameters"]["collective"] in ("all_gather", "reduce_scatter")
    ]
    guess = system_at(_machine(environment), "fp32").network
    local = max(int(environment["topology"]["devices_per_process"]), 1)
    note = ("As the devices are laid out", _day(records))
    levels = []
    for k, level in enumerate(LEVELS):
        inside = [r for r in gathers if (r["work"]["nodes"] > 1) == (k == 1)]
        otherwise = float(np.asarray(guess.bytes_per_s)[k])
        levels.append(
            {
                "name": level.name,
                "size": _number(float(local) if k == 0 else None, "count", *note),
                "bytes_per_s": _best(
                    inside, _ring_rate, level.efficiency, "byte/s", "gathers", otherwise
                ),
                "latency": _hop(inside, float(np.asarray(guess.latency_s)[k])),
                "torus_axes": _number(1.0, "count", *note),
                "in_network_reduction": _number(0.0, "0 or 1", *note),
            }
        )
    return {
        "about": f"{environment['device_kind']}, as measured",
        "chip": name,
        "levels": levels,
    }


class _Level(NamedTuple):
    """A level of the network. efficiency: the coefficient that says what gathers reach of it."""

    name: str
    efficiency: str


LEVELS = (
    _Level("within a host", "net_efficiency_inner"),
    _Level("between hosts", "net_efficiency_outer"),
)


def _ring_rate(record: Record) -> float:
    """Bytes per second and device of a ring: `V (g − 1 + ρ)/g / t`, with what its own part costs a
    rank (`OWN_PART`)."""
    g = record["parameters"]["devices"]
    return _bytes(record) * (g - 1 + OWN_PART) / g


def _hop(records: list[Record], otherwise: float) -> Entry:
    """One hop of the smallest gathers: `(t − start) / (g − 1)`, the least of them, with the start
    of a collective that the model adds; at least a tenth of the time is hops."""
    if not records:
        return _number(otherwise, "s", "Assumed: no gathers were measured", "2026-01")
    start = SPECS["collective_start"].default
    times = [(r["time"]["median_s"], r["parameters"]["devices"] - 1) for r in records]
    least = min(max(t - start, 0.1 * t) / hops for t, hops in times)
    return _number(
        least, "s", "Measured by dmodel collect: the quickest gather, by its hops", _day(records)
    )


def _machine(environment: Record) -> Machine:
    """The machine of a record's environment, as far as a guess needs it."""
    return Machine(
        platform=environment["platform"],
        kind=environment["device_kind"],
        accelerator=environment["accelerator"],
        known=environment["in_catalog"],
        n_devices=environment["n_devices"],
        n_local=environment["n_local"],
        hosts=environment["hosts"],
        cache_bytes=environment["cache_bytes"],
        memory_bytes=environment["memory_bytes"],
        precisions=(),
    )
