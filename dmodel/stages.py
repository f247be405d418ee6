"""How layers lie on the stages of a pipeline: alike where the stages divide them, else with a
layer's place for embedding and head.

Megatron-LM counts embedding and head as a layer each when it is asked to
(`--account-for-embedding-in-pipeline-split`, `--account-for-loss-in-pipeline-split`), torchtitan by
default (`first_stage_less_layers`, `last_stage_less_layers`). So ran Llama 3 405B, 126 layers on 16
stages (arXiv 2407.21783, section 3.3.2), and BLOOM, 70 on 12 (arXiv 2211.05100); Megatron-Bridge
writes layouts out for DeepSeek-V3's 61 on 16.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dmodel.types import Array

ENDS = 2.0
"""Places of layers that embedding and head take, where stages are not alike [layer]."""


class Held(NamedTuple):
    """Layers that the fullest stage holds, and the one with the head, heads of further tokens
    included [layer]."""

    fullest: Array
    last: Array


def held(layers: Array, pp: Array, interleave: Array, n_mtp: Array = 0.0) -> Held:
    """What stages hold: `L / pp` where pp v chunks divide the layers, the last one the heads of
    further tokens besides.

    Else `L + 2` items, embedding first and head last, are dealt out to the chunks in order, the
    first `(L + 2) mod (pp v)` chunks one more than the others; chunk k lies on stage `k mod pp`. So
    the first stage holds a layer less than items, the last one too, and heads of further tokens
    besides.

    Args:
      layers: L, of the model. interleave: v, model chunks per stage. n_mtp: heads of further
        tokens, a layer each. All `[*batch]`.
    """
    layers, pp, v, n_mtp = (np.asarray(x, dtype=float) for x in (layers, pp, interleave, n_mtp))
    each, over = np.divmod(layers + ENDS, pp * v)
    rounds, more = np.divmod(over, pp)
    items = each * v + rounds
    alike = np.mod(layers, pp * v) == 0.0
    between = np.where(pp > 2.0, items + (more > 1.0), 0.0)
    most = np.where(alike, layers / pp, np.maximum(items + (more > 0.0) - 1.0, between))
    last = np.where(alike, layers / pp, items - 1.0) + n_mtp
    return Held(np.maximum(most, last), last)


def chunk_layers(layers: float, pp: float, interleave: float) -> tuple[float, ...]:
    """Layers of every model chunk in order, as `held` deals them out.

    >>> chunk_layers(6.0, 2.0, 1.0), chunk_layers(7.0, 3.0, 1.0)
    ((3.0, 3.0), (2.0, 3.0, 2.0))
    """
    chunks = int(pp * interleave)
    if layers % chunks == 0.0:
        return (layers / chunks,) * chunks
    each, over = divmod(layers + ENDS, chunks)
    items = [each + float(k < over) for k in range(chunks)]
    items[0] -= 1.0
    items[-1] -= 1.0
    return tuple(items)


def layout(
    layers: Array, pp: Array, interleave: Array, n_mtp: Array = 0.0, fold: str = "loop"
) -> dict[str, np.ndarray]:
    """`Layout.stage_excess` and `Layout.head_displaces` of stages that hold what `held` says,
    `[*batch]`; 0 without a pipeline and where chunks are alike and no head of further tokens makes
    the last stage the fullest.

    Llama 3 405B on 16 stages: the fullest hold 8 of its 126 layers, a mean stage 7.875, the last
    one 7:

    >>> {name: float(value) for name, value in layout(126, 16, 1).items()}
    {'stage_excess': 0.125, 'head_displaces': 1.0}
    """
    found = held(layers, pp, interleave, n_mtp)
    if fold != "loop":
        found = _folded(float(layers), float(pp), float(interleave), float(n_mtp), fold)
    mean = (np.asarray(layers, dtype=float) + n_mtp) / pp
    piped = np.asarray(pp) > 1.0
    return {
        "stage_excess": np.where(piped, found.fullest - mean, 0.0),
        "head_displaces": np.where(piped, found.fullest - found.last, 0.0),
    }


def _folded(layers: float, pp: float, interleave: float, n_mtp: float, fold: str) -> Held:
    """`held` of chunks that lie on ranks otherwise than in a loop."""
    *first, last = chunk_layers(layers, pp, interleave)
    each = on_ranks((*first, last + n_mtp), int(pp), fold)
    return Held(each.max(), each[last_rank(len(first) + 1, int(pp), fold)])


def short_by(layers: Array, pp: Array, interleave: Array) -> np.ndarray:
    """Layers that are over, or missing, for stages that the search offers: 0 where it does, else
    more `[*batch]`.

    Chunks are alike; where pp does not divide the layers, fewer items are missing to `⌈(L + 2) /
    (pp v)⌉` on each chunk than one chunk holds, as of DeepSeek-V3's 61 layers on 16 stages. No
    stage is without a layer.
    """
    layers, pp, v = (np.asarray(x, dtype=float) for x in (layers, pp, interleave))
    chunks, items = pp * v, layers + ENDS
    over, missing = (
        np.mod(layers, chunks),
        np.maximum((chunks - 1.0) * np.ceil(items / chunks) + 1.0 - items, 0.0),
    )
    apart = np.minimum(over, missing + np.maximum(1.0 - held(layers, pp, v).last, 0.0))
    return np.where(np.mod(layers, pp) == 0.0, over, apart) + np.maximum(pp - layers, 0.0)


def on_ranks(each: Sequence[float] | np.ndarray, pp: int, fold: str) -> np.ndarray:
    """What ranks hold of what chunks in order do, `[pp, …]` (`records.FOLDS`); of two copies of the
    model the mean of both.

    >>> on_ranks((1.0, 2.0, 3.0, 4.0), 2, "loop").tolist()
    [4.0, 6.0]
    >>> on_ranks((1.0, 2.0, 3.0, 4.0), 2, "v").tolist()
    [5.0, 5.0]
    >>> on_ranks((1.0, 2.0, 3.0, 5.0), 4, "both").tolist()
    [3.0, 2.5, 2.5, 3.0]
    """
    chunks = np.asarray(each, float)
    turn, place = np.divmod(np.arange(len(chunks)), pp)
    back = (fold == "v") & (turn % 2 == 1)
    found = np.zeros((pp, *chunks.shape[1:]))
    np.add.at(found, np.where(back, pp - 1 - place, place), chunks)
    return 0.5 * (found + found[::-1]) if fold == "both" else found


def last_rank(chunks: int, pp: int, fold: str) -> int:
    """The rank of the last chunk; where both ends have it, the last of them."""
    turn, place = divmod(chunks - 1, pp)
    return pp - 1 - place if fold == "v" and turn % 2 else place
