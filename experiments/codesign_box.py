"""A run's sizes and plan as a point of the unit cube, so that searches that know nothing but values
can look for the best one."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dmodel.codesign import Question
from dmodel.codesign.lattice import DISCRETE, rungs
from dmodel.codesign.limits import excess, merit
from dmodel.codesign.outcome import outcome
from dmodel.records import Plan, value
from dmodel.smooth import SHARPNESS
from dmodel.sweep import quick_to_compile

CHOICES = ("tp", "cp", "pp", "micro_batch", "interleave", "recompute", "sharding")
SHARDINGS = ((0.0, 1.0), (1.0, 1.0), (2.0, 1.0), (3.0, 1.0), (3.0, 0.0))
"""(ZeRO stage, gathered again for the backward pass), over all of dp."""

BLOCK = 1024
"""Points evaluated at once, so that one compiled program serves all."""

BROKEN, WEIGHT, INVALID = 0.05, 10.0, 50.0
"""What is added to the logarithm of the objective: when a limit is broken, for each unit of scaled
excess, and when a plan is not valid. The cost of a run falls as about the 30th power of its loss,
whose excess counts 20 times: less than 1.5 a unit would pay to break it."""


def _divisors(n: int, most: int = 1 << 30) -> np.ndarray:
    return np.array([d for d in range(1, min(n, most) + 1) if n % d == 0])


@cache
def _judged():
    def judge(x: dict, plan: Plan, world: Any, at: Any) -> tuple:
        c = jax.tree.map(lambda leaf: leaf[0], world.coefficients)
        found = outcome(x, plan, world, c, SHARPNESS)
        return merit(found.quantities, at), jnp.maximum(excess(found.quantities, at), 0.0).sum(0)

    return jax.jit(judge, compiler_options=quick_to_compile())


class Box:
    """Logarithm of a question's objective on the unit cube, with penalties for limits that are
    broken.

    Attributes:
      dimension: free sizes, then `CHOICES`. plans_each: valid plans at one combination of sizes,
        about.
    """

    plans_each = 10_000

    def __init__(self, stated: Question):
        self.stated = stated
        u = stated.unknowns
        self.free = [name for name, is_free in zip(u.names, u.free, strict=True) if is_free]
        self.dimension = len(self.free) + len(CHOICES)
        self.base = {name: float(np.exp(u.low[i])) for i, name in enumerate(u.names)}

    def sizes(self, point: np.ndarray) -> dict[str, float]:
        """Valid sizes at a point; tokens stay continuous."""
        u, found = self.stated.unknowns, dict(self.base)
        for name in (*DISCRETE, *(n for n in self.free if n not in DISCRETE)):
            if name not in self.free:
                continue
            at, i = float(point[self.free.index(name)]), u.index(name)
            if name in DISCRETE:
                choices = rungs(name, found, u, self.stated.world.fixed)
                # even in the logarithm, as the sizes span decades
                goal = np.log(choices[0]) + at * (np.log(choices[-1]) - np.log(choices[0]))
                found[name] = float(choices[np.abs(np.log(choices) - goal).argmin()])
            else:
                found[name] = float(np.exp(u.low[i] + at * (u.high[i] - u.low[i])))
        return found

    def plan(self, point: np.ndarray, sizes: dict[str, float]) -> dict[str, float] | None:
        """Numbers of a valid plan at a point; None when the devices do not split so."""
        fixed, u = self.stated.world.fixed, dict(zip(CHOICES, point[len(self.free) :], strict=True))
        devices, batch, layers = (
            int(round(sizes[name])) for name in ("devices", "global_batch", "n_layers")
        )
        heads, kv = (
            int(round(float(fixed.head_share) * sizes["d_model"] / sizes["head_dim"])),
            int(float(value(fixed.model, "n_kv_heads", 1.0))),
        )

        def pick(name: str, choices: np.ndarray) -> int:
            return int(choices[min(int(u[name] * len(choices)), len(choices) - 1)])

        tps = _divisors(devices, 64)
        tp = pick("tp", tps[(heads % tps == 0) & ((kv % tps == 0) | (tps % kv == 0))])
        cp = pick("cp", _divisors(devices // tp, 8))
        pps = _divisors(devices // (tp * cp), layers)
        pp = pick("pp", pps[layers % pps == 0])
        dp = devices // (tp * cp * pp)
        if batch % dp or int(float(fixed.model.seq_len)) % (tp * cp):
            return None
        share = batch // dp
        b = pick(
            "micro_batch", np.array([2**i for i in range(share.bit_length()) if share % 2**i == 0])
        )
        chunks = _divisors(layers // pp) if pp > 1 and (share // b) % pp == 0 else np.array([1])
        zero, reshard = SHARDINGS[min(int(u["sharding"] * len(SHARDINGS)), len(SHARDINGS) - 1)]
        per_stage = layers // pp
        again = round(0.25 * min(int(u["recompute"] * 5.0), 4) * per_stage) / per_stage
        numbers = {
            "dp": dp,
            "tp": tp,
            "cp": cp,
            "pp": pp,
            "sp": tp > 1,
            "zero": zero,
            "reshard": reshard,
            "micro_batch": b,
        }
        numbers |= {
            "shard": dp if zero else 1,
            "interleave": pick("interleave", chunks),
            "recompute_layers": again,
            "global_batch": batch,
        }
        return {name: float(value) for name, value in numbers.items()}

    def __call__(self, points: np.ndarray) -> np.ndarray:
        """Logarithms of the objective `[n]`, more where limits are broken."""
        sizes = [self.sizes(p) for p in points]
        plans = [self.plan(p, s) for p, s in zip(points, sizes, strict=True)]
        good = [i for i, plan in enumerate(plans) if plan is not None]
        values = np.full(len(points), INVALID)
        for start in range(0, len(good), BLOCK):
            part = good[start : start + BLOCK]
            values[part] = self._values([sizes[i] for i in part], [plans[i] for i in part])
        return values

    def _values(self, sizes: list[dict[str, float]], plans: list[Any]) -> np.ndarray:
        n = len(sizes)
        pad = [*range(n), *[0] * (BLOCK - n)]
        x = {name: jnp.asarray([sizes[i][name] for i in pad], dtype=float) for name in self.base}
        leaves = {name: np.array([plans[i][name] for i in pad]) for name in plans[0]}
        plan = self.stated.base.having(**leaves, schedule="interleaved")
        floats = jax.tree.map(
            lambda leaf: jnp.asarray(leaf, dtype=float), (plan, self.stated.world, self.stated.at)
        )
        value, over = map(np.asarray, _judged()(x, *floats))
        return (value + np.where(over > 1e-9, BROKEN + WEIGHT * over, 0.0))[:n]
