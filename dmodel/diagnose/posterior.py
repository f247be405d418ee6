"""Which cause a measurement speaks for: marginal likelihoods by integration over sizes, and Bayes.

Under a cause of a size the logarithms of what is measured are Student-t (`uncertainty.FREEDOM`)
about the model's, with the scale matrix

    V = J Σ Jᵀ + A D Aᵀ + R,

the first term what the coefficients leave open; D what the model may be off by in compute, in what
is exposed and in the rest, sized so that the step as a whole is off by the profile's `misfit`; R
what a profiler's readings are off by, and the spread of memory. The same run elsewhere shares all
of that but what a cause moves between the parts. Sizes have a flat prior on their scale, weighed by
how much they change the step (`causes.Effect`); results of tests count beside, each independent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import lgamma, log, pi
from typing import NamedTuple

import numpy as np

from dmodel import uncertainty
from dmodel.diagnose.causes import Beliefs, Cause, Effect
from dmodel.diagnose.measured import RATES, SEQUENCES, UTILIZATION
from dmodel.diagnose.responses import LEAST_EXPOSED, OBSERVABLES, Responses
from dmodel.diagnose.subject import Subject
from dmodel.diagnose.variants import Variants

FINE = 64
"""Sizes over which a cause is integrated [count]."""


class Scaled(NamedTuple):
    """One hypothesis on its sizes.

    Attributes:
      mean, scale: ln of what it would show, `[size, 5]`, and how sure that is `[size, 5, 5]`.
      size: the sizes; weight: their prior, which adds up to 1, `[size]`.
      time: seconds that the step would seem to take, `[size]`.
      columns: its variants `[grid]`; pick: weights of these at the sizes, `[size, grid]`.
      least: ln of the seconds below which no step can seem to be, `[size]`; −∞ = any can.
    """

    mean: np.ndarray
    scale: np.ndarray
    size: np.ndarray
    weight: np.ndarray
    time: np.ndarray
    columns: np.ndarray
    pick: np.ndarray
    least: np.ndarray | float = -np.inf

    @property
    def column(self) -> np.ndarray:
        """The nearest variant, `[size]`."""
        return self.columns[self.pick.argmax(1)]

    def at(self, values: np.ndarray) -> np.ndarray:
        """Values of all variants `[n, …]` at the sizes, `[size, …]`."""
        return np.tensordot(self.pick, values[self.columns], 1)


class Table(NamedTuple):
    """All hypotheses about one run that can show.

    Attributes:
      names: "" for ordinary scatter, causes, "otherwise" last. prior: of each, adds up to 1.
      scaled: by hypothesis. faint: causes that cannot change the step by `Effect.least` → the
        most that they change it by.
    """

    names: tuple[str, ...]
    prior: np.ndarray
    scaled: tuple[Scaled, ...]
    faint: Mapping[str, float]


OVERCLOCKED = 0.9
"""Seconds over those at a chip's peak that a step may take: clocks can be a tenth above the nominal
one."""

IMPOSSIBLE = -1e3
"""ln of the density of what no chip can do."""

NOTHING, OTHERWISE = "nothing", "otherwise"
"""Names of the hypotheses that are no cause."""


def apparent(found: Responses, kind: str) -> np.ndarray:
    """ln of what somebody would take a step to last who reads a time, a rate or a utilization and
    believes the stated batch and peak, less that of the true one, `[n]`."""
    if kind not in (*RATES, *UTILIZATION):
        return np.zeros(len(found.tokens))
    if kind in UTILIZATION:
        return np.log((found.peak if kind == "mfu" else 1.0) / (found.tokens * found.flops))
    return -np.log(found.sequences if kind in SEQUENCES else found.tokens * found.kept)


def table(
    subject: Subject, cases: Variants, found: Responses, held: Beliefs, kind: str = "time"
) -> Table:
    """Hypotheses with what each would show.

    Args:
      kind: of what is measured of the step: "time", or a name of `measured.RATES` or
        `measured.UTILIZATION`.

    Causes that show the same in this run, such as two of a network that it does not use, are one:
    the first.
    """
    mean, seems = found.mean.copy(), apparent(found, kind)
    least = np.log(OVERCLOCKED * found.least) + seems
    mean[:, 0] += seems
    mean[:, OBSERVABLES.index("elsewhere")] += seems[cases.home]
    scale = found.cov + _own(subject, cases, found, held)
    whole = _at(mean, scale, 0)._replace(least=least[:1])
    names, prior, parts, faint = [NOTHING], [held.nothing[0]], [whole], {}
    for i, cause in enumerate(held.causes):
        columns = np.flatnonzero(cases.cause == i)
        if not columns.size:
            continue
        if not _is_room(subject, found, cause):
            faint[cause.name] = 0.0
            continue
        change = mean[columns, 0] - mean[0, 0]
        one = _spread_out(cause, columns, cases, (mean, scale), held.effect)
        if one is None:
            faint[cause.name] = float(change[np.argmax(np.abs(change))])
            continue
        if (same := _same(parts, one)) is not None:
            prior[same] += cause.probability
            continue
        names.append(cause.name)
        prior.append(cause.probability)
        parts.append(one._replace(least=one.at(least)))
    names.append(OTHERWISE)
    prior.append(held.otherwise[0])
    parts.append(_otherwise(parts[0], held))
    return Table(tuple(names), np.array(prior) / sum(prior), tuple(parts), faint)


def _same(parts: Sequence[Scaled], one: Scaled) -> int | None:
    """Which hypothesis shows what this one does at every size, so that nothing tells them apart."""
    for i, part in enumerate(parts):
        if part.mean.shape == one.mean.shape and np.allclose(
            part.mean, one.mean, rtol=0, atol=1e-9
        ):
            return i
    return None


def _is_room(subject: Subject, found: Responses, cause: Cause) -> bool:
    """Whether a device may be as full as a cause needs: by the prediction and twice its spread."""
    most = float(found.memory[0]) * np.exp(2.0 * subject.memory_spread)
    return bool(most >= cause.fills * float(subject.records.cluster.chip.hbm_bytes))


def _own(subject: Subject, cases: Variants, found: Responses, held: Beliefs) -> np.ndarray:
    """What is not the coefficients' doing, `[n, 5, 5]`: A D Aᵀ + R."""
    parts = np.array([held.parts[name] for name in ("compute", "exposed", "rest")])
    stated = found.shares[0]
    off = subject.misfit / np.sqrt(((stated * parts) ** 2).sum())
    # where little is exposed, its logarithm hardly moves
    seen = stated[1] / (stated[1] + LEAST_EXPOSED)
    of_parts = np.zeros((5, 3))
    of_parts[[0, 4]] = stated
    of_parts[1, 0], of_parts[2, 1] = 1.0, seen
    spread = of_parts * parts * off
    moved = (found.shares - found.shares[cases.home]) * parts * off
    reading = np.zeros((cases.count, 5))
    reading[:, 1:4] = held.reading["compute"], held.reading["exposed"], subject.memory_spread
    reading[:, 4] = np.hypot(held.reading["elsewhere"], np.linalg.norm(moved, axis=1))
    return spread @ spread.T + np.eye(5) * reading[:, None] ** 2


def _at(mean: np.ndarray, scale: np.ndarray, column: int) -> Scaled:
    at = slice(column, column + 1)
    time = np.exp(mean[at, 0])
    one = np.ones(1)
    return Scaled(mean[at], scale[at], one, one, time, np.array([column]), np.ones((1, 1)))


def _spread_out(
    cause: Cause,
    columns: np.ndarray,
    cases: Variants,
    shown: tuple[np.ndarray, np.ndarray],
    effect: Effect,
) -> Scaled | None:
    """A cause on the sizes over which it is integrated; None where none of them shows."""
    mean, scale = shown
    size = cause.size
    if size.is_listed:
        fine, pick = cases.size[columns], np.eye(len(columns))
    else:
        fine = size.between(FINE)
        pick = _between(size.scaled(cases.size[columns]), size.scaled(fine))
    means = pick @ mean[columns]
    weight = effect.weight(means[:, 0] - mean[0, 0], cause.stated)
    if not weight.any():
        return None
    return Scaled(
        mean=means,
        scale=np.einsum("fg,gij->fij", pick, scale[columns]),
        size=fine,
        weight=weight / weight.sum(),
        time=np.exp(means[:, 0]),
        columns=columns,
        pick=pick,
    )


def _between(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Weights of linear interpolation from known to wanted places, `[wanted, known]`."""
    return np.stack([np.interp(wanted, known, row) for row in np.eye(len(known))], 1)


def _otherwise(nothing: Scaled, held: Beliefs) -> Scaled:
    """The prediction with whatever else may happen."""
    wide = np.array([held.scales[name] for name in OBSERVABLES])
    return nothing._replace(scale=nothing.scale + np.diag(wide**2), least=-np.inf)


class Posterior(NamedTuple):
    """What measurements say, `[run]` each first.

    Attributes:
      probability: of every hypothesis, `[run, hypothesis]`. sizes: of each, the posterior weights
        of its sizes, `[run, size]`.
      evidence: ln of what the measurements are as likely as under all hypotheses together, `[run]`.
    """

    probability: np.ndarray
    sizes: tuple[np.ndarray, ...]
    evidence: np.ndarray


def posterior(
    of: Table,
    measured: np.ndarray,
    seen: Sequence[int],
    beside: Sequence[np.ndarray] | None = None,
) -> Posterior:
    """Bayes, for several measurements of one run at once.

    Args:
      measured: ln of what is measured, `[run, k]`. seen: which observables these are, `[k]`.
      beside: ln density of what else is known, by hypothesis at its sizes, `[size]` each.
    """
    sums, sizes = [], []
    for i, one in enumerate(of.scaled):
        terms = log_density(measured, one, seen) + np.log(np.maximum(one.weight, 1e-300))
        terms += 0.0 if beside is None else beside[i]
        terms += np.where(measured[:, :1] < one.least, IMPOSSIBLE, 0.0) if 0 in seen[:1] else 0.0
        top = terms.max(1, keepdims=True)
        total = top[:, 0] + np.log(np.exp(terms - top).sum(1))
        sums.append(total)
        sizes.append(np.exp(terms - total[:, None]))
    joint = np.stack(sums, 1) + np.log(of.prior)
    top = joint.max(1, keepdims=True)
    evidence = top[:, 0] + np.log(np.exp(joint - top).sum(1))
    return Posterior(np.exp(joint - evidence[:, None]), tuple(sizes), evidence)


def log_density(measured: np.ndarray, one: Scaled, seen: Sequence[int]) -> np.ndarray:
    """ln density of measurements `[run, k]` under every size of a hypothesis, `[run, size]`: a
    multivariate Student-t."""
    at = np.array(seen)
    scale = one.scale[:, at[:, None], at]
    gap = measured[:, None] - one.mean[:, at]
    distance = np.einsum("rsi,sij,rsj->rs", gap, np.linalg.inv(scale), gap)
    free, k = uncertainty.FREEDOM, len(at)
    fixed = lgamma(0.5 * (free + k)) - lgamma(0.5 * free) - 0.5 * k * log(free * pi)
    spread = -0.5 * np.linalg.slogdet(scale)[1]
    return fixed + spread - 0.5 * (free + k) * np.log1p(distance / free)
