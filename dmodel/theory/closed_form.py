"""Closed forms of the two walls: the largest run that bandwidth, or that latency, still lets finish
in time.

Both are a power of one quantity, the tokens per step and layer that the critical batch allows, so
every exponent is known exactly; they
are what the frontier found by search (`theory.frontier`) is held against.

Erdil & Schneider-Joseph 2024 (arXiv 2411.01137), sensitivity plots of the authors' notebook.
"""

from __future__ import annotations

from dmodel import struct
from dmodel.types import Array

QUARTER_S = 365.25 * 86400.0 / 4.0
"""Three months as the notebook counts them [s]; the sweeps of the study use 0.25 · 3.154e7 s."""

NODE = 8
WORD_BYTES = 2.0


class Wall(struct.PyTreeNode, frozen=True, kw_only=True):
    """What the closed forms depend on; every leaf may be differentiated.

    Args:
      flops_per_s: peak rate of one GPU [FLOP/s].
      network_bytes_per_s: between nodes, one GPU, both directions together [byte/s].
      hbm_bytes_per_s: memory bandwidth of one GPU [byte/s].
      deadline_s: time that the run may take [s].
      layer_latency_s: one product with the collectives that follow it on the critical path [s].
      batch_tokens, n_layers: critical batch [token] and depth at the reference compute.
      batch_exponent, depth_exponent: powers of compute by which the two grow.
      reference_compute: where `batch_tokens` and `n_layers` hold. The study gives it in FLOP and
        puts multiply-adds into the law.
    """

    flops_per_s: Array
    network_bytes_per_s: Array
    hbm_bytes_per_s: Array
    deadline_s: Array = QUARTER_S
    layer_latency_s: Array = 9e-6
    batch_tokens: Array = 4e6
    n_layers: Array = 100.0
    batch_exponent: Array = 0.0
    depth_exponent: Array = 0.0
    reference_compute: Array = 3e23


def growth(wall: Wall) -> Array:
    """Exponent of batch per layer in compute: `α = batch exponent − depth exponent`."""
    return wall.batch_exponent - wall.depth_exponent


def nanobatch_tokens(wall: Wall) -> Array:
    """Tokens for which a product takes as long as the reading of its weights: `n = M / H` [token].

    M multiply-adds and H words per second of HBM, of a node or of a GPU alike; H counts one
    direction, half of the bandwidth.
    """
    return (wall.flops_per_s / 2.0) / (wall.hbm_bytes_per_s / (2.0 * WORD_BYTES))


def shard_words(wall: Wall) -> Array:
    """Width of a node's shard at which 2D tensor parallelism keeps up with arithmetic: `s = 4 M /
    (3 F)` [word].

    8 s words cross the node's network for 6 s² multiply-adds, per token and layer; F words per
    second, one direction.
    """
    return 4.0 * (wall.flops_per_s / 2.0) / (3.0 * wall.network_bytes_per_s / (2.0 * WORD_BYTES))


def _run_flop(wall: Wall, factor: float, tokens_per_layer: Array) -> Array:
    """FLOP of the run whose multiply-adds solve `T = factor · (κ' (T / T0)^α)²`, κ' the tokens per
    layer at T0 times the rest.

    `T = {factor · [κ' T0^-α]²}^(1 / (1 − 2α))`, and 2 FLOP are a multiply-add.
    """
    alpha = growth(wall)
    return 2.0 * (factor * (tokens_per_layer * wall.reference_compute**-alpha) ** 2) ** (
        1.0 / (1.0 - 2.0 * alpha)
    )


def t_crit(wall: Wall) -> Array:
    """Largest run that data movement does not slow: `T_crit = {[κ M t / (s² n)]² / 960}^(1 / (1 −
    2α))` in multiply-adds [FLOP].

    Pipeline and data parallelism share the batch b in nanobatches n, two for each stage: b / (2 n)
    nodes; tensor parallelism cuts
    the layers into N / (2 L s²) nodes, with `N = sqrt(T / 60)` parameters (20 tokens each, 3
    multiply-adds per parameter and token).
    All of them work for t at M multiply-adds per second; κ = b / L at T0, divided by T0^α.

    Assumptions: dense, no latency, data parallelism costs nothing, weights are read from HBM for
    every nanobatch, the network inside
    a node is free.
    Limits: infinite as α → ½, where batch per layer grows as fast as the run needs.

    >>> h100 = Wall(flops_per_s=9.89430e14, network_bytes_per_s=1e11, hbm_bytes_per_s=3.352e12)
    >>> print(f"{t_crit(h100):.3g} FLOP")
    1.92e+28 FLOP
    """
    node_rate = NODE * wall.flops_per_s / 2.0
    per_layer = wall.batch_tokens / wall.n_layers * node_rate * wall.deadline_s
    return _run_flop(
        wall, 1.0 / 960.0, per_layer / (shard_words(wall) ** 2 * nanobatch_tokens(wall))
    )


def t_limit(wall: Wall) -> Array:
    """Largest run that finishes at all: `T_limit = {(3 / 320) [κ t / τ]²}^(1 / (1 − 2α))` in
    multiply-adds [FLOP].

    D / b steps, each with 4 L products in sequence (two forward, two backward per layer) of latency
    τ: `(D / b) 4 L τ ≤ t`, D = 20 N.

    Assumptions: everything but latency is free; gradients of weights are not on the critical path.

    >>> wall = Wall(flops_per_s=1.0, network_bytes_per_s=1.0, hbm_bytes_per_s=1.0)
    >>> print(f"{t_limit(wall):.4g} FLOP")
    2.305e+31 FLOP
    """
    return _run_flop(
        wall,
        3.0 / 320.0,
        wall.batch_tokens / wall.n_layers * wall.deadline_s / wall.layer_latency_s,
    )
