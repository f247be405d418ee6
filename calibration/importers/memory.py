"""Peak memory of a device: PyTorch's snapshots of its allocator as JSON, and what XLA says of a
compiled program.

A snapshot has the segments of the end, and what was allocated and freed before
(`torch.cuda.memory._snapshot`, pytorch `torch/cuda/memory.py`); the peak is found by going back
from the end. XLA's numbers are a plan (`CompiledMemoryStats`, jax `memory_analysis`; `Total bytes
used` of `*-buffer-assignment.txt`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from calibration.importers.found import Result, number
from calibration.importers.source import Source
from dmodel.errors import InputError
from dmodel.units import GIB

NAME, STACK = "memory", "pytorch"
SIGN = re.compile(
    r"CompiledMemoryStats\(|^Total bytes used: \d+|"
    r'\A\s*[{\[][\s\S]{0,4000}?"(?:segments|device_traces|segment_type)"\s*:',
    re.MULTILINE,
)

PICKLE = re.compile(rb"\x80[\x02-\x05]")
"""How a pickle begins."""

CONVERT = (
    "it is a pickle, which can run code when it is read, so it is not read here. Where it was "
    "made: python -c \"import json, pickle; json.dump(pickle.load(open('snapshot.pickle', 'rb')), "
    "open('snapshot.json', 'w'))\", and import snapshot.json"
)

_STATS = re.compile(r"CompiledMemoryStats\(([^()]{0,2000})\)")
_STAT = re.compile(r"(\w+?)_(?:size_)?in_bytes=(\d{1,18})")
_TOTAL = re.compile(r"^Total bytes used: (\d{1,18})\b", re.MULTILINE)


class Peak(NamedTuple):
    """The highest use of a device [byte], of what kind, and how it was told."""

    nbytes: float
    kind: str
    says: str
    stack: str

    @property
    def cells(self) -> dict[str, Any]:
        """Columns of a row."""
        return {"peak_memory_gib": self.nbytes / GIB, "peak_kind": self.kind}


def is_pickle(data: bytes) -> bool:
    """Whether bytes are a pickle, which is never read."""
    return bool(PICKLE.match(data[:2]))


def parse(source: Source) -> Result:
    """One row, of the peak alone."""
    result = Result(source.name)
    found = peak(source, result)
    if found is None:
        if not result.troubles:
            result.bad_line(1, "no segments, events or sizes of memory in it")
        return result
    result.add(
        1,
        {"stack": found.stack, **found.cells, "note": found.says},
    )
    return result


def peak(source: Source, result: Result) -> Peak | None:
    """The peak that a file tells; what cannot be read is noted.

    Raises:
      InputError: the file is a pickle.
    """
    if is_pickle(source.data):
        raise InputError(f"{source.name}: {CONVERT}")
    return _of_xla(source.text) or _of_torch(source, result)


def _of_xla(text: str) -> Peak | None:
    """The largest program that XLA has compiled."""
    sizes = [
        size
        for found in _STATS.finditer(text)
        if (size := _planned({n: float(x) for n, x in _STAT.findall(found[1])})) > 0.0
    ]
    sizes += [float(found[1]) for found in _TOTAL.finditer(text) if int(found[1]) > 0]
    if not sizes:
        return None
    says = f"what XLA plans for the largest of {len(sizes)} programs, of one device; not measured"
    return Peak(max(sizes), "planned", says, "xla")


def _planned(stats: Mapping[str, float]) -> float:
    """Bytes of a program: its peak where it is told, else all but what is used twice."""
    if stats.get("peak_memory", 0.0) > 0.0:
        return stats["peak_memory"]
    held = sum(stats.get(name, 0.0) for name in ("argument", "output", "temp", "generated_code"))
    return held - stats.get("alias", 0.0)


def _of_torch(source: Source, result: Result) -> Peak | None:
    """The peak of a snapshot, of the device that has the largest."""
    try:
        document = json.loads(source.text)
    except (ValueError, RecursionError) as error:
        result.bad_line(1, f"no whole JSON document ({str(error)[:60]}); nothing of it is read")
        return None
    document = {"segments": document} if isinstance(document, list) else document
    if not isinstance(document, dict):
        return None
    ends = _ends(document.get("segments"))
    traces = document.get("device_traces")
    traces = traces if isinstance(traces, list) else []
    devices = {*ends, *range(len(traces))}
    found = {d: _highest(ends.get(d, (0.0, 0.0)), _trace(traces, d)) for d in devices}
    used, reserved = max(found.values(), default=(0.0, 0.0))
    if used <= 0.0:
        return None
    events = max((len(_trace(traces, d)) for d in devices), default=0)
    span = f"peak over {events} recorded events" if events else "use when the snapshot was taken"
    says = f"{span}, tensors of one device; reserved {reserved / GIB:.4g} GiB"
    return Peak(used, "allocated", says, STACK)


def _ends(segments: Any) -> dict[int, tuple[float, float]]:
    """Device → bytes that are allocated and reserved at the end."""
    found: dict[int, tuple[float, float]] = {}
    for segment in segments if isinstance(segments, list) else []:
        if isinstance(segment, dict):
            device = int(_positive(segment.get("device")))
            used = segment.get("active_size", segment.get("allocated_size"))
            before = found.get(device, (0.0, 0.0))
            held = _positive(segment.get("total_size"))
            found[device] = (before[0] + _positive(used), before[1] + held)
    return found


def _positive(value: Any) -> float:
    """A number of bytes, 0 where it is none."""
    figure = number(value) if isinstance(value, int | float) else None
    return figure if figure is not None and 0.0 <= figure < 1e15 else 0.0


def _trace(traces: list[Any], device: int) -> list[Any]:
    found = traces[device] if 0 <= device < len(traces) else []
    return found if isinstance(found, list) else []


SIGNS = {
    "alloc": (1.0, 0.0),
    "free_completed": (-1.0, 0.0),
    "segment_alloc": (0.0, 1.0),
    "segment_free": (0.0, -1.0),
    "segment_map": (0.0, 1.0),
    "segment_unmap": (0.0, -1.0),
}
"""Action of an event → what it adds to the bytes that are allocated and reserved."""


def _changes(trace: list[Any]) -> Iterator[tuple[float, float]]:
    """What each event has changed, the last one first."""
    for event in reversed(trace):
        if isinstance(event, dict) and event.get("action") in SIGNS:
            size = _positive(event.get("size"))
            used, held = SIGNS[event["action"]]
            yield used * size, held * size


def _highest(end: tuple[float, float], trace: list[Any]) -> tuple[float, float]:
    """The highest use and reservation, going back from the end."""
    used, held = end
    most, most_held = used, held
    for one, other in _changes(trace):
        used, held = used - one, held - other
        most, most_held = max(most, used), max(most_held, held)
    return most, most_held
