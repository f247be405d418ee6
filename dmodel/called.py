"""The step as Python calls it: of plain numbers without a compiler, under JAX's transformations the
plain function.

`jax.grad` of a function that calls it on plain numbers otherwise would compile every operation of
the step by itself; value and slopes are recorded instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from dmodel.breakdown import TERMS, Breakdown
from dmodel.coefficients import Coefficients
from dmodel.recorded import Recorded
from dmodel.records import Cluster, Model, Plan, check_counts
from dmodel.step import step_time

Records = tuple[Cluster, Model, Plan, Coefficients]


def _terms(*records: Any, sharpness: float) -> dict[str, Any]:
    found = step_time(*records, sharpness=sharpness)
    return {name: getattr(found, name) for name in TERMS}


TIME = Recorded(_terms)


def _slopes(*records: Any, sharpness: float, moving: tuple[int, ...]) -> dict[str, Any]:
    """All terms, and their derivatives in some leaves, `[number]` each, by forward mode: leaves
    move one by one."""
    leaves, tree = jax.tree.flatten(records)
    sizes = [jnp.size(leaves[i]) for i in moving]

    def terms(numbers: jax.Array) -> dict[str, Any]:
        parts = jax.lax.split(numbers, sizes)
        moved = list(leaves)
        for i, part in zip(moving, parts, strict=True):
            moved[i] = part.reshape(jnp.shape(leaves[i]))
        return _terms(*jax.tree.unflatten(tree, moved), sharpness=sharpness)

    here = jnp.concatenate([jnp.ravel(leaves[i]) for i in moving])
    along = jax.vmap(lambda way: jax.jvp(terms, (here,), (way,)), out_axes=(None, 0))
    value, slopes = along(np.eye(sum(sizes)))
    return {"value": value, "slopes": slopes}


SLOPES = Recorded(_slopes)


def step_time_of(records: Records, sharpness: float) -> Breakdown:
    """Seconds of a step by cause, as `step.step_time`."""
    cluster, model, plan, coefficients = records
    # the order of layers decides nothing here, and models of one structure share a record
    records = cluster, model.replace(order=()), plan, coefficients
    leaves = jax.tree.leaves(records)
    moving = tuple(i for i, x in enumerate(leaves) if isinstance(x, Tracer))
    if not at_hand([x for x in leaves if not isinstance(x, Tracer)]):
        return step_time(*records, sharpness=sharpness)
    if moving:
        return _moved(records, moving, sharpness)
    check_counts(records[1])
    return Breakdown(**jax.device_put(TIME(*records, sharpness=sharpness)))


def at_hand(leaves: Sequence[Any]) -> bool:
    """Whether numpy can answer for leaves as JAX would: plain numbers, counted in float64, by a JAX
    that was told nothing special."""
    special = ("jax_disable_jit", "jax_debug_nans", "jax_debug_infs")
    return (
        getattr(jax.config, "jax_enable_x64")  # noqa: B009
        and not any(getattr(jax.config, name) for name in special)
        and all(map(_is_number, leaves))
    )


def _is_number(x: Any) -> bool:
    if isinstance(x, int | float):
        return True
    return isinstance(x, np.ndarray | np.generic | jax.Array) and x.dtype == np.float64


def _moved(records: Records, moving: tuple[int, ...], sharpness: float) -> Breakdown:
    """The step where some leaves belong to a transformation of JAX."""
    leaves, tree = jax.tree.flatten(records)

    def whole(moved: Sequence[Any]) -> Any:
        at = dict(zip(moving, moved, strict=True))
        return jax.tree.unflatten(tree, [at.get(i, x) for i, x in enumerate(leaves)])

    def plain(*moved: Any) -> dict[str, Any]:
        return _terms(*whole(moved), sharpness=sharpness)

    def slope(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        here = whole(primals)
        if not _is_one_case(here) or not at_hand(jax.tree.leaves(here)):
            return jax.jvp(plain, tuple(primals), tuple(tangents))
        found = SLOPES(*here, sharpness=sharpness, moving=moving)
        slopes = np.stack([found["slopes"][name] for name in TERMS])
        moves = dict(zip(TERMS, _along(slopes, list(tangents)), strict=True))
        return jax.device_put(found["value"]), moves

    time = jax.custom_jvp(plain)
    time.defjvp(slope)
    return Breakdown(**time(*(leaves[i] for i in moving)))


def _is_one_case(records: Records) -> bool:
    """Whether all leaves but those of the network, which are of its levels, are scalars at hand."""
    cluster, *others = records
    scalars = jax.tree.leaves((cluster.chip, *others))
    numbers = (*scalars, *jax.tree.leaves(cluster.network))
    if any(isinstance(x, Tracer) for x in numbers):
        return False
    return not any(map(np.ndim, scalars)) and all(
        np.ndim(x) <= 1 for x in jax.tree.leaves(cluster.network)
    )


@jax.jit
def _along(slopes: np.ndarray, tangents: list[jax.Array]) -> list[jax.Array]:
    """What terms change by, for what leaves change by."""
    return list(jnp.unstack(slopes @ jnp.concatenate([jnp.ravel(x) for x in tangents])))
