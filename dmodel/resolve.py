"""From words to records: the only place where a plan is assembled.

`assemble` turns questions into one batch of cases; what a question leaves open is filled by its
stack's facts, the catalog or a rule, and every filling is an assumption of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import struct

from dmodel import checks, layouts, recomputation, shape
from dmodel.catalog.facts import Applied, Fact, Rule, apply
from dmodel.catalog.loader import canonical
from dmodel.catalog.stack import consequences
from dmodel.catalog.systems import host_size, system_for
from dmodel.described import FIRST, described
from dmodel.question import Assumption, Degrees, Question, degrees, words
from dmodel.records import LEAVES as PLAN_LEAVES
from dmodel.records import Cluster, Model, Plan, leaf
from dmodel.types import Array, InputError

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

LEAVES = {
    "overlap_ep": 1.0,
    "overlap_tp": 1.0,
    "overlap_dp": 1.0,
    "overlap_pp": 1.0,
    "overlap_cp": 1.0,
    "overlap_replica": 1.0,
    "cp_balanced": 1.0,
    "recompute_last": 1.0,
    "narrow_gathers": 1.0,
    "narrow_sums": 0.0,
    "attention_bytes": 2.0,
    "attention_rate": 1.0,
    "attention_backward_rate": 1.0,
    "wide_layers": 0.0,
    "scale_passes": 0.0,
    "reduce_bytes": 2.0,
    "gradient_bytes": 4.0,
    "gather_bytes": 2.0,
    "weight_bytes": 2.0,
    "optimizer_bytes": 12.0,
    "logit_bytes": 8.0,
    "bucket_per_rank": 0.0,
    "merge_copies": 0.0,
    "route_bytes": 0.0,
    "graphed": 0.0,
    "looped_experts": 0.0,
    "fused_experts": 0.0,
    "fused_sums": 0.0,
    "split_rotary": 0.0,
    "accumulate": 0.0,
    "unpadded_vocab": 0.0,
    "composed": 0.0,
    "reshard": 1.0,
}
"""Leaves of a plan that facts and settings decide, and what they are without any."""

OVERRIDDEN = {*PLAN_LEAVES, *Model.__dataclass_fields__} - {
    *LEAVES,
    *("schedule", "placement", "offload", "n_mtp", "imbalance", "recompute_layers"),
}
"""Leaves of the model and the plan that columns and words decide otherwise."""

_PLAIN = Plan.of(global_batch=0.0, dp=1.0)
NEUTRAL = {n: float(leaf(_PLAIN, n)) for n in PLAN_LEAVES if n not in ("schedule", "placement")}
"""Leaves that no fact decides, as a plan has them."""

RuleOfRecompute = Callable[["Cases"], tuple[Array, Array]]
"""Rule for an open `recompute`: cases with none → `(recompute_layers, recompute_attention)`."""


class Cases(struct.PyTreeNode, kw_only=True):
    """Questions as one batch of records: leaves `[n]`, of the network `[K, n]`.

    Attributes:
      system, model, plan: records. assumptions: of each case, static.
    """

    system: Cluster
    model: Model
    plan: Plan
    assumptions: tuple[tuple[Assumption, ...], ...] = struct.field(pytree_node=False, default=())


class Software(NamedTuple):
    """What facts and the question make of everything that no column holds.

    Attributes:
      values: name → number, word or words. facts: those that decided something.
    """

    values: Mapping[str, Any]
    facts: tuple[Fact, ...]


class Part(NamedTuple):
    """One question on its way to a case: numbers of its model, leaves of its plan, its machine,
    what is done again, and whether a rule decides that."""

    system: Cluster
    model: Mapping[str, float]
    leaves: Mapping[str, float]
    schedule: str
    placement: tuple[str, ...] | None
    again: recomputation.Again
    open_recompute: bool
    overrides: Mapping[str, float]


def assemble(questions: Sequence[Question], rule: RuleOfRecompute | None = None) -> Cases:
    """Records of questions, in order.

    Args:
      rule: for those whose recomputation neither they nor their stack say; by default
        `cheapest_that_fits`.
    Raises:
      InputError: of the first question that cannot be answered.
    """
    said: list[list[Assumption]] = [[] for _ in questions]
    pairs = [shape.completed(question) for question in questions]
    for texts, (_, filled) in zip(said, pairs, strict=True):
        texts.extend(filled)
    whole = [question for question, _ in pairs]
    parts = [part(question, texts) for question, texts in zip(whole, said, strict=True)]
    model = shape.settled(Model(**_stacked([p.model for p in parts])), whole, said)
    again = recomputation.stacked([p.again for p in parts])
    plan = Plan.of(**_stacked([p.leaves for p in parts]), **_static(parts))
    plan = recomputation.redone(again, model, plan)
    cases = Cases(system=_systems([p.system for p in parts]), model=model, plan=plan)
    open_ = np.array([p.open_recompute for p in parts])
    cases = _fill_recompute(cases, open_, rule or cheapest_that_fits, again, said)
    cases = _overridden(cases, [p.overrides for p in parts])
    return cases.replace(assumptions=tuple(map(tuple, said)))


def _stacked(records: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    return {n: np.array([record[n] for record in records], np.float64) for n in records[0]}


def _static(parts: Sequence[Part]) -> dict[str, Any]:
    """Schedule and placement, which all cases of a batch share."""
    found: dict[str, Any] = {}
    schedules = {p.schedule for p in parts}
    if len(schedules) > 1 and schedules != {"1f1b", "interleaved"}:
        raise InputError(
            f"schedule: cases of one batch share it; got {', '.join(sorted(schedules))}; "
            "ask one by one"
        )
    # with one chunk, interleaving is 1F1B
    found["schedule"] = schedules.pop() if len(schedules) == 1 else "1f1b"
    placements = {p.placement for p in parts}
    if len(placements) > 1:
        raise InputError("placement: cases of one batch share it; ask one by one")
    placement = placements.pop()
    return found | ({} if placement is None else {"placement": placement})


def _systems(systems: Sequence[Cluster]) -> Cluster:
    """Machines as one batch; each different one is stacked once, then gathered."""
    unique = {id(system): system for system in systems}
    place = {key: i for i, key in enumerate(unique)}
    index = np.array([place[id(system)] for system in systems])
    whole = jax.tree.map(
        lambda *leaves: np.stack([np.asarray(x, np.float64) for x in leaves], axis=-1),
        *unique.values(),
    )
    return jax.tree.map(lambda leaf: leaf[..., index], whole)


def part(question: Question, said: list[Assumption]) -> Part:
    """One question whose shape is complete, as numbers; what fills its blanks is added to `said`.

    Raises:
      InputError: it has no shape, its degrees do not fit the devices, or its machine is unknown.
    """
    shape.check(question)
    if wrong := checks.problems(question):
        place = f"{question.where}: " if question.where else ""
        raise InputError(place + "; ".join(wrong))
    at = degrees(question)
    chip = canonical("chips", question.text("accelerator"))
    known = words(question, at, chip)
    said.extend(at.assumed)
    first = _applied(question, known, first=True)
    layout = _layout(question, at, first.values, said)
    asked = known | {n: v for n, v in first.values.items() if n != "recompute"} | layout
    asked["replicas"] = at.dp / layout["shard"]
    found = software(question, asked, first)
    said.extend(_as_assumption(f) for f in found.facts)
    question = _meant(question, first.values)
    model = shape.model(question, found.values, said)
    again = recomputation.again(question, found.values, model["n_experts"], said)
    leaves = NEUTRAL | LEAVES | {n: float(found.values[n]) for n in LEAVES if n in found.values}
    leaves |= _stages(question, at, layout["interleave"], found.values, model, said)
    leaves |= layout | _fixed(question, said)
    return Part(
        system=_system(question, question.text("accelerator"), found.values, said),
        model=model,
        leaves=leaves,
        schedule=_schedule(found.values, layout["interleave"]),
        placement=found.values.get("placement"),
        again=again,
        open_recompute=_is_open(question, found.values, again),
        overrides=_overrides(question),
    )


def _as_assumption(fact: Fact) -> Assumption:
    return Assumption(fact.text, fact.source, fact.date, (*fact.sets, *fact.means))


def _meant(question: Question, values: Mapping[str, Any]) -> Question:
    """The question with columns that facts say mean something else."""
    names = ["vocab", *(["recompute"] if question.text("recompute") else [])]
    changed = {name: values[name] for name in names if name in values}
    return question._replace(columns={**question.columns, **changed}) if changed else question


def first_facts(question: Question, known: Mapping[str, Any]) -> Applied:
    """Facts of the layout and the machine, rules evaluated."""
    return _applied(question, known, first=True)


@lru_cache(maxsize=1024)
def _divided(name: str) -> tuple[tuple[Fact, ...], tuple[Fact, ...]]:
    """Facts of a stack that may hold in its release: of the layout and the machine, and others."""
    of = described(name)
    same = {"stack": of.basis, "variant": of.variant, "release": of.release}
    may = [f for f in of.facts if all(test(same[n]) for n, test in f.tests if n in same)]
    chosen = [bool(FIRST & {*f.sets, *f.means}) for f in may]
    pairs = list(zip(may, chosen, strict=True))
    return tuple(f for f, yes in pairs if yes), tuple(f for f, yes in pairs if not yes)


def _applied(question: Question, known: Mapping[str, Any], first: bool) -> Applied:
    """Facts of the layout and the machine, or all others; rules of the first are evaluated."""
    chosen = _divided(question.text("stack"))[0 if first else 1]
    given = {*question.settings, *question.columns}
    given |= {"zero"} if "zero_stage" in question.columns else set()
    found = apply(chosen, known, frozenset(given))
    return found._replace(values=evaluated(found.values, known)) if first else found


def evaluated(values: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Values with rules (`dmodel.layouts.RULES`) evaluated; what a rule leaves open is left out."""
    plain = {n: v for n, v in values.items() if not isinstance(v, Rule)}
    asked = {**LEAVES, **known, **plain}
    rules = {n: v for n, v in values.items() if isinstance(v, Rule)}
    found = {n: layouts.RULES[r.name](asked, **r.arguments) for n, r in rules.items()}
    return plain | {n: v for n, v in found.items() if v is not None}


def software(question: Question, known: Mapping[str, Any], first: Applied) -> Software:
    """What facts make of everything beside the layout, with what the question sets itself.

    Args:
      known: words of the question, its layout filled. first: facts of the layout.
    """
    own = _applied(question, known, first=False)
    seen = {**known, **{n: v for n, v in own.values.items() if not isinstance(v, Rule)}}
    after = apply(consequences(), seen, frozenset(question.settings))
    values = evaluated({**own.values, **after.values}, known)
    facts = (*first.facts, *own.facts, *after.facts)
    return Software({**first.values, **values, **question.settings}, facts)


def _layout(
    question: Question, at: Degrees, values: Mapping[str, Any], said: list[Assumption]
) -> dict[str, float]:
    """Leaves of the layout, none of them open."""
    etp, ranks = question.number("etp") or 1.0, at.dp * at.tp * at.cp
    if at.ep > ranks:
        said.append(Assumption(f"ep {at.ep:g} counted as dp·tp·cp = {ranks:g}", about=("ep",)))
    if question.number("etp") is None and at.ep > 1.0 and at.tp > 1.0:
        said.append(Assumption("etp blank: 1, experts are not split", about=("etp",)))
    zero = _zero(question, values, said)
    return {
        "dp": at.dp,
        "tp": at.tp,
        "cp": at.cp,
        "pp": at.pp,
        "ep": min(at.ep, ranks / etp),
        "etp": etp,
        "sp": _sequence_parallel(question, at.tp, values, said),
        "zero": zero,
        "shard": _shard(question, at, zero, values, said),
        "interleave": _filled(question, "interleave", values, said),
        "micro_batch": _filled(question, "micro_batch", values, said),
        "global_batch": question.known("global_batch"),
    }


def _filled(
    question: Question, name: str, values: Mapping[str, Any], said: list[Assumption]
) -> float:
    """A count as it is said, else as facts have it, else 1."""
    given, found = question.number(name), values.get(name)
    if given is not None:
        return given
    said.append(Assumption(f"{name} blank: {found or 1.0:g}", about=(name,)))
    return float(found or 1.0)


def _zero(question: Question, values: Mapping[str, Any], said: list[Assumption]) -> float:
    given = question.number("zero_stage")
    if given is None and "zero" not in values:
        said.append(Assumption("zero_stage blank: 1", about=("zero_stage",)))
    return float(values.get("zero", 1.0 if given is None else given))


def _shard(
    question: Question, at: Degrees, zero: float, values: Mapping[str, Any], said: list[Assumption]
) -> float:
    """Ranks of one sharding group: as said or as facts have it, else all of dp; 1 without ZeRO."""
    written = values.get("shard", question.number("shard"))
    if zero == 0.0:
        if written and written > 1.0:
            text = f"shard {written:g} not used: ZeRO stage 0 shards nothing"
            said.append(Assumption(text, about=("shard",)))
        return 1.0
    if written is not None:
        return float(written)
    if at.dp > 1.0:
        said.append(Assumption(f"shard blank: {at.dp:g}, all ranks of dp", about=("shard",)))
    return at.dp


def _sequence_parallel(
    question: Question, tp: float, values: Mapping[str, Any], said: list[Assumption]
) -> float:
    """Sequence parallelism, 0 or 1; open: where there is tensor parallelism."""
    given = values.get("sp", question.number("sp"))
    if given is None:
        given = float(tp > 1.0)
        said.append(Assumption(f"sp blank: {given:g}", about=("sp",)))
    return float(given)


def _stages(
    question: Question,
    at: Degrees,
    interleave: float,
    values: Mapping[str, Any],
    model: Mapping[str, float],
    said: list[Assumption],
) -> dict[str, float]:
    """Layers of the fullest stage beyond the mean one, and how many fewer the one with the head
    holds."""
    head = layouts.head_cost(model["d_model"], model["d_ff"], model["vocab"])
    of = layouts.Pipeline(model["n_layers"], head, at.pp, interleave, model["n_mtp"])
    found = layouts.stages(str(values.get("stages", "counted")), of, written_stages(question))
    if at.pp <= 1.0:
        return {"stage_excess": 0.0, "head_displaces": 0.0}
    mean = (of.layers + of.n_mtp) / of.pp
    if found.said:
        text = f"the fullest stage holds {found.fullest:g} layers (mean {mean:.4g}), that with "
        text += f"the head {found.last:g}: {found.said}"
        said.append(Assumption(text, about=("stage_layers",)))
    return {
        "stage_excess": found.fullest - mean,
        "head_displaces": found.fullest - found.last,
    }


def written_stages(question: Question) -> list[float]:
    """Layers of each stage as the question has them, none when open.

    Raises:
      InputError: these are no numbers of layers, one for each stage, that add up to the model's.
    """
    text, pp = question.text("stage_layers"), degrees(question).pp
    counts = [float(x) if x.isdecimal() else -1.0 for x in text.split()]
    layers = question.known("n_layers")
    if text and (len(counts) != pp or min(counts) < 0.0 or sum(counts) != layers):
        expected = f"expected {pp:g} numbers (pp) that add up to n_layers = {layers:g}"
        raise InputError(f"stage_layers = {text!r}: {expected}")
    return counts


def _fixed(question: Question, said: list[Assumption]) -> dict[str, float]:
    """Leaves that the precision and the kernels of attention decide."""
    if not question.text("attention"):
        said.append(Assumption("attention blank: flash"))
    if not question.text("precision"):
        said.append(Assumption("precision blank: bf16"))
    operand = OPERAND_BYTES[question.precision]
    return {
        "flash": float(question.fused_attention),
        "operand_bytes": operand,
    }


def _schedule(values: Mapping[str, Any], interleave: float) -> str:
    """The pipeline's schedule; open: 1F1B, interleaved where stages hold several chunks."""
    chosen = str(values.get("schedule") or ("interleaved" if interleave > 1.0 else "1f1b"))
    if interleave > 1.0 and chosen != "interleaved":
        raise InputError(
            f"interleave: expected 1 for the schedule {chosen!r}; got {interleave:g}. Use the "
            "schedule 'interleaved'."
        )
    return chosen


def _system(
    question: Question, chip: str, values: Mapping[str, Any], said: list[Assumption]
) -> Cluster:
    """Chip and network: the question's own system, else the one that stack or chip imply."""
    name = question.system or str(values.get("system", ""))
    host = values.get("accel_per_node", question.number("accel_per_node"))
    given = question.number("domain_size")
    base = _looked_up(chip, name, None, question.precision, question.system != "")
    inner = None if given or not host else host_size(host, base.network)
    if given is None and not question.system:
        whose = "the catalog's" if inner is None else f"{inner:g}, the devices of a host"
        said.append(Assumption(f"domain_size blank: {whose}"))
    size = given or inner
    return base if size is None else _looked_up(chip, name, size, question.precision, False)


def system_of(question: Question) -> Cluster:
    """Chip and network of a question whose shape is complete.

    Raises:
      InputError: unknown accelerator or system, or a precision that the chip lacks.
    """
    at = degrees(question)
    chip = canonical("chips", question.text("accelerator"))
    found = _applied(question, words(question, at, chip), first=True)
    return _system(question, question.text("accelerator"), found.values, [])


@lru_cache(maxsize=4096)
def _looked_up(
    chip: str, name: str, domain_size: float | None, precision: str, whole: bool
) -> Cluster:
    """A system of the catalog; whole: with all levels of its network."""
    return system_for(chip, name, domain_size, precision, whole=whole)


def _is_open(question: Question, values: Mapping[str, Any], again: recomputation.Again) -> bool:
    """Whether a rule decides what is recomputed: neither the question nor its stack say."""
    told = question.text("recompute") or values.get("recompute") or values.get("composed")
    chosen = any(name in values for name in recomputation.CHOICES)
    return not (told or chosen or again.said)


def _overrides(question: Question) -> dict[str, float]:
    """Leaves that the question sets itself and that its columns and words decide otherwise."""
    return {n: float(v) for n, v in question.settings.items() if n in OVERRIDDEN}


def _overridden(cases: Cases, overrides: Sequence[Mapping[str, float]]) -> Cases:
    """Cases with leaves that questions set themselves."""
    for name in sorted({n for each in overrides for n in each}):
        of_plan = name in PLAN_LEAVES
        old = leaf(cases.plan, name) if of_plan else getattr(cases.model, name)
        values = np.array(np.broadcast_to(old, len(overrides)), np.float64)
        for i, each in enumerate(overrides):
            values[i] = each.get(name, values[i])
        if of_plan:
            cases = cases.replace(plan=cases.plan.having(**{name: values}))
        else:
            cases = cases.replace(model=cases.model.replace(**{name: values}))
    return cases


def _fill_recompute(
    cases: Cases,
    open_: np.ndarray,
    rule: RuleOfRecompute,
    again: recomputation.Again,
    said: list[list[Assumption]],
) -> Cases:
    """Ask the rule for the cases whose recomputation is open; what of their bytes is offloaded
    changes with it."""
    if not open_.any():
        return cases
    some = jax.tree.map(lambda leaf: leaf[..., open_], cases)
    shares = (np.broadcast_to(np.asarray(x, np.float64), open_.sum()) for x in rule(some))
    layers, attention = shares
    new_layers = np.array(cases.plan.layout.recompute_layers)
    new_attention = np.array(cases.plan.layout.recompute_attention)
    new_layers[open_], new_attention[open_] = layers, attention
    words_of = {(1.0, 0.0): "full", (0.0, 1.0): "selective", (0.0, 0.0): "none"}
    for i, *pair in zip(np.flatnonzero(open_), layers, attention, strict=True):
        name = words_of.get(tuple(map(float, pair)), f"{pair[0]:.2g} of the layers")
        text = f"recompute blank: {name}, the least that fits"
        said[i].append(Assumption(text, about=("recompute",)))
    plan = cases.plan.having(recompute_layers=new_layers, recompute_attention=new_attention)
    return cases.replace(plan=recomputation.offloading(again, cases.model, plan))


def cheapest_that_fits(cases: Cases) -> tuple[np.ndarray, np.ndarray]:
    """Least recomputation whose memory fits the device: none, else selective, else in full for the
    smallest share of the layers that fits (all of them when even that does not). Memory is linear
    in the share, so the share is a division."""
    from dmodel.step import memory_use

    count = np.asarray(cases.plan.layout.dp).shape
    ones, zeros = np.ones(count), np.zeros(count)

    def excess(layers: np.ndarray, attention: np.ndarray) -> np.ndarray:
        plan = cases.plan.having(recompute_layers=layers, recompute_attention=attention)
        total = memory_use(cases.model, plan).total
        return np.asarray(total - cases.system.chip.hbm_bytes)

    none, selective, full = excess(zeros, zeros), excess(zeros, ones), excess(ones, zeros)
    share = np.clip(none / np.maximum(none - full, 1.0), 0.0, 1.0)
    fits = (none <= 0.0) | (selective <= 0.0)
    only_core = (none > 0.0) & (selective <= 0.0)
    return np.where(fits, 0.0, share), np.where(only_core, 1.0, 0.0)


class Resolved(NamedTuple):
    """One question as records with scalar leaves, and what fills its blanks."""

    cluster: Cluster
    model: Model
    plan: Plan
    assumptions: tuple[Assumption, ...]


def resolve(question: Question, rule: RuleOfRecompute | None = None) -> Resolved:
    """Records of one question; leaves are numpy scalars, of the network `[K]`.

    Raises:
      InputError: as `assemble`.
    """
    cases = assemble([question], rule)
    records = (cases.system, cases.model, cases.plan)
    cluster, model, plan = jax.tree.map(lambda leaf: np.asarray(leaf)[..., 0], records)
    return Resolved(cluster, model, plan, cases.assumptions[0])


def never_recompute(cases: Cases) -> tuple[np.ndarray, np.ndarray]:
    """The rule that nothing is recomputed unless said."""
    zeros = np.zeros(np.asarray(cases.plan.layout.dp).shape)
    return zeros, zeros
