"""Descents: they end where the loss is least, each start by itself, whatever the threads, and say what they did."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calibration import descent
from calibration.descent import by_lbfgs, descents


def silent(done: float, loss: float) -> None:
    """Progress that nobody reads."""


@jax.jit
@jax.value_and_grad
def valley(p):
    """Rosenbrock's valley in two and two dimensions, least at 1, beside a plain bowl, least at 0."""
    x, y = p["valley"][:-1], p["valley"][1:]
    return (100.0 * (y - x**2) ** 2 + (1.0 - x) ** 2).sum() + (p["bowl"] ** 2).sum()


@jax.jit
@jax.value_and_grad
def walled(p):
    """x − ln x, which is no number below 0, least at 1."""
    return (p["x"] - jnp.log(p["x"])).sum()


STARTS = [{"valley": np.array([-1.2, 1.0, a]), "bowl": np.array([a, -2.0])} for a in (0.5, 2.0, -3.0)]


def test_every_start_reaches_the_bottom():
    ends = descents(valley, STARTS, adam=50, lbfgs=300, progress=silent)
    for end in ends:
        assert end.loss < 1e-9
        np.testing.assert_allclose(end.parameters["valley"], 1.0, atol=1e-4)
        np.testing.assert_allclose(end.parameters["bowl"], 0.0, atol=1e-4)


def test_a_start_ends_where_it_does_alone_to_the_bit():
    """Neither the other starts nor the threads matter."""
    alone = [descents(valley, [p], adam=20, lbfgs=30, progress=silent)[0] for p in STARTS]
    for threads in (1, 3):
        together = descents(valley, STARTS, adam=20, lbfgs=30, progress=silent, threads=threads)
        for one, other in zip(alone, together, strict=True):
            assert one.loss == other.loss and one.calls == other.calls
            jax.tree.map(np.testing.assert_array_equal, one.parameters, other.parameters)


def test_calls_are_counted_and_few():
    """Every loss that is asked for is counted; most steps take their first length."""
    asked = []

    def counted(p):
        asked.append(1)
        return valley(p)

    end = descents(counted, STARTS[:1], adam=10, lbfgs=20, progress=silent)[0]
    assert end.calls == len(asked) - 1  # the first compiles
    assert end.calls < 10 + 1 + 20 * 3


def test_a_search_stays_where_there_are_numbers():
    """The first lengths reach over the wall, where the loss is NaN."""
    end = by_lbfgs(walled, {"x": np.array([0.3, 4.0, 1e-3])}, 200, silent)
    np.testing.assert_allclose(end.parameters["x"], 1.0, rtol=1e-4)


def test_a_flat_loss_ends_at_once():
    flat = jax.jit(jax.value_and_grad(lambda p: 0.0 * p["x"].sum() + 3.0))
    end = by_lbfgs(flat, {"x": np.ones(2)}, 100, silent)
    assert end.loss == 3.0 and end.calls <= 1 + 2 * descent.TRIALS
    np.testing.assert_array_equal(end.parameters["x"], 1.0)


def test_progress_is_that_of_all_descents():
    seen = []
    ends = descents(valley, STARTS, adam=50, lbfgs=40, progress=lambda done, loss: seen.append((done, loss)), threads=2)
    done, loss = np.array(seen).T
    assert (np.diff(done) >= 0.0).all() and done[-1] == pytest.approx(1.0)
    assert loss[-1] == min(end.loss for end in ends)


def test_an_error_of_one_start_ends_the_others():
    calls = []

    def failing(p):
        calls.append(1)
        if len(calls) > 30:
            raise ZeroDivisionError("of the loss")
        return valley(p)

    with pytest.raises(ZeroDivisionError, match="of the loss"):
        descents(failing, STARTS, adam=10**6, lbfgs=1, progress=silent, threads=3)
    assert len(calls) < 200
