"""From records to tables: training steps as traces, micro-benchmarks as the CSV files that public
ones come in."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from calibration.collect import store
from calibration.collect.describe import describe
from calibration.collect.driver import STACK, stack_of
from calibration.collect.kinds.collectives import Collective
from calibration.collect.measure import PARAMETERS, parameters_of
from calibration.collect.store import Collection, Record
from calibration.collect.tasks import Task
from calibration.collect.workload import WorkloadSpec, to_row
from calibration.traces import COLUMNS, TraceTable, write
from calibration.traces.table import Row
from dmodel.errors import InputError
from dmodel.units import GIB

TRACES = "traces.csv"
FILES = {"matmul": "gemm"}
"""Kinds whose table is not called as they are."""

BUS_FACTOR: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2.0 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "permute": lambda n: 1.0,
}
"""Bus over algorithm bandwidth (nccl-tests, PERFORMANCE.md)."""


def convert(folder: Path, parquet: bool = False) -> dict[Path, int]:
    """Write the tables of a folder of records beside them; rows by file.

    Steps become `traces.csv` (or Parquet), in the format of traces, which `dmodel fit` takes as it
    is; other kinds one CSV file each. A machine that the catalog does not have is described in a
    TOML file of a system, from what was measured, and traces beside it are read with it.
    """
    found = completed(store.read(folder))
    written: dict[Path, int] = {}
    of_kind = _by_kind(found)
    if steps := of_kind.pop("steps"):
        path = folder / (Path(TRACES).with_suffix(".parquet") if parquet else TRACES)
        written[path] = _traces(path, steps, found)
    for kind, records in of_kind.items():
        if records:
            path = folder / f"{FILES.get(kind, kind)}.csv"
            written[path] = _table(path, [_ROWS.get(kind, _plain)(r, found) for r in records])
    return written | dict.fromkeys(describe(found, folder), 1)


def _by_kind(found: Collection) -> dict[str, list[Record]]:
    """Measurements that went well, by kind of benchmark."""
    of_kind: dict[str, list[Record]] = {kind: [] for kind in PARAMETERS}
    for record in found.measurements.values():
        if record["status"] == "ok":
            of_kind[record["kind"]].append(record)
    return of_kind


def _traces(path: Path, steps: list[Record], found: Collection) -> int:
    """Write training steps as traces; how many."""
    cells = [_step(r, found.environments[r["environment"]]) for r in steps]
    rows = tuple(Row(str(path), i, row) for i, row in enumerate(cells, 2))
    write(TraceTable(tuple(column.name for column in COLUMNS), rows, (), (), ()), path)
    return len(rows)


def completed(found: Collection) -> Collection:
    """Records with all of their parameters; those that `left_out` names are not among them."""
    known = {
        key: r | {"parameters": parameters_of(Task(r["kind"], r["parameters"]))._asdict()}
        for key, r in found.measurements.items()
        if _unusable(r, found) is None
    }
    return found._replace(measurements=known)


def left_out(found: Collection) -> list[str]:
    """Measurements that no table can show, and why."""
    reasons = {key: _unusable(r, found) for key, r in found.measurements.items()}
    return [
        f"{Task(found.measurements[key]['kind'], found.measurements[key]['parameters'])}: {why}"
        for key, why in reasons.items()
        if why
    ]


def _unusable(record: Record, found: Collection) -> str | None:
    """Why a record cannot become a row; None when it can."""
    if record["environment"] not in found.environments:
        return (
            f"its environment {record['environment']} is in no file of the folder: that line was "
            "damaged, or its file was not copied"
        )
    try:
        parameters_of(Task(record["kind"], record["parameters"]))
    except InputError as error:
        return f"not of this version's measurements ({error}); upgrade to use it"
    return None


def _table(path: Path, rows: list[dict[str, Any]]) -> int:
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        out.writeheader()
        out.writerows(rows)
    return len(rows)


def _step(record: Record, environment: Mapping[str, Any]) -> dict[str, str]:
    """A training step as a row of traces."""
    spec = WorkloadSpec(**record["parameters"])
    time = record["time"]
    cells: dict[str, Any] = to_row(spec) | {
        "source": STACK,
        "stack": stack_of(dict(environment)),
        "accelerator": environment["accelerator"],
        "accel_per_node": environment["topology"]["devices_per_process"],
        "step_time_s": time["median_s"],
        "note": _note(spec, time),
    }
    memory = record["compile"]["memory"]
    if "temp_bytes" in memory:
        whole = (
            memory["argument_bytes"]
            + memory["output_bytes"]
            + memory["temp_bytes"]
            - memory["alias_bytes"]
        )
        cells |= {"peak_memory_gib": f"{whole / GIB:.6g}", "peak_kind": "planned"}
    return {name: str(value) for name, value in cells.items() if value != ""}


def _note(spec: WorkloadSpec, time: Mapping[str, Any]) -> str:
    """How well a time is known, and what other stacks do otherwise."""
    half = 50.0 * (time["high_s"] - time["low_s"]) / time["median_s"]
    sure = f"± {half:.2g} % at {100 * time['confidence']:g} %"
    parts = [f"median of {time['samples']} steps, {sure}"]
    if not time["settled"]:
        parts.append("not settled")
    if spec.pipeline > 1:
        parts.append("GPipe schedule")
    if spec.context > 1:
        parts.append("keys and values gathered over cp, no ring")
    return "; ".join(parts)


def _common(record: Record, found: Collection) -> dict[str, Any]:
    environment = found.environments[record["environment"]]
    clock = "device time by the profiler" if _on_device(record, environment) else "wall clock"
    return {
        "source": f"{STACK} jax {environment['versions']['jax']} ({clock})",
        "accelerator": environment["accelerator"],
    }


def _on_device(record: Record, environment: Mapping[str, Any]) -> bool:
    """Whether a kernel's device time counts rather than the wall clock's, which on an accelerator
    may hold the host's work as well."""
    kernel = record["kind"] in ("matmul", "attention", "memory", "elementwise")
    return (
        kernel
        and environment["platform"] != "cpu"
        and record["device_time"].get("busy_s", 0.0) > 0.0
    )


def seconds(record: Record, found: Collection) -> float:
    """Time of one call [s]."""
    on_device = _on_device(record, found.environments[record["environment"]])
    return record["device_time"]["busy_s"] if on_device else record["time"]["median_s"]


def _rate(amount: float, time_s: float, unit: float) -> float:
    return float(f"{amount / time_s / unit:.6g}")


def _us(time_s: float) -> float:
    return float(f"{1e6 * time_s:.6g}")


def _matmul(record: Record, found: Collection) -> dict[str, Any]:
    p, time_s = record["parameters"], seconds(record, found)
    sizes = {name: p[name] for name in ("dtype", "m", "n", "k")}
    return (
        _common(record, found)
        | sizes
        | {"tflops": _rate(record["work"]["flops"], time_s, 1e12), "time_us": _us(time_s)}
    )


def _attention(record: Record, found: Collection) -> dict[str, Any]:
    p, time_s = record["parameters"], seconds(record, found)
    common = _common(record, found)
    common["source"] += f", {p['kernel'] if p['kernel'] == 'flash' else 'unfused'}"
    shape = {name: p[name] for name in ("batch", "seq_len", "n_heads", "n_kv_heads", "head_dim")}
    rate = {"tflops_causal": _rate(record["work"]["flops"], time_s, 1e12), "time_us": _us(time_s)}
    return common | {"dtype": p["dtype"], "pass": p["direction"], "causal": 1} | shape | rate


def _collective(record: Record, found: Collection) -> dict[str, Any]:
    p, time_s = Collective(**record["parameters"]), seconds(record, found)
    nbytes, common = record["work"]["bytes"], _common(record, found)
    algorithm = nbytes / time_s
    return {
        "source": common["source"],
        "collective": p.collective,
        "accelerator": common["accelerator"],
        "link": f"{p.spacing} groups",
        "n_accel": p.devices,
        "nodes": int(record["work"]["nodes"]),
        "message_bytes": nbytes,
        "algbw_GBs": float(f"{algorithm / 1e9:.6g}"),
        "busbw_GBs": float(f"{algorithm * BUS_FACTOR[p.collective](p.devices) / 1e9:.6g}"),
        "time_us": _us(time_s),
    }


def _plain(record: Record, found: Collection) -> dict[str, Any]:
    """Kinds that public tables do not have: their parameters, the rate at which they move bytes,
    their time."""
    time_s = seconds(record, found)
    nbytes = record["work"].get("bytes", 0.0)
    rate = (
        {"GBs": _rate(nbytes, time_s, 1e9)}
        if nbytes or record["kind"] in ("memory", "elementwise", "optimizer", "overlap")
        else {}
    )
    return _common(record, found) | dict(record["parameters"]) | rate | {"time_us": _us(time_s)}


_ROWS: dict[str, Callable[[Record, Collection], dict[str, Any]]] = {
    "matmul": _matmul,
    "attention": _attention,
    "collectives": _collective,
}

__all__ = ["convert", "left_out", "seconds"]
