"""Leaves of a plan that say how it lies on the devices: degrees, sharding, stages, the schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dmodel import layouts
from dmodel.errors import InputError
from dmodel.question import Assumption, Degrees, Question, degrees
from dmodel.records import PLACEMENT, RULES, Model, value
from dmodel.unlike import kinds_of


def layout(
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
        "interleave": _filled(question, "interleave", _chunks(question, at, values), said),
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


def _chunks(question: Question, at: Degrees, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Values with the model chunks of a rank that a schedule of several asks for."""
    chosen = question.settings.get("schedule", values.get("schedule"))
    asked = RULES[str(chosen)].chunks if chosen and at.pp > 1.0 else 0
    return {**values, "interleave": float(asked)} if asked > 1 else values


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
        said.extend(_unused_shard(written))
        return 1.0
    if written is not None:
        return float(written)
    if at.dp > 1.0:
        said.append(Assumption(f"shard blank: {at.dp:g}, all ranks of dp", about=("shard",)))
    return at.dp


def _unused_shard(written: float | None) -> list[Assumption]:
    """That sharding groups of several ranks mean nothing without ZeRO."""
    if not written or written <= 1.0:
        return []
    text = f"shard {written:g} not used: ZeRO stage 0 shards nothing"
    return [Assumption(text, about=("shard",))]


def _sequence_parallel(
    question: Question, tp: float, values: Mapping[str, Any], said: list[Assumption]
) -> float:
    """Sequence parallelism, 0 or 1; open: where there is tensor parallelism."""
    given = values.get("sp", question.number("sp"))
    if given is None:
        given = float(tp > 1.0)
        said.append(Assumption(f"sp blank: {given:g}", about=("sp",)))
    return float(given)


class Laid(NamedTuple):
    """How layers lie on stages.

    Attributes:
      stage_excess: layers of the fullest stage beyond the mean one. head_displaces: how many fewer
        the one with the head holds. chunks: of every model chunk, in order.
    """

    stage_excess: float
    head_displaces: float
    chunks: tuple[float, ...]


def stage_leaves(
    question: Question,
    at: Degrees,
    interleave: float,
    fold: str,
    values: Mapping[str, Any],
    model: Model,
    said: list[Assumption],
) -> Laid:
    """How layers lie on stages.

    Args:
      fold: how chunks lie on ranks, one of `records.FOLDS`.
    """
    written, layers = written_stages(question), float(model.n_layers)
    if at.pp <= 1.0:
        return Laid(0.0, 0.0, (layers,))
    width = value(model, "d_ff", model.d_model)
    head = layouts.head_cost(*(float(x) for x in (model.d_model, width, model.vocab)))
    further = float(model.layers - model.n_layers)
    of = layouts.Pipeline(layers, head, at.pp, interleave, further, kinds_of(model), fold)
    found = layouts.stages(str(values.get("stages", "counted")), of, written)
    mean = (of.layers + of.n_mtp) / of.pp
    if found.said:
        text = f"the fullest stage holds {found.fullest:.4g} layers (mean {mean:.4g}), that with "
        text += f"the head {found.last:.4g}: {found.said}"
        said.append(Assumption(text, about=("stage_layers",)))
    return Laid(found.fullest - mean, found.fullest - found.last, found.chunks)


def written_stages(question: Question) -> tuple[float, ...]:
    """Layers of each stage as the question has them, none when open.

    Raises:
      InputError: these are no numbers of layers, one for each stage, that add up to the model's.
    """
    text = question.text("stage_layers")
    if not text:
        return ()
    pp, layers = degrees(question).pp, question.known("n_layers")
    counts = tuple(float(x) if x.isdecimal() else -1.0 for x in text.split())
    if not _are_stages(counts, pp, layers):
        expected = f"expected {pp:g} numbers (pp) that add up to n_layers = {layers:g}"
        raise InputError(f"stage_layers = {text!r}: {expected}")
    return counts


def _are_stages(counts: tuple[float, ...], pp: float, layers: float) -> bool:
    """Whether these are layers of each stage that add up to the model's."""
    return len(counts) == pp and min(counts) >= 0.0 and sum(counts) == layers


def schedule(values: Mapping[str, Any], layout: Mapping[str, float], said: list[Assumption]) -> str:
    """The pipeline's schedule; open: 1F1B, interleaved where stages hold several chunks.

    One stage has nothing to fold: such schedules are 1F1B there.

    Raises:
      InputError: the schedule does not run with this layout.
    """
    interleave, pp = layout["interleave"], layout["pp"]
    chosen = str(values.get("schedule") or ("interleaved" if interleave > 1.0 else "1f1b"))
    rules = RULES[chosen]
    if rules.folded and pp <= 1.0:
        said.append(Assumption(f"schedule {chosen} not used: one stage", about=("schedule",)))
        return schedule({}, layout, said)
    if rules.chunks and interleave != rules.chunks:
        raise InputError(
            f"interleave: expected {rules.chunks} for the schedule {chosen!r}; got "
            f"{interleave:g}. Use the schedule 'interleaved'."
        )
    batches = layout["global_batch"] / (layout["dp"] * layout["micro_batch"])
    if rules.folded and not rules.allows(pp, batches):
        raise InputError(
            f"schedule {chosen!r}: {rules.refusal(pp, batches)}. Use other degrees or "
            "micro-batches, or another schedule, such as '1f1b'."
        )
    return chosen


def placement(values: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The order of the groups on the network; None where nothing says it.

    Raises:
      InputError: a group is missing, named twice or unknown.
    """
    found = values.get("placement")
    if found is not None and sorted(found) != sorted(PLACEMENT):
        raise InputError(
            f"placement: expected {', '.join(PLACEMENT)} in some order; got "
            f"{', '.join(found) or 'nothing'}"
        )
    return found
