"""Draws from the exact posterior of a fit by the No-U-Turn sampler of blackjax: slow, and free of
Laplace's approximations."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibration.uncertainty.posterior import Approximation, Posterior
from dmodel.errors import InputError
from dmodel.sweep import quick_to_compile


class Draws(NamedTuple):
    """Draws of x = (u, η) `[draw, U + S]`; how many ended in a divergence, and the mean number of
    leapfrog steps."""

    x: np.ndarray
    divergent: int
    steps: float


def _blackjax() -> Any:
    try:
        import blackjax  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError(
            "sampling needs blackjax, which is not installed; install dmodel-jax[sampling]"
        ) from None
    return blackjax


def sample(
    found: Posterior, start: Approximation, *, warmup: int = 200, draws: int = 600, seed: int = 0
) -> Draws:
    """Draw from a posterior, in coordinates in which its approximation is a standard normal.

    Raises:
      InputError: blackjax is not installed.
    """
    blackjax = _blackjax()
    mean, factor = jnp.asarray(start.mean), jnp.asarray(start.factor)

    def whitened(y: jax.Array) -> jax.Array:
        return found.log_density(mean + factor @ y)

    first, second = jax.random.split(jax.random.key(seed))
    adapt = blackjax.window_adaptation(blackjax.nuts, whitened, initial_step_size=0.5)
    compiled = jax.jit(
        lambda key, y: adapt.run(key, y, warmup)[0], compiler_options=quick_to_compile()
    )
    state, parameters = compiled(first, jnp.zeros(len(start.mean)))
    step = blackjax.nuts(whitened, **parameters).step

    def one(state: Any, key: jax.Array) -> tuple[Any, Any]:
        state, info = step(key, state)
        return state, (state.position, info.is_divergent, info.num_integration_steps)

    chain = jax.jit(
        lambda state, keys: jax.lax.scan(one, state, keys), compiler_options=quick_to_compile()
    )
    _, (y, divergent, steps) = chain(state, jax.random.split(second, draws))
    return Draws(
        start.mean + np.asarray(y) @ start.factor.T, int(divergent.sum()), float(steps.mean())
    )
