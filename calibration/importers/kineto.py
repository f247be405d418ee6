"""Chrome traces of the PyTorch profiler (Kineto), also gzipped: step time from `ProfilerStep`
annotations, device time from kernels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from calibration.collect.machine import accelerator_name
from calibration.collect.profiler import Event
from calibration.importers import kernels
from calibration.importers.found import Result, count, number
from calibration.importers.source import Source
from calibration.importers.steps import Step, seconds_of, summary

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
    found = found if isinstance(found, list) else []
    steps, work, unread = [], [], 0
    for i, event in enumerate(found):
        if not isinstance(event, dict):
            unread += 1
        elif isinstance(event.get("name"), str) and event.get("ph", "X") == "X":
            if match := _STEP.match(event["name"]):
                steps += _annotation(result, i, int(match[1]), event)
            elif event.get("cat") in ON_DEVICE:
                operation = _operation(event)
                unread += operation is None
                work += [operation] if operation else []
    if unread:
        result.trouble("whole file", f"{unread} events without a time, or that are none; left out")
    _row(result, document, steps, work)
    return result


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
    result: Result, index: int, n: int, event: dict[str, Any]
) -> list[tuple[bool, Step, float]]:
    """(whether it is the host's, the step, its start [us]) of an annotation."""
    start, micros = number(event.get("ts")), number(event.get("dur"))
    if start is None:
        result.trouble(f"event {index}", "an annotation of a step without a start; left out")
        return []
    seconds = seconds_of(
        result, 1, micros, 1e-6, f"duration of {event['name'][:40]} (event {index})"
    )
    return (
        []
        if seconds is None
        else [(not str(event.get("cat")).startswith("gpu"), Step(1, n, seconds), start)]
    )


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
            "profile with a schedule and `step()` of the profiler; from JAX, import the "
            ".xplane.pb beside this file"
        )
        result.trouble("whole file", f"no ProfilerStep annotation: {how}")
        return
    kept = {step.number for step in found.steps}
    window = [
        (NS_PER_US * start, NS_PER_US * start + 1e9 * step.seconds)
        for _, step, start in chosen
        if step.number in kept
    ]
    begin, end = min(w[0] for w in window), max(w[1] for w in window)
    # annotations may be missing in between
    split = kernels.split(work, begin, end, max(round(1e-9 * (end - begin) / found.seconds), 1))
    about = _described(document)
    rank = about.pop("rank", None)
    notes = [found.note, kernels.words(split)] + ([f"rank {rank:g}"] if rank is not None else [])
    if split is not None and split.communication_s == 0.0 and about["n_accel"] is None:
        about["n_accel"] = split.devices
        notes.append("no communication: these devices are taken for all of the run")
    result.details["profile"] = split.document() if split else None
    if split is None:
        what = "no kernel of a device within the steps: profile with activities CPU and CUDA"
        result.trouble("whole file", f"{what}; only the step time is kept")
    result.add(
        1,
        about
        | {"stack": STACK, "step_time_s": found.seconds, "note": "; ".join(notes)}
        | kernels.cells(split),
    )


def _described(document: dict[str, Any]) -> dict[str, Any]:
    """What the document says about the job and its devices."""
    job, devices = document.get("distributedInfo"), document.get("deviceProperties")
    out: dict[str, Any] = {"n_accel": None}
    if isinstance(job, dict):
        out |= {"n_accel": count(job.get("world_size")), "rank": number(job.get("rank"))}
    names = (
        {d["name"] for d in devices if isinstance(d, dict) and isinstance(d.get("name"), str)}
        if isinstance(devices, list)
        else set()
    )
    if len(names) == 1:
        name, known = accelerator_name(names.pop(), "gpu")
        out["accelerator"] = name if known else None
    return out
