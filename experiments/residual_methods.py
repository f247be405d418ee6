"""Two corrections learned from residuals of the model: a small network of dimensionless features,
and kriging between runs.

Both map rows with a known residual `ln(measured / predicted)` and rows without one to a correction
of the latter, within ±`LIMIT`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from calibration.traces import Cases

LIMIT = 0.3
"""Largest correction of ln time: what is further off lacks a mechanism, not a correction."""

MEMBERS, FOLDS, UNITS, STEPS, RATE, DECAY = 8, 4, 16, 300, 1e-2, 0.3
"""The ensemble: networks, parts of the rows of which each network leaves one out, hidden units,
steps, rate and weight decay of AdamW."""

HUBER = 0.1
"""Residuals beyond this count linearly."""

SPREAD, NOISE, LENGTH, ALIKE = 0.1, 0.03, 2.0 * np.log(2.0), 0.9
"""Kriging: standard deviation of a correction, of a measurement, length over which corrections lose
touch (2 octaves), and the correlation left between chips, variants of a stack, precisions (each).
"""


class Points(NamedTuple):
    """Rows as the methods see them.

    Attributes:
      features: dimensionless `[row, feature]`. place: logarithms of sizes and degrees, and switches
        `[row, size]`.
      kind: chip, stack, precision `[row, 3]`. group: rows that are left out together `[row]`.
    """

    features: np.ndarray
    place: np.ndarray
    kind: np.ndarray
    group: np.ndarray


class Known(NamedTuple):
    """Rows with residuals `[row]`, and their weights."""

    points: Points
    residual: np.ndarray
    weight: np.ndarray


Method = Callable[[Known, Points, int], np.ndarray]
"""(known rows, rows asked for, seed) → corrections of ln time `[row]`."""


def points(cases: Cases, shares: np.ndarray, group: np.ndarray) -> Points:
    """Rows as the methods see them.

    Args:
      shares: of the terms in the predicted time `[row, term]`. group: `[row]`.
    """
    model, plan, labels = cases.model, cases.plan, cases.labels
    tokens = np.asarray(plan.layout.micro_batch) * model.seq_len / plan.layout.cp
    degrees = (
        plan.layout.dp,
        plan.layout.tp,
        plan.layout.pp,
        plan.layout.cp,
        plan.layout.ep,
        plan.n_microbatches,
    )
    switches = [
        np.asarray(x, float)
        for x in (
            plan.layout.sp,
            0.5 * np.asarray(plan.layout.zero),
            plan.layout.recompute_layers,
            plan.layout.recompute_attention,
        )
    ]
    ratios = (
        plan.global_batch * np.asarray(model.seq_len) / plan.devices,
        _intensity(cases, tokens),
        model.seq_len / model.d_model,
    )
    sizes = (model.d_model, model.n_layers, model.seq_len, plan.layout.micro_batch)
    return Points(
        features=np.column_stack([shares, _logs(*ratios, *degrees), *switches]),
        place=np.column_stack([_logs(*sizes, *degrees), *switches]),
        kind=np.column_stack([labels.accelerator, labels.stack, labels.precision]),
        group=group,
    )


def _intensity(cases: Cases, tokens: np.ndarray) -> np.ndarray:
    """FLOPs per byte of a `[t, d] × [d, d/tp]` product over those at which the chip computes as
    long as it reads [1]."""
    t, d, n = (
        tokens,
        np.asarray(cases.model.d_model),
        np.asarray(cases.model.d_model) / cases.plan.layout.tp,
    )
    per_byte = 2.0 * t * d * n / (cases.plan.precision.operand_bytes * (t * d + d * n + t * n))
    return per_byte * cases.system.chip.hbm_bytes_per_s / cases.system.chip.flops_per_s


def _logs(*values: object) -> np.ndarray:
    return np.column_stack([np.log(np.asarray(v, float)) for v in values])


def nothing(known: Known, asked: Points, seed: int) -> np.ndarray:
    """No correction: the model as it is."""
    return np.zeros(len(asked.group))


class Net(nn.Module):
    """`0.3 tanh(w₂ · tanh(W₁ x + b₁) + b₂)`: bounded, and 0 before any training."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Features `[row, feature]` → correction of ln time `[row]`."""
        hidden = nn.tanh(nn.Dense(UNITS, param_dtype=jnp.float64)(x))
        return LIMIT * nn.tanh(
            nn.Dense(1, param_dtype=jnp.float64, kernel_init=nn.initializers.zeros)(hidden)[:, 0]
        )


def mlp(known: Known, asked: Points, seed: int) -> np.ndarray:
    """Mean of an ensemble, times the share of it that rows left out bear out.

    Each member leaves out some groups; `λ = Σ r f / Σ f²`, within 0 and 1, is the least-squares
    share of f, the mean of those members that have not seen a row, in the row's residual r.
    """
    out = _left_out(known.points.group, np.random.default_rng(seed))
    x, where = _scaled(known.points.features, asked.features)
    found = _ensemble(x, np.clip(known.residual, -LIMIT, LIMIT), known.weight * ~out, where, seed)
    of_known, of_asked = found[:, : len(x)], found[:, len(x) :]
    unseen = (of_known * out).sum(0) / out.sum(0)
    power = (known.weight * unseen**2).sum()
    share = (
        np.clip((known.weight * unseen * known.residual).sum() / power, 0.0, 1.0)
        if power > 0.0
        else 0.0
    )
    return share * of_asked.mean(0)


def _left_out(group: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Which rows each member leaves out `[member, row]`: whole groups, or single rows where there
    are fewer groups than parts."""
    _, index = np.unique(group, return_inverse=True)
    index = index if index.max() + 1 >= FOLDS else np.arange(len(group))
    part = rng.permutation(int(index.max()) + 1)[index] % FOLDS
    return part[None] == np.arange(MEMBERS)[:, None] % FOLDS


def _scaled(known: np.ndarray, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both in standard deviations of the known rows, within ±3; what does not vary there tells
    nothing."""
    sd = known.std(0)
    scale = np.where(sd > 0.01, sd, np.inf)
    return tuple(np.clip((x - known.mean(0)) / scale, -3.0, 3.0) for x in (known, asked))


def _ensemble(
    x: np.ndarray, residual: np.ndarray, weight: np.ndarray, asked: np.ndarray, seed: int
) -> np.ndarray:
    """Corrections of known and asked rows by every member `[member, row]`; rows are filled up to
    few sizes, so that little is compiled."""
    size = 16 * 4 ** max(0, int(np.ceil(np.log(len(x) / 16) / np.log(4.0))))
    more = ((0, size - len(x)), (0, 0))
    x_full, r_full, w_full = (
        np.pad(x, more),
        np.pad(residual, more[0]),
        np.pad(weight, ((0, 0), more[0])),
    )
    parameters = _trained(jax.random.split(jax.random.key(seed), MEMBERS), x_full, r_full, w_full)
    of = jax.vmap(Net().apply, (0, None))
    return np.asarray(of(parameters, jnp.asarray(np.concatenate([x, asked]))))


@cache
def _optimizer() -> optax.GradientTransformation:
    return optax.adamw(RATE, weight_decay=DECAY)


@partial(jax.jit)
@partial(jax.vmap, in_axes=(0, None, None, 0))
def _trained(key: jax.Array, x: jax.Array, residual: jax.Array, weight: jax.Array) -> Any:
    """Parameters of one member after all steps."""

    def loss(parameters: Any) -> jax.Array:
        misses = optax.losses.huber_loss(Net().apply(parameters, x), residual, delta=HUBER)
        return (weight * misses).sum() / weight.sum()

    def step(carry: tuple, _: None) -> tuple:
        parameters, state = carry
        change, state = _optimizer().update(jax.grad(loss)(parameters), state, parameters)
        return (optax.apply_updates(parameters, change), state), None

    start = Net().init(key, x)
    return jax.lax.scan(step, (start, _optimizer().init(start)), None, STEPS)[0][0]


def kriging(known: Known, asked: Points, seed: int) -> np.ndarray:
    """`K_*ᵀ (K + diag σ²/w)⁻¹ r`: the mean of a Gaussian process of mean 0, given the residuals
    (Matheron 1963)."""
    kept = known.weight > 0.0
    seen, r, w = (
        Points(*(part[kept] for part in known.points)),
        known.residual[kept],
        known.weight[kept],
    )
    among = kernel(seen, seen) + np.diag(NOISE**2 / w)
    mean = kernel(asked, seen) @ np.linalg.solve(among, np.clip(r, -LIMIT, LIMIT))
    return np.clip(mean, -LIMIT, LIMIT)


def kernel(a: Points, b: Points) -> np.ndarray:
    """Covariances `[row of a, row of b]`: `s² exp(−|Δplace| / ℓ) ρ^differences`, Matérn of order ½
    over logarithms of sizes."""
    squared = (a.place**2).sum(1)[:, None] + (b.place**2).sum(1)[None] - 2.0 * a.place @ b.place.T
    differences = (a.kind[:, None] != b.kind[None]).sum(2)
    return SPREAD**2 * np.exp(-np.sqrt(np.maximum(squared, 0.0)) / LENGTH) * ALIKE**differences


METHODS: dict[str, Method] = {"none": nothing, "mlp": mlp, "kriging": kriging}
