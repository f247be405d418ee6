"""Rules of software that take arithmetic: named functions that facts refer to.

`RULES` turn the words of a question into one number. `STAGES` say how many layers the stages of a
pipeline hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import ceil
from typing import Any, NamedTuple

from dmodel.errors import InputError
from dmodel.stages import chunk_layers, held, last_rank, on_ranks
from dmodel.unlike import Kinds, loads

Words = Mapping[str, Any]
RULES: dict[str, Callable[..., float | None]] = {}
"""Name → function of a question's words (and arguments); None leaves the name open."""


def rule(function: Callable[..., float | None]) -> Callable[..., float | None]:
    """Let facts refer to a function by its name."""
    RULES[function.__name__] = function
    return function


@rule
def at_most_dp(words: Words, ranks: float) -> float:
    """So many ranks of data parallelism, or all where there are fewer [count]."""
    return min(ranks, words["dp"])


@rule
def share_of_layers(words: Words, layers: float) -> float:
    """So many layers as a share of all [1]."""
    return min(layers / words["n_layers"], 1.0)


@rule
def share_of_stage(words: Words, layers: float) -> float:
    """So many layers of each pipeline stage as a share of what a mean stage holds [1]."""
    return min(layers / words["stage_layers"], 1.0)


@rule
def one_layer_chunks(words: Words, at_most: float = 0.0) -> float | None:
    """As many model chunks as a stage has layers, or `at_most` where these divide them [count].

    Open without a pipeline, and where stages do not hold whole layers.
    """
    layers = words["stage_layers"]
    if words["pp"] <= 1.0 or layers != int(layers):
        return None
    return at_most if at_most and layers % at_most == 0.0 else layers


@rule
def bytes_of_gradients(words: Words, count: float) -> float:
    """So many gradients in the bytes that they are reduced in [byte]."""
    return count * words["reduce_bytes"]


@rule
def padded_to_busiest(words: Words) -> float:
    """Load of the busiest expert over the mean where all compute as much as it does [1].

    A new router lies between even loads, 1, and one expert that every token visits,
    `experts / top_k`; the middle of both is taken.
    """
    return 0.5 * (1.0 + max(words["n_experts"] / words["top_k"], 1.0))


@rule
def whole_words_a_rank(words: Words, vocabulary: float) -> float:
    """Columns of the logits over all ranks, where each has `vocabulary // tp` [count]."""
    return vocabulary // words["tp"] * words["tp"]


@rule
def words_a_rank_not_of_8(words: Words, vocabulary: float) -> float:
    """1 where a rank's `vocabulary // tp` columns of the logits are no multiple of 8, else 0."""
    return float(vocabulary // words["tp"] % 8.0 > 0.0)


class Stages(NamedTuple):
    """Layers of the fullest stage, and of the one with the head; heads of further tokens count.

    Attributes:
      fullest, last: of unlike layers, in mean ones [layer]. said: how they are laid.
      chunks: layers of every model chunk in order; chunk k lies on stage `k mod pp`.
      head: stage of the head.
    """

    fullest: float
    last: float
    said: str = ""
    chunks: tuple[float, ...] = ()
    head: int = -1


class Pipeline(NamedTuple):
    """What the layout of stages depends on.

    Attributes:
      layers: of the model [count]. head: cost of the LM head [layer]. pp: stages. interleave:
        model chunks per stage. n_mtp: layers in heads of further tokens. kinds: of unlike layers;
        None = all alike. fold: how chunks lie on ranks, one of `records.FOLDS`.
    """

    layers: float
    head: float
    pp: float
    interleave: float
    n_mtp: float
    kinds: Kinds | None = None
    fold: str = "loop"


def counted(of: Pipeline) -> Stages:
    """Alike where chunks divide the layers; else embedding and head count as a layer each."""
    found = held(of.layers, of.pp, of.interleave, of.n_mtp)
    alike = of.layers % (of.pp * of.interleave) == 0.0
    said = "embedding and head count as a layer each"
    if alike:
        said = "the last one holds the heads of further tokens besides" if of.n_mtp else ""
    items = chunk_layers(of.layers, of.pp, of.interleave)
    return Stages(float(found.fullest), float(found.last), said, items)


def by_cost(of: Pipeline) -> Stages:
    """Blocks go to stages in order by their cost, the head among them (`blocks_by_cost`)."""
    blocks, at = blocks_by_cost(int(of.layers), of.head, int(of.pp))
    laid = tuple(map(float, blocks))
    return Stages(max(blocks), blocks[at] + of.n_mtp, "laid out by cost of blocks", laid, at)


def full_but_last(of: Pipeline) -> Stages:
    """Chunks of c layers are full but the last, which keeps what is left.

    With two layers to a chunk the first keeps one. Heads of further tokens lie at the end. Where
    that does not work out, and where chunks divide the layers: `counted`.
    """
    chunks = of.pp * of.interleave
    chunk = ceil((of.layers + 2.0) / chunks)
    full, first = chunk * of.interleave, float(chunk == 2)
    left = of.layers - (full - first) - (of.pp - 2.0) * full
    if of.layers % chunks == 0.0 or left < 0.0:
        return counted(of)
    inner = max(left - (of.interleave - 1.0) * chunk, 0.0)
    laid = (chunk - first, *[float(chunk)] * (int(chunks) - 2), inner)
    return Stages(full, left + of.n_mtp, "the recipe's layout", laid)


STAGES: dict[str, Callable[[Pipeline], Stages]] = {
    "counted": counted,
    "by_cost": by_cost,
    "full_but_last": full_but_last,
}
"""Ways to lay layers on stages, by the word that facts use."""


@lru_cache(maxsize=4096)
def stages(way: str, of: Pipeline, written: tuple[float, ...] = ()) -> Stages:
    """Layers of the stages of a pipeline: as written, else by a way of `STAGES`.

    The one with the head may be the fullest. Without a pipeline all layers lie on one stage. Where
    a rank has two of the stages in turn (`records.FOLDS`), a stage is what a rank has.

    Raises:
      InputError: more chunks than layers with embedding and head.
    """
    if of.pp <= 1.0:
        return Stages(of.layers + of.n_mtp, of.layers + of.n_mtp)
    found = _as_written(written, of) if written else STAGES[way](of)
    if min(found.chunks, default=0.0) < 0.0:
        raise InputError(
            f"interleave: {of.pp * of.interleave:g} chunks are more than the {of.layers:g} layers "
            "with embedding and head; take fewer chunks per stage"
        )
    if of.kinds is not None and sum(found.chunks) == of.layers:
        each = on_ranks(loads(of.kinds, found.chunks), int(of.pp), of.fold)
        said = f"{found.said + '; ' if found.said else ''}unlike layers count by their FLOPs"
        found = found._replace(fullest=each.max(), last=each[_head(found, of)], said=said)
    elif of.fold != "loop":
        each = on_ranks((*found.chunks[:-1], found.chunks[-1] + of.n_mtp), int(of.pp), of.fold)
        found = found._replace(fullest=float(each.max()), last=float(each[_head(found, of)]))
    return found._replace(fullest=max(found.fullest, found.last))


def _head(found: Stages, of: Pipeline) -> int:
    """Rank of the head: of the last chunk, or of the stage that the layout names."""
    return last_rank(len(found.chunks), int(of.pp), of.fold) if found.head < 0 else found.head


def _as_written(written: Sequence[float], of: Pipeline) -> Stages:
    """Layers of every stage as written; of several chunks the earlier ones hold more."""
    v = int(of.interleave)
    turns = [written[::-1] if of.fold == "v" and k % 2 else written for k in range(v)]
    chunks = [(n + v - 1 - k) // v for k, turn in enumerate(turns) for n in turn]
    return Stages(max(written), written[-1] + of.n_mtp, chunks=tuple(map(float, chunks)))


LAYER = 1.05
"""What a layer counts over the weights of its products where stages are laid by cost.

The code of that time has 1 (nanotron, `get_block_compute_costs`, 2024). Peaks of memory say that 16
layers of a 1B model with a head of 4 are 10 and 6 on two stages, for which it must be more; step
times of an 8B model on 16 stages say that its head stands alone, for which it must be at least
1.035. From 1.1 on other layouts would change.
"""


def head_cost(d_model: float, d_ff: float, vocab: float) -> float:
    """Cost of the LM head in layers, `V / (1.05 (4 h + 3 f))`, as nanotron counts it [layer]."""
    return vocab / (LAYER * (4.0 * d_model + 3.0 * d_ff))


def blocks_by_cost(layers: int, head: float, pp: int) -> tuple[list[int], int]:
    """Layers of every stage by cost, and the stage that holds the head.

    Blocks in order go to the stage at hand. Once their cost so far is more than the stages up to it
    would share of all, `(L + head) i / pp`, the next one is at hand (nanotron's `build_model`,
    2024). So stages overflow by up to a block, and the last may stay empty.

    Args:
      head: cost of the head [layer].

    >>> blocks_by_cost(32, 2.1, 8)
    ([5, 4, 4, 5, 4, 4, 4, 2], 7)
    """
    blocks, at, share = [0] * pp, 0, (layers + head) / pp
    for placed in range(1, layers + 1):
        blocks[at] += 1
        if placed > share * (at + 1):
            at += 1
    return blocks, at
