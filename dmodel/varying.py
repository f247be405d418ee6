"""What a stack does to each of many layouts of one job: leaves that facts decide by the layout.

A search looks at hundreds of thousands of layouts. Facts ask few things of one, so layouts fall
into few classes, and each class is resolved once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dmodel import layouts
from dmodel.catalog.facts import Applied, Fact, Rule, Test, apply
from dmodel.catalog.stack import consequences
from dmodel.deciding import LEAVES, Software, evaluated, first_facts, software
from dmodel.described import FIRST
from dmodel.question import Degrees, Question, words
from dmodel.records import FOLDS, RULES, SCHEDULES, Model, ff_width
from dmodel.unlike import kinds_of

OF_LAYOUT = (
    *("dp", "tp", "pp", "cp", "ep", "etp", "sp", "zero", "shard", "replicas", "interleave"),
    *("micro_batch", "stage_layers", "devices", "seq_len"),
)
"""What facts may ask about a layout; of the job, the sizes that a remedy may change."""

INPUTS = {
    "share_of_stage": ("pp",),
    "one_layer_chunks": ("pp",),
    "at_most_dp": ("dp",),
    "whole_words_a_rank": ("tp",),
    "words_a_rank_not_of_8": ("tp",),
    "bytes_of_gradients": ("reduce_bytes",),
}
"""What a rule of `dmodel.layouts` depends on that differs from layout to layout."""

MOST_CHUNKS = 2.0**20
"""No stage has as many model chunks: the base of codes of pipelines."""

MEANT = ("zero", "shard", "sp")
"""Columns of a layout of which facts may say that they mean something else."""


@dataclass(frozen=True, eq=False)
class Job:
    """A job whose layout is open, as facts see it; hashed by identity.

    Attributes:
      question: its words, shape complete. known: words of it with all devices data-parallel.
      leaves: of the plan, those that differ from layout to layout.
      tests: what facts ask of a layout, by name. exact: names whose value itself matters.
      facts: those that may hold.
      meanings: facts that change what columns of a layout mean.
    """

    question: Question
    known: Mapping[str, Any]
    leaves: tuple[str, ...]
    tests: Mapping[str, tuple[Test, ...]]
    exact: frozenset[str]
    meanings: tuple[Fact, ...]
    facts: tuple[Fact, ...]

    def values(self, name: str) -> list[float]:
        """Values that facts have for a leaf, beside its neutral one; none of rules."""
        every = [_values(f).get(name) for f in self.facts]
        return [LEAVES[name], *(float(v) for v in every if isinstance(v, int | float))]

    def tells_apart(self, name: str, one: float, other: float) -> bool:
        """Whether facts treat two values of a name unlike."""
        unlike = name in self.exact and one != other
        return unlike or any(test(one) != test(other) for test in self.tests.get(name, ()))


def job(question: Question, chip: str) -> Job:
    """A job ready for `leaves`.

    Args:
      question: its shape complete (`named_shape.completed`), columns of the layout open.
    """
    devices = question.known("n_accel")
    at = Degrees(devices, 1.0, 1.0, 1.0, 1.0, 1.0, ())
    plain = words(question, at, chip)
    first = first_facts(question, plain).values
    known = plain | {n: v for n, v in first.items() if n not in (*OF_LAYOUT, "recompute")}
    facts = _that_may_hold((*question.stack.facts, *consequences()), known)
    varying = _depending(facts, set(OF_LAYOUT))
    return Job(
        question=question,
        known=known,
        leaves=tuple(n for n in LEAVES if n in varying),
        tests=_tests(facts),
        exact=_exact(facts),
        meanings=_meanings(question.stack.facts),
        facts=tuple(facts),
    )


def _exact(facts: Iterable[Fact]) -> frozenset[str]:
    """Names of a layout whose value itself matters to rules."""
    return frozenset(n for f in facts for n in _inputs(f) if n in OF_LAYOUT)


def _meanings(facts: Iterable[Fact]) -> tuple[Fact, ...]:
    """Facts that change what columns of a layout mean."""
    return tuple(f for f in facts if set(MEANT) & set(f.means))


def _values(fact: Fact) -> dict[str, Any]:
    """What a fact sets, or says that words mean."""
    return {**fact.sets, **fact.means}


def _inputs(fact: Fact) -> set[str]:
    """What the rules of a fact depend on."""
    rules = [value.name for value in _values(fact).values() if isinstance(value, Rule)]
    return {name for rule in rules for name in INPUTS.get(rule, ())}


def _tests(facts: Sequence[Fact]) -> dict[str, tuple[Test, ...]]:
    """What facts ask of a layout, by name."""
    found: dict[str, tuple[Test, ...]] = {}
    for name, test in (pair for each in facts for pair in each.tests if pair[0] in OF_LAYOUT):
        found[name] = (*found.get(name, ()), test)
    return found


def _that_may_hold(facts: Iterable[Fact], known: Mapping[str, Any]) -> list[Fact]:
    """Facts about neither layout nor machine that hold for some layout, and that a leaf of the
    plan, or the stages, depend on."""
    own = [f for f in facts if not _is_about(f, FIRST)]
    fixed = set() if float(known["n_experts"]) > 1.0 else {"ep", "etp"}
    open_ = {*OF_LAYOUT, *_set_names(own)} - fixed
    hold = [f for f in own if _holds_apart_from(f, open_, known)]
    asked = {*LEAVES, "stages", *_asked_names(hold)}
    return [f for f in hold if _is_about(f, asked)]


def _is_about(fact: Fact, names: frozenset[str] | set[str]) -> bool:
    """Whether a fact decides one of some names."""
    return not names.isdisjoint(_values(fact))


def _set_names(facts: Iterable[Fact]) -> set[str]:
    return {name for fact in facts for name in _values(fact)}


def _asked_names(facts: Iterable[Fact]) -> set[str]:
    return {name for fact in facts for name, _ in fact.tests}


def _holds_apart_from(fact: Fact, open_: set[str], known: Mapping[str, Any]) -> bool:
    """Whether all conditions hold but those about some names."""
    return all(test(known.get(name)) for name, test in fact.tests if name not in open_)


def _depending(facts: Sequence[Fact], names: set[str]) -> set[str]:
    """Names that some fact sets by what it asks of some names, or of what these decide."""
    asked = [({n for n, _ in f.tests} | _inputs(f), _values(f).keys()) for f in facts]
    found = set(names)
    while more := {n for own, sets in asked if own & found for n in sets} - found:
        found |= more
    return found - names


def follows(of: Job, name: str) -> tuple[str, ...]:
    """Leaves that differ from layout to layout by one name of a layout."""
    found = _depending(of.facts, {name})
    return tuple(n for n in of.leaves if n in found)


def decided(of: Job, layout: Mapping[str, float]) -> Software:
    """What facts make of one layout."""
    return software(of.question, {**of.known, **layout}, Applied({}, ()))


def leaves(of: Job, found: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Leaves that differ from layout to layout, of every one `[n]`.

    Args:
      found: degrees and sharding by name, `[n]` or one number for all (`OF_LAYOUT`).
    """
    if not of.leaves:
        return {}
    columns = _columns(of, found)
    first, kind = _classes(of, columns)
    every = [decided(of, {n: float(c[i]) for n, c in columns.items()}).values for i in first]
    return {n: np.array([float(v.get(n, LEAVES[n])) for v in every])[kind] for n in of.leaves}


def _columns(of: Job, found: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """What facts may ask, of every layout `[n]`."""
    given = {n: np.asarray(found[n], float) for n in OF_LAYOUT if n in found}
    size = np.shape(np.broadcast_arrays(*given.values())[0]) or (1,)
    columns = {n: np.broadcast_to(x, size) for n, x in given.items()}
    whole = np.where(columns["zero"] > 0.0, np.maximum(columns["shard"], 1.0), 1.0)
    columns |= {"shard": whole, "replicas": columns["dp"] / whole}
    return columns | {"stage_layers": float(of.known["n_layers"]) / columns["pp"]}


def _classes(of: Job, columns: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Places of one layout of each class, and the class of every layout."""
    kind = np.zeros(len(columns["dp"]), np.int64)
    for name in sorted({*of.tests, *of.exact} & set(columns)):
        values, place = np.unique(columns[name], return_inverse=True)
        code = _outcomes(of, name, values)
        if code.any():
            # numbered anew each time, so that products of counts stay small
            together = kind * (int(code.max()) + 1) + code[place.ravel()]
            kind = np.unique(together, return_inverse=True)[1].ravel()
    _, first, kind = np.unique(kind, return_index=True, return_inverse=True)
    return first, kind.ravel()


def _outcomes(of: Job, name: str, values: np.ndarray) -> np.ndarray:
    """A number for each value, the same for those that facts treat alike."""
    if name in of.exact:
        return np.arange(len(values))
    tests = of.tests[name]
    known: dict[tuple[bool, ...], int] = {}
    seen = [tuple(bool(test(float(v))) for test in tests) for v in values]
    return np.array([known.setdefault(outcome, len(known)) for outcome in seen])


def meant(of: Job, layout: Mapping[str, float]) -> dict[str, float]:
    """`MEANT` of one layout as its stack takes them."""
    own = {n: layout[n] for n in MEANT}
    if not of.meanings:
        return own
    known = {**of.known, **layout}
    taken = frozenset({*OF_LAYOUT, *of.question.settings, *of.question.columns})
    found = own | evaluated(apply(of.meanings, known, taken).values, known)
    found["shard"] = found["shard"] if found["zero"] else 1.0
    return {n: float(found[n]) for n in MEANT}


def restated(of: Job, layouts_: Iterable[Mapping[str, float]]) -> tuple[Fact, ...]:
    """Facts that change what some layout means, each once."""
    found: dict[int, Fact] = {}
    for layout in layouts_:
        known = {**of.known, **layout}
        for each in apply(of.meanings, known, frozenset(OF_LAYOUT)).facts:
            changed = evaluated(each.means, known)
            if any(changed[n] != layout.get(n) for n in MEANT if n in changed):
                found[id(each)] = each
    return tuple(found.values())


def stages(
    of: Job | None, model: Model, pp: np.ndarray, interleave: np.ndarray, schedule: np.ndarray
) -> dict[str, np.ndarray]:
    """How layers lie on the stages of pipelines `[n]`: `Layout.stage_excess`, `head_displaces`.

    Args:
      of: the job whose stack lays them; None = as `layouts.counted` does. schedule: codes of
        `records.SCHEDULES`.
    """
    folds = np.array([FOLDS.index(RULES[name].fold) for name in SCHEDULES])
    codes = np.asarray(pp, float) * MOST_CHUNKS + np.asarray(interleave, float)
    codes = codes * len(FOLDS) + folds[np.asarray(schedule, int)]
    unique, kind = np.unique(codes, return_inverse=True)
    way = "counted" if of is None else way_of_stages(of)
    sizes = [model.n_layers, model.d_model, ff_width(model), model.vocab]
    layers, width, ff, vocab = map(float, sizes)
    whole = layouts.Pipeline(
        layers,
        layouts.head_cost(width, ff, vocab),
        1.0,
        1.0,
        float(model.layers) - layers,
        kinds_of(model),
    )
    each = [_held(way, whole, *divmod(x, len(FOLDS))) for x in unique]
    held = np.array(each, float).reshape(-1, 2)[kind.ravel()]
    return {"stage_excess": held[:, 0], "head_displaces": held[:, 1]}


def way_of_stages(of: Job) -> str:
    """The word of `layouts.STAGES` that facts of the job use."""
    return str(decided(of, {}).values.get("stages", "counted"))


def _held(way: str, whole: layouts.Pipeline, code: float, fold: float) -> tuple[float, float]:
    pp, interleave = divmod(code, MOST_CHUNKS)
    if pp <= 1.0:
        return 0.0, 0.0
    own = whole._replace(pp=pp, interleave=interleave, fold=FOLDS[int(fold)])
    found = layouts.stages(way, own)
    mean = (whole.layers + whole.n_mtp) / pp
    return found.fullest - mean, found.fullest - found.last
