"""Laws of the scaling study: how depth, sparsity, data and batch follow from the width, with the
study's rounding and without it.

A model is L equal blocks of two matrices, d_model × d_ff and back, each S times (experts, one of
which sees a token). Its width is free, d_ff = 4 d_model, and everything else follows. The study
rounds layers, experts and batch to numbers that divide well (`rounded`); without rounding the same
laws are smooth functions of the width and of their own constants.

Erdil & Schneider-Joseph 2024 (arXiv 2411.01137) and the authors' code of 2024-10-23; depth fitted
to the models of Hoffmann et al. 2022 (arXiv 2203.15556), data of the same paper, the DeepSeek batch
of Bi et al. 2024 (arXiv 2401.02954).
"""

from __future__ import annotations

import numpy as np

from dmodel import struct
from dmodel.types import Array

FACTORS = (1, 3, 5, 7, 9)
GRID_FACTORS = range(1, 16, 2)

GOOD_NUMBERS = np.array(sorted({float(f * 2**i) for f in FACTORS for i in range(60)}))
"""What the study rounds to: f 2^i, f in 1, 3, 5, 7, 9; exact in float64."""

WIDTHS = tuple(
    sorted(
        w for f in GRID_FACTORS for i in range(11, 22) if 12288 <= (w := f * 2**i) <= 12288 * 128
    )
)
"""Widths d_model that the study sweeps: f 2^i for odd f up to 15 and i = 11 … 21, from that of
GPT-3 to 128 times as wide."""


class BatchLaw(struct.PyTreeNode, frozen=True, kw_only=True):
    """Critical batch of a run of C FLOP with S experts: `tokens · (C / flop)^by_flop ·
    S^by_sparsity`.

    Limits: a constant batch when both exponents are 0.

    Args:
      tokens: at `flop` FLOP in a dense model [token]. flop: where the law is anchored [FLOP].
      by_flop, by_sparsity: exponents.
    """

    tokens: Array
    flop: Array = 1.0
    by_flop: Array = 0.0
    by_sparsity: Array = 0.0


BATCH_LAWS = {
    "default": BatchLaw(tokens=2048.0 * 2048.0, flop=3e23, by_flop=1.0 / 6.0, by_sparsity=0.5),
    "none": BatchLaw(tokens=2.0**22),
    "deepseek": BatchLaw(tokens=0.2920, by_flop=0.3271, by_sparsity=0.5),
}
"""C^(1/6) through GPT-3's 4 Mi tokens at 3e23 FLOP; no scaling; the fit of Bi et al. 2024."""


class Laws(struct.PyTreeNode, frozen=True, kw_only=True):
    """Constants of all laws.

    Args:
      depth, depth_exponent: `L = depth · (d_model d_ff)^depth_exponent`.
      experts: experts of a sparse model at `experts_width`, in proportion to the width elsewhere;
      `experts_width` [element]. tokens_per_parameter: data over the total parameters, those of all
      experts.
      seq_len: tokens per sequence; the study rounds batches in sequences [token].
      batch: the critical batch.
      attention: layers have attention, which the study leaves out; its parameters and arithmetic
        count. Static.
    """

    depth: Array = 0.10056
    depth_exponent: Array = 0.3751
    experts: Array = 8.0
    experts_width: Array = 12288.0
    tokens_per_parameter: Array = 20.0
    seq_len: Array = 2048.0
    batch: BatchLaw = BATCH_LAWS["default"]
    attention: bool = struct.field(pytree_node=False, default=False)


STUDY = Laws()
"""The constants of the study, with its default batch."""


def rounded(x: Array) -> np.ndarray:
    """The member of `GOOD_NUMBERS` nearest to x; the smaller one of two that are equally near, 1
    below 1. Not differentiable."""
    x = np.asarray(x, float)
    above = np.searchsorted(GOOD_NUMBERS, x).clip(1, len(GOOD_NUMBERS) - 1)
    low, high = GOOD_NUMBERS[above - 1], GOOD_NUMBERS[above]
    return np.where(x - low <= high - x, low, high)


def layers(d_model: Array, d_ff: Array, laws: Laws = STUDY, *, rounding: bool = True) -> Array:
    """Depth: `L = 0.10056 (d_model d_ff)^0.3751`, a power law through the shapes of Hoffmann et al.
    2022.

    Args:
      d_model, d_ff: [element]. rounding: to `GOOD_NUMBERS`, as in the study; without it,
        differentiable.
    """
    depth = laws.depth * (d_model * d_ff) ** laws.depth_exponent
    return rounded(depth) if rounding else depth


def sparsity(d_model: Array, d_ff: Array, laws: Laws = STUDY, *, rounding: bool = True) -> Array:
    """Experts per block of a sparse model: `S = 8 sqrt(d_model d_ff / (4 · 12288²))`, linear in the
    width. A dense model has 1."""
    experts = laws.experts * (d_model * d_ff / (4.0 * laws.experts_width**2)) ** 0.5
    return rounded(experts) if rounding else experts


def parameters(d_model: Array, d_ff: Array, n_layers: Array, experts: Array = 1.0) -> Array:
    """All parameters: `P = 2 d_model d_ff L S` [element]; P / S are active."""
    return 2.0 * d_model * d_ff * n_layers * experts


def dataset(n_parameters: Array, laws: Laws = STUDY) -> Array:
    """Training tokens: `D = 20 P`, by the total parameters of sparse models too [token]."""
    return laws.tokens_per_parameter * n_parameters


def training_flop(n_parameters: Array, experts: Array = 1.0, laws: Laws = STUDY) -> Array:
    """Compute of a whole run: `C = 6 D P / S` [FLOP]."""
    return 6.0 * dataset(n_parameters, laws) * n_parameters / experts


def batch_tokens(
    flop: Array, experts: Array = 1.0, laws: Laws = STUDY, *, rounding: bool = True
) -> Array:
    """Tokens per step: `BatchLaw`; the study rounds the sequences of each expert: `S ·
    rnd(sequences / S)` sequences.

    Args:
      flop: compute of the run [FLOP]. experts: S.
    """
    law = laws.batch
    tokens = law.tokens * (flop / law.flop) ** law.by_flop * experts**law.by_sparsity
    return experts * rounded(tokens / laws.seq_len / experts) * laws.seq_len if rounding else tokens


class Attention(struct.PyTreeNode, frozen=True, kw_only=True):
    """Attention of a run's layers: tokens that see each other, those before them only [token]."""

    seq_len: Array


class Run(struct.PyTreeNode, frozen=True, kw_only=True):
    """A model and its training: what the laws make of a width.

    Args:
      d_model, d_ff, layers, experts: shape; experts is the sparsity factor S, 1 for a dense model.
      batch_tokens, dataset_tokens: [token]. parameters: of all experts [element].
      flop: compute of the whole run [FLOP]. attention: None without, as in the study.
    """

    d_model: Array
    d_ff: Array
    layers: Array
    experts: Array
    parameters: Array
    dataset_tokens: Array
    flop: Array
    batch_tokens: Array
    attention: Attention | None = None


def attention_parameters(run: Run) -> Array:
    """Q, K, V and O of all layers: `4 d_model² L`; 0 without attention [element]."""
    return 0.0 if run.attention is None else 4.0 * run.d_model**2 * run.layers


def flop_of(run: Run, tokens: Array) -> Array:
    """Arithmetic that training on some tokens needs: `6 (P / S) tokens`, without what is done again
    [FLOP].

    With attention `(6 (P_blocks / S + P_attention) + 6 s d_model L) tokens`: its core has two
    products over half of the scores, forward, and twice as many backward.
    """
    if run.attention is None:
        return 6.0 * run.parameters / run.experts * tokens
    own = attention_parameters(run)
    core = run.attention.seq_len * run.d_model * run.layers
    return 6.0 * ((run.parameters - own) / run.experts + own + core) * tokens


def run(
    d_model: Array,
    d_ff: Array | None = None,
    *,
    sparse: bool = False,
    laws: Laws = STUDY,
    rounding: bool = True,
) -> Run:
    """The run that the laws give a width: layers, experts, parameters, data, compute and batch.

    Args:
      d_model: width [element]. d_ff: of the blocks; None for 4 d_model, as in the study.
      sparse: with experts by `sparsity`. rounding: as in the study; without it, differentiable in
        the width and in `laws`.

    >>> print(f"{run(12288).flop:.3g} FLOP, {run(12288).batch_tokens:.3g} tokens")
    6.45e+24 FLOP, 7.34e+06 tokens
    """
    d_ff = 4.0 * d_model if d_ff is None else d_ff
    depth = layers(d_model, d_ff, laws, rounding=rounding)
    experts = sparsity(d_model, d_ff, laws, rounding=rounding) if sparse else 1.0
    total = parameters(d_model, d_ff, depth, experts)
    found = Run(
        d_model=d_model,
        d_ff=d_ff,
        layers=depth,
        experts=experts,
        parameters=total,
        dataset_tokens=dataset(total, laws),
        flop=training_flop(total, experts, laws),
        batch_tokens=0.0,
    )
    if laws.attention:
        found = found.replace(attention=Attention(seq_len=laws.seq_len))
        found = found.replace(parameters=total + attention_parameters(found))
        found = found.replace(dataset_tokens=dataset(found.parameters, laws))
        found = found.replace(flop=flop_of(found, found.dataset_tokens))
    return found.replace(batch_tokens=batch_tokens(found.flop, experts, laws, rounding=rounding))
