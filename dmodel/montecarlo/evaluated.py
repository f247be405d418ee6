"""Step time and memory of pairs of a plan and a draw of the coefficients."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dmodel.coefficients import NAMES, Coefficients
from dmodel.design.judge import draft_memory, drafted
from dmodel.once import together
from dmodel.recorded import Recorded
from dmodel.smooth import SHARPNESS
from dmodel.step import step_time
from dmodel.sweep import sweep
from dmodel.types import Array

Tree = Any

ROWS = 4096
"""Pairs that numpy computes at once [count]: what is between its steps has to fit a cache."""

SIZES = (16, 256, 4096, 65536)
"""Numbers of plans and of draws that a program is compiled for [count]; others are filled up."""


class Totals(NamedTuple):
    """Step time [s] and bytes of the fullest device [byte], of each pair."""

    step_time_s: np.ndarray
    memory_bytes: np.ndarray


def _totals(batch: Mapping[str, Array], fixed: Tree, coefficients: Coefficients) -> Tree:
    system, draft = drafted(dict(batch), fixed)
    with together():
        time = step_time(system, fixed["model"], draft, coefficients, sharpness=SHARPNESS)
        memory = draft_memory(fixed["model"], draft, fixed["footprint"])
    return {"step_time_s": time.total, "memory_bytes": memory.total}


def _each(fixed: Tree, each: tuple[dict[str, Array], Coefficients]) -> Tree:
    return _totals(each[0], fixed, each[1])


EACH = Recorded(_each)


def by_numpy(
    shared: Tree, plans: Mapping[str, np.ndarray], draws: np.ndarray, pairs: np.ndarray
) -> Totals:
    """Totals of pairs, which need no program to be compiled.

    Args:
      shared: system, model, footprint, base and global batch of all. plans: leaves `[plan]`.
      draws: coefficients `[C, draw]`. pairs: numbers of plan and draw, `[2, pair]`.
    """
    size = pairs.shape[1]
    whole = np.concatenate([pairs, np.repeat(pairs[:, -1:], -size % ROWS, 1)], 1)

    def part(start: int) -> tuple[dict[str, np.ndarray], Coefficients]:
        plan, draw = whole[:, start : start + ROWS]
        columns = {name: x[plan] for name, x in plans.items()}
        return columns, Coefficients(**dict(zip(NAMES, draws[:, draw], strict=True)))

    of = EACH.varied(shared, like=part(0))
    found = [of(part(start)) for start in range(0, whole.shape[1], ROWS)]
    names = Totals._fields
    return Totals(
        *(np.concatenate([np.broadcast_to(f[n], ROWS) for f in found])[:size] for n in names)
    )


@cache
def _pairs():
    """The case function of pairs, one object, so that it is compiled once."""

    def function(batch: dict[str, Array], fixed: Tree) -> Tree:
        plan, draw = (jnp.asarray(batch[n]).astype(int) for n in ("plan", "draw"))
        columns = {name: jnp.asarray(x)[plan] for name, x in fixed["plans"].items()}
        drawn = jnp.asarray(fixed["draws"])[:, draw]
        return _totals(
            columns, fixed["shared"], Coefficients(**dict(zip(NAMES, drawn, strict=True)))
        )

    return function


def compiled(
    shared: Tree, plans: Mapping[str, np.ndarray], draws: np.ndarray, pairs: np.ndarray
) -> Totals:
    """As `by_numpy`, by a compiled program on one thread, or on all devices of the process."""
    fixed = {
        "shared": shared,
        "plans": {name: _filled(x) for name, x in plans.items()},
        "draws": _filled(draws),
    }
    batch = {"plan": pairs[0].astype(float), "draw": pairs[1].astype(float)}
    found = sweep(_pairs(), batch, fixed, threads=1)
    return Totals(found["step_time_s"], found["memory_bytes"])


def _filled(values: np.ndarray) -> np.ndarray:
    """Values `[..., n]` with the last one repeated until they are one of `SIZES`."""
    n = values.shape[-1]
    whole = next((size for size in SIZES if size >= n), n)
    return np.concatenate([values, np.repeat(values[..., -1:], whole - n, -1)], -1)


WAYS = {"numpy": by_numpy, "compiled": compiled}
"""How pairs are evaluated, by name."""


def shared_of(tree: Tree) -> Tree:
    """What all pairs share, as arrays."""
    return jax.tree.map(lambda x: np.asarray(x, float), tree)
