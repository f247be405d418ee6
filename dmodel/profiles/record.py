"""A profile in memory: shared coefficients, offsets of groups of chips and stacks, widths, and the
data behind them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from dmodel.catalog.chips import SINGLE, trait
from dmodel.coefficients import NAMES, SPECS, Coefficients, from_unconstrained, unconstrained
from dmodel.footprint import LEAST, SPREAD, Footprint
from dmodel.profiles.groupings import GROUPINGS, family, members
from dmodel.profiles.shipped import FITTED_TO_NOTHING, PRIOR


def _default_vector() -> np.ndarray:
    """Prior means of the coefficients in the unconstrained space, `[coefficient]`."""
    x = np.array([s.default for s in SPECS.values()])
    share = np.array([s.bound == "share" for s in SPECS.values()])
    return np.log(x) - np.where(share, np.log1p(-np.where(share, x, 0.0)), 0.0)


def prior_widths() -> np.ndarray:
    """Prior standard deviations of the coefficients in the unconstrained space, `[coefficient]`."""
    return np.array([s.width for s in SPECS.values()])


class Fitted(NamedTuple):
    """Footprint of a stack, and the standard deviation of ln(measured / predicted) of a peak that
    was not fitted."""

    footprint: Footprint
    spread: float


VARIANTS = 0.14
"""Root mean square of ln(measured / predicted) peaks of a variant by a fit of its family's others:
over 19 variants of four families (`docs/notes/memory_in_bytes.md`)."""


def every_variant(family: str) -> str:
    """Name of what the variants of a family have in common.

    >>> every_variant("torchtitan")
    'torchtitan/*'
    """
    return f"{family}/*"


class Scatter(NamedTuple):
    """How far measurements of a stack lie from predictions that were not fitted to them, as
    Student-t scales of ln(measured / predicted): of a run like a fitted one, and what comes to it
    far away from all fitted ones (`dmodel.uncertainty`)."""

    noise: float
    discrepancy: float


def pair_key(accelerator: str, stack: str) -> str:
    """Name of a chip and stack together, its variant among them.

    >>> pair_key("H100-80GB", "llm-foundry/pure")
    'H100-80GB llm-foundry/pure'
    """
    return f"{accelerator} {stack}"


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Fitted coefficients and what is known of them; vectors are `[coefficient]` in the order of
    `coefficients.NAMES`, unconstrained.

    Attributes:
      name, description: for people. accelerators, stacks: what the fitted rows ran on.
      own: stacks of the rows that were fitted from a base, last; none in a fit from nothing.
      center: shared values. offsets: by grouping (`groupings.GROUPINGS`) and member, added to the
        center for rows of the member.
      widths: by grouping, standard deviation of a coefficient among its members: the prior of a
        member never seen.
        Empty = those of the prior.
      standard_errors: Laplace standard errors of the center. covariance: of the center, or None.
      stack_covariances: by stack, its variants together, of its coefficients (center and offsets
        together), `[coefficient, coefficient]`: how well it is known. pair_covariances: the same by
        chip and stack, its variant among them, as `pair_key` names them.
      data: per source what was used (`source, rows, set_aside, median_error, …`). fitted_rows:
        fingerprints of the fitted rows.
      versions: of this package and those that matter for the numbers. noise: Student-t scale of
      ln(predicted / measured) by stack. footprints: what a stack holds in memory, by stack; only of
      those with measured peaks.
      scatter: by stack, its variants together, and of any other stack under "". seen: places of the
        fitted rows by stack
        `[row, feature]` (`dmodel.uncertainty.features`).
    """

    name: str
    description: str
    accelerators: tuple[str, ...] = ()
    stacks: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    center: np.ndarray = field(default_factory=_default_vector)
    offsets: Mapping[str, Mapping[str, np.ndarray]] = field(
        default_factory=lambda: {g: {} for g in GROUPINGS}
    )
    widths: Mapping[str, np.ndarray] = field(default_factory=dict)
    standard_errors: np.ndarray = field(default_factory=prior_widths)
    covariance: np.ndarray | None = None
    stack_covariances: Mapping[str, np.ndarray] = field(default_factory=dict)
    pair_covariances: Mapping[str, np.ndarray] = field(default_factory=dict)
    data: Sequence[Mapping[str, Any]] = ()
    fitted_rows: tuple[str, ...] = ()
    noise: Mapping[str, float] = field(default_factory=dict)
    footprints: Mapping[str, Fitted] = field(default_factory=dict)
    scatter: Mapping[str, Scatter] = field(default_factory=dict)
    seen: Mapping[str, np.ndarray] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    def unconstrained(self, accelerator: str | None = None, stack: str | None = None) -> np.ndarray:
        """Center plus the offsets of all groups of the accelerator and the stack that the profile
        knows; of a chip that it does not know, what single operations on it tell; `[coefficient]`.
        """
        total, of = self.center.copy(), members(accelerator, stack)
        for grouping, member in of.items():
            total = total + self.offsets[grouping].get(member, 0.0)
        if (chip := of["accelerator"]) and chip not in self.offsets["accelerator"]:
            total = total + self._told(chip, of["generation"])
        return total

    def _told(self, chip: str, generation: str) -> np.ndarray:
        """Offsets of a chip that no fitted row ran on, by what the catalog tells of its single
        operations over what its generation has, `[coefficient]`."""
        alike = self.center + self.offsets["generation"].get(generation, 0.0)
        told = {name: trait(chip, name) for name in SINGLE}
        return np.array(
            [
                unconstrained(name, value) - alike[i] if (value := told.get(name)) else 0.0
                for i, name in enumerate(NAMES)
            ]
        )

    def coefficients_for(
        self, accelerator: str | None = None, stack: str | None = None
    ) -> Coefficients:
        """The coefficients of one accelerator and stack (scalars)."""
        return from_unconstrained(self.unconstrained(accelerator, stack))

    @property
    def coefficients(self) -> Coefficients:
        """The shared coefficients."""
        return self.coefficients_for()

    @property
    def certain(self) -> Profile:
        """The same coefficients as if they were known: step times without intervals, which take
        nearly all of the time of a prediction."""
        return replace(self, covariance=None, stack_covariances={}, pair_covariances={})

    def footprint_for(self, stack: str | None = None) -> Fitted:
        """Footprint of a stack; of a variant that nobody has measured, that of its family
        (`every_variant`), and of a family that nobody has, the least; with how far that may be
        off."""
        name = stack or ""
        if name in self.footprints:
            return self.footprints[name]
        alike = self.footprints.get(every_variant(family(name)))
        if alike is None:
            return Fitted(LEAST, SPREAD)
        return Fitted(alike.footprint, math.hypot(alike.spread, VARIANTS))

    def describe(
        self, accelerator: str | None = None, stack: str | None = None
    ) -> list[dict[str, Any]]:
        """One record per coefficient: name, value, unit, meaning, bound, prior, standard error
        (unconstrained), whether data decide it."""
        values = self.coefficients_for(accelerator, stack)
        prior = _default_vector()
        rows = []
        for i, name in enumerate(NAMES):
            spec = SPECS[name]
            rows.append(
                {
                    "name": name,
                    "value": float(getattr(values, name)),
                    "unit": spec.unit,
                    "meaning": spec.meaning,
                    "bound": spec.bound,
                    "prior_value": spec.default,
                    "prior_width": spec.width,
                    "standard_error": float(self.standard_errors[i]),
                    "determined": bool(self.standard_errors[i] < 0.5 * spec.width),
                    "moved": float(self.center[i] - prior[i]),
                }
            )
        return rows


def default_profile() -> Profile:
    """The prior itself: what the package believes without any measurement."""
    return Profile(name=PRIOR, description=FITTED_TO_NOTHING)
