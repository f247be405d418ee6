"""The certificate of a design: how far a plan found by gradient is from the best that was checked, or from a proven lower bound."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from flax import struct

from dmodel import counts
from dmodel.cost import compute
from dmodel.cost.overlap import straggler_share
from dmodel.design.search import Candidate, Problem


class Certificate(struct.PyTreeNode, kw_only=True):
    """What is known about the quality of a design.

    Attributes:
      gap: step time of the gradient's plan over that of the exact optimum, less 1; None unless both are known [1].
      bound_s: no valid plan is faster, whatever its memory [s].
      distance: step time of the best plan found over `bound_s`, less 1; None without one [1].
      statement: the same in words.
    """

    gap: float | None
    bound_s: float
    distance: float | None
    statement: str = struct.field(pytree_node=False)


def lower_bound(problem: Problem) -> float:
    """A step time that no plan of the space undercuts [s].

    `overhead + (1 + straggler) · (Σ matmul FLOPs / (devices · peak · η_max) + attention)`: the arithmetic of all devices at its best rate,
    no recomputation, launches, streaming, communication or bubble. Proof: every term of the step is ≥ 0, a smooth maximum is never below
    its arguments, a matmul's rate never above peak · η_max, and the FLOPs of the devices add up to the whole for every plan (for the
    head: every stage keeps at least 1/pp of it).

    Limits: tight when compute-bound and wide; far below the truth when communication or memory decides.
    """
    space, c, chip = problem.space, problem.coefficients, problem.system.chip
    model, n = space.model, float(space.n_devices)
    # work is linear in the tokens of a device, so one plan of nothing but data parallelism stands for all
    batch = float(space.global_batch)
    plan = space.base.replace(dp=n, tp=1.0, cp=1.0, pp=1.0, ep=1.0, micro_batch=batch / n, global_batch=batch)
    flops = jnp.asarray(counts.matmuls(model, plan).flops)
    rate = chip.flops_per_s * c.matmul_efficiency * (1.0 - plan.low_precision * (1.0 - c.low_precision_efficiency))
    products = (2.0 + model.trainable) * (model.n_layers * flops[:-1].sum() + flops[-1]) / rate
    softmax = jnp.asarray(counts.softmax_bytes(model, plan))
    attention = compute.attention_time(counts.attention_flops(model, plan), softmax, model.head_dim + 0.5 * model.qk_extra, chip, c)
    busy = products + (3.0 + 0.5 * plan.flash) * model.n_layers * attention
    return float(c.overhead + (1.0 + straggler_share(n, c.straggler)) * busy)


def certify(problem: Problem, exact: Candidate | None, gradient: Candidate | None, considered: int) -> Certificate:
    """Compare the two searches, both judged by the same function.

    Args:
      exact: the best of all valid plans that fit, None when that was not searched or nothing fits.
      gradient: the plan found by gradient if it fits. considered: valid plans that the exact search looked at [count].
    """
    bound = lower_bound(problem)
    best = min((float(x.step_time_s) for x in (exact, gradient) if x is not None), default=None)
    distance = None if best is None else best / bound - 1.0
    gap = None
    if exact is not None and gradient is not None:
        gap = float(gradient.step_time_s) / float(exact.step_time_s) - 1.0
        # two plans of one step time are equally good; the last digits are rounding
        gap = 0.0 if abs(gap) < 1e-9 else gap
        compared = "is" if gap == 0.0 else f"is {gap:.2%} slower than"
        text = f"the plan found by gradient {compared} the best of all {considered:,} valid plans, which were all checked"
    elif exact is not None:
        text = f"the best of all {considered:,} valid plans, which were all checked"
    elif gradient is not None:
        text = f"not checked against all plans: at most {distance:.1%} slower than any, by the lower bound of {bound:.3g} s"
    else:
        text = "no plan fits, so there is nothing to certify"
    return Certificate(gap=gap, bound_s=bound, distance=None if distance is None else float(np.maximum(distance, 0.0)), statement=text)
