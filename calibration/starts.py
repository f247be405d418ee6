"""Where the descents of a fit begin."""

from __future__ import annotations

import jax
import numpy as np

from calibration.pooling import Parameters, Prior, start
from dmodel.coefficients import NAMES

SCATTER = 0.8
"""Spread of the starts around the prior mean, in prior standard deviations."""

SLOW_HOST = 2.1
"""How many prior standard deviations above its mean the time between launches starts, at 22
latencies, for all stacks together. Where the device decides, that time has no slope, so a fit that
begins there never learns which rows wait for their host, and lets other coefficients stand in for
it (loss of all rows after a round: −2,684 from 2 latencies, −2,784 to −2,794 from 22 to 73). Where
the host decides, it falls until it fits."""

SLOW_MEETING = 0.7
"""How many prior standard deviations above its mean the wait of hosts for each other (`rendezvous`)
begins, in one more start of a fit from a base, in every group that may move. Where hosts have time
it has no slope, like launching: in three of 30 draws of twelve rows of the nanotron sweep no
scattered start came near the 40 times that its pipelines take, whose rows passed for outliers (loss
−8.7 for −32.2)."""


def begun(prior: Prior, seed: int, starts: int, first: Parameters | None) -> list[Parameters]:
    """Where descents begin: with slow hosts, scattered, from a base with hosts that wait for each
    other, and at parameters that are known.

    Args:
      starts: how many, one more from a base, and one where `first` is known.
    """
    draw = np.random.default_rng(seed)
    leaves, tree = jax.tree.flatten(start(prior))
    spread = [SCATTER * draw.standard_normal((starts, *x.shape)) for x in leaves]
    for x in spread:
        x[0] = 0.0
    spread[0][:, NAMES.index("launch")] += SLOW_HOST
    if not prior.fresh:
        waiting = [x[0].copy() for x in spread]
        waiting[1][:, NAMES.index("rendezvous")] = SLOW_MEETING
        spread = [np.insert(x, 1, y, axis=0) for x, y in zip(spread, waiting, strict=True)]
    if first is not None:
        known = jax.tree.leaves(first)
        spread = [np.concatenate([x, y[None]]) for x, y in zip(spread, known, strict=True)]
    return [jax.tree.unflatten(tree, each) for each in zip(*spread, strict=True)]
