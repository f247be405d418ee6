"""Time of the attention core, forward: the step model's form, and what a single call adds to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibration.micro.fitting import Form
from calibration.micro.reader import MicroTable
from dmodel import catalog
from dmodel.coefficients import Spec
from dmodel.cost.compute import SOFTER
from dmodel.counts import WORD
from dmodel.smooth import SHARPNESS, maximum
from dmodel.types import Array, stack

SPECS: dict[str, Spec] = {
    "efficiency": Spec(
        "1", "share of the peaks that a large, long call reaches", "share", 0.6, 0.7, "both"
    ),
    "exponentials": Spec(
        "1", "time of the exponentials over their count", "positive", 1.0, 0.5, "hardware"
    ),
    "half_sequence": Spec(
        "token", "tokens that each query costs beyond those it sees", "positive", 300.0, 1.5, "both"
    ),
    "half_queries": Spec(
        "1",
        "queries times heads that a call costs beyond its own: the last wave",
        "positive",
        1.5e4,
        1.0,
        "hardware",
    ),
    "memory_efficiency": Spec(
        "1",
        "share of the memory bandwidth in reading q, k, v, writing the result",
        "share",
        0.8,
        0.3,
        "hardware",
    ),
    "launch": Spec("s", "time of the smallest call", "positive", 1e-5, 1.0, "software"),
}


class Cases(NamedTuple):
    """Calls `[row]`: b sequences of s tokens, a query and g key heads of size e, share of the
    scores computed, the chip's
    three rates."""

    batch: Array
    seq_len: Array
    n_heads: Array
    n_kv_heads: Array
    head_dim: Array
    share: Array
    flops_per_s: Array
    exponentials_per_s: Array
    hbm_bytes_per_s: Array


def cases(table: MicroTable) -> Cases:
    """The rows of a table as records."""
    chips = [catalog.chip(chip) for chip in table.chips()]
    return Cases(
        *(
            table.numbers(name)
            for name in ("batch", "seq_len", "n_heads", "n_kv_heads", "head_dim")
        ),
        share=1.0 - 0.5 * table.numbers("causal"),
        flops_per_s=np.array([c.attention_flops_per_s for c in chips], float),
        exponentials_per_s=np.array([c.exponentials_per_s for c in chips], float),
        hbm_bytes_per_s=np.array([c.hbm_bytes_per_s for c in chips], float),
    )


def time(c: Mapping[str, Array], x: Cases) -> jax.Array:
    """Time of each forward call [s], `[row]`.

    `launch + (b a s + Q₀)(share · s + s₀) max_p(4 e / peak16, c_exp / exponentials per second) / η
    + b s e · 2 (2 a + 2 g) / (HBM η_mem)`

    With launch = Q₀ = s₀ = 0 and η_mem = ∞ it is `dmodel.cost.compute.attention_time` without
    softmax traffic. Q₀: blocks of queries that do not fill the chip's last wave; s₀: blocks on the
    diagonal are computed whole, and each query block has a start and an end.

    Limits: `4 · share · b a s² e / rate` as the sequence grows; launch for an empty call.
    """
    each = (
        maximum(
            stack(4.0 * x.head_dim / x.flops_per_s, c["exponentials"] / x.exponentials_per_s),
            SOFTER * SHARPNESS,
        )
        / c["efficiency"]
    )
    queries = x.batch * x.n_heads * x.seq_len + c["half_queries"]
    scores = queries * (x.share * x.seq_len + c["half_sequence"])
    nbytes = x.batch * x.seq_len * x.head_dim * WORD * (2.0 * x.n_heads + 2.0 * x.n_kv_heads)
    return jnp.asarray(
        c["launch"] + scores * each + nbytes / (x.hbm_bytes_per_s * c["memory_efficiency"])
    )


FORM = Form("attention", SPECS, time)
