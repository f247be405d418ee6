"""Which coefficients the data tell apart: small eigenvalues of the information matrix, in named
coefficients.

In units of the prior's standard deviations the data add `I = w Σ⁻¹ w − 1` to the prior's
information of 1 (Σ covariance after the data, w prior widths). A direction with an eigenvalue below
1 is known less from the data than from the prior; where it mixes coefficients that the data do see,
they see only the others' mix.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmodel.coefficients import NAMES
from dmodel.profiles import Profile
from dmodel.profiles.record import prior_widths
from dmodel.uncertainty import covariance

WEAK = 1.0
"""Information below which the data say less than the prior."""

PART = 0.35
"""Share of a direction from which a coefficient counts as part of it."""


class Mixed(NamedTuple):
    """Coefficients that the data do not separate: names and their parts of the direction, the
    largest first; its information."""

    names: tuple[str, ...]
    parts: tuple[float, ...]
    information: float

    def __str__(self) -> str:
        together = " and ".join([", ".join(self.names[:-1]), self.names[-1]])
        same = all(part * self.parts[0] > 0.0 for part in self.parts)
        return (
            f"these data do not separate {together}: "
            f"{'one up and another down' if not same else 'all of them up or down'} fits as well"
        )


class Identified(NamedTuple):
    """What is known of every coefficient.

    Attributes:
      unseen: names of which the data say less than the prior. mixed: groups that are seen only
        together, each once,
        by its weakest direction. known: the others.
    """

    unseen: tuple[str, ...]
    mixed: tuple[Mixed, ...]
    known: tuple[str, ...]


def information(profile: Profile, accelerator: str, stack: str) -> np.ndarray | None:
    """What the data add, in units of the prior `[C, C]`; None where the profile carries no
    covariance."""
    sigma = covariance(profile, accelerator, stack)
    if sigma is None:
        return None
    width = prior_widths()
    scaled = sigma / np.outer(width, width)
    values, axes = np.linalg.eigh(scaled)
    return (axes * (1.0 / np.maximum(values, 1e-9) - 1.0)) @ axes.T


def identify(found: np.ndarray) -> Identified:
    """What an information matrix `[C, C]` in units of the prior says of the coefficients."""
    values, axes = np.linalg.eigh(found)
    seen = np.diag(found) >= WEAK
    mixed: dict[frozenset[str], Mixed] = {}
    for value, axis in zip(values, axes.T, strict=True):
        if group := _mixed(value, axis, seen):
            mixed.setdefault(frozenset(group.names), group)
    together = frozenset().union(*mixed)
    unseen = tuple(name for name, x in zip(NAMES, seen, strict=True) if not x)
    known = tuple(name for name in NAMES if name not in together.union(unseen))
    return Identified(unseen, tuple(mixed.values()), known)


def _mixed(value: float, axis: np.ndarray, seen: np.ndarray) -> Mixed | None:
    """The coefficients of a direction that the data do not separate; None where they do, or where
    it is of one."""
    parts = [i for i in np.argsort(-np.abs(axis)) if abs(axis[i]) >= PART and seen[i]]
    if value >= WEAK or len(parts) < 2:
        return None
    names, shares = zip(*((NAMES[i], float(axis[i])) for i in parts), strict=True)
    return Mixed(names, shares, float(max(value, 0.0)))
