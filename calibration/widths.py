"""How far members of a grouping may differ from each other before and after a fit, and which
coefficients each grouping moves."""

from __future__ import annotations

import numpy as np

from dmodel.coefficients import SPECS
from dmodel.profiles import GROUPINGS

HARDWARE = np.array([s.scope in ("hardware", "both") for s in SPECS.values()], float)
SOFTWARE = np.array([s.scope in ("software", "both") for s in SPECS.values()], float)
EVERYTHING = np.ones(len(SPECS))
HOSTS = ("launch", "rendezvous")
ON_DEVICE = np.array([name not in HOSTS for name in SPECS], float)

SCOPES = {
    "generation": HARDWARE,
    "accelerator": HARDWARE,
    "lineage": SOFTWARE,
    "stack": SOFTWARE,
    "variant": SOFTWARE,
    "port": ON_DEVICE,
    "pair": EVERYTHING,
}
"""Which coefficients each grouping moves, 0 or 1. Kernels bring a stack to a generation of chips;
hosts launch them as they did others."""

SHARES = {
    "generation": 0.6,
    "accelerator": 0.5,
    "lineage": 0.4,
    "stack": 0.5,
    "variant": 0.25,
    "port": 0.5,
    "pair": 0.15,
}
"""Widths among the members of each grouping before any fit, as a share of a coefficient's prior
width; `fit.refined_widths` learns them. Those of port and pair are the best of what was tried on
chips left out (docs/notes/coefficients.md, section on the chips of a generation)."""

KNOWN_INFLATION = 3.0
"""How many of its standard errors a stack that the base knows may move, as far as strangers differ:
releases differ by more than the rows of one of them say. With half of the groups of the published
table held out and twelve rows of that half, 1, 2, 3 and 6 left median / mean errors of 5.0 / 7.5,
4.5 / 7.2, 4.2 / 7.0 and 4.8 / 7.2 % (geometric mean over six sources, median of six draws; 6.4 /
9.4 % without a
fit), the worst draws 11 to 12 %; without the bound of strangers 3 left 5.3 / 8.3, the worst draws
16: a dozen rows led what they do not determine astray."""


def fresh_widths() -> dict[str, np.ndarray]:
    """Widths among the members of each grouping before any fit, `[C]`."""
    full = np.array([s.width for s in SPECS.values()])
    return {g: SHARES[g] * full * SCOPES[g] for g in GROUPINGS}


def known_factor(covariance: np.ndarray, strangers: np.ndarray, drift: float = 0.0) -> np.ndarray:
    """Cholesky factor of `((k² C + d² 1)⁻¹ + D⁻¹)⁻¹`: a known stack's covariance C, inflated by
    k² and by a drift d of every coefficient, no wider than the variances D among strangers.

    A little is added to C for what rounding on disk takes from its eigenvalues.
    """
    n = len(covariance)
    wide = KNOWN_INFLATION**2 * (covariance + 1e-5 * np.trace(covariance) / n * np.eye(n))
    if drift:
        wide = wide + drift**2 * np.eye(n)
    scale = np.sqrt(strangers)
    # in units of strangers the bound is 1 in every direction
    bounded = np.linalg.inv(np.linalg.inv(wide / np.outer(scale, scale)) + np.eye(n))
    return scale[:, None] * np.linalg.cholesky(0.5 * (bounded + bounded.T))
