"""One tree's rates and sizes, asked line by line by `experiments.bench_against`.

Stands alone but for what every tree has: run by its path, with the tree on `PYTHONPATH`. A line on
standard input is a question, `rates`, `compile MODEL` or `size MODEL`; the answer is a line of
JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

import dmodel
from dmodel import catalog, coefficients
from dmodel.records import Plan
from dmodel.step import memory_use, step_time
from dmodel.sweep import gradients, sweep, totals
from dmodel.types import enable_float64
from experiments.bench_warm import CONTINUOUS, problem, random_plans, seconds

NEEDS = "questions on standard input"

SIZE = 1 << 16
"""Plans of one round."""


def records(name: str) -> tuple[Any, ...]:
    """A plan of a model on H100, float64 scalars: system, model, plan, coefficients."""
    found = (
        catalog.system("H100-DGX"),
        catalog.transformer(name, seq_len=8192),
        Plan.of(dp=16.0, tp=8.0, sp=1.0, pp=4.0, global_batch=1024.0),
        coefficients.default(),
    )
    return jax.tree.map(lambda x: np.asarray(x, np.float64), found)


def total(*args: Any) -> Any:
    """Step time [s]."""
    return step_time(*args).total


def compiled(name: str) -> dict[str, float]:
    """Seconds of tracing, and CPU seconds of compiling, step time and its gradient by all leaves,
    as a user's own `jax.jit` does."""
    args, found = records(name), {}
    both = jax.value_and_grad(total, argnums=(0, 1, 2, 3))
    for title, function in (("value", total), ("gradient", both)):
        start = time.perf_counter()
        lowered = jax.jit(function).trace(*args).lower()
        middle, busy = time.perf_counter(), time.process_time()
        lowered.compile()
        found[f"trace {title}"] = middle - start
        found[f"compile {title}"] = time.perf_counter() - middle
        found[f"compile {title}, CPU"] = time.process_time() - busy
    return found


def _inner(equation: Any) -> Iterator[Any]:
    """Jaxprs inside an equation."""
    held = jax.tree.leaves(
        list(equation.params.values()), is_leaf=lambda x: hasattr(x, "jaxpr") or hasattr(x, "eqns")
    )
    return (x for x in (getattr(each, "jaxpr", each) for each in held) if hasattr(x, "eqns"))


def _equations(jaxpr: Any, seen: set[int]) -> int:
    """Equations of a jaxpr and of those inside, each inner one once."""
    count = len(jaxpr.eqns)
    for equation in jaxpr.eqns:
        for inner in _inner(equation):
            if id(inner) not in seen:
                seen.add(id(inner))
                count += _equations(inner, seen)
    return count


def size(name: str) -> dict[str, float]:
    """Equations of step and memory together, inner jaxprs once each."""

    def both(*args: Any) -> Any:
        return step_time(*args), memory_use(args[1], args[2])

    traced = jax.make_jaxpr(both)(*records(name))
    return {"equations": _equations(traced.jaxpr, set())}


def turns() -> Callable[[], dict[str, float]]:
    """A round of evaluations and gradients of the same plans; the first one compiles."""
    plans, fixed = random_plans(SIZE), problem()

    def turn() -> dict[str, float]:
        found = {}
        for title, run in (
            ("plans", lambda: sweep(totals(), plans, fixed, threads=1)),
            ("gradients", lambda: gradients(seconds, plans, fixed, wrt=CONTINUOUS, threads=1)),
        ):
            start = time.perf_counter()
            run()
            found[title] = SIZE / (time.perf_counter() - start)
        return found

    turn()
    return turn


def main() -> None:
    """Answer questions until there are no more."""
    enable_float64()
    print(json.dumps({"tree": dmodel.__file__}), flush=True)
    turn: Callable[[], dict[str, float]] | None = None
    for line in sys.stdin:
        word, _, name = line.strip().partition(" ")
        if word == "rates":
            turn = turn or turns()
            answer = turn()
        else:
            answer = {"compile": compiled, "size": size}[word](name)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
