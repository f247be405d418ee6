"""Fit a small physical form to measured times of one operation: Student-t noise, priors, L-BFGS
from several starts, many fits at once.

Residual `ln(predicted / measured)`, parameters in prior standard deviations in the unconstrained
space, as in the fit of whole steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dmodel.coefficients import Spec
from dmodel.types import Array, enable_float64

FREEDOM = 4.0
NOISE, NOISE_WIDTH = 0.06, 0.7
"""Prior of the Student-t scale of ln(predicted / measured): median, and standard deviation of its
logarithm."""

STEPS, STARTS = 120, 6


@dataclass(frozen=True, eq=False)
class Form:
    """A law of times.

    Attributes:
      name: of the law. specs: its coefficients, as those of the step model are described.
      time: (coefficients by name, cases) → seconds `[row]`.
    """

    name: str
    specs: Mapping[str, Spec]
    time: Callable[[Mapping[str, Array], Any], jax.Array]


class Problem(NamedTuple):
    """Rows of one fit.

    Attributes:
      cases: records of the form, `[row]` each. log_seconds, weight: `[row]`.
      mean, width: of the prior in the unconstrained space, `[C]`.
    """

    cases: Any
    log_seconds: Array
    weight: Array
    mean: Array
    width: Array


class Fitted(NamedTuple):
    """A fitted form: unconstrained values `[C]`, their covariance `[C, C]`, and the Student-t
    scale."""

    form: Form
    z: np.ndarray
    covariance: np.ndarray
    scale: float

    @property
    def values(self) -> dict[str, float]:
        """Coefficients by name in their units."""
        return {name: float(v) for name, v in constrained(self.form.specs, self.z).items()}

    @property
    def errors(self) -> dict[str, float]:
        """Standard error of each coefficient in the unconstrained space."""
        return dict(zip(self.form.specs, np.sqrt(np.diag(self.covariance)).tolist(), strict=True))

    def seconds(self, cases: Any) -> np.ndarray:
        """Predicted times [s], `[row]`."""
        return np.asarray(
            _seconds(jnp.asarray(self.z), jax.tree.map(jnp.asarray, cases), self.form)
        )


def constrained(specs: Mapping[str, Spec], z: Array) -> dict[str, jax.Array]:
    """Coefficients by name of unconstrained ones `[C]`: exp of the positive, sigmoid of the
    shares."""
    z = jnp.asarray(z)
    return {
        name: jax.nn.sigmoid(z[i]) if s.bound == "share" else jnp.exp(z[i])
        for i, (name, s) in enumerate(specs.items())
    }


def unconstrained(specs: Mapping[str, Spec], values: Mapping[str, float]) -> np.ndarray:
    """Inverse of `constrained`, `[C]`."""
    x = np.array([values[name] for name in specs], float)
    share = np.array([s.bound == "share" for s in specs.values()])
    return np.log(x) - np.where(share, np.log1p(-np.where(share, x, 0.0)), 0.0)


def problem(
    form: Form,
    cases: Any,
    seconds: np.ndarray,
    prior: Mapping[str, tuple[float, float]] | None = None,
) -> Problem:
    """A problem of all rows, each of weight 1.

    Args:
      prior: name → (mean, standard deviation) in the unconstrained space, in place of the form's
        own.
    """
    mean = unconstrained(form.specs, {name: s.default for name, s in form.specs.items()})
    width = np.array([s.width for s in form.specs.values()])
    for name, (m, sd) in (prior or {}).items():
        i = list(form.specs).index(name)
        mean[i], width[i] = m, sd
    return Problem(cases, np.log(seconds), np.ones(len(seconds)), mean, width)


def misfit(p: Array, form: Form, data: Problem) -> jax.Array:
    """Student-t misfit and prior: `Σ_i w_i [ln s + (ν + 1)/2 · ln(1 + r_i² / (ν s²))] + ½ |p|²`;
    the last of p is the noise scale's."""
    p = jnp.asarray(p)
    scale = NOISE * jnp.exp(NOISE_WIDTH * p[-1])
    r = _log_ratio(data.mean + data.width * p[:-1], data, form)
    return (
        data.weight
        * (jnp.log(scale) + 0.5 * (FREEDOM + 1.0) * jnp.log1p((r / scale) ** 2 / FREEDOM))
    ).sum() + 0.5 * (p**2).sum()


@partial(jax.jit, static_argnames="form")
def _seconds(z: jax.Array, cases: Any, form: Form) -> jax.Array:
    return form.time(constrained(form.specs, z), cases)


@partial(jax.jit, static_argnames="form")
def _descend(starts: jax.Array, data: Problem, form: Form) -> tuple[jax.Array, jax.Array]:
    """L-BFGS from every start `[problem, start, C + 1]`: where it ends, and the misfit there."""
    import optax  # takes longer to import than what reads fitted numbers takes

    solver = optax.lbfgs(
        memory_size=12, linesearch=optax.scale_by_backtracking_linesearch(20, store_grad=True)
    )

    def one(p: jax.Array, rows: Problem) -> tuple[jax.Array, jax.Array]:
        loss = partial(misfit, form=form, data=rows)
        value_and_grad = optax.value_and_grad_from_state(loss)

        def advance(carry: tuple, _: None) -> tuple[tuple, None]:
            q, state = carry
            value, grad = value_and_grad(q, state=state)
            updates, state = solver.update(grad, state, q, value=value, grad=grad, value_fn=loss)
            return (optax.apply_updates(q, updates), state), None

        (q, _), _ = jax.lax.scan(advance, (p, solver.init(p)), None, length=STEPS)
        return q, loss(q)

    return jax.vmap(jax.vmap(one, (0, None)))(starts, data)


def _padded(problems: Sequence[Problem]) -> Problem:
    """Problems of unlike lengths as one, `[problem, row]`: short ones repeat their first row at
    weight 0."""
    most = max(len(p.weight) for p in problems)  # type: ignore[arg-type]
    most = -(-most // 64) * 64

    def pad(x: Array) -> np.ndarray:
        x = np.asarray(x, float)
        return np.concatenate([x, np.repeat(x[:1], most - len(x), 0)])

    rows = [
        p._replace(
            cases=jax.tree.map(pad, p.cases),
            log_seconds=pad(p.log_seconds),
            weight=np.concatenate([p.weight, np.zeros(most - len(p.weight))]),  # type: ignore
        )
        for p in problems
    ]
    return jax.tree.map(lambda *x: jnp.stack([jnp.asarray(v) for v in x]), *rows)


def fit(
    form: Form, problems: Sequence[Problem], seed: int = 0, starts: int = STARTS
) -> list[Fitted]:
    """Fit a form to many problems at once; start 0 of each is the prior mean, the best end wins.

    Raises:
      FloatingPointError: a fit left the finite numbers.
    """
    enable_float64()
    data = _padded(problems)
    n = len(form.specs)
    spread = 0.7 * jax.random.normal(jax.random.key(seed), (len(problems), starts, n + 1)).at[
        :, 0
    ].set(0.0)
    with jax.numpy_dtype_promotion("standard"):  # optax adds its 32-bit counts to others
        ends, losses = _descend(spread, data, form)
    best = np.asarray(ends)[np.arange(len(problems)), np.nanargmin(np.asarray(losses), 1)]
    if not np.isfinite(best).all():
        raise FloatingPointError(
            f"{form.name}: the fit left the finite numbers; this is a defect of dmodel: please "
            "report the table"
        )
    z, scale = _unscaled(best, data)
    covariance = _covariance(z, scale, data, form)
    return [
        Fitted(form, *end)
        for end in zip(
            np.asarray(z), np.asarray(covariance), np.asarray(scale).tolist(), strict=True
        )
    ]


def _unscaled(p: np.ndarray, data: Problem) -> tuple[jax.Array, jax.Array]:
    """Coefficients in the unconstrained space `[problem, C]` and noise scales `[problem]` of
    parameters `[problem, C + 1]`."""
    return jnp.asarray(data.mean + data.width * jnp.asarray(p[:, :-1])), NOISE * jnp.exp(
        NOISE_WIDTH * jnp.asarray(p[:, -1])
    )


def _log_ratio(z: Array, data: Problem, form: Form) -> jax.Array:
    """ln(predicted / measured) of one problem, `[row]`."""
    return jnp.log(form.time(constrained(form.specs, z), data.cases)) - data.log_seconds


@partial(jax.jit, static_argnames="form")
def _covariance(z: jax.Array, scale: jax.Array, data: Problem, form: Form) -> jax.Array:
    """Gauss-Newton Laplace, `[problem, C, C]`: `H = Σ w ω J Jᵀ + prior`, `ω = (ν + 1) / (ν s² +
    r²)`."""

    def one(z: jax.Array, scale: jax.Array, rows: Problem) -> jax.Array:
        omega = (
            rows.weight * (FREEDOM + 1.0) / (FREEDOM * scale**2 + _log_ratio(z, rows, form) ** 2)
        )
        design = jax.jacfwd(_log_ratio)(z, rows, form) * jnp.asarray(rows.width)[None]
        width = jnp.asarray(rows.width)
        inverse = jnp.linalg.inv((design * omega[:, None]).T @ design + jnp.eye(len(z)))
        return inverse * jnp.outer(width, width)

    return jax.vmap(one)(z, scale, data)


@partial(jax.jit, static_argnames="form")
def _log_ratios(z: Array, data: Problem, form: Form) -> jax.Array:
    return jax.vmap(partial(_log_ratio, form=form))(z, data)


def log_ratios(fits: Sequence[Fitted], problems: Sequence[Problem]) -> list[np.ndarray]:
    """ln(predicted / measured) of the rows of each problem under its fit; all fits of one form."""
    data = _padded(problems)
    every = np.asarray(_log_ratios(jnp.asarray(np.stack([f.z for f in fits])), data, fits[0].form))
    return [r[: len(p.weight)] for r, p in zip(every, problems, strict=True)]  # type: ignore


def halves(n: int, seed: int) -> np.ndarray:
    """A random half of n rows, `[row]` bool."""
    chosen = np.zeros(n, bool)
    chosen[np.random.default_rng(seed).permutation(n)[: (n + 1) // 2]] = True
    return chosen


def take(rows: Problem, keep: np.ndarray) -> Problem:
    """Some rows of a problem."""
    cases = jax.tree.map(lambda x: np.asarray(x)[keep], rows.cases)
    return rows._replace(
        cases=cases,
        log_seconds=np.asarray(rows.log_seconds)[keep],
        weight=np.asarray(rows.weight)[keep],
    )
