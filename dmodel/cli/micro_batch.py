"""`dmodel predict` without `--micro-batch`. Which one would be faster than the 1 that is taken.

Sequences that run through a layer together decide how large its kernels are: on small models a
micro-batch of 1 may take several times as long as the usual one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dmodel.cli.output import Document, digits, percent, seconds
from dmodel.errors import InputError

if TYPE_CHECKING:
    from dmodel.asked import Asked
    from dmodel.records import Plan

WORTH = 0.9
"""A micro-batch is named where the step takes at most this share of the time [1]."""

NAME = "micro_batch"


def faster(asked: Asked, plan: Plan, answered: Document, other: str | None) -> Document | None:
    """The fastest micro-batch of the same plan that fits, by doubling; None where one was said, or
    none takes `WORTH` of the time.

    Args:
      answered: what is known of the plan. other: what a second plan has otherwise; its time with
        this micro-batch is told too, where it names none itself.
    """
    if asked.question.columns.get(NAME) or NAME in asked.question.settings:
        return None
    best = None
    least = float(answered["step_time_s"])
    for micro_batch in doubled(asked.global_batch / float(plan.layout.dp)):
        found = _answered(asked, micro_batch)
        if found is None or found["step_time_s"] >= least:
            break
        best, least = found, found["step_time_s"]
    if best is None or least > WORTH * answered["step_time_s"]:
        return None
    return best | _second(asked, best, other)


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


def _answered(asked: Asked, micro_batch: int) -> Document | None:
    """The plan with that micro-batch; None where there is none, or it may not fit."""
    from dmodel.asked import laid
    from dmodel.footprint import RISK
    from dmodel.prediction import answer

    try:
        found = answer(asked, laid(asked, {NAME: micro_batch}).plan)
    except InputError:
        return None
    if not found["fits"] or found["oom_probability"] > RISK:
        return None
    return {
        NAME: micro_batch,
        "step_time_s": found["step_time_s"],
        "risk": found["oom_probability"],
    }


def _second(asked: Asked, best: Document, other: str | None) -> Document:
    """The step time of the second plan with the same micro-batch; none where it has its own."""
    from dmodel.asked import ask, laid
    from dmodel.cli.against import second_question
    from dmodel.prediction import answer
    from dmodel.settings import changed

    if other is None or NAME in other.replace("-", "_"):
        return {}
    question = changed(asked.question, {NAME: best[NAME]})
    try:
        beside = ask(second_question(question, other), asked.profile)
        found = answer(beside, laid(beside, {}).plan)
    except InputError:
        return {}
    tokens = beside.global_batch * float(beside.model.seq_len)
    rate = tokens / asked.global_batch / float(asked.model.seq_len)
    speedup = rate * best["step_time_s"] / found["step_time_s"]
    return {"second_step_time_s": found["step_time_s"], "speedup": speedup}


def faster_lines(d: Document) -> list[str]:
    """What is said of it."""
    found = d.get("faster_micro_batch")
    if found is None:
        return []
    named, time = found[NAME], seconds(found["step_time_s"])
    lines = [
        "",
        f"--micro-batch is not given, so 1 is taken: with {named} the step takes {time} instead of "
        f"{seconds(d['step_time_s'])}, at a risk of {percent(found['risk'], 0)} of running out of "
        "memory.",
    ]
    if "run" in d:
        days = d["run"]["days"] * found["step_time_s"] / d["step_time_s"]
        lines.append(f"The run takes {digits(days)} days then.")
    if "speedup" in found:
        beside = seconds(found["second_step_time_s"])
        lines.append(
            f"The second plan takes {beside} then: {digits(found['speedup'])} times as many "
            "tokens/s as the first."
        )
    return lines
