"""`dmodel predict … --against`. A second plan of the same job beside the first, and how likely it
is that the first one is faster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp, log
from typing import TYPE_CHECKING, Any

from dmodel.cli.output import Document, digits, gib, percent, seconds, show_lines, show_table
from dmodel.errors import InputError

if TYPE_CHECKING:
    from dmodel.asked import Asked
    from dmodel.question import Question
    from dmodel.records import Plan
    from dmodel.uncertainty import Gap, Uncertain

SAID = (
    "step_time_s",
    "step_time_s_low",
    "step_time_s_high",
    "breakdown",
    "mfu",
    "peak_flops_per_s",
    "tokens_per_s",
    "tokens_per_s_per_device",
    "joules_per_token",
    "dollars_per_million_tokens",
    "memory_bytes_per_device",
    "headroom_bytes",
    "fits",
    "oom_probability",
)
"""What is said of the second plan."""

SWITCH = {"on": "1", "true": "1", "off": "0", "false": "0"}
"""Words that people type for 1 and 0."""

OF_SHAPE = (
    *("n_layers", "d_model", "d_ff", "gated_mlp", "n_heads", "n_kv_heads", "head_dim", "vocab"),
    *("n_experts", "top_k"),
)
"""Columns of a model's shape."""

FOLLOWING = {
    "system": ("accelerator", "accel_per_node", "domain_size"),
    "accelerator": ("accel_per_node", "domain_size"),
    "model": ("n_params", *OF_SHAPE),
}
"""Names whose change leaves others open again, that were said of what was there before."""


def second_question(first: Question, text: str) -> Question:
    """The first question but for what is named; dp is what is left of the devices.

    Args:
      text: `name=value,…` in the one name space of columns and settings, and `system`, `devices`.
    Raises:
      InputError: an unknown name, a value that is none of its kind, or two values for one name.
    """
    from dmodel.cli.question import with_shape
    from dmodel.recomputation import CHOICES
    from dmodel.settings import changed, typed

    parts = [part for part in text.replace(" ", ",").split(",") if part]
    system, others = _system_of(parts)
    named = {n: SWITCH.get(v.lower(), v) for n, v in typed(others, "--against").items()}
    gone = {"dp"}
    if not named.keys().isdisjoint({"recompute", *CHOICES}):
        gone |= {"recompute", *CHOICES}
    for name in (*named, *(["system"] if system else [])):
        gone.update(FOLLOWING.get(name, ()))
    start = first._replace(
        columns=_without(first.columns, gone), settings=_without(first.settings, gone)
    )
    if system or "accelerator" in named:
        start = start._replace(system=system)
    if "model" not in named:
        return changed(start, named)
    found = changed(start._replace(model=None, notes=()), named)
    return with_shape(found, named["model"], found.number("seq_len"))


def _system_of(parts: list[str]) -> tuple[str, list[str]]:
    """The system that is named, "" where none is, and the other parts, `devices` as its column.

    Raises:
      InputError: two systems.
    """
    systems, others = [], []
    for part in parts:
        name, equals, value = part.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        if name == "system" and equals:
            systems.append(value.strip())
        else:
            others.append(f"n_accel={value}" if name == "devices" and equals else part)
    if len(set(systems)) > 1:
        raise InputError(f"--against: system as {' and as '.join(systems)}; say one")
    return (systems[0] if systems else ""), others


def _without(words: Mapping[str, Any], gone: set[str]) -> dict[str, Any]:
    return {name: value for name, value in words.items() if name not in gone}


def against(
    asked: Asked,
    first: Plan,
    other: str,
    profile: str | None,
) -> Document:
    """The second plan: its time, what it needs, and the chances that the first one is faster and
    cheaper for each token.

    Where both have the same coefficients, what is not known of these alike does not count; else
    nothing is common to what is not known of them. None where a profile carries no covariance.

    Args:
      other: what the second plan has otherwise, `name=value,…`. profile: as asked for.
    """
    from dmodel.asked import ask, laid
    from dmodel.cli.question import plan_document, short
    from dmodel.prediction import prediction

    beside = ask(second_question(asked.question, other), profile)
    found = prediction(beside, laid(beside, {}))
    second = found.plan
    pair = (asked, first), (beside, second)
    gap = _gap(*pair)
    rent = _rent(beside) / _rent(asked)
    return {
        **beside.document(),
        "plan": plan_document(second),
        "label": short(plan_document(second)),
        **{name: found.document[name] for name in SAID if name in found.document},
        "same": _same(*pair),
        "assumptions": [str(each) for each in found.assumptions],
        **_speedup(gap, _worth(beside) / _worth(asked)),
        "probability_first_is_cheaper": None if gap is None else _beyond(gap, rent).probability,
    }


def _same(first: tuple[Asked, Plan], second: tuple[Asked, Plan]) -> bool:
    """Whether both are one run of one profile."""
    import jax
    import numpy as np

    both = [(asked.cluster, asked.model, plan) for asked, plan in (first, second)]
    (one, its), (other, others) = (jax.tree.flatten(records) for records in both)
    return (
        its == others
        and _drawn_from(first[0]) == _drawn_from(second[0])
        and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    )


def _worth(asked: Asked) -> float:
    """What a second of a step counts for a token: one over its tokens."""
    return 1.0 / (asked.global_batch * float(asked.model.seq_len))


def _rent(asked: Asked) -> float:
    """Rent of all devices for a second, for each token of a step [dollar/s/token]."""
    return asked.devices * float(asked.cluster.chip.price_per_s) * _worth(asked)


def _beyond(gap: Gap, counts: float) -> Gap:
    """The gap where a second of the second plan counts so many of the first."""
    return gap.beyond(log(counts))


def _speedup(gap: Gap | None, counts: float) -> Document:
    """How many tokens a second the second plan trains on over the first, with the 90 % interval
    of that, and the chance that the first is faster; none where nothing is known of it.

    Args:
      counts: what a second of the second one counts for a token, over one of the first.
    """
    from dmodel.uncertainty import band

    if gap is None:
        return {"probability_first_is_faster": None}
    per_token = _beyond(gap, counts)
    speedup = exp(-per_token.value)
    low, high = band(speedup, per_token.scale)
    return {
        "speedup": speedup,
        "speedup_low": float(low),
        "speedup_high": float(high),
        "probability_first_is_faster": per_token.probability,
    }


def _gap(first: tuple[Asked, Plan], second: tuple[Asked, Plan]) -> Gap | None:
    """How much longer the second plan's step takes; None where nothing is known of it."""
    import numpy as np

    from dmodel.uncertainty import Uncertain, gap_apart, gap_between

    # one by one, as their schedules and placements may differ
    one, other = _times(*first), _times(*second)
    if one is None or other is None:
        return None
    if _drawn_from(first[0]) != _drawn_from(second[0]):
        return gap_apart(one, other)
    joined = (np.concatenate([a, b], -1) for a, b in zip(one, other, strict=True))
    return gap_between(Uncertain(*joined), 0, 1)


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
    """The two plans beside each other, by term, and the chances."""
    from dmodel.cli.question import short, title

    other = d["against"]
    named = [
        f"{name}: {title(p)}: {short(p['plan'])}" for name, p in zip(NAMES, (d, other), strict=True)
    ]
    show_lines("", *named)
    show_table("Two plans", ("", *NAMES, "difference"), _compared(d, other), right=RIGHT)
    if "speedup" in other:
        ends = f"{digits(other['speedup_low'])} to {digits(other['speedup_high'])}"
        times = f"{digits(other['speedup'])} times as many tokens/s as the first (90 %: {ends})"
        show_lines(f"The second trains on {times}.")
    for word in ("faster", "cheaper"):
        chance = other[f"probability_first_is_{word}"]
        if chance is not None:
            says = f"{percent(chance, 0)} that the first is {word} per token"
            show_lines(f"Probability of {says}.")
    own = [text for text in other["assumptions"] if text not in d["assumptions"]]
    if other["same"]:
        show_lines("", "Both are the same run: what --against names is what the first one has.")
    elif own:
        show_lines("", "Assumed of the second alone:", *(f"  {text}" for text in own))


NAMES = ("first", "second")
ROUNDING = 1e-6
"""Differences of a smaller share are none: smooth maxima leave such traces [1]."""

RIGHT = "first|second|difference"


def _compared(d: Document, other: Document) -> list[tuple[str, ...]]:
    """Rows of the table: causes that take time in either, then what follows from them."""
    from dmodel.run import CONVENTION

    both = [(d["breakdown"][name], other["breakdown"][name]) for name in d["breakdown"]]
    named = zip(d["breakdown"], both, strict=True)
    rows = [_row(name[:-2].replace("_", " "), *pair, seconds) for name, pair in named if any(pair)]
    rows.append(_row("step", d["step_time_s"], other["step_time_s"], seconds))
    if "step_time_s_low" in d and "step_time_s_low" in other:
        ends = (
            f"{seconds(p['step_time_s_low'])} – {seconds(p['step_time_s_high'])}"
            for p in (d, other)
        )
        rows.append(("90 %", *ends, ""))
    rows.append(_row("MFU", d["mfu"][CONVENTION], other["mfu"][CONVENTION], percent))
    for name, label, show in FOLLOW:
        rows.append(_row(label, d[name], other[name], show))
    return rows


FOLLOW: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("tokens_per_s_per_device", "tokens/s per device", lambda x: digits(x, 4)),
    ("dollars_per_million_tokens", "dollars per million tokens", digits),
    ("joules_per_token", "J per token", digits),
    ("memory_bytes_per_device", "memory", gib),
    ("headroom_bytes", "headroom", gib),
    ("oom_probability", "risk of running out", percent),
)
"""Names of the answer, what they are called, and how they are shown."""


def _row(label: str, a: float, b: float, show: Callable[[float], str]) -> tuple[str, ...]:
    """One quantity of both plans, and how much more the second has."""
    more = b - a if abs(b - a) > ROUNDING * max(abs(a), abs(b)) else 0.0
    sign = "+" if more > 0.0 else "−" if more < 0.0 else ""
    return label, show(a), show(b), f"{sign}{show(abs(more))}"
