"""What holds for every function of the model: its gradient is the finite difference,
transformations change nothing, corners are safe."""

from functools import cache
from math import inf

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.points import QUICK, batch, case, log_differences, log_slopes, quick
from tests.terms import TERMS, public_functions

IDS = sorted(TERMS)
SOFT = [(name, p) for name in IDS for p in ((8.0, inf) if TERMS[name].soft else (8.0,))]


def weighted(values, weights):
    """One number per case: outputs times fixed weights, summed."""
    return sum(
        (x * w).reshape(-1, x.shape[-1]).sum(0)
        for x, w in zip(jax.tree.leaves(values), weights, strict=True)
    )


def weights_for(values, one_unit, even):
    """Weights that bring all outputs of all cases to the same size, or their sum to one, each with
    a different share; or 1, where `even`.

    What is not finite has none.
    """
    rng = np.random.default_rng(1)
    leaves = [jnp.abs(x) for x in values]
    sizes = (
        [sum(leaves)] * len(leaves) if one_unit else [jnp.where(x == 0.0, 1.0, x) for x in leaves]
    )
    weights = [
        jnp.where(even, 1.0, rng.uniform(0.5, 1.5, x.shape) / size)
        for x, size in zip(leaves, sizes, strict=True)
    ]
    return [jnp.where(jnp.abs(x) < inf, w, 0.0) for x, w in zip(leaves, weights, strict=True)]


@cache
def program(name, sharpness):
    """Points and edges of a term as one batch, and what is traced once for all its tests: values,
    weights, slopes of their product."""
    term = TERMS[name]

    def run(x, even):
        values, pull = jax.vjp(lambda x: term.call(x, sharpness), x)
        weights = weights_for(jax.tree.leaves(values), term.one_unit, even)
        return values, weights, pull(jax.tree.unflatten(jax.tree.structure(values), weights))[0]

    return batch([*term.points, *term.edges]), quick(run)


def first(tree, n):
    """The first n cases of a batch."""
    return jax.tree.map(lambda x: x[..., :n], tree)


def test_every_public_function_is_registered():
    registered = {name for name in TERMS if "SCHEDULES" not in name}
    missing, gone = public_functions() - registered, registered - public_functions()
    assert not missing, f"add to tests/terms.py: {sorted(missing)}"
    assert not gone, f"no longer a public function: {sorted(gone)}"


@pytest.mark.parametrize(("name", "sharpness"), SOFT)
def test_gradient_is_the_finite_difference(name, sharpness):
    """Relative to the slope, 1e-6; the floor is the rounding of differences of outputs of size
    one."""
    term = TERMS[name]
    every, run = program(name, sharpness)
    x, weights, gradient = first((every, *run(every, False)[1:]), len(term.points))
    call = quick(lambda x: term.call(x, sharpness))

    def repeated(x):
        copies = jax.tree.leaves(x)[0].shape[-1] // len(term.points)
        return weighted(call(x), [np.tile(w, copies) for w in weights])

    slopes, differences = log_slopes(x, gradient), log_differences(repeated, x)
    np.testing.assert_allclose(
        slopes, differences, rtol=1e-6, atol=2e-10 * (1.0 if term.one_unit else len(weights))
    )
    assert np.abs(slopes).max() > 1e-3 or name in (
        "pipeline.zero_bubble",
        "compute.off_matrix_units",
    )


@pytest.mark.parametrize("name", IDS)
def test_batched_and_looped_agree(name):
    """The last axis of a batch, `vmap`, and a loop over single cases; all in float64."""
    term = TERMS[name]
    every, run = program(name, 8.0)
    call = lambda x: term.call(x, 8.0)  # noqa: E731
    x = first(every, len([*term.points, *term.edges[:3]]))
    batched, mapped = run(every, True)[0], quick(jax.vmap(call, in_axes=-1, out_axes=-1))(x)
    one_by_one = quick(call)
    assert {leaf.dtype for leaf in jax.tree.leaves(batched)} == {jnp.dtype("float64")}
    for i in (0, len(term.points) - 1, jax.tree.leaves(x)[0].shape[-1] - 1):
        one = one_by_one(case(x, i))
        for looped, b, m in zip(
            *map(jax.tree.leaves, (one, case(batched, i), case(mapped, i))), strict=True
        ):
            np.testing.assert_allclose(b, looped, rtol=2e-13, atol=1e-300)
            np.testing.assert_allclose(m, looped, rtol=2e-13, atol=1e-300)


WHOLE = ("step.memory_use", "step.step_time")
"""What all others are part of: compiled in the quick tests too."""


@pytest.mark.parametrize(
    "name", [n if n in WHOLE else pytest.param(n, marks=pytest.mark.slow) for n in IDS]
)
def test_compiled_and_without_compilation_agree(name):
    """By XLA in one program, operation by operation, and by numpy, which the other tests use."""
    term = TERMS[name]
    every, run = program(name, 8.0)
    x = first(every, len([*term.points, *term.edges[:3]]))
    compiled = jax.jit(lambda x: term.call(x, 8.0), compiler_options=QUICK)(x)
    assert {leaf.dtype for leaf in jax.tree.leaves(compiled)} == {jnp.dtype("float64")}
    by_numpy, one = run(every, True)[0], term.call(case(x, 0), 8.0)
    for c, n, single in zip(*map(jax.tree.leaves, (compiled, by_numpy, one)), strict=True):
        np.testing.assert_allclose(c, n[..., : c.shape[-1]], rtol=2e-13, atol=1e-300)
        np.testing.assert_allclose(single, n[..., 0], rtol=2e-13, atol=1e-300)


@pytest.mark.parametrize(("name", "sharpness"), [(n, p) for n, p in SOFT if TERMS[n].edges])
def test_corners_have_finite_values_and_gradients(name, sharpness):
    every, run = program(name, sharpness)
    found = run(every, True)
    values, gradient = (
        jax.tree.map(lambda x: x[..., len(TERMS[name].points) :], found[i]) for i in (0, 2)
    )
    for leaf in jax.tree.leaves(values):
        assert np.isfinite(leaf).all() and (np.asarray(leaf) > -1e-12).all()
    for path, leaf in jax.tree.leaves_with_path(gradient):
        wrong = ~np.isfinite(leaf)
        assert not wrong.any(), f"{jax.tree_util.keystr(path)} at case {np.argwhere(wrong)[0]}"


@pytest.mark.parametrize("sharpness", [8.0, inf])
@pytest.mark.parametrize("name", ["step.step_time", "step.memory_use"])
def test_forward_mode_is_reverse_mode(name, sharpness):
    term = TERMS[name]
    every, run = program(name, sharpness)
    x = case(every, 1)
    direction = jax.tree.map(lambda v: np.where(np.isfinite(v), v, 0.0) * 0.3 + 0.1, x)
    f = lambda x: sum(v.sum() for v in jax.tree.leaves(term.call(x, sharpness)))  # noqa: E731
    forward = quick(lambda x, d: jax.jvp(f, (x,), (d,))[1])(x, direction)
    gradient = case(run(every, True)[2], 1)
    inner = sum(
        (g * d).sum()
        for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True)
    )
    np.testing.assert_allclose(forward, inner, rtol=1e-10)
