"""Chrome traces of the PyTorch profiler (Kineto), also gzipped: step time from `ProfilerStep`
annotations, device time from kernels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from calibration.collect.profiler import Event
from calibration.importers import kernels
from calibration.importers.found import Result, accelerator_of, count, number
from calibration.importers.source import Source
from calibration.importers.steps import Step, Summary, seconds_of, summary

NAME, STACK = "kineto", "pytorch"
SIGN = re.compile(r'^\s*[\[{][\s\S]{0,20000}?(?:"traceEvents"|"ph"\s*:)')

_STEP = re.compile(r"ProfilerStep\s*#\s*(\d{1,9})$")
_OBJECT = re.compile(r"\{")
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")
"""Categories of what runs on a device (the last three in old versions)."""

NS_PER_US = 1e3

WIDEST = 1 << 16
"""Characters of an event, where events are searched for in a damaged document."""


def parse(source: Source) -> Result:
    """One row: of one rank."""
    result = Result(source.name)
    document = _document(source, result)
    found = document.get("traceEvents")
    steps, work, unread = [], [], 0
    for i, event in enumerate(found if isinstance(found, list) else []):
        kind = _kind(event)
        if kind == "step":
            steps += _annotation(result, i, event)
        elif kind == "work":
            operation = _operation(event)
            unread += operation is None
            work.append(operation)
        else:
            unread += kind == "unread"
    if unread:
        result.trouble("whole file", f"{unread} events without a time, or that are none; left out")
    _row(result, document, steps, [operation for operation in work if operation])
    return result


def _kind(event: Any) -> str:
    """What an event is: "step", "work" of a device, "other", or "unread" where it is none."""
    if not isinstance(event, dict):
        return "unread"
    if not isinstance(event.get("name"), str) or event.get("ph", "X") != "X":
        return "other"
    if _STEP.match(event["name"]):
        return "step"
    return "work" if event.get("cat") in ON_DEVICE else "other"


def _document(source: Source, result: Result) -> dict[str, Any]:
    """The whole document; of a damaged one the events that are whole."""
    text = source.text
    try:
        document = json.loads(text)
        return document if isinstance(document, dict) else {"traceEvents": document}
    except (ValueError, RecursionError) as error:
        at = len(text[: getattr(error, "pos", 0)].encode("utf-8", errors="replace"))
        what = str(getattr(error, "msg", error))[:60]
        result.trouble(
            f"byte {at}",
            f"not valid JSON ({what}): truncated or damaged; events that are whole are kept",
        )
    return _pieces(text)


def _pieces(text: str) -> dict[str, Any]:
    """Events of a damaged document, and of what stands before them the parts that are whole."""
    begin = text.find('"traceEvents"')
    start = text.find("[", max(begin, 0)) + 1
    out: dict[str, Any] = {"traceEvents": list(_events(text, start))}
    decoder = json.JSONDecoder()
    for name in ("distributedInfo", "deviceProperties"):
        found = re.search(rf'"{name}"\s*:\s*', text)
        if found:
            try:
                out[name] = decoder.raw_decode(text, found.end())[0]
            except (ValueError, RecursionError):
                continue  # the row goes without what it would have told
    return out


def _events(text: str, at: int) -> Iterator[dict[str, Any]]:
    """Objects with a name that are whole, from a place on."""
    decoder = json.JSONDecoder()
    while found := _OBJECT.search(text, at):
        at = found.start()
        try:
            # a string without an end would otherwise be read up to the end of the file, again and
            # again
            event, size = decoder.raw_decode(text[at : at + WIDEST])
        except (ValueError, RecursionError):
            at += 1
            continue
        at += size
        if isinstance(event, dict) and "name" in event:
            yield event


def _annotation(
    result: Result, index: int, event: dict[str, Any]
) -> list[tuple[bool, Step, float]]:
    """(whether it is the host's, the step, its start [us]) of an annotation; none where it has no
    time."""
    start, micros = number(event.get("ts")), number(event.get("dur"))
    if start is None:
        result.trouble(f"event {index}", "an annotation of a step without a start; left out")
        return []
    what = f"duration of {event['name'][:40]} (event {index})"
    seconds = seconds_of(result, 1, micros, 1e-6, what)
    if seconds is None:
        return []
    match = _STEP.match(event["name"])
    n = int(match[1]) if match else 0
    return [(not str(event.get("cat")).startswith("gpu"), Step(1, n, seconds), start)]


def _operation(event: dict[str, Any]) -> Event | None:
    start, micros = number(event.get("ts")), number(event.get("dur", 0.0))
    if start is None or micros is None or not 0.0 <= micros < 1e12:
        return None
    inside = event.get("args")
    device = inside.get("device") if isinstance(inside, dict) else None
    begin = NS_PER_US * start
    return Event(
        str(device if device is not None else event.get("pid"))[:40],
        event["name"],
        begin,
        begin + NS_PER_US * micros,
    )


def _row(
    result: Result,
    document: dict[str, Any],
    steps: list[tuple[bool, Step, float]],
    work: list[Event],
) -> None:
    """Host annotations where there are some: devices run behind, but as many steps long."""
    chosen = [s for s in steps if s[0]] or steps
    found = summary(result, [step for _, step, _ in chosen])
    if found is None:
        how = (
            "give the profiler schedule=torch.profiler.schedule(wait=1, warmup=2, active=5) and "
            "call its step() after each step; from JAX, import the .xplane.pb beside this file"
        )
        result.trouble("whole file", f"no ProfilerStep annotation: {how}")
        return
    split = _split(result, chosen, found, work)
    if split is None:
        return
    about = _described(document)
    notes = [found.note, kernels.words(split), *_rank(document), *_devices(about, split)]
    result.add(
        1,
        about
        | {"stack": STACK, "step_time_s": found.seconds, "note": "; ".join(notes)}
        | kernels.cells(split),
    )


def _split(
    result: Result, chosen: list[tuple[bool, Step, float]], found: Summary, work: list[Event]
) -> kernels.Split | None:
    """What devices did within the kept steps; None where nothing of them is there."""
    begin, end = _window(chosen, {step.number for step in found.steps})
    # annotations may be missing in between
    split = kernels.split(work, begin, end, max(round(1e-9 * (end - begin) / found.seconds), 1))
    result.details["profile"] = split.document() if split else None
    if split is None:
        how = (
            "what the host did says nothing of a step's time; profile with "
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
        )
        result.trouble("whole file", f"no kernel of a device within the steps: {how}")
    return split


def _window(chosen: list[tuple[bool, Step, float]], kept: set[int]) -> tuple[float, float]:
    """From the first begin to the last end of some steps [ns]."""
    spans = [
        (NS_PER_US * start, NS_PER_US * start + 1e9 * step.seconds)
        for _, step, start in chosen
        if step.number in kept
    ]
    return min(begin for begin, _ in spans), max(end for _, end in spans)


def _rank(document: dict[str, Any]) -> list[str]:
    job = document.get("distributedInfo")
    rank = number(job.get("rank")) if isinstance(job, dict) else None
    return [] if rank is None else [f"rank {rank:g}"]


def _devices(about: dict[str, Any], split: kernels.Split | None) -> list[str]:
    """Fill in the devices where a profile without communication shows them all; the remark on
    that."""
    if split is None or split.communication_s != 0.0 or about["n_accel"] is not None:
        return []
    about["n_accel"] = split.devices
    return ["no communication: these devices are taken for all of the run"]


def _described(document: dict[str, Any]) -> dict[str, Any]:
    """What the document says about the job and its devices."""
    job, devices = document.get("distributedInfo"), document.get("deviceProperties")
    out: dict[str, Any] = {"n_accel": None}
    if isinstance(job, dict):
        out["n_accel"] = count(job.get("world_size"))
    names = _names(devices) if isinstance(devices, list) else set()
    if len(names) == 1:
        out["accelerator"] = accelerator_of(names)
    return out


def _names(devices: list[Any]) -> set[str]:
    names = (device.get("name") for device in devices if isinstance(device, dict))
    return {name for name in names if isinstance(name, str)}
