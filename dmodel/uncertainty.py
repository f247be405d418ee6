"""How far a prediction may be off: intervals, chances, and what two plans have in common.

The logarithm of a time that nobody has measured is Student-t (`FREEDOM`) about that of the
predicted one, with scale σ,

    σ² = jᵀ Σ j + s² + τ² (1 − exp(−d² / 2 ℓ²)),

j the slope of ln t by the unconstrained coefficients, Σ their covariance for a chip and stack, s
the noise of a run like one that was fitted, τ what the model lacks, d the distance to the nearest
fitted run of the stack (`features`), ℓ = `REACH`. Σ comes from the fit; s and τ from residuals of
rows left out of it (`calibration.uncertainty.scatter`), as in-sample residuals are too small. The
first term is the variance over sigma points (`points`, `parameter_sd`): it needs no derivative,
bends with the output, and any output carries it.
"""

from __future__ import annotations

from math import acos, cos, sqrt
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dmodel.coefficients import from_unconstrained
from dmodel.errors import InputError
from dmodel.profiles import Profile, family, members, of_new_maker
from dmodel.profiles.record import Scatter, pair_key
from dmodel.recorded import Recorded
from dmodel.records import Cluster, Model, Plan, ff_width, value
from dmodel.step import step_time
from dmodel.types import Array

LEVEL = 0.9
"""Share of measurements that an interval is to hold."""

SIDE = 1.645
"""Standard deviations to each side that hold 90 % of a normal quantity: peaks of memory."""

FREEDOM = 4
"""Degrees of freedom of the Student-t; closed forms below are of this number."""

REACH = 1.0
"""Distance at which 39 % of the discrepancy's variance is there: a factor of e in one size of the
run."""

OTHER_VARIANT = 1.0
"""Distance between runs that differ in nothing but the variant of their stack."""

COMMON = 0.5
"""Correlation of what the model lacks between two plans of one stack and model."""

STRANGERS: dict[str, float] = {
    name: 2.0 for name in ("generation", "accelerator", "lineage", "stack", "port", "pair")
}
"""How many of its widths a group that a profile does not know may lie from those that it does:
software, chips, and one on the other. Of 153 rows of 13 sources left out, most on chips or stacks
of which no row was fitted, intervals of one width (1.5 of software) held 62 % of dense rows and 68
of those with experts, of two 91 and 79 (docs/notes/accuracy_on_new_sources.md)."""

NEW_MAKER = 2.5
"""How many of its widths a chip may lie from what a profile knows that has no chip of its maker,
and software on it that the profile has seen on other makers' chips only. Most likely for rows of
AMD's and of Google's chips, each left out of the fit (docs/uncertainty.md)."""

STRANGER = Scatter(0.05, 0.1)
"""Scatter where a profile knows none."""


def features(system: Cluster, model: Model, plan: Plan) -> np.ndarray:
    """Place of each run among others, `[row, feature]`: logarithms of its sizes, degrees and the
    chip, and its switches; distances are Euclidean. Sizes that go together (width and feed-forward
    width, batch and micro-batches) count half."""
    layout = plan.layout
    log = lambda x: np.log(np.maximum(np.asarray(x, float), 1e-9))  # noqa: E731
    columns = (
        log(model.d_model),
        0.5 * log(ff_width(model)),
        log(model.n_layers),
        log(model.seq_len),
        0.5 * log(np.asarray(value(model, "n_experts", 1.0)) + 1.0),
        np.asarray(model.trainable, float),
        log(layout.micro_batch),
        0.5 * log(plan.global_batch),
        log(layout.dp),
        log(layout.tp),
        log(layout.pp),
        log(layout.cp),
        log(layout.ep),
        0.5 * np.asarray(layout.zero, float),
        0.5 * np.asarray(layout.sp, float),
        np.asarray(
            layout.recompute_layers + (1.0 - layout.recompute_layers) * layout.recompute_products,
            float,
        ),
        0.5 * np.asarray(layout.recompute_attention, float),
        log(plan.precision.operand_bytes),
        log(system.chip.attention_flops_per_s),
    )
    return np.stack(np.broadcast_arrays(*map(np.atleast_1d, columns)), 1)


def nearest(
    place: np.ndarray, stack: np.ndarray, seen: np.ndarray, seen_stack: np.ndarray
) -> np.ndarray:
    """Distances `[row, seen]` between runs of stacks; infinite between families of stacks."""
    squared = (place**2).sum(1)[:, None] + (seen**2).sum(1)[None] - 2.0 * place @ seen.T
    squared = np.maximum(squared, 0.0) + OTHER_VARIANT**2 * (stack[:, None] != seen_stack[None])
    families, others = (
        np.array([family(s) for s in names.tolist()], str) for names in (stack, seen_stack)
    )
    return np.where(families[:, None] == others[None], np.sqrt(squared), np.inf)


def distance(profile: Profile, stack: str, place: np.ndarray) -> np.ndarray:
    """Distance of runs of one stack to the nearest that the profile was fitted to, `[row]`;
    infinite for a stack that it does not know."""
    known = _seen(profile, stack) if stack else {}
    if not known:
        return np.full(len(place), np.inf)
    names = np.repeat(list(known), [len(rows) for rows in known.values()])
    rows = np.concatenate(list(known.values()))
    if rows.shape[1] != place.shape[1]:
        raise InputError(
            f"profile {profile.name}: fitted runs have {rows.shape[1]} features, expected "
            f"{place.shape[1]}: fit it again"
        )
    return nearest(place, np.repeat([stack], len(place)), rows, names).min(1)


def _seen(profile: Profile, stack: str) -> dict[str, np.ndarray]:
    """Runs that the profile was fitted to, by stacks of one family."""
    of = family(stack)
    return {name: rows for name, rows in profile.seen.items() if family(name) == of and len(rows)}


def covariance(profile: Profile, accelerator: str | None, stack: str | None) -> np.ndarray | None:
    """Covariance of the unconstrained coefficients of an accelerator and stack, `[C, C]`: what the
    fit left open, and for every group that the profile does not know the variance among its
    members. None where the profile carries no covariance."""
    chip, software = accelerator or "", stack or ""
    own = profile.pair_covariances.get(pair_key(chip, software))
    if own is not None:
        return np.asarray(own)
    base = profile.stack_covariances.get(family(software), profile.covariance)
    if base is None:
        return None
    widths = profile.widths
    unknown = [g for g in _unknown_groups(profile, chip, software) if g in widths]
    strange = of_new_maker(profile.offsets, chip, software)
    factors = STRANGERS | dict.fromkeys(strange, NEW_MAKER)
    among = [(widths[g] * factors.get(g, 1.0)) ** 2 for g in unknown]
    return np.asarray(base) + np.diag(sum(among, start=np.zeros(len(base))))


def _unknown_groups(profile: Profile, chip: str, software: str) -> list[str]:
    """Groups of whose members here the profile does not know this one."""
    named = {g: m for g, m in members(chip or "?", software or "?").items() if m}
    unknown = [g for g, m in named.items() if m not in profile.offsets[g]]
    if not software and _is_of_one_code_base(profile):
        unknown.remove("lineage")  # a view of one code base speaks for it
    return unknown


def _is_of_one_code_base(profile: Profile) -> bool:
    return len({members(None, s)["lineage"] for s in profile.stacks}) == 1


def points(mean: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """The mean, and √3 standard deviations to both sides of it along C directions whose squares sum
    to a covariance, `[C, 1 + 2 C]`.

    Every direction mixes all principal axes (by a cosine transform): a kink on one of them weighs
    little on all, not much on one.
    """
    values, axes = np.linalg.eigh(sigma)
    n = np.arange(len(values))
    mixed = np.cos(np.pi * (n[:, None] + 0.5) * n / len(n)) * np.sqrt(2.0 / len(n))
    mixed[:, 0] /= np.sqrt(2.0)
    steps = np.sqrt(3.0) * (axes * np.sqrt(np.maximum(values, 0.0))) @ mixed
    return np.concatenate([mean[:, None], mean[:, None] + steps, mean[:, None] - steps], 1)


def parameter_sd(draws: np.ndarray) -> np.ndarray:
    """Standard deviation of an output from its values at the `points`, `[1 + 2 C, ...]`: `√Σ_k ⅙
    (d₊² + d₋²) − (⅙ (d₊ + d₋))²` with d the difference to the value at the mean.

    By three points of Gauss and Hermite along each direction: exact where the output is a sum of
    quadratic ones along them.
    """
    half = (len(draws) - 1) // 2
    up, down = draws[1 : half + 1] - draws[0], draws[half + 1 :] - draws[0]
    return np.sqrt(((up**2 + down**2) / 6.0 - ((up + down) / 6.0) ** 2).sum(0))


def scatter_of(profile: Profile, stack: str | None) -> Scatter:
    """Scatter of a stack: its own, else that of one nobody has measured."""
    return profile.scatter.get(family(stack or ""), profile.scatter.get("", STRANGER))


def misfit(found: Scatter, distance: np.ndarray) -> np.ndarray:
    """Scale of what is not the coefficients' doing, `√(s² + τ² (1 − exp(−d² / 2 ℓ²)))`."""
    return np.sqrt(
        found.noise**2
        + found.discrepancy**2 * -np.expm1(-0.5 * (np.asarray(distance) / REACH) ** 2)
    )


def share_below(x: np.ndarray) -> np.ndarray:
    """Distribution function of the Student-t with 4 degrees of freedom: `½ + ⅜ u (1 − u² / 12)`
    with `u = x / √(1 + x² / 4)`.

    >>> float(share_below(np.array(2.131846786)).round(6))
    0.95
    """
    u = np.asarray(x) / np.sqrt(1.0 + np.asarray(x) ** 2 / 4.0)
    return 0.5 + 0.375 * u * (1.0 - u**2 / 12.0)


def quantile(level: float = LEVEL) -> float:
    """How many scales to each side hold a share of the Student-t with 4 degrees of freedom (Shaw
    2006, closed form).

    >>> round(quantile(0.9), 4)
    2.1318
    """
    p = 0.5 + 0.5 * level
    root = sqrt(4.0 * p * (1.0 - p))
    return 2.0 * sqrt(cos(acos(root) / 3.0) / root - 1.0)


def band(value: Array, scale: Array, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper end of the interval of a positive output: `value · exp(∓ q σ)`."""
    factor = np.exp(quantile(level) * np.asarray(scale))
    return np.asarray(value) / factor, np.asarray(value) * factor


class Uncertain(NamedTuple):
    """Step times with what is not known of them.

    Attributes:
      value, low, high: [s], `[plan]`; the interval holds `LEVEL`. scale: Student-t scale of the
        logarithm, `[plan]`.
      misfit: the part of it that is not the coefficients'. draws: ln t at the sigma points, `[1 + 2
        C, plan]`.
    """

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    scale: np.ndarray
    misfit: np.ndarray
    draws: np.ndarray


def uncertain(draws: np.ndarray, rest: np.ndarray) -> Uncertain:
    """Step times from ln t at the sigma points `[1 + 2 C, plan]`, and what is not the coefficients'
    doing, `misfit` `[plan]`."""
    scale, value = np.hypot(parameter_sd(draws), rest), np.exp(draws[0])
    return Uncertain(value, *band(value, scale), scale, rest, draws)


def _log_time(system: Cluster, model: Model, plan: Plan, coefficients: Any) -> dict[str, Any]:
    return {"log_time": jnp.log(jnp.asarray(step_time(system, model, plan, coefficients).total))}


LOG_TIME = Recorded(_log_time)


FEW = 32
"""Plans whose draws are computed all at once."""


def _draws(system: Cluster, model: Model, plan: Plan, z: np.ndarray) -> np.ndarray:
    """ln t of plans, leaves `[plan]` or `[1]`, at points of the coefficients, `[point, plan]`."""
    plans = max(np.shape(x)[-1] for x in jax.tree.leaves((model, plan)))
    if plans > FEW:
        each = [from_unconstrained(row[:, None]) for row in z.T]
        return np.stack([LOG_TIME(system, model, plan, c)["log_time"] for c in each])
    points = z.shape[1]

    def repeated(x: Array, rank: int = 1) -> np.ndarray:
        whole = np.ndim(x) == rank and np.shape(x)[-1] == plans
        return np.tile(x, (*[1] * (rank - 1), points)) if whole else np.asarray(x)

    cluster = system.replace(
        chip=jax.tree.map(repeated, system.chip),
        network=jax.tree.map(lambda x: repeated(x, 2), system.network),
    )
    records: Any = jax.tree.map(repeated, (model, plan))
    coefficients = from_unconstrained(np.repeat(z, plans, 1))
    found = LOG_TIME(cluster, *records, coefficients)["log_time"]
    return found.reshape(points, plans)


def step_times(
    profile: Profile, accelerator: str, stack: str, system: Cluster, model: Model, plan: Plan
) -> Uncertain | None:
    """Step times of plans of one chip and stack, with intervals.

    Args:
      system, model, plan: leaves scalars or `[plan]` (of the network `[K]` or `[K, plan]`).
    Returns:
      None where the profile carries no covariance.
    """
    sigma = covariance(profile, accelerator, stack)
    if sigma is None:
        return None
    z = points(profile.unconstrained(accelerator, stack), sigma)
    records = model.replace(order=()), plan
    leaves: Any = jax.tree.map(lambda x: np.atleast_1d(np.asarray(x, float)), records)
    draws = _draws(system, leaves[0], leaves[1], z)
    far = np.broadcast_to(distance(profile, stack, features(system, model, plan)), draws.shape[1:])
    return uncertain(draws, misfit(scatter_of(profile, stack), far))


class Gap(NamedTuple):
    """Logarithm of how much longer one plan takes than another, and the Student-t scale of what is
    not known of that [1]."""

    value: float
    scale: float

    @property
    def probability(self) -> float:
        """Chance that it is above 0."""
        return float(share_below(np.asarray(self.value / self.scale)))

    def beyond(self, more: float) -> Gap:
        """The gap where a unit of the other's time counts `exp(more)` units of the one's."""
        return self._replace(value=self.value + more)


def gap_between(found: Uncertain, a: int, b: int) -> Gap:
    """How much longer plan b takes than plan a, both of the same job: their coefficients are the
    same, and so is a share `COMMON` of what the model lacks of both."""
    gap = found.draws[:, b] - found.draws[:, a]
    own = (1.0 - COMMON) * (found.misfit[a] ** 2 + found.misfit[b] ** 2)
    return Gap(float(gap[0]), float(np.sqrt(parameter_sd(gap) ** 2 + own)))


def gap_apart(first: Uncertain, other: Uncertain) -> Gap:
    """How much longer another plan takes than the first, whose coefficients and software are not
    its own: nothing is common to what is not known of both.

    Args:
      first, other: one plan each.
    """
    scale = float(np.hypot(first.scale[0], other.scale[0]))
    return Gap(float(np.log(other.value[0] / first.value[0])), scale)


def probability_faster(found: Uncertain, a: int, b: int, more: float = 0.0) -> float:
    """Chance that plan a takes less time than plan b (`gap_between`).

    Args:
      more: logarithm of what a unit of b's time counts over one of a's, such as of their rents.

    Limits: ½ for a plan and itself; 0 or 1 when they differ by many scales.
    """
    return gap_between(found, a, b).beyond(more).probability
