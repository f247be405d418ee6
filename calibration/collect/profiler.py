"""Device time from the profiler: how long a device computed, communicated, did both at once, or
nothing.

Every profile is read through `jax.profiler.ProfileData`. Events of devices stand in planes of their
own on GPU and TPU, and on threads of the host on CPU, where they carry the name of their operation
and the number of the device. Only innermost events count (a loop contains
its operations), and overlapping ones count once.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

COMMUNICATION = re.compile(
    (
        r"all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter|all[-_]?to[-_]?all|ragged|"
        r"^(?!.*cutlass).*collective|psum|ppermute|nccl|rccl|\bsend\b|\brecv\b"
    ),
    re.IGNORECASE,
)
"""Names of operations and kernels that communicate; `collective` is also how CUTLASS calls what
threads of a product do together."""

Span = tuple[float, float]


class Event(NamedTuple):
    """One operation on a device. device: its number. name: of the operation, or of the kernel.
    start, end: [ns]."""

    device: str
    name: str
    start: float
    end: float


def profile(run: Callable[[], Any], calls: int) -> dict[str, Any]:
    """Run something under the profiler and split the device time of one call.

    Args:
      run: makes `calls` calls and waits for the last.

    Returns:
      `{compute_s, communication_s, both_s, busy_s, devices, calls, operations}` for one call and
      the mean device, or `{unavailable: why}`.
    """
    import jax

    folder = Path(tempfile.mkdtemp(prefix="dmodel-profile-"))
    try:
        with jax.profiler.trace(str(folder), profiler_options=_options()):
            run()
        files = sorted(folder.rglob("*.xplane.pb"))
        if not files:
            return {"unavailable": "the profiler wrote nothing"}
        with warnings.catch_warnings():
            # jax 0.12 on Python 3.13 warns while it makes a type of its own, and dies when a
            # warning is an error
            warnings.simplefilter("ignore", DeprecationWarning)
            return split(
                [
                    e
                    for file in files
                    for e in events(jax.profiler.ProfileData.from_file(str(file)))
                ],
                calls,
            )
    except (RuntimeError, ValueError, OSError, AttributeError) as error:
        return {"unavailable": f"the profiler failed: {type(error).__name__}: {error}"[:500]}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _options() -> Any:
    """Without the calls of Python, which are many and slow down what is measured."""
    import jax

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    return options


def events(data: Any) -> list[Event]:
    """Innermost operations of all devices of a profile."""
    found: list[Event] = []
    for plane in data.planes:
        if plane.name.startswith("/device:"):
            for line in _device_lines(list(plane.lines)):
                found.extend(innermost(_device_events(plane.name, line)))
        elif plane.name.startswith("/host:CPU"):
            for line in plane.lines:
                found.extend(innermost(_host_events(line)))
    return found


def _device_events(device: str, line: Any) -> Iterable[Event]:
    """Operations on one line of a device."""
    for e in line.events:
        yield Event(device, e.name, e.start_ns, e.start_ns + e.duration_ns)


def _device_lines(lines: list[Any]) -> list[Any]:
    """Lines of a device that hold its work once: the streams of a GPU, else the operations of a
    TPU, asynchronous ones too."""
    streams = [line for line in lines if line.name.startswith("Stream")]
    return streams or [line for line in lines if line.name in ("XLA Ops", "Async XLA Ops")]


def _host_events(line: Any) -> Iterable[Event]:
    """Operations of CPU devices on one thread of the host."""
    for e in line.events:
        stats = dict(e.stats)
        if "hlo_op" in stats and "device_ordinal" in stats:
            yield Event(
                f"cpu:{stats['device_ordinal']}",
                str(stats["hlo_op"]),
                e.start_ns,
                e.start_ns + e.duration_ns,
            )


def innermost(found: Iterable[Event]) -> list[Event]:
    """Events of one line that contain no other one."""
    ordered = sorted(found, key=lambda e: (e.start, -e.end))
    last = len(ordered) - 1
    return [
        e
        for i, e in enumerate(ordered)
        if i == last or ordered[i + 1].start >= e.end or ordered[i + 1].end > e.end
    ]


def split(found: list[Event], calls: int) -> dict[str, Any]:
    """Seconds of one call that the mean device computes, communicates and does both."""
    if not found:
        return {"unavailable": "the profile holds no operation of a device"}
    devices: dict[str, tuple[list[Span], list[Span]]] = defaultdict(lambda: ([], []))
    names: dict[str, float] = defaultdict(float)
    for e in found:
        devices[e.device][bool(COMMUNICATION.search(e.name))].append((e.start, e.end))
        names[re.sub(r"[.\d]+$", "", e.name)] += e.end - e.start
    scale = 1e-9 / (calls * len(devices))
    computing, talking, busy = 0.0, 0.0, 0.0
    for compute, communicate in devices.values():
        computing += length(compute)
        talking += length(communicate)
        busy += length(compute + communicate)
    largest = sorted(names.items(), key=lambda item: -item[1])[:12]
    return {
        "compute_s": computing * scale,
        "communication_s": talking * scale,
        "both_s": (computing + talking - busy) * scale,
        "busy_s": busy * scale,
        "devices": len(devices),
        "calls": calls,
        "operations": {name[:120]: seconds * scale for name, seconds in largest},
    }


def length(spans: list[Span]) -> float:
    """Length of the union of spans."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return total
