"""How much each row counts for in a fit, and why none may be left."""

from __future__ import annotations

import numpy as np

from calibration.replay import WEIGHT
from calibration.traces import Cases
from calibration.traces.table import IMPLAUSIBLE, without_doubt

FLAG_WEIGHTS = {"derived-from-tflops": 0.5, "offload": 0.0, IMPLAUSIBLE: 0.0}
"""Weight of flagged rows in a fit: times derived from rounded TFLOP/s carry a convention; host-side
optimizers are set apart, because the model has no mechanism for them; what is hard to believe
teaches nothing. Rows that are slow for no
listed reason count in full: the noise has heavy tails, and most of those found so far had a
mechanism (`coefficients.SPECS["rendezvous"]`)."""

COMPOSED_ROWS = 75.0
"""Rows flagged `composed` are sums of few measured parts: together they count as this many at most,
however many there are."""


def weights_of(flags: np.ndarray) -> np.ndarray:
    """Weight of each row by its flags: the least of `FLAG_WEIGHTS` that applies, and for composed
    rows their share of `COMPOSED_ROWS`."""
    words = [_words(flag) for flag in flags]
    composed = np.array(["composed" in w for w in words])
    weight = np.array([min((FLAG_WEIGHTS.get(f, 1.0) for f in w), default=1.0) for w in words])
    return np.where(composed, weight * min(1.0, COMPOSED_ROWS / max(composed.sum(), 1)), weight)


def _words(flag: object) -> list[str]:
    """The words of a row's flag."""
    return str(flag).replace(";", " ").split()


def believed(cases: Cases) -> Cases:
    """The cases without the flag of rows that can hardly be right, so that a fit takes them."""
    flags = np.array([without_doubt(str(flag)) for flag in cases.labels.flag], np.str_)
    return cases.replace(labels=cases.labels._replace(flag=flags))


def weights_beside(flags: np.ndarray, kept: np.ndarray, old: Cases | None) -> np.ndarray:
    """Weights of the kept rows, then of those replayed; composed rows of both share what they count
    for."""
    told = flags[:0] if old is None else old.labels.flag
    weight = weights_of(np.append(flags, told))
    return np.append(weight[: len(flags)][kept], WEIGHT * weight[len(flags) :])


def nothing_left(cases: Cases, held_out: np.ndarray | None) -> str:
    """Why no row is left to fit, and what to do: rows held out, those whose flag leaves them out,
    those without a time."""
    flags, n = cases.labels.flag, len(cases)
    held = np.zeros(n, bool) if held_out is None else np.asarray(held_out, bool)
    flagged = ~held & (weights_of(flags) == 0.0)
    untimed = int((~held & ~flagged).sum())
    why, remedies = [], []
    if held.any():
        groups = len(set(cases.labels.group[held].tolist()))
        why.append(
            f"{held.sum()} are held out (whole groups of model, accelerator and devices: here "
            f"{groups})"
        )
        remedies.append("hold out a smaller share, or add rows of other groups")
    if flagged.any():
        names = _never_fitted(flags[flagged])
        why.append(f"{flagged.sum()} are flagged {names}, which is judged but never fitted")
        remedies.append(f"add rows without the flag {names}")
        remedies += ["or ask for them (--with-implausible)"] * (IMPLAUSIBLE in names)
    if untimed:
        why.append(f"{untimed} have no measured time")
        remedies.append("fill step_time_s or tokens_per_s_per_accel")
    return (
        f"nothing to fit: of {n} usable rows {', '.join(why)}; expected at least one row that has "
        "a time, is not held out and has no such "
        f"flag: {'; '.join(remedies)}"
    )


def _never_fitted(flags: np.ndarray) -> str:
    """Words of some flags that leave a row out of every fit."""
    words = {word for flag in flags for word in _words(flag)}
    return ", ".join(sorted(word for word in words if FLAG_WEIGHTS.get(word) == 0.0))
