"""A proven bound for co-design: what no sizes, hardware and plan within the bounds can do better,
by arithmetic alone.

A step cannot be faster than its matrix products at the best rate, `6 N D` of them for N parameters
in products and D tokens. That leaves one unknown, N. Between two of its values the loss is no
better than with the larger N, and the arithmetic no less than with the smaller one; so the least
over all cells of a fine division is a bound for every N, proven whatever the laws' shapes.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from dmodel import counts
from dmodel.codesign.lattice import model_of
from dmodel.codesign.laws import loss
from dmodel.codesign.limits import NO_LIMIT
from dmodel.codesign.outcome import NAMES, OBJECTIVES
from dmodel.codesign.question import Question
from dmodel.records import Model
from dmodel.tables import parameter_groups

CELLS = 4000


class Corner(NamedTuple):
    """Sizes at their smallest or largest: parameters in products at least and at most, and all
    others at most [count]."""

    least: float
    most: float
    others: float


def _corner(stated: Question, at: np.ndarray) -> Corner:
    """Count the parameters of the model at one end of all bounds."""
    sizes = dict(zip(stated.unknowns.names, np.exp(at).tolist(), strict=True))
    model: Model = model_of(sizes, stated.world.fixed)
    n = parameter_groups(model)
    embedding = float(n.embedding)
    everything = float(counts.active_parameters(model))
    # norms, latents and filters are no products; 8 h for each layer is more than they are
    rest = 8.0 * float(model.d_model) * (float(n.layers) + 1.0)
    head = float(model.vocab * model.d_model)
    # a tied head is a product all the same, and its parameters those of the embedding
    products = everything - embedding + head * float(model.tied_embeddings)
    return Corner(least=max(products - rest, head), most=products, others=embedding + rest)


def _ends(stated: Question) -> tuple[Corner, Corner]:
    """Smallest and largest model: heads are narrowest in the one and widest in the other, which the
    parameters do not depend on."""
    u = stated.unknowns
    return _corner(stated, u.low), _corner(stated, u.high)


def _rates(stated: Question) -> tuple[float, float]:
    """Most arithmetic that all devices do in a second [FLOP/s], and most for a dollar
    [FLOP/dollar]."""
    u, world = stated.unknowns, stated.world
    chip, bill = world.fixed.system.chip, world.fixed.bill.price
    i = u.index("flops_per_s")
    faster = float(chip.attention_flops_per_s / chip.flops_per_s)
    efficiency = float(np.max(np.asarray(world.coefficients.matmul_efficiency)))
    most = np.exp(u.high[i]) * max(faster, 1.0) * efficiency
    ratio = np.exp(np.array([u.low[i], u.high[i]])) / float(chip.flops_per_s)
    least = _least_price(stated, bill) + float(bill.flops_per_s) * (ratio - 1.0)
    # price over arithmetic is monotone in the ratio, so its least is at an end
    each = (
        ratio
        * float(chip.flops_per_s)
        * max(faster, 1.0)
        * efficiency
        / (float(chip.price_per_s) * np.maximum(least, 1e-3))
    )
    return float(most * np.exp(u.high[u.index("devices")])), float(each.max())


def _least_price(stated: Question, bill: object) -> float:
    """Price over the catalog's of a device whose every quantity but its arithmetic is at its
    cheapest bound."""
    u, total = stated.unknowns, 1.0
    k = stated.world.fixed.system.network.n_levels
    for name in ("hbm_bytes", "hbm_bytes_per_s"):
        total += float(getattr(bill, name)) * (
            np.exp(u.low[u.index(name)]) / float(getattr(stated.world.fixed.system.chip, name))
            - 1.0
        )
    net = stated.world.fixed.system.network
    width = [
        np.exp(u.low[u.index(f"bytes_per_s[{i}]")]) / float(np.asarray(net.bytes_per_s)[i])
        for i in range(k)
    ]
    hops = [
        float(np.asarray(net.latency_s)[i]) / np.exp(u.high[u.index(f"latency_s[{i}]")])
        for i in range(k)
    ]
    total += float(bill.inner) * (width[0] - 1.0)  # type: ignore[attr-defined]
    outer = float(np.prod(width[1:])) ** (1.0 / max(k - 1, 1))
    total += float(bill.outer) * (outer - 1.0)  # type: ignore
    return total + float(bill.latency) * (float(np.prod(hops)) ** (1.0 / k) - 1.0)  # type: ignore


def proven_bound(stated: Question) -> float | None:
    """What no design within the bounds undercuts ("largest": exceeds), in the objective's unit;
    None for energy, which has no such bound.

    Proof: every other term of a step is ≥ 0 and products run at no more than peak · η_max; an
    unusual shape, a batch of any size, and failures only make a run worse; parameters outside
    products count for the loss, as many as the largest model has, and cost nothing.

    Limits: tight when a run is compute-bound, its shape usual and its batch far below the critical
    one.
    """
    if _has_none(stated):
        return None
    limit = dict(zip(NAMES, map(float, np.asarray(stated.at.limit)), strict=True))
    small, large = _ends(stated)
    cells = np.geomspace(small.least, large.most, CELLS + 1)
    low, high = cells[:-1], cells[1:] + large.others
    per_second, per_dollar = _rates(stated)
    least, most = _tokens(stated, low, high)
    if limit["loss"] < NO_LIMIT:
        least = np.maximum(least, _needed(stated, high, limit["loss"]))
    budget = min(limit["seconds"] * per_second, limit["dollars"] * per_dollar)
    paid = np.minimum(np.minimum(most, budget / (6.0 * low)), limit["tokens"])
    possible = paid >= least
    if not possible.any():
        return float("inf")
    if stated.objective == "largest":
        return float((6.0 * high * paid)[possible].max() * _attention(stated))
    if stated.objective == "loss":
        return float(np.asarray(loss(high, paid, stated.world.laws.loss))[possible].min())
    arithmetic = float((6.0 * low * least)[possible].min())
    return arithmetic / (per_second if OBJECTIVES[stated.objective] == "seconds" else per_dollar)


def _has_none(stated: Question) -> bool:
    """Whether an objective, or a model that is not trained, has no such bound."""
    return (
        stated.objective == "energy" or float(np.asarray(stated.world.fixed.model.trainable)) < 1.0
    )


def _tokens(stated: Question, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fewest and most tokens of each cell, by the data law or as they are given [token]."""
    if float(stated.world.law_tokens):
        law = stated.world.laws.data
        least, most = (float(law.ratio) * n ** float(law.exponent) for n in (low, high))
        return least, most
    u = stated.unknowns
    given = np.exp([u.low[u.index("tokens")], u.high[u.index("tokens")]])
    return np.full(CELLS, given[0]), np.full(CELLS, given[1])


def _attention(stated: Question) -> float:
    """Model FLOP of a token over six times its parameters, at most: attention beside the narrowest
    of products."""
    u = stated.unknowns
    most = 1.0
    for at in (u.low, u.high):
        model = model_of(dict(zip(u.names, np.exp(at).tolist(), strict=True)), stated.world.fixed)
        most = max(
            most,
            float(counts.model_flops_per_token(model, "6N+6Lhs"))
            / (6.0 * float(counts.active_parameters(model))),
        )
    return most


def _needed(stated: Question, parameters: np.ndarray, target: float) -> np.ndarray:
    """Least tokens with which so many parameters reach a loss, by bisection of their logarithm;
    infinite where none do."""
    low, high = np.zeros(len(parameters)), np.full(len(parameters), 90.0)
    for _ in range(80):
        middle = 0.5 * (low + high)
        reached = np.asarray(loss(parameters, jnp.exp(middle), stated.world.laws.loss)) <= target
        low, high = np.where(reached, low, middle), np.where(reached, middle, high)
    return np.where(high < 89.9, np.exp(low), np.inf)
