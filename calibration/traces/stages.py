"""How a stack lays layers over the stages of a pipeline where these are not alike: the fullest stage, and the one with the head.

Facts about software, each with its source. Stages that hold L / pp layers each, the head besides the last one's, are the rule everywhere
else, and say nothing here.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from calibration.traces.recipes import BRIDGE
from calibration.traces.table import Row
from dmodel.profiles import family

BY_COST = ("nanotron", "ultrascale")
"""Beginnings of stacks that lay blocks over stages by their cost; see `by_cost`."""


class Stages(NamedTuple):
    """excess: layers of the fullest stage beyond the mean one (`Plan.stage_excess`). displaced: layers that the stage with the head holds
    fewer than the fullest (`Plan.head_displaces`). said: in words."""

    excess: float = 0.0
    displaced: float = 0.0
    said: tuple[str, ...] = ()


def stages(row: Row, pp: float, interleave: float, n_mtp: float = 0.0) -> Stages:
    """The stages of a row: as written (`stage_layers`), else by what is known of its stack.

    nanotron: by the cost of its blocks. Elsewhere, if pp · v chunks divide the layers, all alike. If they do not, embedding and head count
    as a layer each (Megatron-LM's `account-for-embedding-in-pipeline-split` and `-loss-`, torchtitan's weights of first and last stage,
    BLOOM's 70 layers on 12 stages, Qi et al. 2023): the fullest chunk holds `⌈(L + 2) / (pp v)⌉`, the last one a layer less.
    Megatron-Bridge lays out DeepSeek-V3 and Kimi K2 itself, with heads of further tokens at the end: chunks of c layers are full but the
    last, which keeps what is left; with two layers to a chunk the first keeps one.

    Args:
      interleave: v, model chunks per stage. n_mtp: heads of further tokens, a layer each, beside the head.
    """
    layers, chunks = row.known("n_layers"), pp * interleave
    if pp <= 1.0:
        return Stages()
    written = held_by_stage(row)
    if written:
        last = written[-1] + n_mtp
        fullest = max(*written, last)
        return Stages(fullest - (layers + n_mtp) / pp, fullest - last)
    if row.stack.lower().startswith(BY_COST):
        held, last = by_cost(int(layers), head_cost(row), int(pp))
        return _said(max(held), max(held) - held[last], layers / pp, "laid out by cost of blocks, as nanotron does")
    if layers % chunks == 0.0:
        return Stages()
    chunk = ceil((layers + 2.0) / chunks)
    fullest, mean = chunk * interleave, (layers + n_mtp) / pp
    if family(row.stack.lower()) == BRIDGE and row.text("model").lower().startswith(("deepseek-v3", "kimi-k2")):
        first = float(chunk == 2)
        left = layers + n_mtp - (fullest - first) - (pp - 2.0) * fullest
        return _said(fullest, fullest - left, mean, "the recipe's layout")
    return _said(fullest, 1.0 - n_mtp, mean, "embedding and head count as a layer each")


def held_by_stage(row: Row) -> list[float]:
    """Layers of each stage as the row has them, none when blank.

    Raises:
      ValueError: these are no numbers of layers, one for each stage, that add up to the model's; the message is the reason.
    """
    text = row.text("stage_layers")
    counts = [float(x) if x.isdecimal() else -1.0 for x in text.split()]
    stages, layers = row.number("pp") or 1.0, row.known("n_layers")
    if text and (len(counts) != stages or min(counts) < 0.0 or sum(counts) != layers):
        raise ValueError(f"stage_layers = {text!r}: expected {stages:g} numbers (pp) that add up to n_layers = {layers:g}")
    return counts


def _said(fullest: float, displaced: float, mean: float, why: str) -> Stages:
    text = f"the fullest stage holds {fullest:g} layers (mean {mean:.4g}), that with the head {fullest - displaced:g}: {why}"
    return Stages(fullest - mean, displaced, (text,))


LAYER = 1.05
"""What a layer of nanotron's counts over the weights of its products. Its code has 1 (`get_block_compute_costs`, 2024); but peaks of memory
say that 16 layers of a 1B model with a head of 4 are 10 and 6 on two stages, for which it must be more, and step times of an 8B model on 16
stages that its head stands alone, for which it must be 1.035 or more; from 1.1 on other layouts would change."""


def head_cost(row: Row) -> float:
    """What nanotron takes the head to cost, in layers: `V h / (1.05 (4 h² + 3 h f))`."""
    width = row.known("d_model")
    return row.known("vocab") * width / (LAYER * (4.0 * width**2 + 3.0 * width * row.known("d_ff")))


def by_cost(layers: int, head: float, pp: int) -> tuple[list[int], int]:
    """Layers of every stage as nanotron lays them out, and the stage that holds the head.

    Blocks in order go to the stage at hand; once their cost so far is more than the stages up to it would share of all,
    `(L + head) i / pp`, the next one is at hand (`build_model`, 2024). So stages overflow by up to a block, and the last may stay empty.

    Args:
      head: cost of the head, in layers.

    >>> by_cost(32, 2.1, 8)
    ([5, 4, 4, 5, 4, 4, 4, 2], 7)
    """
    held, at, share = [0] * pp, 0, (layers + head) / pp
    for placed in range(1, layers + 1):
        held[at] += 1
        if placed > share * (at + 1):
            at += 1
    return held, at
