"""What makes a question impossible to answer: reasons in words, each with what was expected."""

from __future__ import annotations

from collections.abc import Iterator

from dmodel.errors import InputError
from dmodel.question import Degrees, Question, degrees


def problems(question: Question) -> list[str]:
    """Reasons why a question with a whole shape cannot be answered; none when it can."""
    wrong = list(_inconsistent(question))
    try:
        at = degrees(question)
    except InputError as error:
        return [*wrong, str(error)]
    micro_batch = at.micro_batch or 1.0
    return [*wrong, *layout(question, at, micro_batch, question.number("interleave") or 1.0)]


def _inconsistent(question: Question) -> Iterator[str]:
    """Shapes that cannot be."""
    heads, kv = question.known("n_heads"), question.number("n_kv_heads")
    width = question.known("d_model")
    if kv and heads % kv:
        yield f"n_heads = {heads:g} is not divisible by n_kv_heads = {kv:g}"
    if not question.number("head_dim") and width % heads:
        yield f"head_dim is blank and d_model = {width:g} is not divisible by n_heads = {heads:g}"
    yield from _inconsistent_experts(question)


def _inconsistent_experts(question: Question) -> Iterator[str]:
    """More experts for a token than there are."""
    experts, visited = question.number("n_experts") or 1.0, question.number("top_k") or 1.0
    if visited > experts:
        yield f"top_k = {visited:g} is more than n_experts = {experts:g}"


def layout(question: Question, at: Degrees, micro_batch: float, interleave: float) -> Iterator[str]:
    """Degrees that do not divide what they split."""
    heads, layers = question.known("n_heads"), question.known("n_layers")
    if heads % at.tp:
        yield f"tp = {at.tp:g} does not divide n_heads = {heads:g}"
    yield from _stages(at, layers, interleave)
    if question.known("seq_len") % at.cp:
        yield f"cp = {at.cp:g} does not divide seq_len = {question.known('seq_len'):g}"
    batch = question.known("global_batch")
    if batch % (at.dp * micro_batch):
        yield (
            f"global_batch = {batch:g} is not divisible by dp·micro_batch = "
            f"{at.dp:g}·{micro_batch:g}: no whole number of micro-batches; a multiple of "
            f"{at.dp * micro_batch:g}, or more of tp, cp or pp in place of dp, has one"
        )
    yield from _unlike_stages(question, layers)
    yield from _tokens(batch, question.known("seq_len"))
    yield from _groups(question, at)


def _unlike_stages(question: Question, layers: float) -> Iterator[str]:
    """Stages that hold more or fewer layers than there are."""
    for name in ("stage_excess", "head_displaces"):
        value = float(question.settings.get(name, 0.0))
        if value > layers:
            yield f"{name} = {value:g} is more than n_layers = {layers:g}"


TOKENS = 1e12
"""Tokens of a step beyond which no run is meant: the largest published ones have some 1e8."""


def _tokens(batch: float, length: float) -> Iterator[str]:
    if batch * length > TOKENS:
        yield (
            f"global_batch · seq_len = {batch:g} · {length:g} = {batch * length:.3g} tokens a "
            f"step: expected at most {TOKENS:g}; global_batch counts sequences"
        )


def _stages(at: Degrees, layers: float, interleave: float) -> Iterator[str]:
    if at.pp > layers:
        yield f"pp = {at.pp:g} stages for n_layers = {layers:g}: a stage would have no layer"
    chunks = at.pp * interleave
    # a few chunks may hold the embedding or the head alone
    if at.pp > 1.0 and at.pp <= layers <= chunks - at.pp:
        yield (
            f"pp·interleave = {chunks:g} chunks for n_layers = {layers:g}: chunks would have no "
            "layer"
        )


def _groups(question: Question, at: Degrees) -> Iterator[str]:
    shard = question.number("shard")
    if shard and at.dp % shard:
        wrong = "is more than" if shard > at.dp else "does not divide"
        yield (
            f"shard = {shard:g} {wrong} dp = {at.dp:g}: expected ranks of dp that share one copy, "
            "a divisor of dp; blank = all of dp"
        )
    yield from _groups_of_experts(question, at)


def _groups_of_experts(question: Question, at: Degrees) -> Iterator[str]:
    experts = question.number("n_experts") or 1.0
    if experts % at.ep:
        mixed = f"ep = {at.ep:g} does not divide n_experts = {experts:g}"
        yield mixed if experts > 1.0 else f"ep = {at.ep:g} without experts"
