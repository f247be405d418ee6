"""How much communication slows the compute beside it: its kernels take processors and memory bandwidth from those of the layer.

The step's coefficient `contention` is fitted to traces; this is what to expect of it where nothing was measured.
"""

from __future__ import annotations

import jax

from dmodel.smooth import SHARPNESS, maximum
from dmodel.types import Array, stack

CHANNELS = 16.0
"""Channels of a collective of NCCL on Hopper [count] (its log: "16 coll channels", github.com/NVIDIA/nccl, issue 892); each one keeps a
processor that no compute kernel shares (issue 1656). DeepSeek-V3 sets 20 of 132 aside (DeepSeek-AI 2024, arXiv 2412.19437)."""

PASSES = 2.5
"""Passes over memory per byte received [1]: an all-gather writes it and reads it to send it on, a reduce-scatter reads its own as well."""


def contention(
    arithmetic: Array,
    processors: Array,
    link_bytes_per_s: Array,
    hbm_bytes_per_s: Array,
    channels: Array = CHANNELS,
    sharpness: float = SHARPNESS,
) -> jax.Array:
    """Compute time added per unit of communication beside it [1].

    `κ = a · c/P + (1 − a) · max_p(c/P, passes · link / HBM)`: work bound by arithmetic loses the processors that communication holds, work
    bound by memory the larger of that share and the share of its bandwidth. At a rate lower by κ while the message lasts, the work lost in
    t seconds is κ t.

    Limits: 0 without channels and traffic (copies by dedicated engines); `c/P` for pure arithmetic.

    Args:
      arithmetic: a, share of the time in which arithmetic decides [1]. processors: P of the chip [count]: 108 of an A100, 132 of an H100.
      link_bytes_per_s: received while the message lasts [byte/s]. hbm_bytes_per_s: of the chip [byte/s].

    An H100 that gathers at 320 GB/s beside a layer of which 80 % is arithmetic:

    >>> f"{contention(0.8, 132.0, 3.2e11, 3.35e12):.2f}"
    '0.14'
    """
    taken = channels / processors
    traffic = PASSES * link_bytes_per_s / hbm_bytes_per_s
    return arithmetic * taken + (1.0 - arithmetic) * maximum(stack(taken, traffic), sharpness)
