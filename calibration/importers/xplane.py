"""Profiles of JAX and XLA (XPlane protocol buffers): step time from step annotations or runs of the
program, device time from operations.

Read by `calibration.importers.protobuf`, so that a damaged file costs no more than what is damaged;
of a whole one `jax.profiler.ProfileData` says the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from calibration.collect.profiler import events
from calibration.importers import kernels, protobuf
from calibration.importers.found import Result, accelerator_of
from calibration.importers.protobuf import BYTES, VARINT, Damaged, Field, fields, signed, text
from calibration.importers.source import Source
from calibration.importers.steps import LONGEST, SHORTEST, Step, summary

NAME, STACK = "xplane", "jax"

UNNAMED = "unnamed event "
"""Begins the name of an event whose name is not in the file."""

Stats = list[tuple[str, Any]]
Report = Callable[[Damaged], None]
Span = tuple[float, float]


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

    @property
    def is_device(self) -> bool:
        """Whether it is a device, by its name."""
        return self.name.startswith("/device:")


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
        if first is None or _tag(first) != (1, BYTES):
            return False
        inside = fields(data, first.start, first.end)
        name = next((f for f in inside if _tag(f) == (2, BYTES)), None)
        return name is not None and data[name.start : name.start + 1] == b"/"
    except Damaged:
        head = data[:65536]
        return data[:1] == b"\x0a" and any(mark in head for mark in (b"/host:", b"/device:"))


def _tag(field: Field) -> tuple[int, int]:
    """Number and kind of a field."""
    return field.number, field.kind


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
    names = _Names({}, {})
    maps = {4: names.events, 5: names.stats}
    found: dict[int, list[Field]] = defaultdict(list)
    for f in _whole(data, field.start, field.end, report):
        if f.kind == BYTES and f.number in maps:
            key, called = _named(data, f, report)
            maps[f.number][key] = called
        elif f.kind == BYTES:
            found[f.number].append(f)
    # names may stand behind the lines that use them
    lines = [_line(data, f, names, report) for f in found[3]]
    stats = [s for f in found[6] for s in _stat(data, f, names, report)]
    return Plane(_last_text(data, found[2]), lines, stats)


def _texts(data: bytes, field: Field, report: Report) -> dict[int, str]:
    """The name inside a message, 2, and the one that is shown, 4; the last of several."""
    inside = _whole(data, field.start, field.end, report)
    return {f.number: text(data, f) for f in inside if _tag(f) in ((2, BYTES), (4, BYTES))}


def _named(data: bytes, entry: Field, report: Report) -> tuple[int, str]:
    """(number, name) of an entry of a map of names; name 2 goes before the one that is shown, 4."""
    key: int = 0
    called: dict[int, str] = {}
    for f in _whole(data, entry.start, entry.end, report):
        if _tag(f) == (1, VARINT):
            key = signed(f.value)
        elif _tag(f) == (2, BYTES):
            called |= _texts(data, f, report)
    return key, called.get(2) or called.get(4, "")


def _line(data: bytes, field: Field, names: _Names, report: Report) -> Timeline:
    found: dict[tuple[int, int], list[Field]] = defaultdict(list)
    for f in _whole(data, field.start, field.end, report):
        found[_tag(f)].append(f)
    begins = found[3, VARINT]
    begin = signed(begins[-1].value) if begins else 0
    # its name before the one that is shown
    name = _last_text(data, found[2, BYTES]) or _last_text(data, found[11, BYTES])
    return Timeline(name, [_event(data, f, begin, names, report) for f in found[4, BYTES]])


def _last_text(data: bytes, found: list[Field]) -> str:
    return text(data, found[-1]) if found else ""


def _event(data: bytes, field: Field, begin_ns: int, names: _Names, report: Report) -> Event:
    numbers = {1: 0, 2: 0, 3: 0}
    stats: Stats = []
    for f in _whole(data, field.start, field.end, report):
        if f.kind == VARINT and f.number in numbers:
            numbers[f.number] = signed(f.value)
        elif _tag(f) == (4, BYTES):
            stats += _stat(data, f, names, report)
    which, offset, duration = numbers.values()
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
        if _tag(f) == (1, VARINT):
            which = signed(f.value)
        else:
            read = _value(data, f, names)
            value = value if read is None else read
    return [] if value is None else [(names.stats.get(which, f"stat {which}"), value)]


def _value(data: bytes, field: Field, names: _Names) -> Any:
    """The value of a statistic by its kind: real, unsigned, signed, text, or the number of a name;
    None where a field is none of these."""
    match _tag(field):
        case (2, protobuf.FIXED64):
            return protobuf.real(field.value)
        case (3, protobuf.VARINT):
            return field.value
        case (4, protobuf.VARINT):
            return signed(field.value)
        case (5 | 6, protobuf.BYTES):
            return text(data, field)
        case (7, protobuf.VARINT):
            return names.stats.get(field.value, "")
    return None


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
    good = _possible(result, steps)
    times = summary(
        result, [Step(1, i, 1e-9 * (end - begin)) for i, (begin, end) in enumerate(good)]
    )
    if times is None:
        result.trouble(
            "whole file",
            "no steps: neither a line of steps, nor runs of a program on a device, nor a "
            "StepTraceAnnotation",
        )
        return result
    split = _split(result, found, [good[s.number] for s in times.steps], times.seconds)
    notes = [times.note, f"steps by {how}", kernels.words(split), *_devices(found)]
    result.details["profile"] = split.document() if split else None
    cells = {
        "accelerator": _accelerator(found),
        "stack": STACK,
        "step_time_s": times.seconds,
        "note": "; ".join(notes),
    }
    result.add(1, cells | kernels.cells(split))
    return result


def _possible(result: Result, steps: list[Span]) -> list[Span]:
    """Steps of a possible duration; the others are named."""
    good = [s for s in steps if SHORTEST <= 1e-9 * (s[1] - s[0]) <= LONGEST]
    if len(good) < len(steps):
        result.trouble(
            "whole file",
            f"{len(steps) - len(good)} of {len(steps)} steps with an impossible duration; left out",
        )
    return good


def _split(
    result: Result, found: Space, window: list[Span], seconds: float
) -> kernels.Split | None:
    """What devices did within some steps; None where names of operations are lost."""
    begin, end = window[0][0], max(w[1] for w in window)
    work = events(found)
    unnamed = sum(e.name.startswith(UNNAMED) for e in work)
    if unnamed:
        result.trouble(
            "whole file", f"the names of {unnamed} operations are lost; device time is not split"
        )
        return None
    return kernels.split(work, begin, end, max(round(1e-9 * (end - begin) / seconds), 1))


def _devices(found: Space) -> list[str]:
    devices = sum(p.name.startswith(("/device:GPU", "/device:TPU")) for p in found.planes)
    return [f"{devices} devices in this profile"] if devices else []


def _steps(found: Space) -> tuple[list[Span], str]:
    """(start, end) [ns] of steps, and how they were told: one device's line of steps, runs of its
    largest program, or annotations."""
    if line := _on_device(found, "Steps"):
        return [_span(e) for e in sorted(line, key=_start)], "the line of steps"
    if marked := _annotated(found):
        return _periods(_most(marked)), "annotations of the host"
    if line := _on_device(found, "XLA Modules"):
        return _periods(_most(line)), "runs of the largest program"
    return [], ""


def _on_device(found: Space, name: str) -> list[Event]:
    """Events of the first line of a name on a device that has some."""
    lines = (line for plane in found.planes if plane.is_device for line in plane.lines)
    return next((line.events for line in lines if line.name == name and line.events), [])


def _annotated(found: Space) -> list[Event]:
    """Events with the number of a step, of the first line of a host that has some."""
    lines = (line for plane in found.planes if not plane.is_device for line in plane.lines)
    return next(filter(None, (_marked(line) for line in lines)), [])


def _marked(line: Timeline) -> list[Event]:
    return [e for e in line.events if any(name == "step_num" for name, _ in e.stats)]


def _span(event: Event) -> Span:
    return event.start_ns, event.start_ns + event.duration_ns


def _start(event: Event) -> float:
    return event.start_ns


def _most(found: list[Event]) -> list[Event]:
    """Events of the name that takes most time, in order."""
    totals: dict[str, float] = defaultdict(float)
    for e in found:
        totals[e.name] += e.duration_ns
    largest = max(totals, key=lambda name: totals[name])
    return sorted((e for e in found if e.name == largest), key=_start)


def _periods(found: list[Event]) -> list[Span]:
    """From start to start, since devices run behind the host; a single one as long as it is."""
    starts = [e.start_ns for e in found]
    return list(pairwise(starts)) or [_span(e) for e in found]


def _accelerator(found: Space) -> str | None:
    """The catalog's name of the devices, where their planes say what they are."""
    stats = [stat for plane in found.planes for stat in plane.stats]
    return accelerator_of(
        {str(value) for name, value in stats if name in ("device_type_string", "device_name")}
    )
