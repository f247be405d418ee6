"""A profile as a JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dmodel.coefficients import NAMES
from dmodel.profiles.groupings import GROUPINGS
from dmodel.profiles.record import Fitted, Profile

FORMAT, VERSION = "dmodel-profile", 2

COEFFICIENT_DECIMALS, PLACE_DECIMALS = 10, 3
"""Decimals of unconstrained coefficients, and of places of fitted rows, on disk."""

STACK_DIGITS, PAIR_DIGITS = 5, 3
"""Digits of covariances of stacks, and of chips and stacks, on disk."""


def _vector(value: np.ndarray) -> dict[str, float]:
    named = zip(NAMES, value, strict=True)
    return {name: round(float(x), COEFFICIENT_DECIMALS) for name, x in named}


def _triangle(matrix: np.ndarray, digits: int) -> list[float]:
    """The lower triangle of a symmetric matrix, row by row."""
    return [float(f"{x:.{digits}g}") for x in np.asarray(matrix)[np.tril_indices(len(matrix))]]


def rounded(matrix: np.ndarray, digits: int) -> list[list[float]]:
    """The rows of a table, rounded."""
    return [[round(float(x), digits) for x in row] for row in matrix]


def to_json(profile: Profile) -> dict[str, Any]:
    """A profile as a plain JSON document; `coefficients` repeats the center with units and
    meanings, for people."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": profile.name,
        "description": profile.description,
        "accelerators": list(profile.accelerators),
        "stacks": list(profile.stacks),
        **({"own": list(profile.own)} if profile.own else {}),
        "coefficients": profile.describe(),
        **_fitted(profile),
        **_left_open(profile),
        "data": [dict(d) for d in profile.data],
        "fitted_rows": list(profile.fitted_rows),
        **_by_stack(profile),
        "versions": dict(profile.versions),
    }


def _fitted(profile: Profile) -> dict[str, Any]:
    """What was fitted."""
    return {
        "center": _vector(profile.center),
        "offsets": {
            g: {k: _vector(v) for k, v in sorted(profile.offsets[g].items())} for g in GROUPINGS
        },
        "widths": {g: _vector(v) for g, v in profile.widths.items()},
    }


def _left_open(profile: Profile) -> dict[str, Any]:
    """What the fit left open."""
    center = profile.covariance
    return {
        "standard_errors": _vector(profile.standard_errors),
        "stack_covariances": {
            k: _triangle(v, STACK_DIGITS) for k, v in sorted(profile.stack_covariances.items())
        },
        "pair_covariances": {
            k: _triangle(v, PAIR_DIGITS) for k, v in sorted(profile.pair_covariances.items())
        },
        "covariance": None if center is None else rounded(center, COEFFICIENT_DECIMALS),
    }


def of_footprints(footprints: Mapping[str, Fitted]) -> dict[str, dict[str, float]]:
    """Footprints with their spreads, by stack."""
    return {k: {**vars(f.footprint), "spread": f.spread} for k, f in sorted(footprints.items())}


def _by_stack(profile: Profile) -> dict[str, Any]:
    """What is known of each stack besides."""
    return {
        "noise": dict(profile.noise),
        "footprints": of_footprints(profile.footprints),
        "scatter": {k: v._asdict() for k, v in sorted(profile.scatter.items())},
        "seen": {k: rounded(rows, PLACE_DECIMALS) for k, rows in sorted(profile.seen.items())},
    }
