"""Descents: they end where the loss is least, each start by itself, whatever the threads, and say
what they did."""

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
    """Rosenbrock's valley in two and two dimensions, least at 1, beside a plain bowl, least at
    0."""
    x, y = p["valley"][:-1], p["valley"][1:]
    return (100.0 * (y - x**2) ** 2 + (1.0 - x) ** 2).sum() + (p["bowl"] ** 2).sum()


@jax.jit
@jax.value_and_grad
def walled(p):
    """x − ln x, which is no number below 0, least at 1."""
    return (p["x"] - jnp.log(p["x"])).sum()


STARTS = [
    {"valley": np.array([-1.2, 1.0, a]), "bowl": np.array([a, -2.0])} for a in (0.5, 2.0, -3.0)
]


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
            assert one.loss == other.loss
            jax.tree.map(np.testing.assert_array_equal, one.parameters, other.parameters)


def counting(loss):
    """A loss, and a list that grows with every call of it."""
    asked = []

    def counted(p):
        asked.append(1)
        return loss(p)

    return counted, asked


def test_most_steps_take_their_first_length():
    counted, asked = counting(valley)
    by_lbfgs(counted, STARTS[0], 20, silent)
    assert 20 <= len(asked) < 1 + 20 * 3


def test_a_search_stays_where_there_are_numbers():
    """The first lengths reach over the wall, where the loss is NaN."""
    end = by_lbfgs(walled, {"x": np.array([0.3, 4.0, 1e-3])}, 200, silent)
    np.testing.assert_allclose(end.parameters["x"], 1.0, rtol=1e-4)


def test_a_flat_loss_ends_at_once():
    flat = jax.jit(jax.value_and_grad(lambda p: 0.0 * p["x"].sum() + 3.0))
    counted, asked = counting(flat)
    end = by_lbfgs(counted, {"x": np.ones(2)}, 100, silent)
    assert end.loss == 3.0 and len(asked) <= 1 + 2 * descent.TRIALS
    np.testing.assert_array_equal(end.parameters["x"], 1.0)


def test_progress_is_that_of_all_descents():
    seen = []
    ends = descents(
        valley,
        STARTS,
        adam=50,
        lbfgs=40,
        progress=lambda done, loss: seen.append((done, loss)),
        threads=2,
    )
    done, loss = np.array(seen).T
    assert (np.diff(done) >= 0.0).all() and done[-1] == pytest.approx(1.0)
    assert loss[-1] == min(end.loss for end in ends)


def test_starts_are_tried_until_enough_is_found_whatever_the_threads():
    seen = []
    for threads in (1, 3):
        ends = descents(
            valley,
            [*STARTS, *STARTS],
            adam=0,
            lbfgs=300,
            progress=lambda done, loss: seen.append(done),
            threads=threads,
            enough=lambda found: len(found) > 2,
        )
        assert len(ends) == descent.TOGETHER and seen[-1] == 1.0


def test_an_error_of_one_start_ends_the_others():
    """At once, those before it too, and those that wait for a thread."""
    counted, asked = counting(valley)

    def failing(p):
        if float(p["bowl"][0]) == STARTS[2]["bowl"][0]:
            raise ZeroDivisionError("of the loss")
        return counted(p)

    for threads in (2, 3):
        asked.clear()
        with pytest.raises(ZeroDivisionError, match="of the loss"):
            descents(
                failing,
                [STARTS[0], STARTS[2], STARTS[1]],
                adam=10**6,
                lbfgs=1,
                progress=silent,
                threads=threads,
            )
        assert len(asked) < 10**4


def test_who_stops_listening_ends_the_descents():
    """What `progress` raises, an interrupt from the keyboard among it, comes through."""

    def stop(done: float, loss: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        descents(valley, STARTS, adam=10**6, lbfgs=1, progress=stop)
