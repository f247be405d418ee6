"""`dmodel predict … --against`. A second plan of the same job beside the first, and how likely it
is that the first one is faster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dmodel.cli.output import Document, gib, percent, seconds, show_lines, show_table

if TYPE_CHECKING:
    from dmodel.asked import Asked
    from dmodel.question import Question
    from dmodel.records import Plan
    from dmodel.uncertainty import Uncertain

SAID = (
    "step_time_s",
    "step_time_s_low",
    "step_time_s_high",
    "mfu",
    "memory_bytes_per_device",
    "headroom_bytes",
    "fits",
)
"""What is said of the second plan."""

SWITCH = {"on": "1", "true": "1", "off": "0", "false": "0"}
"""Words that people type for 1 and 0."""


def second_question(first: Question, text: str) -> Question:
    """The first question but for what is named; dp is what is left of the devices.

    Args:
      text: `name=value,…` in the one name space of columns and settings.
    Raises:
      InputError: an unknown name, a value that is none of its kind, or two values for one name.
    """
    from dmodel.recomputation import CHOICES
    from dmodel.settings import changed, typed

    parts = [part for part in text.replace(" ", ",").split(",") if part]
    named = {n: SWITCH.get(v.lower(), v) for n, v in typed(parts, "--against").items()}
    gone = {"dp"}
    if not named.keys().isdisjoint({"recompute", *CHOICES}):
        gone |= {"recompute", *CHOICES}
    return changed(
        first._replace(
            columns=_without(first.columns, gone), settings=_without(first.settings, gone)
        ),
        named,
    )


def _without(words: Mapping[str, Any], gone: set[str]) -> dict[str, Any]:
    return {name: value for name, value in words.items() if name not in gone}


def against(asked: Asked, first: Plan, other: str, profile: str | None) -> Document:
    """The second plan: its time, what it needs, and the chance that the first one is faster.

    Both are carried by the same draws of the coefficients, so that what is not known of both alike
    does not count; None for the chance where they share none.

    Args:
      other: what the second plan has otherwise, `name=value,…`. profile: as asked for.
    """
    from dmodel.asked import ask, plan
    from dmodel.cli.question import plan_document, short
    from dmodel.prediction import answer

    beside = ask(second_question(asked.question, other), profile)
    second, _ = plan(beside, {})
    found = answer(beside, second)
    return {
        "plan": plan_document(second),
        "label": short(plan_document(second)),
        **{name: found[name] for name in SAID if name in found},
        "probability_first_is_faster": _chance((asked, first), (beside, second)),
    }


def _chance(first: tuple[Asked, Plan], second: tuple[Asked, Plan]) -> float | None:
    import numpy as np

    from dmodel.uncertainty import Uncertain, probability_faster

    # one by one, as their schedules and placements may differ
    one, other = _times(*first), _times(*second)
    if one is None or other is None or _drawn_from(first[0]) != _drawn_from(second[0]):
        return None
    joined = (np.concatenate([a, b], -1) for a, b in zip(one, other, strict=True))
    return probability_faster(Uncertain(*joined), 0, 1)


def _times(asked: Asked, plan: Plan) -> Uncertain | None:
    """Step times of a plan by draws of the coefficients."""
    from dmodel.uncertainty import step_times

    return step_times(
        asked.profile, asked.accelerator, asked.stack, asked.cluster, asked.model, plan
    )


def _drawn_from(asked: Asked) -> tuple[str, str, str]:
    """What decides the draws."""
    return asked.profile.name, asked.accelerator, asked.stack


def show_against(d: Document) -> None:
    """The two plans beside each other, and the chance."""
    from dmodel.cli.question import short

    other, sure = d["against"], "step_time_s_low" in d
    rows = []
    for label, p in ((short(d["plan"]), d), (other["label"], other)):
        between = (
            [f"{seconds(p['step_time_s_low'])} – {seconds(p['step_time_s_high'])}"] if sure else []
        )
        rows.append(
            [
                label,
                seconds(p["step_time_s"]),
                *between,
                gib(p["memory_bytes_per_device"]),
                gib(p["headroom_bytes"]),
            ]
        )
    chance = other["probability_first_is_faster"]
    says = (
        ""
        if chance is None
        else f": the first is faster with a probability of {percent(chance, 0)}"
    )
    show_lines("")
    header = ["plan", "step", *(["90 %"] if sure else []), "memory", "headroom"]
    show_table(f"Two plans{says}", header, rows, right="step|90 %|memory|headroom")
