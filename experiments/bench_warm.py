"""Rates of what is compiled: evaluation, gradient, small sweeps, the theory's sweep.

Each is the best of several rounds in which all variants take turns, so that a busy machine slows
them alike, and a ratio is the middle one of the rounds' ratios.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np

from dmodel import catalog, coefficients
from dmodel.records import Plan
from dmodel.step import step_time
from dmodel.sweep import CHUNK, gradients, names, sweep, totals
from dmodel.theory.gpus import gpu
from dmodel.theory.study import sweep_widths
from experiments.bench_result import Result

CONTINUOUS = (
    "dp",
    "tp",
    "cp",
    "pp",
    "shard",
    "zero",
    "interleave",
    "micro_batch",
    "global_batch",
    "recompute_layers",
    "recompute_attention",
)
"""Leaves of the plan that a design by gradient moves."""


K = TypeVar("K", str, bool)


def random_plans(n: int, seed: int = 0) -> Plan:
    """Plans of 512 devices with mixed degrees, ZeRO stages, batches and recomputation, leaves
    `[n]`."""
    draw = np.random.default_rng(seed)

    def pick(*values: float) -> np.ndarray:
        return draw.choice(np.array(values), n)

    tp, pp, cp = pick(1, 2, 4, 8), pick(1, 2, 4, 8), pick(1, 2)
    dp = 512.0 / (tp * pp * cp)
    plan = Plan.of(
        dp=dp,
        tp=tp,
        cp=cp,
        pp=pp,
        sp=pick(0, 1),
        zero=pick(0, 1, 2, 3),
        shard=np.minimum(dp, pick(8, 512)),
        reshard=pick(0, 1),
        interleave=pick(1, 2),
        micro_batch=pick(1, 2, 4),
        global_batch=pick(512, 1024, 2048),
        recompute_layers=draw.random(n),
        recompute_attention=draw.random(n),
        flash=pick(0, 1),
    )
    return jax.tree.map(lambda x: np.broadcast_to(np.asarray(x, float), (n,)), plan)


def problem() -> dict[str, Any]:
    """What all plans share: Llama-3-70B on H100, default coefficients."""
    return {
        "system": catalog.system("H100-DGX"),
        "model": catalog.transformer("llama-3-70b", seq_len=8192),
        "coefficients": coefficients.default(),
    }


def seconds(plan: Plan, fixed: dict[str, Any]) -> jax.Array:
    """Step time [s] as a case function: what the gradient differentiates."""
    return jax.numpy.asarray(
        step_time(fixed["system"], fixed["model"], plan, fixed["coefficients"]).total
    )


def all_leaves(plans: Plan, fixed: dict[str, Any]) -> tuple[str, ...]:
    """Every named number: plan, system, model and coefficients."""
    return (*names(plans), *names(fixed))


def rates(variants: dict[K, Callable[[], Any]], size: int, rounds: int) -> dict[K, list[float]]:
    """Evaluations per second of each variant in each round; the first, untimed, round compiles."""
    found: dict[K, list[float]] = {name: [] for name in variants}
    for turn in range(rounds + 1):
        for name, run in variants.items():
            start = time.perf_counter()
            run()
            if turn:
                found[name].append(size / (time.perf_counter() - start))
    return found


def ratio(above: list[float], below: list[float]) -> float:
    """Middle one of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def throughput(size: int, rounds: int, cores: int) -> Iterator[Result]:
    """Rates of evaluation and gradient, and their ratios, in one run."""
    plans, fixed = random_plans(size), problem()
    every = all_leaves(plans, fixed)
    variants: dict[str, Callable[[], Any]] = {}
    for threads in sorted({1, cores}):
        variants |= {
            f"both {threads}": lambda t=threads: sweep(totals(), plans, fixed, threads=t),
            f"time {threads}": lambda t=threads: sweep(seconds, plans, fixed, threads=t),
            f"short {threads}": lambda t=threads: sweep(
                seconds, plans, fixed, chunk=CHUNK // 2, threads=t
            ),
            f"plan {threads}": lambda t=threads: gradients(
                seconds, plans, fixed, wrt=CONTINUOUS, threads=t
            ),
        }
    variants["all"] = lambda: gradients(seconds, plans, fixed, wrt=every, threads=cores)
    found = rates(variants, size, rounds)
    best = {name: max(values) for name, values in found.items()}
    where = f"batch {size:,}, {cores} threads"
    yield Result("step time and memory", best[f"both {cores}"], "plans/s", 2e6, True, where)
    yield Result(
        "value and gradient, continuous leaves of the plan",
        best[f"plan {cores}"],
        "plans/s",
        5e5,
        True,
        f"{len(CONTINUOUS)} leaves",
    )
    yield Result(
        "value and gradient, all named leaves", best["all"], "plans/s", note=f"{len(every)} leaves"
    )
    for threads in sorted({1, cores}):
        forward = [
            max(pair)
            for pair in zip(found[f"time {threads}"], found[f"short {threads}"], strict=True)
        ]
        price = ratio(forward, found[f"plan {threads}"])
        yield Result(
            "gradient over the fastest evaluation",
            price,
            "×",
            4.0,
            note=f"step time, threads: {threads}, A/B in one run",
        )
    if cores > 1:
        yield Result(
            "all threads over one, evaluation",
            ratio(found[f"both {cores}"], found["both 1"]),
            "×",
            note="A/B in one run",
        )
        yield Result(
            "all threads over one, gradient",
            ratio(found[f"plan {cores}"], found["plan 1"]),
            "×",
            note="A/B in one run",
        )


def fusion(size: int, rounds: int) -> Iterator[Result]:
    """What the driver's way of fusing gains for the gradient."""
    plans, fixed = random_plans(size), problem()
    variants = {
        fused: lambda f=fused: gradients(seconds, plans, fixed, wrt=CONTINUOUS, fused=f)
        for fused in (False, True)
    }
    found = rates(variants, size, rounds)
    yield Result(
        "gradient as the driver fuses over the default",
        ratio(found[False], found[True]),
        "×",
        note="A/B in one run",
    )


def small_sweep(rounds: int) -> Iterator[Result]:
    """What a sweep costs that is too small to compute anything: handing over plans and what they
    share, and taking results back."""
    plans, fixed = random_plans(64), problem()
    found = rates({"small": lambda: sweep(totals(), plans, fixed)}, 1, rounds)["small"]
    yield Result("sweep of 64 plans", 1e3 / max(found), "ms", note="one call, compiled before")


def theory_sweep(rounds: int, cores: int) -> Iterator[Result]:
    """The study's sweep: for each of 31 widths the smallest cluster of H100s, and the exact best
    layout on each size tried."""
    system = gpu("H100 SXM")
    found = rates({"sweep": lambda: sweep_widths(system)}, 1, rounds)["sweep"]
    yield Result(
        "theory: sweep of 31 widths, exact search",
        1.0 / max(found),
        "s",
        0.6,
        note=f"{cores} threads; the study's code took 12.6 s",
    )
