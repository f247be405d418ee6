"""What a whole run is asked: a loss to reach, a deadline to keep, failures on the way; outputs
beyond one step are answers to it."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dmodel import counts, struct
from dmodel.goodput import DAY_S, LLAMA_3, Reliability, goodput
from dmodel.records import Model, Plan
from dmodel.types import Array

TOKENS_PER_PARAMETER = 20.0
"""Data of the run whose loss is the goal where none is given (Hoffmann et al. 2022, arXiv
2203.15556)."""


class Goal(struct.PyTreeNode, kw_only=True):
    """What the run is for, and the laws that lead there.

    Attributes:
      loss: to be reached [nat/token]. deadline_s: time for the largest run [s].
      tokens: that are trained on; None = those that reach the loss [token].
      loss_floor, parameter_scale, parameter_exponent, token_scale, token_exponent: E, A, α, B, β of
        `L = E + A/N^α + B/D^β`; the fit of Besiroglu et al. 2024 (arXiv 2404.10102) to the data of
        Hoffmann et al. 2022. N counts what one token uses.
      failures_per_device_s, checkpoint_s, restart_s: of `goodput.Reliability`.
    """

    loss: Array
    deadline_s: Array = 90.0 * DAY_S
    loss_floor: Array = 1.8172
    parameter_scale: Array = 482.01
    parameter_exponent: Array = 0.3478
    token_scale: Array = 2085.43
    token_exponent: Array = 0.3658
    failures_per_device_s: Array = LLAMA_3
    checkpoint_s: Array = 5.0
    restart_s: Array = 600.0
    tokens: Array | None = None


def loss(model: Model, tokens: Array, goal: Goal) -> jax.Array:
    """Loss after training on tokens: `E + A/N^α + B/D^β` [nat/token]."""
    n, d = (jnp.log(jnp.asarray(x, float)) for x in (counts.active_parameters(model), tokens))
    model_term = goal.parameter_scale * jnp.exp(-goal.parameter_exponent * n)
    return (
        jnp.asarray(goal.loss_floor)
        + model_term
        + goal.token_scale * jnp.exp(-goal.token_exponent * d)
    )


def usual(model: Model) -> Goal:
    """The goal where none is given: the loss that 20 tokens per (active) parameter reach, and three
    months."""
    blank = Goal(loss=1.0)
    return blank.replace(
        loss=loss(model, TOKENS_PER_PARAMETER * counts.active_parameters(model), blank)
    )


def tokens_to_loss(model: Model, goal: Goal) -> jax.Array:
    """Tokens until the loss is reached: `(B / (L − E − A/N^α))^(1/β)`; −1 where the model never
    gets there [token]."""
    n = jnp.log(jnp.asarray(counts.active_parameters(model), float))
    left = (
        goal.loss - goal.loss_floor - goal.parameter_scale * jnp.exp(-goal.parameter_exponent * n)
    )
    reachable = left > 0.0
    tokens = jnp.exp(
        jnp.log(goal.token_scale / jnp.where(reachable, left, 1.0)) / goal.token_exponent
    )
    return jnp.where(reachable, tokens, -1.0)


def tokens_of_run(model: Model, goal: Goal) -> Array:
    """Tokens of the whole run [token]: those that are stated, else `tokens_to_loss`."""
    return tokens_to_loss(model, goal) if goal.tokens is None else goal.tokens


def useful_share(plan: Plan, goal: Goal) -> jax.Array:
    """Share of wall time that trains on the plan's devices, failures and checkpoints taken off
    [1]."""
    reliability = Reliability(
        failures_per_device_s=goal.failures_per_device_s,
        checkpoint_s=goal.checkpoint_s,
        restart_s=goal.restart_s,
    )
    return goodput(plan.devices, reliability)
