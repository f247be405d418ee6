"""Where the descents of a fit begin."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import jax
import numpy as np

from calibration.pooling import Parameters
from dmodel.coefficients import NAMES
from dmodel.sweep import quick_to_compile

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


def begun(
    zero: Parameters, seed: int, starts: int, first: Parameters | None, fresh: bool
) -> list[Parameters]:
    """Where descents begin: with slow hosts, scattered, from a base with hosts that wait for each
    other, and at parameters that are known."""
    leaves, tree = jax.tree.flatten(zero)
    normal = _compiled()(seed, tuple((starts, *x.shape) for x in leaves))
    spread = [SCATTER * np.array(x) for x in normal]
    for x in spread:
        x[0] = 0.0
    spread[0][:, NAMES.index("launch")] += SLOW_HOST
    if not fresh:
        waiting = [x[0].copy() for x in spread]
        waiting[1][:, NAMES.index("rendezvous")] = SLOW_MEETING
        spread = [np.insert(x, 1, y, axis=0) for x, y in zip(spread, waiting, strict=True)]
    if first is not None:
        known = [np.zeros(x.shape) for x in leaves]
        for x, y in zip(known, jax.tree.leaves(first), strict=True):
            x[: len(y)] = y
        spread = _with_one_more(spread, known)
    return [jax.tree.unflatten(tree, each) for each in zip(*spread, strict=True)]


@cache
def _compiled() -> Callable[..., list[jax.Array]]:
    return jax.jit(_normal, static_argnums=1, compiler_options=quick_to_compile())


def _normal(seed: int, shapes: tuple[tuple[int, ...], ...]) -> list[jax.Array]:
    """Arrays of normal numbers of these shapes."""
    keys = jax.random.split(jax.random.key(seed), len(shapes))
    return [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]


def _with_one_more(spread: list[np.ndarray], one: list[np.ndarray]) -> list[np.ndarray]:
    """Starts, leaf by leaf, and one more behind them."""
    return [np.concatenate([x, y[None]]) for x, y in zip(spread, one, strict=True)]
