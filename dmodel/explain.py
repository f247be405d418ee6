"""Where each term of a step comes from: formula, work, rate, coefficients with their errors, what
hides it, and the source (`dmodel.terms.TERMS`)."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np

from dmodel import uncertainty
from dmodel.breakdown import TERMS as NAMES
from dmodel.coefficients import NAMES as COEFFICIENTS
from dmodel.coefficients import SPECS
from dmodel.errors import InputError
from dmodel.prediction import Prediction
from dmodel.terms import TERMS, Amount, Term, quantity


class Coefficient(NamedTuple):
    """A fitted coefficient of a term; error: its standard deviation, None where it is not known."""

    name: str
    value: float
    error: float | None
    unit: str
    meaning: str

    def __str__(self) -> str:
        error = "" if self.error is None else f" ± {self.error:.2g}"
        unit = "" if self.unit in ("1", "") else f" {self.unit}"
        return f"{self.name} = {self.value:.4g}{error}{unit}: {self.meaning}"


class Explained(NamedTuple):
    """Where one term of a step comes from; seconds of the step, and share of it [1]."""

    name: str
    seconds: float
    share: float
    term: Term
    amounts: tuple[Amount, ...]
    coefficients: tuple[Coefficient, ...]

    def document(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "term": self.name,
            "seconds": self.seconds,
            "share": self.share,
            "meaning": self.term.meaning,
            "formula": self.term.formula,
            "amounts": [each._asdict() for each in self.amounts],
            "coefficients": [each._asdict() for each in self.coefficients],
            "hides": self.term.hides,
            "source": self.term.source,
        }

    def __str__(self) -> str:
        lines = [
            f"{self.name}: {quantity(self.seconds, 's')}, {self.share:.1%} of the step",
            f"  {self.term.meaning}",
            f"  formula: {self.term.formula}",
            *(f"  {each}" for each in self.amounts),
            *(f"  {each}" for each in self.coefficients),
            *([f"  hidden by: {self.term.hides}"] if self.term.hides else []),
            f"  source: {self.term.source}",
        ]
        return "\n".join(lines)


def explained(found: Prediction, term: str = "all") -> tuple[Explained, ...]:
    """Where terms of a step come from, in the order of the breakdown; with "all", those that are
    not zero.

    Args:
      term: one of `dmodel.breakdown.TERMS`, or "all".
    Raises:
      InputError: an unknown term, with the nearest.
    """
    name = term.strip().lower().replace("-", "_").replace(" ", "_")
    _refuse_unknown(name, term)
    seconds = {each: getattr(found.breakdown, each) for each in NAMES}
    names = [n for n in NAMES if seconds[n] > 0.0] if name == "all" else [name]
    errors = _errors(found)
    return tuple(_explained(found, each, seconds[each], errors) for each in names)


def _refuse_unknown(name: str, term: str) -> None:
    """Refuse a name that is neither a term's nor "all"."""
    if name != "all" and name not in TERMS:
        close = ", ".join(get_close_matches(name, TERMS, 3, 0.4))
        hint = f"nearest: {close}; " if close else ""
        raise InputError(f"unknown term {term!r}; {hint}terms are all, {', '.join(TERMS)}")


def _explained(
    found: Prediction, name: str, seconds: float, errors: Mapping[str, float]
) -> Explained:
    term = TERMS[name]
    return Explained(
        name=name,
        seconds=seconds,
        share=seconds / found.step_time_s,
        term=term,
        amounts=tuple(term.amounts(found.case, seconds)),
        coefficients=tuple(_coefficient(found, each, errors) for each in term.coefficients),
    )


def _coefficient(found: Prediction, name: str, errors: Mapping[str, float]) -> Coefficient:
    spec, value = SPECS[name], float(getattr(found.asked.coefficients, name))
    slope = value * (1.0 - value) if spec.bound == "share" else value
    error = slope * errors[name] if name in errors else None
    return Coefficient(name, value, error, spec.unit, spec.meaning)


def _errors(found: Prediction) -> dict[str, float]:
    """Standard deviations of the unconstrained coefficients; none without a covariance."""
    asked = found.asked
    sigma = uncertainty.covariance(asked.profile, asked.accelerator, asked.stack)
    if sigma is None:
        return {}
    return dict(zip(COEFFICIENTS, np.sqrt(np.diag(sigma)).tolist(), strict=True))
