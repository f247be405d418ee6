"""Rows brought to sizes that many fits and predictions share, so that they share compiled code: a
second fit of a dozen rows compiles nothing.

What is added to a fit has no weight: rows of weight 0, and groups without rows, whose offsets stay
at 0. Predictions leave it out again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

if TYPE_CHECKING:
    from calibration.pooling import Groups, Mixing, Parameters, Prior

LEAST_ROWS, ROW_STEP, GROUP_STEP = 16, 128, 8
"""Few rows are brought to a power of two from the least on, many to a multiple of the step; groups
to a multiple."""


def row_count(rows: int) -> int:
    """The shared size that holds some rows: 16, 32, 64, 128, 256, 384, …

    >>> [row_count(n) for n in (1, 16, 17, 40, 300)]
    [16, 16, 32, 64, 384]
    """
    return (
        max(LEAST_ROWS, 1 << (rows - 1).bit_length())
        if rows <= ROW_STEP
        else -(-rows // ROW_STEP) * ROW_STEP
    )


def longer(records: Any, rows: int) -> Any:
    """Records, leaves `[..., row]`, with the last row repeated up to some rows."""

    def of(leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)
        return np.concatenate([leaf, np.repeat(leaf[..., -1:], rows - leaf.shape[-1], -1)], -1)

    return jax.tree.map(of, records)


def padded(records: Any, rows: int) -> Any:
    """Records of some rows, leaves `[..., row]`, with the last row repeated up to `row_count`."""
    return jax.device_put(longer(records, row_count(rows)))


def padded_rows(data: Any) -> Any:
    """The rows of a fit, those that are added at weight 0; data: a record with a leaf `weight`,
    `[..., row]`."""
    rows = len(data.weight)
    more = padded(data, rows)
    return more._replace(
        weight=jax.device_put(np.where(np.arange(len(more.weight)) < rows, more.weight, 0.0))
    )


def padded_groups(prior: Prior) -> Prior:
    """The prior with members and stacks that no row has, frozen at offset 0."""
    members, stacks = (-len(x) % GROUP_STEP for x in (prior.offset, prior.noise))  # type: ignore

    def extended(values: Any, count: int, fill: float = 0.0) -> np.ndarray:
        values = np.asarray(values)
        return np.concatenate([values, np.full((count, *values.shape[1:]), fill)])

    return prior.replace(
        mixing=None
        if prior.mixing is None
        else _padded_mixing(prior.mixing, 1 + len(prior.offset) + members),  # type: ignore
        offset=extended(prior.offset, members),
        factor=extended(prior.factor, members),
        noise=extended(prior.noise, stacks, 1.0),
    )


def _padded_mixing(mixing: Mixing, beyond: int) -> Mixing:
    """The mixing with members beyond all that there are, which nothing mixes with."""
    size = len(mixing.members)  # type: ignore[arg-type]
    more = -size % GROUP_STEP
    root = np.tile(np.eye(size + more), (len(mixing.root), 1, 1))  # type: ignore[arg-type]
    root[:, :size, :size] = mixing.root
    return mixing.replace(members=np.append(mixing.members, beyond + np.arange(more)), root=root)


def without_padding(p: Parameters, groups: Groups) -> Parameters:
    """The parameters of the groups that there are."""
    m, s = len(groups.members), len(groups.stacks)
    return p.replace(offset=p.offset[:m], noise=p.noise[:s])  # type: ignore[index]
