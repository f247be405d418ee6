"""`dmodel predict … --against`: a second plan of the same job beside the first, and how likely it
is that the first one is faster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from dmodel.cli.options import Degrees
from dmodel.cli.output import Document, gib, percent, seconds, show_lines, show_table
from dmodel.types import InputError

if TYPE_CHECKING:
    from dmodel.asked import Asked
    from dmodel.records import Plan

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

SWITCH = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}


def degrees_against(text: str, first: Degrees) -> Degrees:
    """The degrees of a second plan: those of the first but for what is named, dp what is left of
    the devices.

    Raises:
      InputError: an unknown name, a value that is none of its kind, or two values for one name.
    """
    changed: dict[str, Any] = {"dp": None}
    said: dict[str, str] = {}
    for part in text.replace(" ", ",").split(","):
        if not part:
            continue
        name, _, value = part.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        if name not in Degrees._fields or not value:
            raise InputError(
                f"--against {part!r}: expected NAME=VALUE with a name among "
                f"{', '.join(Degrees._fields)}, such as tp=8,pp=2,micro_batch=2"
            )
        read = _value(name, value)
        if said.setdefault(name, value) != value:
            raise InputError(
                f"--against {name}: given twice, as {said[name]} and as {value}; give it once"
            )
        changed[name] = read
    return first._replace(**changed)


def _value(name: str, text: str) -> int | float | bool | str:
    """A value of the kind that the option takes."""
    kinds = get_args(get_type_hints(Degrees)[name]) or (get_type_hints(Degrees)[name],)
    if bool in kinds:
        if text.lower() not in SWITCH:
            raise InputError(f"--against {name}={text}: expected on or off")
        return SWITCH[text.lower()]
    read = int if int in kinds else float if float in kinds else str
    try:
        return read(text)
    except ValueError:
        raise InputError(
            f"--against {name}={text}: expected a {'whole ' if read is int else ''}number"
        ) from None


def against(asked: Asked, first: Plan, second: Plan) -> Document:
    """The second plan: its time, what it needs, and the chance that the first one is faster.

    Both are carried by the same draws of the coefficients, so that what is not known of both alike
    does not count; None for the chance where the profile carries no covariance.
    """
    from dmodel.cli.answer import answer
    from dmodel.cli.question import plan_document, short

    found = answer(asked, second)
    return {
        "plan": plan_document(second),
        "label": short(plan_document(second)),
        **{name: found[name] for name in SAID if name in found},
        "probability_first_is_faster": _chance(asked, first, second),
    }


def _chance(asked: Asked, first: Plan, second: Plan) -> float | None:
    import numpy as np

    from dmodel.uncertainty import Uncertain, probability_faster, step_times

    # one by one, as their schedules and placements may differ
    both = [
        step_times(asked.profile, asked.accelerator, asked.stack, asked.cluster, asked.model, plan)
        for plan in (first, second)
    ]
    if both[0] is None or both[1] is None:
        return None
    return probability_faster(
        Uncertain(*(np.concatenate([a, b], -1) for a, b in zip(both[0], both[1], strict=True))),
        0,
        1,
    )


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
