"""What a fit makes least: the Student-t misfit of its rows and the penalty of its prior, with its
slope by all parameters, and, of many rows, what the rows make of its curvature.

`Σ_i w_i [ ln s_i + (ν + 1)/2 · ln(1 + r_i² / (ν s_i²)) ] + ½ |θ|²` with r the log ratio of row i
and s its scale: that of its stack or, where a row stands for n repeats of a configuration whose
ln t scatter by σ, `s_i² = s² + σ²/n`. The stack's scale s is then what configurations
differ by, and no number of repeats makes a row count for more than that allows.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from threading import Lock

import numpy as np

from calibration import pooling, row_space
from calibration.descent import Inverse
from calibration.pooling import Parameters, Prior
from calibration.ratios import Data, Ratios, ratios

FREEDOM = 4.0
"""Degrees of freedom of the Student-t noise: published tables hold outliers of five and more
scales."""

FEW = 512
"""Rows up to which several sets of parameters are computed at once: there an operation costs its
call, beyond it what it computes, which has to fit a cache."""


class Objective:
    """The loss of a fit and its gradient, by numpy.

    Args:
      prior: of the fit. data: its rows.
    """

    def __init__(self, prior: Prior, data: Data) -> None:
        self.prior, self.data = prior, data
        self.members, self.coefficients = np.shape(prior.offset)
        self.ratios: dict[int, Ratios] = {}
        self.lock = Lock()

    @cached_property
    def own(self) -> np.ndarray:
        """How often each row has each member, `[row, member]`."""
        found = np.zeros((len(self.data.weight), self.members))
        for of in self.data.of:
            found[np.arange(len(of)), of] += 1.0
        return found

    def flat(self, p: Parameters) -> np.ndarray:
        """Parameters as one vector `[P]`: center, offsets, noise."""
        return np.concatenate([np.ravel(x) for x in (p.center, p.offset, p.noise)])

    def whole(self, x: np.ndarray) -> Parameters:
        """Parameters of a vector."""
        center, offset, noise = np.split(x, np.cumsum([1, self.members]) * self.coefficients)
        return Parameters(center=center, offset=offset.reshape(self.members, -1), noise=noise)

    def __call__(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Losses `[set]` and gradients `[set, P]` of sets of parameters `[set, P]`."""
        if len(points) > 1 and len(self.data.weight) > FEW:
            with ThreadPoolExecutor(os.cpu_count()) as pool:  # numpy holds no lock in long loops
                each = list(pool.map(lambda x: self(x[None]), points))
            return np.concatenate([v for v, _ in each]), np.concatenate([g for _, g in each])
        with np.errstate(all="ignore"):  # trials may reach to where there are no numbers
            return self._at_once([self.whole(x) for x in points], points)

    def _at_once(self, sets: list[Parameters], points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ratio, slope = self._ratios(sets)
        scale = np.stack([pooling.noise_scale(p, self.prior) for p in sets])
        of, weight = self.data.stack_of, self.data.weight
        each = pooling.row_scale(scale, of, self.data.variance)
        square = FREEDOM * each**2
        misfit = np.log(each) + 0.5 * (FREEDOM + 1.0) * np.log1p(ratio**2 / square)
        losses = misfit @ weight + 0.5 * (points**2).sum(1)
        pull = weight * (FREEDOM + 1.0) / (square + ratio**2)
        by_scale = weight / each - pull * ratio**2 / each
        if np.any(self.data.variance):
            by_scale *= scale[:, of] / each
        moved = np.exp(pooling.NOISE_WIDTH * np.stack([p.noise for p in sets]))
        widened = pooling.NOISE_WIDTH * (self.prior.noise * moved) ** 2 / scale
        by_noise = [np.bincount(of, x, scale.shape[1]) for x in by_scale]
        by_place = [
            row_space.pulled(x, self.prior, self.own) for x in (pull * ratio)[:, :, None] * slope
        ]
        ends = [
            np.concatenate([np.ravel(x), y * w])
            for x, y, w in zip(by_place, by_noise, widened, strict=True)
        ]
        return losses, points + np.stack(ends)

    def inverse(self, x: np.ndarray) -> Inverse:
        """Inverse of the curvature by Gauss and Newton at parameters `[P]`.

        `(1 + Bᵀ B)⁻¹`, with B the weighted slopes of the rows by center and offsets, by as many
        equations as rows (Woodbury identity); of noise scales their own alone.

        Limits: of a prior that knows nothing of sums of center and offsets (`Prior.mixing`).
        """
        from scipy.linalg import cho_factor, cho_solve  # of many rows alone

        p, data = self.whole(x), self.data
        ratio, slope = (each[0] for each in self._ratios([p]))
        scale = pooling.noise_scale(p, self.prior)
        scale = pooling.row_scale(scale, data.stack_of, data.variance)
        weight = data.weight * (FREEDOM + 1.0) / (FREEDOM * scale**2 + ratio**2)
        rows = np.sqrt(weight)[:, None] * slope
        factor = cho_factor(row_space.covariance(rows, self.prior, data.of) + np.eye(len(rows)))
        counted = np.bincount(data.stack_of, data.weight, len(p.noise))
        known = 2.0 * FREEDOM / (FREEDOM + 3.0) * pooling.NOISE_WIDTH**2 * counted

        def of(v: np.ndarray) -> np.ndarray:
            moved = row_space.moved(self.whole(v), self.prior, data.of)
            found = cho_solve(factor, (rows * moved.T).sum(1))
            pulled = np.ravel(row_space.pulled(found[:, None] * rows, self.prior, self.own))
            return np.concatenate([v[: len(pulled)] - pulled, v[len(pulled) :] / (1.0 + known)])

        return of

    def _ratios(self, sets: list[Parameters]) -> tuple[np.ndarray, np.ndarray]:
        """Log ratios `[set, row]` of rows and their slopes `[set, row, C]`."""
        count = len(sets)
        with self.lock:
            if count not in self.ratios:
                self.ratios[count] = ratios(self.data, count)
        z = np.concatenate([pooling.rows_of(p, self.prior, self.data.of) for p in sets], 1)
        ratio, slope = self.ratios[count](z)
        return ratio.reshape(count, -1), slope.T.reshape(count, -1, self.coefficients)
