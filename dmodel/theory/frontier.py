"""The frontier of training: the largest run that a GPU allows, at a utilization or at all, as a
differentiable function of its inputs.

The run is the best over patterns (`theory.pattern`) of a smooth program (`theory.program`) solved
to its optimality conditions; the
price of every limit then gives the slope of the frontier in every input, without solving again:
`d ln C / dp = ∂/∂p (ln C + Σ_i λ_i c_i)` at the optimum (envelope theorem; e.g. Nocedal & Wright
2006, section 12.9).

Between patterns the frontier has kinks: there its slopes are those of one side, and
`Frontier.smooth` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dmodel.errors import InputError
from dmodel.records import Cluster
from dmodel.sweep import quick_to_compile
from dmodel.theory.interior import BARRIER, Optima, Program, maximize
from dmodel.theory.laws import STUDY, Laws, Run
from dmodel.theory.layout import LevelLayout
from dmodel.theory.pattern import PP, Arrays, Pattern, arrays, neighbours, possible, typical
from dmodel.theory.profile import Training
from dmodel.theory.program import Case, Point, limit_names, limits, point, soft_limits, unknowns
from dmodel.theory.study import DEADLINE_S, LINEAR
from dmodel.types import enable_float64

SAMPLES, STARTS, BATCH = 512, 2, 16
"""Random points of which a start is the best; starts per pattern; programs solved at once."""

ROUGH = 1e-4
"""Last barrier while patterns are compared."""

NEAR = 0.03
"""Patterns within this of the best, in ln C, are solved exactly and named as rivals."""

CONVERGED = 1e-6
"""Largest residual of the optimality conditions that counts as solved."""

TIED, ALIKE = 1e-4, 1e-2
"""Patterns this near in ln C count as tied; elasticities that differ by less count as the same."""

BINDING = 1e-4
"""Price above which a limit counts as binding."""


class Frontier(NamedTuple):
    """The largest run.

    Attributes:
      flop: its compute [FLOP]. run, layout, training: the run, on how many GPUs and how, what it
        takes.
      pattern: the discrete choices of the layout.
      binding: price of each limit that binds, ∂ ln C / ∂ ln of what it limits.
      residual: of the optimality conditions. rivals: other patterns within 3 %, with ln of their
        compute over this one's.
      smooth: whether slopes hold on both sides: the program is solved, every limit that is met has
        a price, and patterns that are tied have the same slopes.
      z, multipliers: unknowns and prices of the program.
    """

    flop: float
    run: Run
    layout: LevelLayout
    training: Training
    pattern: Pattern
    binding: dict[str, float]
    residual: float
    rivals: dict[Pattern, float]
    smooth: bool
    z: np.ndarray
    multipliers: np.ndarray


def case(
    system: Cluster,
    laws: Laws = STUDY,
    *,
    threshold: float = LINEAR,
    deadline_s: float = DEADLINE_S,
    sparse: bool = False,
    overlap_dp: bool = False,
) -> Case:
    """Inputs of the frontier as one record, all leaves float64 arrays.

    Args:
      system: of `gpus.gpu`. threshold: share of the utilization ceiling that the run keeps, below
        1; 0 = it only has to finish.
      deadline_s: [s]. sparse: with experts. overlap_dp: data parallelism hides behind compute.

    Raises:
      InputError: a threshold outside [0, 1), or a deadline that is not positive.
    """
    enable_float64()
    if not 0.0 <= threshold < 1.0:
        raise InputError(
            f"threshold: expected a share of the utilization ceiling in [0, 1); got {threshold!r}"
        )
    if not (deadline_s > 0.0 and np.isfinite(deadline_s)):
        raise InputError(f"deadline: expected a positive number of seconds; got {deadline_s!r}")
    raw = Case(
        system=system,
        laws=laws,
        deadline_s=deadline_s,
        threshold=threshold,
        overlap_dp=float(overlap_dp),
        sparse=sparse,
    )
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), raw)


def _start(uniform: jax.Array, asked: Case, pattern: Arrays) -> jax.Array:
    """Of random points `[sample, unknowns]`, uniform in 0..1, the one that keeps what must be kept
    and violates the rest least."""
    n_levels = pattern.present.shape[1]
    soft = soft_limits(n_levels) > 0.0
    sizes = jnp.asarray(asked.system.network.size)
    bounded = jnp.isfinite(sizes)[None]
    room = jnp.where(
        jnp.isfinite(sizes), jnp.log(sizes) - pattern.present.sum(0) * jnp.log(2.0), jnp.log(8192.0)
    )

    def spread(u: jax.Array) -> jax.Array:
        share = u[2:].reshape(pattern.present.shape) * pattern.present
        share = jnp.where(bounded, share / jnp.maximum(share.sum(0), 1e-9)[None], share)
        logs = jnp.log(2.0) + share * jnp.maximum(room, 0.0)[None]
        stages = (logs * pattern.present)[PP].sum()
        m = stages + jnp.log(2.0) * pattern.zero_bubble + 0.05 + u[1]
        width = jnp.log(4096.0) + u[0] * jnp.log(4096.0)
        return jnp.concatenate([jnp.stack([width, m]), logs.ravel()])

    def violation(z: jax.Array) -> jax.Array:
        slack = limits(point(z, asked, pattern), asked, pattern)
        kept = (jnp.where(soft, 1.0, slack) > 1e-2).all() & jnp.isfinite(slack).all()
        return jnp.where(kept, jnp.maximum(-jnp.where(soft, slack, 0.0), 0.0).sum(), jnp.inf)

    points = jax.vmap(spread)(uniform)
    badness = jax.vmap(violation)(points)
    # without any, the program fails at the first step, as data
    return jnp.where(jnp.isfinite(badness.min()), points[badness.argmin()], jnp.nan)


def _input_slopes(z: jax.Array, prices: jax.Array, asked: Case, pattern: Arrays) -> Case:
    """∂/∂inputs of the Lagrangian ln C + λ · limits at fixed unknowns: the slopes of ln C_max."""

    def lagrangian(asked: Case) -> jax.Array:
        at = point(z, asked, pattern)
        return jnp.log(at.run.flop) + prices @ limits(at, asked, pattern)

    slopes = jax.grad(lagrangian)(asked)
    # an infinite bandwidth or size can be no more
    return jax.tree.map(lambda slope, x: jnp.where(jnp.isfinite(x), slope, 0.0), slopes, asked)


class _Compiled(NamedTuple):
    """The model's values and slopes, and starts, each over a batch of patterns for one case; slopes
    in the inputs and
    the run at one optimum."""

    values: Callable[..., Any]
    slopes: Callable[..., Any]
    start: Callable[..., Any]
    inputs: Callable[..., Case]
    point: Callable[..., Point]


@cache
def _compiled() -> _Compiled:
    def both(z: jax.Array, asked: Case, pattern: Arrays) -> tuple[jax.Array, jax.Array]:
        at = point(z, asked, pattern)
        return jnp.log(at.run.flop), limits(at, asked, pattern)

    def over(f: Callable) -> Callable:
        return jax.vmap(f, in_axes=(0, None, 0))

    def fast(f: Callable) -> Callable:
        return jax.jit(f, compiler_options=quick_to_compile())

    around = jax.vmap(jax.jacfwd(both), in_axes=(0, None, None))
    return _Compiled(
        fast(over(both)), fast(over(around)), fast(over(_start)), fast(_input_slopes), fast(point)
    )


def _program(asked: Case, stacked: Arrays) -> Program:
    run, held = _compiled(), jax.device_put(stacked)

    def on_host(f: Callable) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
        return lambda z: jax.tree.map(np.asarray, f(z, asked, held))

    return Program(
        values=on_host(run.values),
        slopes=on_host(run.slopes),
        soft=np.asarray(soft_limits(stacked.present.shape[-1])),
    )


def _solved(
    asked: Case, patterns: Sequence[Pattern], last_barrier: float, seed: int
) -> dict[Pattern, tuple[float, Optima]]:
    """Best of some starts for each pattern: ln C, -inf where nothing meets the limits, and the
    optimum."""
    sizes = tuple(np.asarray(asked.system.network.size).tolist())
    rows = [p for p in patterns for _ in range(STARTS)]
    random = np.random.default_rng(seed)
    found: dict[Pattern, tuple[float, Optima]] = {}
    for i in range(0, len(rows), BATCH):
        some = rows[i : i + BATCH]
        stacked = _filled_up(some, sizes)
        start = np.asarray(
            _compiled().start(random.random((BATCH, SAMPLES, unknowns(len(sizes)))), asked, stacked)
        )
        optima = maximize(_program(asked, stacked), start, last_barrier)
        _keep_best(found, some, optima)
    return found


def _filled_up(some: Sequence[Pattern], sizes: tuple[float, ...]) -> Arrays:
    """Patterns as arrays of one batch, which the last of them fills up."""
    padded = [*some, *[some[-1]] * (BATCH - len(some))]
    return Arrays(*(np.stack(x) for x in zip(*(arrays(p, sizes) for p in padded), strict=True)))


def _keep_best(
    found: dict[Pattern, tuple[float, Optima]], some: Sequence[Pattern], optima: Optima
) -> None:
    """Put each optimum of a batch in the place of a worse one of its pattern."""
    met = (optima.slack > -1e-3).all(1) & np.isfinite(optima.value)
    for j, pattern in enumerate(some):
        value = float(optima.value[j]) if met[j] else -np.inf
        if pattern not in found or value > found[pattern][0]:
            found[pattern] = (value, Optima(*(x[j] for x in optima)))


def _searched(asked: Case, seed: int) -> dict[Pattern, tuple[float, Optima]]:
    """Patterns by neighbourhood from typical ones, each solved roughly, until none around the best
    is better."""
    sizes = tuple(np.asarray(asked.system.network.size).tolist())
    known: dict[Pattern, tuple[float, Optima]] = {}
    fresh = list(_possible(typical(len(sizes), asked.sparse), sizes, asked.sparse))
    expanded: set[Pattern] = set()
    while fresh:
        known |= _solved(asked, fresh, ROUGH, seed)
        best = sorted(known, key=lambda p: -known[p][0])[:2]
        ahead = [p for p in best if p not in expanded and np.isfinite(known[p][0])]
        expanded |= set(ahead)
        fresh = [q for q in _around(ahead, sizes, asked.sparse) if q not in known]
    return known


def _possible(
    patterns: Iterable[Pattern], sizes: tuple[float, ...], sparse: bool
) -> Iterator[Pattern]:
    """Those patterns that some layout has."""
    return (p for p in patterns if possible(p, sizes, sparse))


def _around(
    patterns: Sequence[Pattern], sizes: tuple[float, ...], sparse: bool
) -> dict[Pattern, None]:
    """Possible patterns beside some, each once, in order."""
    return dict.fromkeys(_possible((q for p in patterns for q in neighbours(p)), sizes, sparse))


def _close(known: dict[Pattern, tuple[float, Optima]]) -> list[Pattern]:
    """Patterns that may be the best, or a rival of it."""
    best = max(value for value, _ in known.values())
    return [p for p, (value, _) in known.items() if value >= best - NEAR - 1e-2]


def largest_run(asked: Case, *, pattern: Pattern | None = None, seed: int = 0) -> Frontier:
    """The largest run that meets the deadline, at the threshold of utilization if there is one.

    Held: the laws, d_ff = 4 d_model, the hardware. Free: width, all degrees at all levels,
    micro-batches, cluster size, schedule.

    Assumptions: nothing is rounded; degrees are real numbers, 1 or at least 2 at each level;
    clusters fill the bounded levels; tiles of a product are at least 8 wide; maxima are those of
    sharpness 1024. The study's grid is coarser: its runs lose up to a fifth of their utilization to
    whole degrees and powers of two.

    Args:
      asked: of `case`. pattern: solve for this one only; None searches. seed: of the starts.

    Raises:
      InputError: no layout of any pattern meets the limits.
    """
    enable_float64()
    asked = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), asked)
    close = [pattern] if pattern is not None else _close(_searched(asked, seed))
    exact = _solved(asked, close, BARRIER, seed + 1)
    chosen = max(exact, key=lambda p: exact[p][0])
    value, optimum = exact[chosen]
    if not np.isfinite(value):
        raise InputError(
            "no run of any size meets the limits: a shorter latency, a later deadline or a "
            "lower "
            "threshold would allow one"
        )
    rivals = {p: v - value for p, (v, _) in exact.items() if p != chosen and v > value - NEAR}
    ours = _leaf_elasticities(asked, chosen, optimum)
    tied = [_leaf_elasticities(asked, p, exact[p][1]) for p, gap in rivals.items() if gap > -TIED]
    return _report(
        asked, chosen, optimum, rivals, alike=all(np.abs(t - ours).max() < ALIKE for t in tied)
    )


def _leaf_elasticities(asked: Case, pattern: Pattern, optimum: Optima) -> np.ndarray:
    """Slope times value of every input of a case, in one row."""
    leaves = [np.ravel(x) for x in jax.tree.leaves(asked)]
    slope = [
        np.ravel(x)
        for x in jax.tree.leaves(_slopes(asked, pattern, optimum.z, optimum.multipliers))
    ]
    return np.concatenate(
        [s * np.where(np.isfinite(x), x, 0.0) for s, x in zip(slope, leaves, strict=True)]
    )


def _report(
    asked: Case, chosen: Pattern, optimum: Optima, rivals: dict[Pattern, float], *, alike: bool
) -> Frontier:
    n_levels = asked.system.network.n_levels
    at = _compiled().point(
        jnp.asarray(optimum.z),
        asked,
        arrays(chosen, tuple(np.asarray(asked.system.network.size).tolist())),
    )
    names = limit_names(n_levels)
    binding = {
        name: float(price)
        for name, price in zip(names, optimum.multipliers, strict=True)
        if price > BINDING
    }
    priceless = (optimum.slack < 1e-6) & (optimum.multipliers < BINDING)
    residual = float(optimum.residual)
    at = jax.tree.map(np.asarray, at)
    return Frontier(
        flop=float(at.run.flop),
        run=at.run,
        layout=at.layout,
        training=at.training,
        pattern=chosen,
        binding=binding,
        residual=residual,
        rivals=rivals,
        smooth=bool(residual < CONVERGED and not priceless.any() and alike),
        z=np.asarray(optimum.z),
        multipliers=np.asarray(optimum.multipliers),
    )


def slopes(asked: Case, found: Frontier) -> Case:
    """∂ ln C / ∂ input for every leaf of the case, at a frontier that was found for it.

    Valid where `found.smooth`; elsewhere they are the slopes of the found pattern, of one side.
    """
    return _slopes(asked, found.pattern, found.z, found.multipliers)


def _slopes(asked: Case, pattern: Pattern, z: np.ndarray, prices: np.ndarray) -> Case:
    asked = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), asked)
    stacked = arrays(pattern, tuple(np.asarray(asked.system.network.size).tolist()))
    return _compiled().inputs(jnp.asarray(z), jnp.asarray(prices), asked, stacked)
