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
from dmodel.cost.compute import saturation
from dmodel.counts import WORD
from dmodel.types import Array

SPECS: dict[str, Spec] = {
    "efficiency": Spec("1", "share of the 16-bit peak that a large, long, wide head reaches", "share", 0.6, 0.7, "both"),
    "half_head": Spec("1", "head size at which it reaches half of that", "positive", 30.0, 0.7, "hardware"),
    "half_sequence": Spec("token", "tokens that each query costs beyond those it sees", "positive", 300.0, 1.5, "both"),
    "half_queries": Spec("1", "queries times heads that a call costs beyond its own: the last wave", "positive", 1.5e4, 1.0, "hardware"),
    "memory_efficiency": Spec("1", "share of the memory bandwidth in reading q, k, v, writing the result", "share", 0.8, 0.3, "hardware"),
    "launch": Spec("s", "time of the smallest call", "positive", 1e-5, 1.0, "software"),
}


class Cases(NamedTuple):
    """Calls `[row]`: b sequences of s tokens, a query and g key heads of size e, share of the scores computed, the chip's two rates."""

    batch: Array
    seq_len: Array
    n_heads: Array
    n_kv_heads: Array
    head_dim: Array
    share: Array
    flops_per_s: Array
    hbm_bytes_per_s: Array


def cases(table: MicroTable) -> Cases:
    """The rows of a table as records."""
    chips = [catalog.chip(chip) for chip in table.chips()]
    return Cases(
        *(table.numbers(name) for name in ("batch", "seq_len", "n_heads", "n_kv_heads", "head_dim")),
        share=1.0 - 0.5 * table.numbers("causal"),
        flops_per_s=np.array([c.attention_flops_per_s for c in chips], float),
        hbm_bytes_per_s=np.array([c.hbm_bytes_per_s for c in chips], float),
    )


def time(c: Mapping[str, Array], x: Cases) -> jax.Array:
    """Time of each forward call [s], `[row]`.

    `launch + 4 e (b a s + Q₀)(share · s + s₀) / (peak16 η sat(e, e₀)) + b s e · 2 (2 a + 2 g) / (HBM η_mem)`

    With launch = Q₀ = s₀ = 0 and η_mem = ∞ it is `dmodel.cost.compute.attention_time` without softmax traffic. Q₀: blocks of queries that
    do not fill the chip's last wave; s₀: blocks on the diagonal are computed whole, and each query block has a start and an end.

    Limits: `4 · share · b a s² e / rate` as the sequence grows; launch for an empty call.
    """
    rate = x.flops_per_s * c["efficiency"] * saturation(x.head_dim, c["half_head"])
    queries = x.batch * x.n_heads * x.seq_len + c["half_queries"]
    arithmetic = 4.0 * x.head_dim * queries * (x.share * x.seq_len + c["half_sequence"]) / rate
    nbytes = x.batch * x.seq_len * x.head_dim * WORD * (2.0 * x.n_heads + 2.0 * x.n_kv_heads)
    return jnp.asarray(c["launch"] + arithmetic + nbytes / (x.hbm_bytes_per_s * c["memory_efficiency"]))


FORM = Form("attention", SPECS, time)
