"""How a stack lays layers over the stages of a pipeline where these are not alike: the fullest
stage, and the one with the head.

Facts about software, each with its source. Stages that hold L / pp layers each, the head besides
the last one's, are the rule everywhere else, and say nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from calibration.traces.recipes import BRIDGE
from calibration.traces.table import Row
from dmodel.profiles import family
from dmodel.stages import held

BY_COST = ("nanotron", "ultrascale")
"""Beginnings of stacks that lay blocks over stages by their cost; see `by_cost`."""


class Stages(NamedTuple):
    """excess: layers of the fullest stage beyond the mean one (`Layout.stage_excess`). displaced:
    layers that the stage with the head holds fewer than the fullest (`Layout.head_displaces`).
    said: in words."""

    excess: float = 0.0
    displaced: float = 0.0
    said: tuple[str, ...] = ()


def stages(
    stack: str,
    model: str,
    layers: float,
    head: float,
    pp: float,
    interleave: float,
    n_mtp: float = 0.0,
    written: Sequence[float] = (),
) -> Stages:
    """The stages of a pipeline: as written, else by what is known of the stack.

    nanotron, which does not interleave: by the cost of its blocks. Elsewhere, if pp · v chunks
    divide the layers, all alike. If they do not, embedding and head count as a layer each
    (`dmodel.stages.held`; BLOOM's 70 layers on 12 stages, Qi et al. 2023).
    Megatron-Bridge lays out DeepSeek-V3 and Kimi K2 itself, with heads of further tokens at the
    end: chunks of c layers are full but the last, which keeps what is left; with two layers to a
    chunk the first keeps one.

    Args:
      layers: of the model. head: cost of the LM head, in layers (`head_cost`). interleave: v, model
        chunks per stage.
      n_mtp: heads of further tokens, a layer each, beside the head. written: layers of each stage,
        where a row has them.
    """
    chunks, mean = pp * interleave, (layers + n_mtp) / pp
    if pp <= 1.0:
        return Stages()
    if written:
        return _laid_out(max(written), written[-1] + n_mtp, mean)
    if stack.lower().startswith(BY_COST):
        blocks, at = by_cost(int(layers), head, int(pp))
        return _laid_out(
            max(blocks), blocks[at] + n_mtp, mean, "laid out by cost of blocks, as nanotron does"
        )
    if layers % chunks == 0.0:
        said = "the last one holds the heads of further tokens besides" if n_mtp else ""
        return _laid_out(layers / pp, layers / pp + n_mtp, mean, said)
    chunk = ceil((layers + 2.0) / chunks)
    full, first = chunk * interleave, float(chunk == 2)
    left = layers - (full - first) - (pp - 2.0) * full
    if (
        family(stack.lower()) == BRIDGE
        and model.lower().startswith(("deepseek-v3", "kimi-k2"))
        and left >= 0.0
    ):
        return _laid_out(full, left + n_mtp, mean, "the recipe's layout")
    dealt = held(layers, pp, interleave, n_mtp)
    return _laid_out(
        float(dealt.fullest), float(dealt.last), mean, "embedding and head count as a layer each"
    )


def held_by_stage(row: Row, pp: float) -> list[float]:
    """Layers of each stage as the row has them, none when blank.

    Raises:
      ValueError: these are no numbers of layers, one for each stage, that add up to the model's;
        the message is the reason.
    """
    text = row.text("stage_layers")
    counts = [float(x) if x.isdecimal() else -1.0 for x in text.split()]
    layers = row.known("n_layers")
    if text and (len(counts) != pp or min(counts) < 0.0 or sum(counts) != layers):
        raise ValueError(
            f"stage_layers = {text!r}: expected {pp:g} numbers (pp) that add up to n_layers = "
            f"{layers:g}"
        )
    return counts


def _laid_out(fullest: float, last: float, mean: float, why: str = "") -> Stages:
    """Stages of which the fullest holds so many layers, and the one with the head `last`, those of
    further tokens included."""
    fullest = max(fullest, last)
    text = (
        f"the fullest stage holds {fullest:g} layers (mean {mean:.4g}), that with the head "
        f"{last:g}: {why}"
    )
    return Stages(fullest - mean, fullest - last, (text,) if why else ())


LAYER = 1.05
"""What a layer of nanotron's counts over the weights of its products. Its code has 1
(`get_block_compute_costs`, 2024); but peaks of memory say that 16 layers of a 1B model with a head
of 4 are 10 and 6 on two stages, for which it must be more, and step times of an 8B model on 16
stages that its head stands alone, for which it must be 1.035 or more; from 1.1 on other layouts
would change."""


def head_cost(d_model: float, d_ff: float, vocab: float) -> float:
    """What nanotron takes the head to cost, in layers: `V h / (1.05 (4 h² + 3 h f))`."""
    return vocab / (LAYER * (4.0 * d_model + 3.0 * d_ff))


def by_cost(layers: int, head: float, pp: int) -> tuple[list[int], int]:
    """Layers of every stage as nanotron lays them out, and the stage that holds the head.

    Blocks in order go to the stage at hand; once their cost so far is more than the stages up to it
    would share of all,
    `(L + head) i / pp`, the next one is at hand (`build_model`, 2024). So stages overflow by up to
    a block, and the last may stay empty.

    Args:
      head: cost of the head, in layers.

    >>> by_cost(32, 2.1, 8)
    ([5, 4, 4, 5, 4, 4, 4, 2], 7)
    """
    blocks, at, share = [0] * pp, 0, (layers + head) / pp
    for placed in range(1, layers + 1):
        blocks[at] += 1
        if placed > share * (at + 1):
            at += 1
    return blocks, at
