"""Descents: they end where the loss is least, each start by itself, and say what they did."""

import jax
import numpy as np
import optax
import pytest

from calibration import descent
from calibration.descent import Place, by_lbfgs, descents


def silent(done: float, loss: float) -> None:
    """Progress that nobody reads."""


def valley(points):
    """Rosenbrock's valley in three dimensions, least at 1, beside a plain bowl in two, least at
    0."""
    x, y, bowl = points[:, :2], points[:, 1:3], points[:, 3:]
    off = y - x**2
    values = (100.0 * off**2 + (1.0 - x) ** 2).sum(1) + (bowl**2).sum(1)
    grads = np.zeros_like(points)
    grads[:, :2] += -400.0 * off * x - 2.0 * (1.0 - x)
    grads[:, 1:3] += 200.0 * off
    grads[:, 3:] += 2.0 * bowl
    return values, grads


def walled(points):
    """x − ln x, which is no number below 0, least at 1."""
    with np.errstate(invalid="ignore"):
        return (points - np.log(points)).sum(1), 1.0 - 1.0 / points


STARTS = [np.array([-1.2, 1.0, a, a, -2.0]) for a in (0.5, 2.0, -3.0)]


def alone(loss, asking):
    """The end of a descent whose questions a loss answers one by one."""
    p = next(asking)
    while True:
        values, grads = loss(p[None])
        try:
            p = asking.send(Place(p, float(values[0]), grads[0]))
        except StopIteration as stop:
            return stop.value


def test_every_start_reaches_the_bottom():
    ends = descents(valley, STARTS, adam=50, lbfgs=300, progress=silent)
    for end in ends:
        assert end.loss < 1e-9
        np.testing.assert_allclose(end.parameters[:3], 1.0, atol=1e-4)
        np.testing.assert_allclose(end.parameters[3:], 0.0, atol=1e-4)


def test_a_start_ends_where_it_does_alone_to_the_bit():
    """The other starts do not matter, however long they take."""
    apart = [descents(valley, [p], adam=20, lbfgs=60, progress=silent)[0] for p in STARTS]
    together = descents(valley, STARTS, adam=20, lbfgs=60, progress=silent)
    for one, other in zip(apart, together, strict=True):
        assert one.loss == other.loss
        np.testing.assert_array_equal(one.parameters, other.parameters)


def test_what_starts_ask_for_is_computed_together():
    counted, asked = counting(valley)
    descents(counted, STARTS, adam=10, lbfgs=1, progress=silent)
    assert asked[:11] == [3] * 11 and sum(asked) <= 3 * 11 + 3 * descent.TRIALS


def counting(loss):
    """A loss, and a list of how many sets each call of it has."""
    asked = []

    def counted(points):
        asked.append(len(points))
        return loss(points)

    return counted, asked


def test_most_steps_take_their_first_length():
    counted, asked = counting(valley)
    alone(counted, by_lbfgs(STARTS[0], 20, silent))
    assert 20 <= len(asked) < 1 + 20 * 3


def test_a_curvature_that_is_known_is_begun_from():
    """A bowl of very unlike axes: one step and one that rests with its own curvature."""
    axes = np.logspace(0, 6, 7)

    def bowl(points):
        return 1.0 + 0.5 * (axes * points**2).sum(1), axes * points

    asked = []

    def curvature(p):
        asked.append(p)
        return lambda v: v / axes

    for known, most in ((None, 300), (curvature, 8)):
        counted, calls = counting(bowl)
        end = alone(counted, by_lbfgs(np.ones(7), 200, silent, known))
        assert end.loss < 1.0 + 1e-6 and len(calls) < most
    assert len(asked) == 1


def test_the_curvature_is_asked_for_anew():
    asked = []

    def curvature(p):
        asked.append(p)
        return lambda v: 1e-3 * v

    ends = descents(valley, STARTS, adam=1, lbfgs=31, progress=silent, curvature=curvature)
    assert len(asked) == 3 * 3 and all(np.isfinite(end.loss) for end in ends)


def test_a_search_stays_where_there_are_numbers():
    """The first lengths reach over the wall, where the loss is NaN."""
    end = alone(walled, by_lbfgs(np.array([0.3, 4.0, 1e-3]), 200, silent))
    np.testing.assert_allclose(end.parameters, 1.0, rtol=1e-4)


def test_a_flat_loss_ends_at_once():
    counted, asked = counting(lambda points: (np.full(len(points), 3.0), 0.0 * points))
    end = alone(counted, by_lbfgs(np.ones(2), 100, silent))
    assert end.loss == 3.0 and len(asked) <= 1 + 2 * descent.TRIALS
    np.testing.assert_array_equal(end.parameters, 1.0)


def test_progress_is_that_of_all_descents():
    seen = []
    ends = descents(
        valley,
        STARTS,
        adam=50,
        lbfgs=40,
        progress=lambda done, loss: seen.append((done, loss)),
    )
    done, loss = np.array(seen).T
    assert (np.diff(done) >= 0.0).all() and done[-1] == pytest.approx(1.0)
    assert loss[-1] == min(end.loss for end in ends)


def test_starts_are_tried_until_enough_is_found():
    seen = []
    ends = descents(
        valley,
        [*STARTS, *STARTS],
        adam=0,
        lbfgs=300,
        progress=lambda done, loss: seen.append(done),
        enough=lambda found: len(found) > 2,
    )
    assert len(ends) == descent.TOGETHER and seen[-1] == 1.0


def test_an_error_of_the_loss_comes_through():
    def failing(points):
        raise ZeroDivisionError("of the loss")

    with pytest.raises(ZeroDivisionError, match="of the loss"):
        descents(failing, STARTS, adam=10**6, lbfgs=1, progress=silent)


def test_who_stops_listening_ends_the_descents():
    """What `progress` raises, an interrupt from the keyboard among it, comes through."""

    def stop(done: float, loss: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        descents(valley, STARTS, adam=10**6, lbfgs=1, progress=stop)


def test_adam_is_optax_s():
    """The rule as the library has it, on a loss that is no bowl."""
    steps, p = 30, STARTS[0]
    rule = optax.adam(optax.cosine_decay_schedule(descent.RATE, steps, descent.LAST))
    with jax.numpy_dtype_promotion("standard"):
        q, state = jax.numpy.asarray(p), rule.init(jax.numpy.asarray(p))
        for _ in range(steps):
            updates, state = rule.update(
                jax.numpy.asarray(valley(np.asarray(q)[None])[1][0]), state, q
            )
            q = optax.apply_updates(q, updates)
    found = alone(valley, descent._by_adam(p, steps, silent))
    np.testing.assert_allclose(found, q, rtol=1e-9)


def test_a_direction_is_optax_s():
    """L-BFGS with what it remembers, as the library has it."""
    rule, memory = optax.scale_by_lbfgs(memory_size=descent.MEMORY), descent._Memory()
    rng, state, before = np.random.default_rng(0), rule.init(jax.numpy.asarray(STARTS[0])), None
    for _ in range(descent.MEMORY + 5):
        p = STARTS[0] + 0.1 * rng.standard_normal(5)
        here = Place(p, 0.0, valley(p[None])[1][0])
        if before is not None:
            memory.add(before, here)
        with jax.numpy_dtype_promotion("standard"):
            ascent, state = rule.update(jax.numpy.asarray(here.grads), state, p)
        np.testing.assert_allclose(memory.direction(here.grads), -ascent, rtol=1e-7)
        before = here
