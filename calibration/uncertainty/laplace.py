"""How sure a fit is: the Laplace approximation in the unconstrained space, seen from the rows.

With G the covariance of the rows' log ratios before the data and W their weights in the
information, what the data leave open of the
ratios is `(1 + G W)⁻¹ G`, and of any coefficients with covariance K and cross-covariance k to the
rows `K − k W (1 + G W)⁻¹ kᵀ`: no matrix is larger than the rows, however many parameters they
share.

Noise scales of a joint optimum are too small, to zero with as many coefficients as rows: there the
scales are those of the expected
misfit instead, the expectation being over what the data leave open of the coefficients
(`expected_noise`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from calibration import pooling, row_space
from calibration.pooling import Groups, Mixing, Parameters, Prior
from calibration.ratios import Data, slopes
from calibration.uncertainty.cells import Cells, cells_of, names
from dmodel.profiles import family

ROUNDS, CLOSE = 60, 3e-3
"""Rounds of `expected_noise` at most, and the change of ln s that ends them."""

CANCELS = 1e-4
"""Share of a row's variance that the data take, below which it is not told from their rest."""


class Laplace(NamedTuple):
    """Posterior of a fit; parameters are in prior standard deviations: 1 = the data said nothing, 0
    = they decide.

    Attributes:
      center_errors `[C]`, offset_errors `[M, C]`: standard deviations at the fitted noise.
      center_covariance `[C, C]`.
      totals: covariance of a row's coefficients, center and all offsets together, unconstrained, by
      stack (mean over what it ran on). pairs: the same by chip and stack, its variant among them.
      rows: what the rows say. cells: their coefficients.
    """

    center_errors: np.ndarray
    offset_errors: np.ndarray
    totals: dict[str, np.ndarray]
    pairs: dict[tuple[str, str], np.ndarray]
    center_covariance: np.ndarray
    rows: Rows
    cells: Cells


class Rows(NamedTuple):
    """A fit linearised at its optimum.

    Attributes:
      ratio: ln(predicted / measured) `[row]`. slope: its derivative by the row's coefficients
        `[row, C]`. design: by all parameters,
        `[row, (1 + M) C]`. prior: G, `[row, row]`. before: ratio at the prior mean, to first order
        `[row]`.
      weight: of each row in the information, W `[row]`. noise: scale by stack `[S]`. variance: of
        the row's own measurements (`ratios.Data.variance`).
    """

    ratio: np.ndarray
    slope: np.ndarray
    design: np.ndarray
    prior: np.ndarray
    before: np.ndarray
    weight: np.ndarray
    noise: np.ndarray
    variance: np.ndarray


def open_ratios(prior: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Covariance of the rows' ratios after the data, `(1 + G W)⁻¹ G`."""
    return np.linalg.solve(np.eye(len(prior)) + prior * weight, prior)


def student_weight(square: np.ndarray, scale: np.ndarray, freedom: float) -> np.ndarray:
    """Weight of a row in the information, `(ν + 1) / (ν s² + r²)`, from its (expected) squared
    ratio and its noise scale."""
    return (freedom + 1.0) / (freedom * scale**2 + square)


class Noise(NamedTuple):
    """Noise scales: medians of the prior and the fitted ones by stack `[S]`, the stack of every row
    `[row]`, and what no scale is below."""

    median: np.ndarray
    fitted: np.ndarray
    stack_of: np.ndarray
    floor: float


def expected_noise(
    rows: Rows, own: np.ndarray, noise: Noise, freedom: float
) -> tuple[np.ndarray, np.ndarray]:
    """Noise scale by stack `[S]` and weight of every row when the coefficients are integrated out:
    expectation and maximization in turn.

    E: ratios and their variance given the scales; the expected square is `r² + v`. M: the scale
    that makes the expected weighted misfit
    `Σ w [ln s + ½ u (r² + v) / s²]` and the prior of ln s least, with u = ν + 1 over ν + (r² + v) /
    s². What rows leave open of ln s, a variance V, widens the scale by exp V, to the root of the
    expected s². No scale falls below the floor of the fit. A row whose own measurements leave it
    open by a variance v has the scale √(s² + v), and says less of s.
    """
    scale, index = np.maximum(noise.fitted, 0.5 * noise.median), noise.stack_of
    each = pooling.row_scale(scale, index, rows.variance)
    weight = own * student_weight(rows.ratio**2, each, freedom)
    for _ in range(ROUNDS):
        share = own * (scale[index] / each) ** 2
        counts = np.bincount(index, share, len(scale))
        ratio, variance = _expected(rows, weight)
        square = ratio**2 + variance
        spread = np.bincount(
            index,
            share * scale[index] ** 2 * square * student_weight(square, each, freedom),
            len(scale),
        )
        found = np.maximum(_scale(counts, spread, noise.median, scale), noise.floor)
        done = np.abs(np.log(found / scale)).max() < CLOSE
        scale, each = found, pooling.row_scale(found, index, rows.variance)
        weight = own * student_weight(square, each, freedom)
        if done:
            break
    # of each stack's rows the coefficients take as many as their leverage: the others say how sure
    # ln s is
    left = own * (scale[index] / each) ** 2
    left *= 1.0 - np.minimum(_expected(rows, weight)[1] * weight, 1.0)
    known = (
        2.0 * freedom / (freedom + 3.0) * np.bincount(index, left, len(scale))
        + 1.0 / pooling.NOISE_WIDTH**2
    )
    scale = scale * np.exp(1.0 / known)
    each = pooling.row_scale(scale, index, rows.variance)
    return scale, own * student_weight(square, each, freedom)


def _factored(prior: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`W^½` of each row, and the lower factor L of `1 + W^½ G W^½ = L Lᵀ`."""
    root = np.sqrt(weight)
    return root, np.linalg.cholesky(np.eye(len(root)) + root[:, None] * prior * root)


def _expected(rows: Rows, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ratios and their variances after the data, `[row]`: `(1 + G W)⁻¹` times the ratios before and
    the diagonal of `(1 + G W)⁻¹ G`.

    With `B = 1 + W^½ G W^½` the latter is `(1 − (B⁻¹)ᵢᵢ) / wᵢ`, so one triangular inverse will do;
    a row that nearly nothing is known of, where that cancels, has `G − G W^½ B⁻¹ W^½ G` itself.
    """
    from scipy.linalg import get_lapack_funcs

    root, lower = _factored(rows.prior, weight)
    (inverted,) = get_lapack_funcs(("trtri",), (lower,))
    inverse = inverted(lower, lower=1)[0]
    mean = rows.before - rows.prior @ (root * (inverse.T @ (inverse @ (root * rows.before))))
    known = 1.0 - (inverse**2).sum(0)
    plain = known > CANCELS
    variance = np.divide(known, weight, out=np.zeros_like(known), where=plain)
    rest = np.flatnonzero(~plain)
    across = inverse @ (root[:, None] * rows.prior[:, rest])
    variance[rest] = rows.prior[rest, rest] - (across**2).sum(0)
    return mean, variance


def _scale(
    counts: np.ndarray, spread: np.ndarray, median: np.ndarray, scale: np.ndarray
) -> np.ndarray:
    """The scale at which `n ln s + ½ q / s² + ½ (ln s − ln m)² / width²` is least, by Newton's
    method in ln s."""
    x, tight = np.log(scale), 1.0 / pooling.NOISE_WIDTH**2
    for _ in range(20):
        pull = spread * np.exp(-2.0 * x)
        step = (counts - pull + tight * (x - np.log(median))) / (2.0 * pull + tight)
        x = x - np.clip(step, -1.0, 1.0)
    return np.exp(x)


def laplace(
    p: Parameters,
    prior: Prior,
    data: Data,
    groups: Groups,
    freedom: float,
) -> Laplace:
    """Gauss-Newton Laplace approximation at a fit: information `Σ_i ω_i J_i J_iᵀ + 1` with the
    Student-t weights ω.
    """
    rows, cells = _linearised(p, prior, data, groups)
    errors, center = _at_fit(p, prior, rows, groups, freedom)
    noise = Noise(
        np.asarray(prior.noise),
        np.asarray(pooling.noise_scale(p, prior)),
        groups.stack_of,
        prior.noise_floor,
    )
    scale, weight = expected_noise(rows, rows.weight, noise, freedom)
    rows = rows._replace(weight=weight, noise=scale)
    pairs = _pairs(rows, cells, groups)
    return Laplace(errors[0], errors[1:], _totals(pairs), pairs, center, rows, cells)


def offset_errors(
    p: Parameters,
    prior: Prior,
    data: Data,
    groups: Groups,
    freedom: float,
) -> np.ndarray:
    """`Laplace.offset_errors` alone, `[M, C]`: what widths are learned from, in a third of the
    time."""
    return _at_fit(p, prior, _linearised(p, prior, data, groups)[0], groups, freedom)[0][1:]


def narrowing(
    p: Parameters,
    prior: Prior,
    data: Data,
    groups: Groups,
    freedom: float,
) -> float:
    """`½ ln det(1 + W^½ G W^½)` at an optimum and its noise: how much less room the rows leave
    there than the prior does, as a logarithm.

    What a place explains is likely by its loss and by its room: `exp(−loss − narrowing)` is the
    Laplace approximation of all that lies around an optimum (MacKay 1992, "Bayesian interpolation",
    whose Occam factor is `exp(−narrowing)`).

    Limits: 0 where rows say nothing.
    """
    rows, _ = _linearised(p, prior, data, groups)
    fitted = np.asarray(pooling.noise_scale(p, prior))
    scale = pooling.row_scale(fitted, groups.stack_of, rows.variance)
    root = np.sqrt(rows.weight * student_weight(rows.ratio**2, scale, freedom))
    return 0.5 * float(np.linalg.slogdet(np.eye(len(root)) + root[:, None] * rows.prior * root)[1])


def _linearised(p: Parameters, prior: Prior, data: Data, groups: Groups) -> tuple[Rows, Cells]:
    """The rows at a fit, with their own weights and the noise of the prior, and their cells."""
    count = len(groups.stack_of)
    z = pooling.rows_of(p, prior, data.of)
    ratio, slope = slopes(z, data)
    cells = cells_of(prior, groups)
    design = np.zeros((count, cells.factor.shape[2]))
    for cell, factor in enumerate(cells.factor):
        design[cells.of == cell] = slope[cells.of == cell] @ factor
    before = ratio - (slope * (z.T - cells.mean[cells.of])).sum(1)
    between = (
        row_space.covariance(slope, prior, data.of) if prior.mixing is None else design @ design.T
    )
    noise = np.asarray(prior.noise)
    found = Rows(ratio, slope, design, between, before, data.weight, noise, data.variance)
    return found, cells


def _at_fit(
    p: Parameters, prior: Prior, rows: Rows, groups: Groups, freedom: float
) -> tuple[np.ndarray, np.ndarray]:
    """Standard deviations of center and offsets `[1 + M, C]`, and the center's covariance `[C, C]`,
    at the fitted noise."""
    fitted = np.asarray(pooling.noise_scale(p, prior))
    scale = pooling.row_scale(fitted, groups.stack_of, rows.variance)
    weight = rows.weight * student_weight(rows.ratio**2, scale, freedom)
    return _parameters(rows.design, rows.prior, weight, np.shape(prior.center)[0], prior.mixing)


def _inner(prior: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """`W (1 + G W)⁻¹ = W^½ (1 + W^½ G W^½)⁻¹ W^½`."""
    from scipy.linalg import get_lapack_funcs

    root, lower = _factored(prior, weight)
    (inverted,) = get_lapack_funcs(("potri",), (lower,))
    half = np.tril(inverted(lower, lower=1)[0])
    whole = half + np.tril(half, -1).T
    return root[:, None] * whole * root


def _parameters(
    design: np.ndarray, prior: np.ndarray, weight: np.ndarray, n: int, mixing: Mixing | None
) -> tuple[np.ndarray, np.ndarray]:
    """Standard deviations of center and offsets `[1 + M, C]` and the center's covariance `[C, C]`,
    in units of their own prior.

    `K − B W (1 + G W)⁻¹ Bᵀ` with K their covariance before the data and B that with the rows'
    ratios: 1 and the design, unless something
    is known of their sums (`pooling.Prior.mixing`).
    """
    from scipy.linalg import solve_triangular

    known, across = np.ones((design.shape[1] // n, n)), design
    if mixing is not None:
        at, root = (
            np.ix_(np.asarray(mixing.members), np.asarray(mixing.coefficients)),
            np.asarray(mixing.root),
        )
        known[at] = (root**2).sum(2).T
        across = design.reshape(len(design), -1, n).copy()
        across[:, *at] = np.einsum("rnk,kmn->rmk", across[:, *at], root, optimize=True)
        across = across.reshape(design.shape)
    root, lower = _factored(prior, weight)
    learned = solve_triangular(lower, root[:, None] * across, lower=True, check_finite=False)
    errors = np.sqrt(np.maximum(known - (learned**2).sum(0).reshape(-1, n), 0.0))
    return errors, np.diag(known[0]) - learned[:, :n].T @ learned[:, :n]


def _pairs(rows: Rows, cells: Cells, groups: Groups) -> dict[tuple[str, str], np.ndarray]:
    """Covariance of a row's coefficients `[C, C]` by chip and stack: center and offsets move
    together, so their sum is known better than each of them."""
    inner, found = _inner(rows.prior, rows.weight), {}
    for factor, name in zip(cells.factor, names(cells, groups), strict=True):
        own = factor.any(0)
        across = rows.design[:, own] @ factor[:, own].T
        found[name] = factor @ factor.T - across.T @ inner @ across
    return found


def _totals(pairs: dict[tuple[str, str], np.ndarray]) -> dict[str, np.ndarray]:
    """The mean over what a stack and its variants ran on."""
    stacks = dict.fromkeys(family(stack) for _, stack in pairs)
    return {
        name: np.mean([c for (_, stack), c in pairs.items() if family(stack) == name], 0)
        for name in stacks
    }
