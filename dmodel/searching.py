"""From a job to the space that a search looks through: what its stack does, and may be run with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dmodel import named_shape
from dmodel.asked import OF_LAYOUT, Asked, records_of
from dmodel.design import EVERYTHING, Choices, Design, Problem, design, problem
from dmodel.errors import InputError
from dmodel.footprint import RISK, share_at_risk
from dmodel.question import Assumption, Question
from dmodel.recomputation import CHOICES as RECOMPUTED
from dmodel.records import Plan
from dmodel.records.layout import NEUTRAL
from dmodel.settings import changed
from dmodel.varying import Job, follows, job, leaves, meant, restated, way_of_stages

T = TypeVar("T")

AGAIN = tuple(n for n in NEUTRAL if n.startswith(("recompute_", "offload")))
"""Leaves of a layout that say what is done again, and what waits in host memory."""

LEFT = ("offload", "offload_inputs", "offload_results", "narrow_activations")
"""Settings of recomputation's kin that a search does without unless they are said."""

CHOSEN = (*OF_LAYOUT, "schedule", *RECOMPUTED, *LEFT[1:])
"""Columns and settings that a search chooses, or does without."""

WORDS = {"zero": "ZeRO stage", "replicas": "sharding group", "shard": "sharding group"}
"""Names of a layout in words, where the name is none."""


class Searched(NamedTuple):
    """What a search looks through.

    Attributes:
      base: what all plans share. choices: what may vary, and what the stack makes of it.
      assumptions: what fills the rest.
    """

    base: Plan
    choices: Choices
    assumptions: tuple[Assumption, ...]


def space_of(asked: Asked, attention: str = "", everything: bool = False) -> Searched:
    """What a search over the layouts of a job looks through.

    Args:
      attention: "flash" or "none" in place of the job's. everything: all that a plan can vary.
    Raises:
      InputError: the job says something that the search chooses.
    """
    _check_open(asked.question)
    if attention:
        question = changed(asked.question, {"attention": attention})
        asked = asked._replace(question=question, records=records_of(question))
    own = named_shape.completed(asked.question)[0]
    stack = job(own, asked.accelerator)
    choices, narrowed = _choices(asked, stack, EVERYTHING if everything else Choices())
    return Searched(
        base=_base(asked),
        choices=choices.replace(stack=stack),
        assumptions=(*_assumed(asked, stack), *narrowed, *_said_of(asked, stack)),
    )


def _check_open(question: Question) -> None:
    """Refuse a job that says what a search chooses.

    Raises:
      InputError: with the names.
    """
    given = [n for n in CHOSEN if n in question.columns or n in question.settings]
    if given:
        raise InputError(f"{', '.join(given)}: the search chooses this; leave it out")


def _base(asked: Asked) -> Plan:
    """What all plans share: nothing is done again, nor waits in host memory, unless said."""
    plan, said = asked.records.plan, asked.question.settings
    neutral = {n: NEUTRAL[n] for n in AGAIN if n not in said}
    if "last_kept" not in said:
        neutral["last_kept"] = 0.0
    return plan.having(**neutral)


def _choices(asked: Asked, stack: Job, offered: Choices) -> tuple[Choices, list[Assumption]]:
    """The choices that the stack runs with, and what it says of that."""
    runs = asked.question.stack.runs
    zero, said = _stages(stack, runs.get("zero", offered.zero), offered.zero)
    known = runs.get("schedules", offered.schedules)
    narrowed = offered.replace(
        zero=zero,
        schedules=_kept(offered.schedules, known) or tuple(known),
        degrees=_kept(offered.degrees, runs.get("degrees", offered.degrees)),
        uneven=bool(runs.get("uneven", offered.uneven)),
    )
    return narrowed, [*said, *map(Assumption, _narrowed(offered, narrowed))]


def _kept(offered: tuple[str, ...], known: Sequence[str]) -> tuple[str, ...]:
    """What is offered and known."""
    return tuple(x for x in offered if x in known)


def _narrowed(offered: Choices, found: Choices) -> Iterator[str]:
    """What a stack leaves out, in words."""
    if lacking := [d for d in offered.degrees if d not in found.degrees]:
        yield f"no {', '.join(lacking)}: the stack has none"
    if "pp" not in found.degrees:
        return
    if found.schedules != offered.schedules:
        yield f"schedules {', '.join(found.schedules)}: what the stack runs"
    if not found.uneven:
        yield "all stages hold as many layers: the stack lays out no others"


def _stages(
    stack: Job, known: Sequence[int], offered: tuple[int, ...]
) -> tuple[tuple[int, ...], list[Assumption]]:
    """ZeRO stages as the stack takes those that it runs, and what it says of layouts."""
    probes = list(_probes(stack, tuple(z for z in offered if z in known)))
    taken = tuple(sorted({int(meant(stack, probe)["zero"]) for probe in probes}))
    facts = restated(stack, probes)
    said = [Assumption(f.text, f.source, f.date, tuple(f.means)) for f in facts]
    if taken != offered:
        text = f"ZeRO stages {', '.join(map(str, taken))}: what the stack runs"
        said.insert(0, Assumption(text))
    return taken, said


def _probes(stack: Job, zeros: tuple[int, ...]) -> Iterator[dict[str, float]]:
    """Layouts with each degree off and on, under each ZeRO stage."""
    devices = float(stack.known["devices"])
    for zero, tp, pp, cp, ep, sp in product(map(float, zeros), *[(1.0, 2.0)] * 4, (0.0, 1.0)):
        yield {
            **{"dp": devices, "tp": tp, "pp": pp, "cp": cp, "ep": ep, "etp": 1.0, "sp": sp},
            **{"zero": zero, "shard": devices if zero else 1.0, "interleave": 1.0},
            **{"micro_batch": 1.0, "replicas": 1.0 if zero else devices},
        }


def _assumed(asked: Asked, stack: Job) -> list[Assumption]:
    """What fills the job, but for what its layout leaves open and what differs by layout."""
    open_ = {*CHOSEN, *LEFT, "zero", *AGAIN, "stages", *stack.leaves}
    return [a for a in asked.records.assumptions if not a.about or set(a.about) - open_]


def _said_of(asked: Asked, stack: Job) -> list[Assumption]:
    """What the stack decides by the layout, in words."""
    by: dict[str, list[str]] = {}
    for name in (*stack.tests, *sorted(stack.exact)):
        if own := follows(stack, name):
            by.setdefault(", ".join(own), []).append(WORDS.get(name, name))
    said = [
        f"{found}: as the stack has them with each plan's {' and '.join(dict.fromkeys(names))}"
        for found, names in by.items()
    ]
    if way_of_stages(stack) != "counted":
        said.append("layers lie on stages as the stack lays them out")
    if offload := float(asked.records.plan.layout.offload):
        text = f"has {offload:.0%} of what layers keep in host memory"
        said += (
            []
            if "offload" in asked.question.settings
            else [f"activations stay on the device; the stack's recipe {text}"]
        )
    return [Assumption(text) for text in said]


def for_any_layout(searched: Searched) -> Plan:
    """The base where no layout is known: with several ranks of experts, and of ZeRO stages 1 and 2
    the one under which a device holds more."""
    stack = searched.choices.stack
    if stack is None or not stack.leaves:
        return searched.base
    one, devices = np.ones(2), float(stack.known["devices"])
    layout = dict.fromkeys(("tp", "pp", "cp", "etp", "interleave", "micro_batch"), one)
    experts = 1.0 + (float(stack.known["n_experts"]) > 1.0)
    layout |= {"zero": np.array([1.0, 2.0]), "dp": devices * one, "shard": devices * one}
    layout |= {"ep": experts * one, "sp": 0.0 * one, "devices": devices * one}
    layout["seq_len"] = float(stack.known["seq_len"]) * one
    found = {n: x.tolist() for n, x in leaves(stack, layout).items()}
    held = [[found.get(n, [0.0, 0.0])[i] for n in HELD] for i in range(2)]
    at = int(held[1] > held[0])
    return searched.base.having(**{n: values[at] for n, values in found.items()})


HELD = ("gradient_bytes", "optimizer_bytes")
"""Leaves that say under which ZeRO stage a device holds more."""


def usable(asked: Asked, risk: float = RISK) -> float:
    """Share of a device's memory that plans of a job may need at a risk [1], by the spread of
    memory that its profile has of its stack.

    Raises:
      InputError: a risk that is none, or more than that of a plan predicted to need all memory.
    """
    if not 0.0 < risk <= 0.5:
        raise InputError(f"max_risk: expected a share above 0 and up to 0.5; got {risk!r}")
    return float(share_at_risk(risk, asked.profile.footprint_for(asked.stack).spread))


def stated(asked: Asked, searched: Searched, **how: Any) -> Problem:
    """The problem of a search.

    Args:
      how: as `design.problem` takes it.
    """
    return _given(problem, asked, searched)(**how)


def search(asked: Asked, searched: Searched, **how: Any) -> Design:
    """The best plan of a job.

    Args:
      how: as `design.design` takes it.
    """
    return _given(design, asked, searched)(**how)


def _given(solve: Callable[..., T], asked: Asked, searched: Searched) -> Callable[..., T]:
    """`design.problem` or `design.design` of a job, with its space; what is left is how."""
    return partial(
        solve,
        asked.cluster,
        asked.model,
        asked.devices,
        asked.global_batch,
        asked.coefficients,
        base=searched.base,
        choices=searched.choices,
        footprint=asked.footprint,
    )
