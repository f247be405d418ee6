"""How much communication slows the compute beside it: its kernels take processors and memory
bandwidth from those of the layer.

The step's coefficient `contention` is fitted to traces; this is what to expect of it where nothing
was measured.
"""

from __future__ import annotations

import jax

from dmodel.smooth import SHARPNESS, maximum
from dmodel.types import Array, stack

CHANNELS = 16.0
"""Channels of a collective of NCCL on Hopper [count] (its log: "16 coll channels",
github.com/NVIDIA/nccl, issue 892); each one keeps a processor that no compute kernel shares (issue
1656). DeepSeek-V3 sets 20 of 132 aside (DeepSeek-AI 2024, arXiv 2412.19437)."""

WAVES = 2.2
"""What products lose over the share of processors that channels hold [1]: their tiles are dealt to
all of them, and those of a processor that is held come last, as a wave of their own. On one H100
and one H200 beside 16 channels that copy (`calibration/torch_step`) products
of 8192 take 1.26 times as long, of 4096 1.42, of 8192 in 8 bits 1.20, those of one wave 1.9,
whatever the number of channels."""

PASSES = 2.5
"""Passes over memory per byte received [1]: an all-gather writes it and reads it to send it on, a
reduce-scatter reads its own as well."""


def contention(
    arithmetic: Array,
    processors: Array,
    link_bytes_per_s: Array,
    hbm_bytes_per_s: Array,
    channels: Array = CHANNELS,
    sharpness: float = SHARPNESS,
) -> jax.Array:
    """Compute time added per unit of communication beside it [1].

    `κ = a · w · c/P + (1 − a) · max_p(c/P, passes · link / HBM)`: work bound by arithmetic loses w
    times the share of processors that communication holds, work bound by memory the larger of that
    share and the share of its bandwidth. At a rate lower by κ while the message lasts, the work
    lost in t seconds is κ t.

    Limits: 0 without channels and traffic (copies by dedicated engines); `w c/P` for pure
    arithmetic.

    Args:
      arithmetic: a, share of the time in which arithmetic decides [1]. processors: P of the chip
      [count]: 108 of an A100, 132 of an H100. link_bytes_per_s: received while the message lasts
      [byte/s]. hbm_bytes_per_s: of the chip [byte/s].

    An H100 that gathers at 320 GB/s beside a layer of which 80 % is arithmetic:

    >>> f"{contention(0.8, 132.0, 3.2e11, 3.35e12):.2f}"
    '0.26'
    """
    taken = channels / processors
    traffic = PASSES * link_bytes_per_s / hbm_bytes_per_s
    return arithmetic * WAVES * taken + (1.0 - arithmetic) * maximum(
        stack(taken, traffic), sharpness
    )
