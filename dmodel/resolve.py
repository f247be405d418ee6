"""From words to records: the only place where a plan is assembled.

`assemble` turns questions into one batch of cases; what a question leaves open is filled by its
stack's facts, the catalog or a rule, and every filling is an assumption of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from dmodel import checks, counted, laid_out, named_shape, recomputation, shape, struct
from dmodel.catalog.chips import USUAL, known_as
from dmodel.catalog.facts import Fact
from dmodel.catalog.loader import edition
from dmodel.deciding import LEAVES, first_facts, software, usual_bytes
from dmodel.errors import InputError
from dmodel.left_blank import Chosen, RuleOfRecompute, Rules, cheapest_that_fits, together
from dmodel.machine import machine
from dmodel.question import Assumption, Question, Said, degrees, words
from dmodel.records import LEAVES as PLAN_LEAVES
from dmodel.records import (
    NEEDS,
    OF_MODEL,
    RULES,
    Cluster,
    Model,
    Plan,
    having,
    leaf,
    stacked,
    value,
)
from dmodel.types import Array

OPERAND_BYTES = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "mxfp8": 1.0,
    "int8": 1.0,
    "nvfp4": 0.5,
}
"""Bytes of one matmul operand by precision."""

OVERRIDDEN = {*PLAN_LEAVES, *OF_MODEL} - {
    *LEAVES,
    *("schedule", "placement", "offload", "n_mtp", "recompute_layers"),
}
"""Leaves of the model and the plan that columns and words decide otherwise."""

_PLAIN = Plan.of(global_batch=0.0, dp=1.0)
NEUTRAL = {n: float(leaf(_PLAIN, n)) for n in PLAN_LEAVES if n not in ("schedule", "placement")}
"""Leaves that no fact decides, as a plan has them."""


class Cases(struct.PyTreeNode, kw_only=True):
    """Questions as one batch of records: leaves `[n]`, of the network `[K, n]`.

    Attributes:
      system, model, plan: records. assumptions: of each case, static.
    """

    system: Cluster
    model: Model
    plan: Plan
    assumptions: tuple[tuple[Assumption, ...], ...] = struct.field(pytree_node=False, default=())


class Part(NamedTuple):
    """One question on its way to a case: its model, leaves of its plan, its machine,
    what is done again, and whether a rule decides that."""

    system: Cluster
    model: Model
    leaves: Mapping[str, float]
    schedule: str
    placement: tuple[str, ...] | None
    again: recomputation.Again
    open_recompute: bool
    overrides: Mapping[str, float]
    chunks: tuple[float, ...]


def assemble(questions: Sequence[Question], rule: Rules | None = None) -> Cases:
    """Records of questions, in order.

    Args:
      rule: for those whose recomputation neither they nor their stack say, or one for each; by
        default `left_blank.cheapest_that_fits`.
    Raises:
      InputError: of the first question that cannot be answered.
    """
    return _assembled(questions, rule)[0]


def _assembled(questions: Sequence[Question], rule: Rules | None) -> tuple[Cases, list[Part]]:
    whole, said = _completed(questions)
    parts = [part(question, texts) for question, texts in zip(whole, said, strict=True)]
    model = counted.settled(_batch([part.model for part in parts], stacked), whole, said)
    again = recomputation.stacked([p.again for p in parts])
    plan = Plan.of(**_stacked(parts), **_static(parts))
    plan = recomputation.redone(again, model, plan)
    system = _batch([part.system for part in parts], _stacked_systems)
    cases = Cases(system=system, model=model, plan=plan)
    cases = _fill_recompute(cases, parts, rule or cheapest_that_fits, again, said)
    cases = _overridden(cases, parts)
    return cases.replace(assumptions=tuple(map(tuple, said))), parts


def _completed(questions: Sequence[Question]) -> tuple[list[Question], list[list[Assumption]]]:
    """Questions with the open columns of their shapes filled, and by what."""
    pairs = [named_shape.completed(question) for question in questions]
    return [question for question, _ in pairs], [list(filled) for _, filled in pairs]


def _stacked(parts: Sequence[Part]) -> dict[str, Any]:
    """Leaves of plans, `[n]` each."""
    records = [part.leaves for part in parts]
    return {n: np.array([record[n] for record in records], np.float64) for n in records[0]}


def _static(parts: Sequence[Part]) -> dict[str, Any]:
    """Schedule and placement, which all cases of a batch share."""
    placements = {p.placement for p in parts}
    shared = {"schedule": _shared_schedule({p.schedule for p in parts})}
    if len(placements) > 1:
        raise InputError("placement: cases of one batch share it; ask one by one")
    placement = placements.pop()
    return shared if placement is None else shared | {"placement": placement}


def _shared_schedule(schedules: set[str]) -> str:
    """The schedule of a batch; with one chunk, interleaving is 1F1B."""
    if schedules == {"1f1b", "interleaved"}:
        return "1f1b"
    if len(schedules) > 1:
        raise InputError(
            f"schedule: cases of one batch share it; got {', '.join(sorted(schedules))}; "
            "ask one by one"
        )
    return schedules.pop()


R = TypeVar("R", Cluster, Model)


def _batch(records: Sequence[R], stack: Callable[[Sequence[R]], R]) -> R:
    """Records as one batch; each different one, by identity, is stacked once, then gathered."""
    unique = {id(record): record for record in records}
    place = {key: i for i, key in enumerate(unique)}
    index = np.array([place[id(record)] for record in records])
    return jax.tree.map(lambda leaf: leaf[..., index], stack([*unique.values()]))


def _stacked_systems(systems: Sequence[Cluster]) -> Cluster:
    """Machines as one batch."""
    return jax.tree.map(
        lambda *leaves: np.stack([np.asarray(x, np.float64) for x in leaves], axis=-1), *systems
    )


def part(question: Question, said: list[Assumption]) -> Part:
    """One question whose shape is complete, as numbers; what fills its blanks is added to `said`.

    Raises:
      InputError: it has no shape, its degrees do not fit the devices, or its machine is unknown.
    """
    own = question.model is not None
    found, texts = _part(question) if own else _part_of(Said(question), edition())
    said.extend(texts)
    return found


@lru_cache(maxsize=4096)
def _part_of(said: Said, edition: int) -> tuple[Part, tuple[Assumption, ...]]:
    """As `_part`, of an edition of the catalog: a table's reader asks whether there is an answer
    before it is asked for."""
    return _part(said.question)


def _part(question: Question) -> tuple[Part, tuple[Assumption, ...]]:
    """As `part`, with what fills blanks."""
    said: list[Assumption] = []
    _check(question)
    at = degrees(question)
    chip = known_as(question.text("accelerator"))
    known = words(question, at, chip)
    said.extend(at.assumed)
    first = first_facts(question, known)
    layout = laid_out.layout(question, at, first.values, said)
    asked = known | {n: v for n, v in first.values.items() if n != "recompute"} | layout
    asked["replicas"] = at.dp / layout["shard"]
    found = software(question, asked, first)
    place, question = len(said), _meant(question, first.values)
    model = shape.model(question, found.values, said)
    said[place:place] = _said_by(question, [f for f in found.facts if _matters(f, model)])
    again = recomputation.again(question, found.values, float(value(model, "n_experts", 1.0)), said)
    leaves = _neutral(found.values)
    said.extend(usual_bytes(found.values))
    schedule = laid_out.schedule(found.values, layout, said)
    laid = laid_out.stage_leaves(
        question, at, layout["interleave"], RULES[schedule].fold, found.values, model, said
    )
    leaves |= {"stage_excess": laid.stage_excess, "head_displaces": laid.head_displaces}
    leaves |= layout | _fixed(question, said)
    found_part = Part(
        system=machine(question, question.text("accelerator"), found.values, said),
        model=model,
        leaves=leaves,
        schedule=schedule,
        placement=laid_out.placement(found.values),
        again=again,
        open_recompute=_is_open(question, found.values, again),
        overrides=_overrides(question),
        chunks=laid.chunks,
    )
    return found_part, tuple(said)


def _check(question: Question) -> None:
    """Refuse a question without a shape, or whose columns contradict each other."""
    named_shape.check(question)
    if wrong := checks.problems(question):
        place = f"{question.where}: " if question.where else ""
        raise InputError(place + "; ".join(wrong))


def _neutral(values: Mapping[str, Any]) -> dict[str, float]:
    """Leaves as facts and settings have them, else as they are without any."""
    return NEUTRAL | LEAVES | {n: float(v) for n, v in values.items() if n in LEAVES}


def _matters(fact: Fact, model: Model) -> bool:
    """Whether a fact says something of a model: not, where it is about parts that it lacks."""
    names = {*fact.sets, *fact.means}
    return not names <= set(NEEDS) or any(having(model, NEEDS[name]) for name in names)


def _said_by(question: Question, facts: Sequence[Fact]) -> list[Assumption]:
    """What facts fill, and which release they are of where the question names none."""
    newest = not question.stack.variant and any("release" in fact.when for fact in facts)
    blank = [Assumption("release of the stack blank: the newest")] if newest else []
    return blank + [_as_assumption(fact) for fact in facts]


def _as_assumption(fact: Fact) -> Assumption:
    return Assumption(fact.text, fact.source, fact.date, (*fact.sets, *fact.means))


def _meant(question: Question, values: Mapping[str, Any]) -> Question:
    """The question with columns that facts say mean something else."""
    names = ["vocab", *(["recompute"] if question.text("recompute") else [])]
    names += [] if question.text("attention") else ["attention"]
    changed = {name: values[name] for name in names if name in values}
    return question._replace(columns={**question.columns, **changed}) if changed else question


def _fixed(question: Question, said: list[Assumption]) -> dict[str, float]:
    """Leaves that the precision and the kernels of attention decide."""
    if not question.text("attention"):
        said.append(Assumption("attention blank: flash"))
    if not question.text("precision"):
        said.append(_blank_precision(question))
    operand = OPERAND_BYTES[question.precision]
    return {
        "flash": float(question.fused_attention),
        "operand_bytes": operand,
    }


def _blank_precision(question: Question) -> Assumption:
    """Which precision is meant where none is said, and why it is not the most usual one."""
    found, chip = question.precision, question.text("accelerator")
    why = "" if found == USUAL[0] else f", as {known_as(chip)} has no {USUAL[0]}"
    return Assumption(f"precision blank: {found}{why}")


def _is_open(question: Question, values: Mapping[str, Any], again: recomputation.Again) -> bool:
    """Whether a rule decides what is recomputed: neither the question nor its stack say."""
    told = question.text("recompute") or values.get("recompute") or values.get("composed")
    chosen = any(name in values for name in recomputation.CHOICES)
    return not (told or chosen or again.said)


def _overrides(question: Question) -> dict[str, float]:
    """Leaves that the question sets itself and that its columns and words decide otherwise."""
    return {n: float(v) for n, v in question.settings.items() if n in OVERRIDDEN}


def _overridden(cases: Cases, parts: Sequence[Part]) -> Cases:
    """Cases with leaves that questions set themselves."""
    for name in sorted({name for part in parts for name in part.overrides}):
        if name in PLAN_LEAVES:
            values = _set_in(parts, name, leaf(cases.plan, name))
            cases = cases.replace(plan=cases.plan.having(**{name: values}))
        else:
            values = _set_in(parts, name, getattr(cases.model, name))
            cases = cases.replace(model=cases.model.replace(**{name: values}))
    return cases


def _set_in(parts: Sequence[Part], name: str, old: Array) -> np.ndarray:
    """A leaf of all cases, `[n]`, where questions set it as they do."""
    values = np.array(np.broadcast_to(old, len(parts)), np.float64)
    for i, part in enumerate(parts):
        values[i] = part.overrides.get(name, values[i])
    return values


def _fill_recompute(
    cases: Cases,
    parts: Sequence[Part],
    rule: Rules,
    again: recomputation.Again,
    said: list[list[Assumption]],
) -> Cases:
    """Ask the rules for the cases whose recomputation is open; what of their bytes is offloaded
    changes with it."""
    open_ = [i for i, part in enumerate(parts) if part.open_recompute]
    if not open_:
        return cases
    one = rule if callable(rule) else together([rule[i] for i in open_])
    found = one(jax.tree.map(lambda leaf: leaf[..., open_], cases))
    new_layers = np.array(cases.plan.layout.recompute_layers)
    new_attention = np.array(cases.plan.layout.recompute_attention)
    new_layers[open_], new_attention[open_] = found.layers, found.attention
    _say_recompute(found, open_, said)
    plan = cases.plan.having(recompute_layers=new_layers, recompute_attention=new_attention)
    return cases.replace(plan=recomputation.offloading(again, cases.model, plan))


def _say_recompute(found: Chosen, rows: Sequence[int], said: list[list[Assumption]]) -> None:
    """What a rule chose for some cases, and why."""
    words_of: dict[tuple[float, ...], str] = {
        (1.0, 0.0): "full",
        (0.0, 1.0): "selective",
        (0.0, 0.0): "none",
    }
    shares = (np.broadcast_to(x, len(rows)) for x in (found.layers, found.attention))
    for i, reason, *pair in zip(rows, found.why, *shares, strict=True):
        name = words_of.get(tuple(map(float, pair)), f"{pair[0]:.2g} of the layers")
        text = f"recompute blank: {name}, {reason}"
        said[i].append(Assumption(text, about=("recompute",)))


class Resolved(NamedTuple):
    """One question as records with scalar leaves, what fills its blanks, and the layers of every
    model chunk in order."""

    cluster: Cluster
    model: Model
    plan: Plan
    assumptions: tuple[Assumption, ...]
    chunks: tuple[float, ...] = ()


def resolve(question: Question, rule: RuleOfRecompute | None = None) -> Resolved:
    """Records of one question; leaves are numpy scalars, of the network `[K]`.

    Raises:
      InputError: as `assemble`.
    """
    cases, parts = _assembled([question], rule)
    records = (cases.system, cases.model, cases.plan)
    cluster, model, plan = jax.tree.map(lambda leaf: np.asarray(leaf)[..., 0], records)
    return Resolved(cluster, model, plan, cases.assumptions[0], parts[0].chunks)
