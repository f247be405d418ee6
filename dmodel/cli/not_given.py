"""`dmodel predict` without `--micro-batch` or `--interleave`. Which would be faster than the 1 that
is taken.

Sequences that run through a layer together decide how large its kernels are: on small models a
micro-batch of 1 may take several times as long as the usual one. Chunks per stage decide how long a
pipeline idles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from dmodel.cli.output import Document, digits, percent, seconds
from dmodel.errors import InputError

if TYPE_CHECKING:
    from dmodel.asked import Asked
    from dmodel.records import Plan

WORTH = 0.9
"""A plan is named where its step takes at most this share of the time [1]."""

IDLE = 0.1
"""Share of a step that a pipeline idles at least where chunks are tried [1]."""

CHUNKS = range(2, 9)
"""Chunks per stage that are tried [count]."""

Words = dict[str, int]


def faster(asked: Asked, plan: Plan, answered: Document, other: str | None) -> Document | None:
    """The same plan with the micro-batch, by doubling, and the chunks per stage that take least and
    fit; None where both were given, or nothing takes `WORTH` of the time.

    Args:
      answered: what is known of the plan. other: what a second plan has otherwise; its time with
        them is told too, where it names none of them itself.
    """
    best: Document = answered | {"words": {}}
    if _is_one(asked, plan, "micro_batch"):
        sizes = doubled(asked.global_batch / float(plan.layout.dp))
        for found in _tried(asked, {}, "micro_batch", sizes):
            if found["step_time_s"] >= best["step_time_s"]:
                break
            best = found
    if _may_interleave(asked, plan, best):
        found = _tried(asked, best["words"], "interleave", CHUNKS)
        best = min([best, *found], key=_step_time)
    if best["step_time_s"] > WORTH * answered["step_time_s"]:
        return None
    said = {"step_time_s": best["step_time_s"], "risk": best["oom_probability"]}
    return {**best["words"], **said, **_second(asked, best, other)}


def _step_time(found: Document) -> float:
    return float(found["step_time_s"])


def doubled(sequences: float) -> list[int]:
    """Powers of two above 1 that divide the sequences of a replica.

    >>> doubled(12.0), doubled(1.0)
    ([2, 4], [])
    """
    found, size = [], 2
    while size <= sequences and sequences % size == 0:
        found.append(size)
        size *= 2
    return found


def _is_one(asked: Asked, plan: Plan, name: str) -> bool:
    """Whether a size was not given, and the stack took none of its own."""
    return _is_open(asked, name) and float(getattr(plan.layout, name)) == 1.0


def _is_open(asked: Asked, name: str) -> bool:
    question = asked.question
    return not question.columns.get(name) and name not in question.settings


def _may_interleave(asked: Asked, plan: Plan, best: Document) -> bool:
    """Whether stages may hold several chunks, and it is worth to try: Megatron's schedule passes
    micro-batches in groups of as many as there are stages."""
    from dmodel.catalog.stack import stack

    stages = float(plan.layout.pp)
    sequences = asked.global_batch / float(plan.layout.dp)
    passes = sequences / best["words"].get("micro_batch", float(plan.layout.micro_batch))
    offered = (
        stack(asked.stack).runs.get("schedules", ["interleaved"])
        if asked.stack
        else ["interleaved"]
    )
    return (
        stages > 1.0
        and _is_one(asked, plan, "interleave")
        and _is_open(asked, "schedule")
        and "interleaved" in offered
        and passes % stages == 0.0
        and best["breakdown"]["bubble_s"] > IDLE * best["step_time_s"]
    )


def _tried(asked: Asked, words: Words, name: str, values: Iterable[int]) -> Iterator[Document]:
    """Answers with each value of a name beside other words, where there are such plans and they
    fit; of micro-batches until one does not."""
    from dmodel.asked import laid
    from dmodel.footprint import RISK
    from dmodel.prediction import answer

    for value in values:
        changed = {**words, name: value}
        try:
            found = answer(asked, laid(asked, changed).plan)
        except InputError:
            continue
        if found["fits"] and found["oom_probability"] <= RISK:
            yield found | {"words": changed}
        elif name == "micro_batch":
            return


def _second(asked: Asked, best: Document, other: str | None) -> Document:
    """The step time of the second plan with the same words; none where it has its own."""
    from dmodel.asked import ask, laid
    from dmodel.cli.against import second_question
    from dmodel.prediction import answer
    from dmodel.settings import changed

    named = (other or "").replace("-", "_")
    if other is None or any(name in named for name in best["words"]):
        return {}
    question = changed(asked.question, best["words"])
    try:
        beside = ask(second_question(question, other), asked.profile)
        found = answer(beside, laid(beside, {}).plan)
    except InputError:
        return {}
    tokens = beside.global_batch * float(beside.model.seq_len)
    rate = tokens / asked.global_batch / float(asked.model.seq_len)
    speedup = rate * best["step_time_s"] / found["step_time_s"]
    return {"second_step_time_s": found["step_time_s"], "speedup": speedup}


OPTIONS = {"micro_batch": "--micro-batch", "interleave": "--interleave"}


def faster_lines(d: Document) -> list[str]:
    """What is said of it."""
    found = d.get("faster")
    if found is None:
        return []
    named = [name for name in OPTIONS if name in found]
    options = " and ".join(OPTIONS[name] for name in named)
    verb = "is" if len(named) == 1 else "are"
    values = " ".join(f"{OPTIONS[name]} {found[name]}" for name in named)
    lines = [
        "",
        f"{options} {verb} not given, so 1 is taken: with {values} the step takes "
        f"{seconds(found['step_time_s'])} instead of {seconds(d['step_time_s'])}, at a risk of "
        f"{percent(found['risk'], 0)} of running out of memory.",
    ]
    if "run" in d:
        times = found["step_time_s"] / d["step_time_s"]
        days, hours = (digits(times * d["run"][name]) for name in ("days", "device_hours"))
        lines.append(f"The run takes {days} days and {hours} device-hours then.")
    if "speedup" in found:
        beside = seconds(found["second_step_time_s"])
        lines.append(
            f"The second plan takes {beside} then: {digits(found['speedup'])} times as many "
            "tokens/s as the first."
        )
    return lines
