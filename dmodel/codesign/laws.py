"""Laws that tie a run's sizes to its loss: loss, critical batch, shape, data. Each is a record of
numbers with its source, and replaceable.

One formula holds every published form of a law, so that changing a law changes numbers and compiles
nothing anew.
"""

from __future__ import annotations

from typing import NamedTuple

import jax

from dmodel import struct
from dmodel.types import Array, library


class LossLaw(struct.PyTreeNode, kw_only=True):
    """Loss of a model of N parameters on D tokens: `E + ((A N^-α)^(1/ρ) + (B D^-β)^(1/ρ))^ρ`
    [nat/token].

    Limits: E as both grow; ρ = 1 is the sum of Hoffmann et al. 2022; ρ = α_D with E = 0 is eq. 1.5
    of Kaplan et al. 2020.

    Attributes:
      irreducible: E [nat]. by_parameters, by_tokens: A, B. alpha, beta: exponents. mixing: ρ.
      embeddings: 1 = N counts embedding and head, 0 = it does not.
    """

    irreducible: Array
    by_parameters: Array
    alpha: Array
    by_tokens: Array
    beta: Array
    mixing: Array = 1.0
    embeddings: Array = 1.0


class BatchLaw(struct.PyTreeNode, kw_only=True):
    """Critical batch `b · C^c · D^d · L^l` [token]; what a batch B wastes is `1 + B / critical`
    (McCandlish et al. 2018, eq. 2.11).

    Attributes:
      tokens: b, at compute, data and loss of 1. by_flop, by_tokens, by_loss: exponents.
    """

    tokens: Array
    by_flop: Array = 0.0
    by_tokens: Array = 0.0
    by_loss: Array = 0.0


class ShapeLaw(struct.PyTreeNode, kw_only=True):
    """What an unusual shape is worth: `N_eff = N exp(−κ ln²(L / L*) − κ_f ln²(r / r*) − κ_e ln²(e /
    e*))`, and the best depth
    `L* = a h^p + b ln h + c`.

    Limits: N for the usual shape. A factor on N, because a loss law then says what it costs.

    Attributes:
      scale, exponent, by_log, offset: a, p, b, c. depth, ff, head: κ, κ_f, κ_e [1]. ff_ratio,
        head_dim: r*, e*.
    """

    scale: Array
    exponent: Array
    by_log: Array = 0.0
    offset: Array = 0.0
    depth: Array = 0.0532
    ff: Array = 0.073
    ff_ratio: Array = 4.0
    head: Array = 0.07
    head_dim: Array = 128.0


class DataLaw(struct.PyTreeNode, kw_only=True):
    """Tokens of a run whose tokens are not freed: `ratio · N^exponent` [token]; unused when a
    number of tokens is given."""

    ratio: Array = 20.0
    exponent: Array = 1.0


class Law(NamedTuple):
    """A law and where it comes from."""

    law: LossLaw | BatchLaw | ShapeLaw | DataLaw
    source: str


_KAPLAN_N, _KAPLAN_D = 8.8e13, 5.4e13

LOSS_LAWS = {
    "besiroglu": Law(
        LossLaw(
            irreducible=1.8172, by_parameters=482.01, alpha=0.3478, by_tokens=2085.43, beta=0.3658
        ),
        "Besiroglu et al. 2024 (arXiv 2404.10102): the data of Hoffmann et al. fitted again",
    ),
    "hoffmann": Law(
        LossLaw(irreducible=1.69, by_parameters=406.4, alpha=0.34, by_tokens=410.7, beta=0.28),
        "Hoffmann et al. 2022 (arXiv 2203.15556), approach 3, eq. 10",
    ),
    "kaplan": Law(
        LossLaw(
            irreducible=0.0,
            by_parameters=_KAPLAN_N**0.076,
            alpha=0.076,
            by_tokens=_KAPLAN_D**0.095,
            beta=0.095,
            mixing=0.095,
            embeddings=0.0,
        ),
        "Kaplan et al. 2020 (arXiv 2001.08361), eq. 1.1, 1.2 and 1.5; N without embeddings",
    ),
}

BATCH_LAWS = {
    "kaplan": Law(
        BatchLaw(tokens=2.1e8, by_loss=-1.0 / 0.21),
        "Kaplan et al. 2020, eq. 5.3: 2.1e8 tokens / L^(1/0.21)",
    ),
    "zhang": Law(
        # their batch is where steps cost 20 % more, a fifth of the critical one here; sequences of
        # 512 tokens, data in millions
        BatchLaw(tokens=5.0 * 512.0 * 22.91 * 1e6**-0.47, by_tokens=0.47),
        (
            "Zhang et al. 2024 (arXiv 2410.21676): 22.91 (D / 1e6)^0.47 sequences of 512 tokens "
            "cost "
            "20 % more steps"
        ),
    ),
    "deepseek": Law(
        BatchLaw(tokens=0.2920, by_flop=0.3271),
        "Bi et al. 2024 (arXiv 2401.02954): their best batch, taken as the critical one",
    ),
    "sixth": Law(
        BatchLaw(tokens=2048.0**2 * 3e23 ** (-1.0 / 6.0), by_flop=1.0 / 6.0),
        (
            "Erdil & Schneider-Joseph 2024 (arXiv 2411.01137): C^(1/6) through GPT-3's 4 Mi "
            "tokens at "
            "3e23 FLOP"
        ),
    ),
    "constant": Law(BatchLaw(tokens=2.0**22), "4 Mi tokens at every scale: no law"),
}

SHAPE_LAWS = {
    "hoffmann": Law(
        ShapeLaw(scale=0.10056 * 4.0**0.3751, exponent=0.7502),
        "best depth: shapes of Hoffmann et al. 2022 as fitted by Erdil & Schneider-Joseph 2024; "
        "penalty: 3 % of the loss at 6 × 4288 "
        "against 48 × 1600 (Kaplan et al. 2020, section 3.1), put into parameters by their "
        "exponent 0.076; for the MLP and the heads "
        "assumed: 3 % at ten times the usual ratio, 1 % at a quarter or four times the usual head",
    ),
    "kaplan": Law(
        ShapeLaw(scale=0.01, exponent=1.0),
        (
            "width over depth of 100 at every size, the middle of the flat region of Kaplan et al. "
            "2020, figure 5; penalty as for hoffmann"
        ),
    ),
    "levine": Law(
        ShapeLaw(scale=0.0, exponent=1.0, by_log=1.0 / 0.0555, offset=-5.039 / 0.0555),
        (
            "depth efficiency of Levine et al. 2020 (arXiv 2006.12467): ln h = 5.039 + 0.0555 L at "
            "the threshold; penalty as for hoffmann"
        ),
    ),
    "none": Law(
        ShapeLaw(scale=1.0, exponent=0.0, depth=0.0, ff=0.0, head=0.0),
        "only the number of parameters matters",
    ),
}

DATA_LAWS = {
    "hoffmann": Law(DataLaw(), "Hoffmann et al. 2022: 20 tokens per parameter"),
    "llama-3": Law(
        DataLaw(ratio=15.6e12 / 405e9),
        "Llama team 2024 (arXiv 2407.21783): 15.6e12 tokens for 405e9 parameters",
    ),
}


class Laws(struct.PyTreeNode, kw_only=True):
    """The laws of one problem."""

    loss: LossLaw
    batch: BatchLaw
    shape: ShapeLaw
    data: DataLaw


KINDS = {"loss": LOSS_LAWS, "batch": BATCH_LAWS, "shape": SHAPE_LAWS, "data": DATA_LAWS}
"""Published laws by kind and name."""

DEFAULT = {"loss": "besiroglu", "batch": "kaplan", "shape": "hoffmann", "data": "hoffmann"}


def laws(**names: str) -> Laws:
    """Laws by name for each kind, the defaults for the rest.

    Raises:
      KeyError: unknown kind or name.

    >>> float(laws(loss="kaplan").loss.irreducible)
    0.0
    """
    chosen = DEFAULT | names
    return Laws(**{kind: KINDS[kind][chosen[kind]].law for kind in chosen})  # type: ignore


def effective_parameters(
    parameters: Array,
    n_layers: Array,
    d_model: Array,
    ff_ratio: Array,
    head_dim: Array,
    law: ShapeLaw,
) -> jax.Array:
    """Parameters that a usual shape would need for the same loss [count]: `ShapeLaw`."""
    xp = library(parameters, n_layers, d_model, ff_ratio, head_dim, *vars(law).values())
    width = xp.asarray(d_model)
    # a depth of at least one layer, so that the logarithm exists where a law's line crosses zero
    best = xp.maximum(
        law.scale * width**law.exponent + law.by_log * xp.log(width) + law.offset, 1.0
    )
    off = law.depth * xp.log(n_layers / best) ** 2
    off = (
        off
        + law.ff * xp.log(ff_ratio / law.ff_ratio) ** 2
        + law.head * xp.log(head_dim / law.head_dim) ** 2
    )
    return xp.asarray(parameters * xp.exp(-off))


def loss(parameters: Array, tokens: Array, law: LossLaw) -> jax.Array:
    """`LossLaw` [nat/token].

    Args:
      parameters: N, effective [count]. tokens: D, effective [token].

    >>> print(f"{loss(70e9, 1.4e12, laws(loss='hoffmann').loss):.3f}")
    1.937
    """
    xp = library(parameters, tokens, *vars(law).values())
    log_n = (xp.log(law.by_parameters) - law.alpha * xp.log(xp.asarray(parameters))) / law.mixing
    log_d = (xp.log(law.by_tokens) - law.beta * xp.log(xp.asarray(tokens))) / law.mixing
    return xp.asarray(law.irreducible + xp.exp(law.mixing * xp.logaddexp(log_n, log_d)))


def critical_batch(flop: Array, tokens: Array, loss: Array, law: BatchLaw) -> jax.Array:
    """`BatchLaw` [token]."""
    xp = library(flop, tokens, loss, *vars(law).values())
    return xp.asarray(
        law.tokens
        * xp.exp(
            law.by_flop * xp.log(flop) + law.by_tokens * xp.log(tokens) + law.by_loss * xp.log(loss)
        )
    )


class Quality(NamedTuple):
    """loss [nat/token]; critical: batch [token]; waste: tokens over those that small batches would
    need, `1 + B / critical` [1]."""

    loss: jax.Array
    critical: jax.Array
    waste: Array


def quality(
    parameters: Array, tokens: Array, batch_tokens: Array, flop: Array, law: Laws
) -> Quality:
    """Loss of a run, with what its batch wastes: `L(N, D / (1 + B / critical))`.

    The critical batch is that of the loss reached; two rounds of substitution find it, as it moves
    slowly with the loss.
    """
    found = loss(parameters, tokens, law.loss)
    critical = critical_batch(flop, tokens, found, law.batch)
    for _ in range(2):
        found = loss(parameters, tokens / (1.0 + batch_tokens / critical), law.loss)
        critical = critical_batch(flop, tokens, found, law.batch)
    waste = 1.0 + batch_tokens / critical
    return Quality(loss=loss(parameters, tokens / waste, law.loss), critical=critical, waste=waste)
