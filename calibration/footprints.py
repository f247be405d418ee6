"""Fit the footprint of a stack to measured peaks of memory: Student-t noise on ln(predicted /
measured), priors, Gauss-Newton steps.

A source may report its fullest device or one that stands for all; `last_stage` finds out. Peaks of
tensors alone (`peak_kind` allocated) say nothing of what is reserved beside them.
Deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibration.traces import Cases
from calibration.traces.table import IMPLAUSIBLE
from dmodel.footprint import NAMES, Footprint, from_unconstrained, prior, to_unconstrained
from dmodel.profiles.groupings import family
from dmodel.profiles.record import Fitted, every_variant
from dmodel.recorded import Recorded
from dmodel.step import memory_use

FREEDOM, WITHIN = 2.0, 1.32
"""Degrees of freedom of the Student-t noise, and how many of its scales hold 68 % of it. Peaks have
heavier tails than times: the same plan may need half as much again when the allocator's cached
blocks do not fit what comes next."""

NOISE, NOISE_ROWS = 0.06, 4.0
"""Prior of the noise's scale, and how many rows it counts as."""

KNOWN_WIDTH = 0.5
"""Width of the prior of a stack whose footprint a base profile has, over that of one that nobody
has measured."""

ANY_WIDTH = 1.0
"""The same of a variant, about what other rows say of its family: those of another publisher may
differ from it as any stacks do."""

ENDS, SIDE = ("kept", "last_stage"), 1.5
"""Shares that data settle at one of their ends: descents start on both sides of each, so many prior
widths from the middle."""

STEPS, LONGEST = 60, 1.5

NOTHING = -1e3
"""Added to the logarithm of a number, it leaves 0."""


class _Point(NamedTuple):
    """A point of the descent: place in prior standard deviations, scale of the noise, loss."""

    theta: np.ndarray
    scale: float
    loss: float


Evaluate = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def _peak_and_slope(model: Any, plan: Any, z: jax.Array) -> dict[str, jax.Array]:
    """ln of the peak of every row `[row]`, and its slope by the row's unconstrained numbers
    `[number, row]`."""

    def log_peak(z: jax.Array) -> jax.Array:
        return jnp.log(memory_use(model, plan, footprint=from_unconstrained(z)).total)

    found, pull = jax.vjp(log_peak, z)
    return {"log_peak": found, "slope": pull(jnp.ones_like(found))[0]}


PEAK_AND_SLOPE = Recorded(_peak_and_slope, any_rows=True)


def _loss(residual: np.ndarray, theta: np.ndarray, scale: float) -> float:
    """`Σ [ ln s + (ν + 1)/2 · ln(1 + r² / (ν s²)) ] + ½ |θ|²`."""
    misfit = np.log(scale) + 0.5 * (FREEDOM + 1.0) * np.log1p((residual / scale) ** 2 / FREEDOM)
    return float(misfit.sum() + 0.5 * theta @ theta)


def _scale(residual: np.ndarray, scale: float) -> float:
    """The next scale of the noise: weighted mean square of the residuals and of what is expected
    (an EM step of the Student-t)."""
    weight = (FREEDOM + 1.0) / (FREEDOM + (residual / scale) ** 2)
    return float(
        np.sqrt((weight @ residual**2 + NOISE_ROWS * NOISE**2) / (len(residual) + NOISE_ROWS))
    )


def _information(
    slopes: np.ndarray, residual: np.ndarray, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Newton information of the numbers with the prior's, and the weight of every row."""
    weight = (FREEDOM + 1.0) / (FREEDOM * scale**2 + residual**2)
    return slopes.T @ (slopes * weight[:, None]) + np.eye(slopes.shape[1]), weight


def _descend(evaluate: Evaluate, log_measured: np.ndarray, theta: np.ndarray) -> _Point:
    """Damped Gauss-Newton steps from one start; every step lowers the loss at its scale of the
    noise."""
    scale, damping = 3.0 * NOISE, 1.0
    predicted, slopes = evaluate(theta)
    residual = predicted - log_measured
    for _ in range(STEPS):
        scale = _scale(residual, scale)
        information, weight = _information(slopes, residual, scale)
        gradient = slopes.T @ (weight * residual) + theta
        step = -np.linalg.solve(information + damping * np.eye(len(theta)), gradient)
        trial = theta + step * min(1.0, LONGEST / np.abs(step).max())
        predicted, trial_slopes = evaluate(trial)
        found = predicted - log_measured
        if _loss(found, trial, scale) <= _loss(residual, theta, scale):
            done = np.abs(trial - theta).max() < 1e-6
            theta, residual, slopes, damping = trial, found, trial_slopes, max(0.3 * damping, 1e-6)
            if done:
                break
        else:
            damping *= 4.0
    return _Point(theta, scale, _loss(residual, theta, scale))


def fit_footprint(
    cases: Cases, start: Footprint | None = None, doubt: float = KNOWN_WIDTH
) -> Fitted:
    """The footprint under which the peaks of some rows of one stack are what was measured.

    Args:
      cases: rows with a measured peak. start: what a base profile knows of this stack, or of its
        family. doubt: width of the prior about it, over that of one that nobody has measured [1].
    """
    mean, width = prior()
    if start is not None:
        mean, width = to_unconstrained(start), doubt * width
    log_measured = np.log(cases.labels.peak_memory_bytes)
    rows = np.zeros((len(mean), len(cases)))
    rows[NAMES.index("reserved"), cases.beside == 0.0] = NOTHING
    of = PEAK_AND_SLOPE.varied(cases.model.replace(order=()), cases.plan, like=rows)

    def evaluate(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = of(rows + (mean + width * theta)[:, None])
        return found["log_peak"], found["slope"].T * width

    sides = [
        dict(zip(ENDS, side, strict=True)) for side in product((-SIDE, SIDE), repeat=len(ENDS))
    ]
    starts = [np.array([side.get(name, 0.0) for name in NAMES]) for side in sides]
    best = min(
        (_descend(evaluate, log_measured, theta) for theta in starts), key=lambda point: point.loss
    )
    predicted, slopes = evaluate(best.theta)
    information, _ = _information(slopes, predicted - log_measured, best.scale)
    unsure = np.einsum("ri,ij,rj->r", slopes, np.linalg.inv(information), slopes).mean()
    values = jax.tree.map(float, from_unconstrained(mean + width * best.theta))
    return Fitted(values, float(np.sqrt((WITHIN * best.scale) ** 2 + unsure)))


LEFT_OUT = ("lora", "offload", IMPLAUSIBLE)
"""Flags of rows whose peaks are not fitted."""


def fit_footprints(cases: Cases, known: Mapping[str, Fitted]) -> dict[str, Fitted]:
    """Footprints of all stacks that have rows with a measured peak, from what is known of them.

    Variants of one family have most of their code in common: all of its rows are fitted first, and
    each variant from there, so that few rows say something of the variants that have none. The
    family's own entry stands for those (`dmodel.profiles.Profile.footprint_for`).

    Rows flagged `lora` or `offload` are left out: adapters, and optimizer state on the host, are no
    part of the model. So are rows that are hard to believe.
    """
    flags = cases.labels.flag.astype(str)
    beyond = np.any([np.char.find(flags, word) >= 0 for word in LEFT_OUT], axis=0)
    cases = cases.take(np.isfinite(cases.labels.peak_memory_bytes) & ~beyond)
    stacks = cases.labels.stack.astype(str)
    families = np.array([family(name) for name in stacks.tolist()])
    found = {}
    for name in np.unique(families).tolist():
        rows = families == name
        variants = np.unique(stacks[rows]).tolist()
        common = every_variant(name)
        alike, doubt = known.get(common), ANY_WIDTH
        if len(variants) > 1:
            alike, doubt = _fitted(cases.take(rows), known.get(common), alike), KNOWN_WIDTH
            found[common] = alike
        for variant in variants:
            own = cases.take(stacks == variant)
            found[variant] = _fitted(own, known.get(variant), alike, doubt)
    return found


def _fitted(
    cases: Cases, known: Fitted | None, alike: Fitted | None, doubt: float = ANY_WIDTH
) -> Fitted:
    """The fit of a stack's rows, from what is known of it; else from its family."""
    if known is not None:
        return fit_footprint(cases, known.footprint)
    return fit_footprint(cases, alike.footprint if alike is not None else None, doubt)
