"""Profiles of JAX and XLA (XPlane protocol buffers): step time from step annotations or runs of the
program, device time from operations.

Read by `calibration.importers.protobuf`, so that a damaged file costs no more than what is damaged;
of a whole one `jax.profiler.ProfileData` says the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from calibration.collect.machine import accelerator_name
from calibration.collect.profiler import events
from calibration.importers import kernels, protobuf
from calibration.importers.found import Result
from calibration.importers.protobuf import BYTES, Damaged, Field, fields, signed, text
from calibration.importers.source import Source
from calibration.importers.steps import LONGEST, SHORTEST, Step, summary

NAME, STACK = "xplane", "jax"

UNNAMED = "unnamed event "
"""Begins the name of an event whose name is not in the file."""

Stats = list[tuple[str, Any]]
Report = Callable[[Damaged], None]


class Event(NamedTuple):
    """What happened on a line. start_ns: since the epoch of the profile."""

    name: str
    start_ns: float
    duration_ns: float
    stats: Stats


class Timeline(NamedTuple):
    """One line of a plane: a stream, a thread, or what was derived from them."""

    name: str
    events: list[Event]


class Plane(NamedTuple):
    """One device, or the host."""

    name: str
    lines: list[Timeline]
    stats: Stats


class Space(NamedTuple):
    """A whole profile, of one host."""

    planes: list[Plane]


class _Names(NamedTuple):
    """Names that events and statistics of a plane refer to by number."""

    events: dict[int, str]
    stats: dict[int, str]


def looks_like(data: bytes) -> bool:
    """Whether bytes begin with a plane: field 1, whose fields are those of planes."""
    try:
        first = next(fields(data, 0, len(data)), None)
        if first is None or (first.number, first.kind) != (1, BYTES):
            return False
        name = next(
            (f for f in fields(data, first.start, first.end) if (f.number, f.kind) == (2, BYTES)),
            None,
        )
        return name is not None and data[name.start : name.start + 1] == b"/"
    except Damaged:
        return data[:1] == b"\x0a" and (b"/host:" in data[:65536] or b"/device:" in data[:65536])


def _ignore(damage: Damaged) -> None:
    return None


def _whole(data: bytes, start: int, end: int, report: Report) -> Iterator[Field]:
    """Fields up to a damage, which is reported; of one that is cut short, what there is."""
    try:
        yield from fields(data, start, end)
    except Damaged as damage:
        report(damage)
        if damage.rest is not None:
            yield damage.rest


def space(data: bytes, report: Report = _ignore) -> Space:
    """All planes of a profile; of damaged parts what stands before the damage."""
    return Space(
        [
            _plane(data, f, report)
            for f in _whole(data, 0, len(data), report)
            if (f.number, f.kind) == (1, BYTES)
        ]
    )


def _plane(data: bytes, field: Field, report: Report) -> Plane:
    name, lines, stats = "", [], []
    names = _Names({}, {})
    for f in _whole(data, field.start, field.end, report):
        if f.kind != BYTES:
            continue
        if f.number == 2:
            name = text(data, f)
        elif f.number == 3:
            lines.append(f)
        elif f.number in (4, 5):
            key, called = _named(data, f, report)
            (names.events if f.number == 4 else names.stats)[key] = called
        elif f.number == 6:
            stats.append(f)
    # names may stand behind the lines that use them
    found = [_line(data, f, names, report) for f in lines]
    return Plane(name, found, [s for f in stats for s in _stat(data, f, names, report)])


def _named(data: bytes, entry: Field, report: Report) -> tuple[int, str]:
    """(number, name) of an entry of a map of names."""
    key, called, shown = 0, "", ""
    for f in _whole(data, entry.start, entry.end, report):
        if (f.number, f.kind) == (1, 0):
            key = signed(f.value)
        elif (f.number, f.kind) == (2, BYTES):
            for inner in _whole(data, f.start, f.end, report):
                if (inner.number, inner.kind) == (2, BYTES):
                    called = text(data, inner)
                elif (inner.number, inner.kind) == (4, BYTES):
                    shown = text(data, inner)
    return key, called or shown


def _line(data: bytes, field: Field, names: _Names, report: Report) -> Timeline:
    name, shown, begin, found = "", "", 0, []
    for f in _whole(data, field.start, field.end, report):
        if (f.number, f.kind) == (2, BYTES):
            name = text(data, f)
        elif (f.number, f.kind) == (11, BYTES):
            shown = text(data, f)
        elif (f.number, f.kind) == (3, 0):
            begin = signed(f.value)
        elif (f.number, f.kind) == (4, BYTES):
            found.append(f)
    return Timeline(name or shown, [_event(data, f, begin, names, report) for f in found])


def _event(data: bytes, field: Field, begin_ns: int, names: _Names, report: Report) -> Event:
    which, offset, duration = 0, 0, 0
    stats: Stats = []
    for f in _whole(data, field.start, field.end, report):
        if f.kind == 0 and f.number in (1, 2, 3):
            value = signed(f.value)
            which, offset, duration = (
                value if f.number == 1 else which,
                value if f.number == 2 else offset,
                value if f.number == 3 else duration,
            )
        elif (f.number, f.kind) == (4, BYTES):
            stats += _stat(data, f, names, report)
    return Event(
        names.events.get(which, f"{UNNAMED}{which}"),
        begin_ns + 1e-3 * offset,
        max(1e-3 * duration, 0.0),
        stats,
    )


def _stat(data: bytes, field: Field, names: _Names, report: Report) -> Stats:
    """A statistic as a pair of its name and value; none without a value."""
    which, value = 0, None
    for f in _whole(data, field.start, field.end, report):
        if (f.number, f.kind) == (1, 0):
            which = signed(f.value)
        elif (f.number, f.kind) == (2, protobuf.FIXED64):
            value = protobuf.real(f.value)
        elif f.number in (3, 4) and f.kind == 0:
            value = f.value if f.number == 3 else signed(f.value)
        elif f.number in (5, 6) and f.kind == BYTES:
            value = text(data, f)
        elif (f.number, f.kind) == (7, 0):
            value = names.stats.get(f.value, "")
    return [] if value is None else [(names.stats.get(which, f"stat {which}"), value)]


def parse(source: Source) -> Result:
    """One row: of the devices of one host."""
    result = Result(source.name)
    ends: set[int] = set()

    def report(damage: Damaged) -> None:
        if damage.end not in ends:  # one cut goes through the messages that are inside each other
            result.trouble(f"byte {damage.at}", damage.reason)
        ends.add(damage.end)

    found = space(source.data, report)
    steps, how = _steps(found)
    good = [s for s in steps if SHORTEST <= 1e-9 * (s[1] - s[0]) <= LONGEST]
    if len(good) < len(steps):
        result.trouble(
            "whole file",
            f"{len(steps) - len(good)} of {len(steps)} steps with an impossible duration; left out",
        )
    times = summary(
        result, [Step(1, i, 1e-9 * (end - begin)) for i, (begin, end) in enumerate(good)]
    )
    if times is None:
        result.trouble(
            "whole file",
            (
                "no steps: neither a line of steps, nor runs of a program on a device, nor a "
                "StepTraceAnnotation"
            ),
        )
        return result
    window = [good[s.number] for s in times.steps]
    begin, end = window[0][0], max(w[1] for w in window)
    work = events(found)
    unnamed = sum(e.name.startswith(UNNAMED) for e in work)
    if unnamed:
        result.trouble(
            "whole file", f"the names of {unnamed} operations are lost; device time is not split"
        )
    split = (
        None
        if unnamed
        else kernels.split(work, begin, end, max(round(1e-9 * (end - begin) / times.seconds), 1))
    )
    devices = sum(p.name.startswith(("/device:GPU", "/device:TPU")) for p in found.planes)
    notes = [times.note, f"steps by {how}", kernels.words(split)] + (
        [f"{devices} devices in this profile"] if devices else []
    )
    result.details["profile"] = split.document() if split else None
    cells = {
        "accelerator": _accelerator(found),
        "stack": STACK,
        "step_time_s": times.seconds,
        "note": "; ".join(notes),
    }
    result.add(1, cells | kernels.cells(split))
    return result


def _steps(found: Space) -> tuple[list[tuple[float, float]], str]:
    """(start, end) [ns] of steps, and how they were told: one device's line of steps, runs of its
    largest program, or annotations."""
    devices = [p for p in found.planes if p.name.startswith("/device:")]
    for plane in devices:
        for line in plane.lines:
            if line.name == "Steps" and line.events:
                return [
                    (e.start_ns, e.start_ns + e.duration_ns)
                    for e in sorted(line.events, key=_start)
                ], "the line of steps"
    for plane in found.planes:
        for line in plane.lines:
            marked = [e for e in line.events if any(name == "step_num" for name, _ in e.stats)]
            if marked and not plane.name.startswith("/device:"):
                return _periods(_most(marked)), "annotations of the host"
    for plane in devices:
        for line in plane.lines:
            if line.name == "XLA Modules" and line.events:
                return _periods(_most(line.events)), "runs of the largest program"
    return [], ""


def _start(event: Event) -> float:
    return event.start_ns


def _most(found: list[Event]) -> list[Event]:
    """Events of the name that takes most time, in order."""
    totals: dict[str, float] = defaultdict(float)
    for e in found:
        totals[e.name] += e.duration_ns
    largest = max(totals, key=lambda name: totals[name])
    return sorted((e for e in found if e.name == largest), key=_start)


def _periods(found: list[Event]) -> list[tuple[float, float]]:
    """From start to start, since devices run behind the host; a single one as long as it is."""
    starts = [e.start_ns for e in found]
    pairs = list(zip(starts, starts[1:], strict=False))
    return pairs or [(e.start_ns, e.start_ns + e.duration_ns) for e in found]


def _accelerator(found: Space) -> str | None:
    """The catalog's name of the devices, where their planes say what they are."""
    kinds = {
        str(value)
        for p in found.planes
        for name, value in p.stats
        if name in ("device_type_string", "device_name")
    }
    names = {accelerator_name(kind, "gpu") for kind in kinds}
    return next((name for name, known in names if known), None) if len(names) == 1 else None
