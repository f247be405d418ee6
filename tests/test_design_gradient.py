"""Gradient search: relaxed plans, rounding to valid ones, polish, and how often that is the
optimum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dmodel import catalog
from dmodel.coefficients import default
from dmodel.design import (
    EVERYTHING,
    Choices,
    Limits,
    by_gradient,
    exact,
    moves,
    problem,
    relax,
    rows,
    space,
)
from dmodel.records import Plan

SYSTEM = catalog.system("H100-DGX")
SMALL = catalog.transformer("llama-3-8b", 8192.0)
LARGE = catalog.transformer("llama-3-70b", 8192.0)
GPT = catalog.transformer("gpt-3-175b", 2048.0)
MIXTRAL = catalog.transformer("mixtral-8x7b", 4096.0)
UNFUSED = Plan.of(dp=1.0, global_batch=1.0, flash=0.0)
STARTS = 8


def stated(model=SMALL, n=16, batch=64, **kwargs):
    return problem(SYSTEM, model, n, batch, default(), **kwargs)


def test_relaxed_plans_have_the_device_count_by_construction():
    plan = relax.relax(stated(LARGE, 512, 1024), n_starts=STARTS).plan
    np.testing.assert_allclose(plan.devices, 512.0, rtol=1e-12)
    assert (plan.n_microbatches >= 1.0 - 1e-9).all() and (plan.layout.micro_batch >= 1.0).all()
    shares = [plan.layout.recompute_layers, plan.layout.sp, *plan.layout.mix.values()]
    for share in (*shares, sum(plan.layout.mix.values())):
        assert ((share >= 0.0) & (share <= 1.0)).all()
    assert (plan.layout.shard <= plan.layout.dp * (1 + 1e-9)).all() and (
        plan.layout.ep >= 1.0
    ).all()


def test_the_descent_keeps_the_limits_and_is_as_good_as_whole_plans():
    p = stated(LARGE, 512, 1024)
    relaxed = relax.relax(p, n_starts=STARTS)
    good = relaxed.violation <= 0.01
    assert good[0] and good.mean() > 0.8 and np.isfinite(relaxed.merit).all()
    # whole plans are among the relaxed ones, but for what pulls those towards whole degrees
    assert relaxed.merit[0] <= exact(p, top=1).merits[0] * 1.002


def test_what_pulls_degrees_to_divisors_is_nothing_there_and_grows_with_the_distance():
    logs = jnp.log(jnp.asarray([1.0, 2.0, 4.0, 8.0]))
    at = {"dp": jnp.asarray([4.0, 4.4, 5.6]), "tp": jnp.ones(3), "cp": jnp.ones(3)}
    at |= {"pp": jnp.full(3, 2.0)}
    far = np.asarray(relax._distance(at, logs))
    np.testing.assert_allclose(far, [0.0, np.log(1.1) ** 2, np.log(1.4) ** 2], atol=1e-15)


def test_the_search_is_the_same_for_the_same_seed():
    one, two = (relax.relax(stated(), n_starts=STARTS, seed=3) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, one, two)


@pytest.mark.parametrize("n", [1, 2])
def test_relaxed_plans_are_finite_at_the_edges(n):
    """One device: every degree is 1 and nothing can move; gradients there must not be NaN."""
    relaxed = relax.relax(stated(n=n, batch=1), n_starts=STARTS)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(relaxed.plan))
    assert np.isfinite(relaxed.merit).all()


@pytest.mark.parametrize(
    ("model", "n", "batch", "given"),
    [
        (LARGE, 512, 1024, {}),
        (SMALL, 16, 64, {}),
        pytest.param(LARGE, 96, 96, {}, marks=pytest.mark.slow),
        (GPT, 256, 1536, {"base": UNFUSED}),
        pytest.param(MIXTRAL, 128, 512, {"choices": EVERYTHING}, marks=pytest.mark.slow),
        pytest.param(GPT, 1024, 1536, {"choices": EVERYTHING}, marks=pytest.mark.slow),
        (SMALL.replace(seq_len=131072.0), 256, 64, {}),
        (LARGE, 64, 256, {"objective": "energy", "limits": Limits(tp_domain=4.0)}),
    ],
)
def test_the_gradient_finds_the_exact_optimum(model, n, batch, given):
    """The whole benchmark set: `dmodel experiment design_benchmark`."""
    p = stated(model, n, batch, **given)
    found, best = by_gradient(p, n_starts=STARTS), exact(p, top=1, prune=True)
    assert found.fits and found.row is not None
    assert -1e-9 <= found.merit / best.merits[0] - 1.0 <= 0.01
    assert found.evaluated < 0.1 * best.considered


def test_limits_hold_for_what_the_gradient_finds():
    p = stated(LARGE, 64, 128, limits=Limits(tp_domain=2.0))
    found = by_gradient(p, n_starts=STARTS)
    assert found.fits and found.row is not None and found.row[rows.INDEX["tp"]] <= 2.0


def test_neighbours_are_valid_and_lead_back():
    p = stated(LARGE, 64, 128)
    lattice = moves.Lattice(p.space)
    valid = {row.tobytes() for row in rows.all_rows(p.space)}
    split = space.Degrees(4, 4, 1, 4, 1, 1)
    found = space.options(p.space, split)
    row = rows.expanded(rows.group_rows(split, found), found)[3]
    around = moves.neighbours(lattice, row)
    assert len(around) > 15 and all(x.tobytes() in valid for x in around)
    columns = [rows.INDEX[name] for name in ("zero", "shard", "reshard")]
    sharded = [x for x in around if (np.delete(x, columns) == np.delete(row, columns)).all()]
    assert sharded and all(
        row.tobytes() in {y.tobytes() for y in moves.neighbours(lattice, x)} for x in sharded
    )


def test_a_valid_row_rounds_to_itself():
    p = stated(
        MIXTRAL,
        32,
        64,
        choices=Choices(shards="any", etp=True, schedules=("1f1b", "interleaved", "zero-bubble")),
    )
    lattice, found = moves.Lattice(p.space), rows.all_rows(p.space)
    for row in found[:: len(found) // 60]:
        np.testing.assert_array_equal(moves.nearest(lattice, row)[0], row)


def test_primes():
    assert moves.primes(360) == [2, 3, 5] and moves.primes(1) == [] and moves.primes(97) == [97]
