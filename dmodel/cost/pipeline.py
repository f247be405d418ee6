"""Pipeline schedules: the bubble, the micro-batches whose activations are alive at once, and the
collectives that meet in stages.

A new schedule is a new pair of functions in `SCHEDULES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dmodel.records import Plan
from dmodel.smooth import ramp
from dmodel.types import Array, larger, smaller


class Schedule(NamedTuple):
    """bubble(pp, m, v): idle slots, in units of one micro-batch on one stage. in_flight(pp, m, v)
    and in_flight_last: micro-batches of a whole stage held by the first stage and by the last one.
    """

    bubble: Callable[[Array, Array, Array], Array]
    in_flight: Callable[[Array, Array, Array], Array]
    in_flight_last: Callable[[Array, Array, Array], Array]


def gpipe_bubble(pp: Array, m: Array, v: Array) -> Array:
    """GPipe (Huang et al. 2019): `pp − 1` slots while the pipeline fills and drains; 0 for one
    stage."""
    return pp - 1.0 + 0.0 * (m + v)


def interleaved_bubble(pp: Array, m: Array, v: Array) -> Array:
    """Interleaved 1F1B (Narayanan et al. 2021): `(z + pp − 1) / v`, with `z = (v − 1) max(0, pp −
    m)` when micro-batches are too few.

    1F1B is v = 1: the same bubble as GPipe, with less memory. The z follows from the longest chain:
    m micro-batches leave the last of
    `pp v` chunks after `pp v + m − 1` turns of 1/v each when m ≤ pp, and m of them are work.

    >>> float(interleaved_bubble(8.0, 32.0, 1.0)), float(interleaved_bubble(8.0, 32.0, 4.0))
    (7.0, 1.75)
    """
    return ((v - 1.0) * larger(pp - m, 0.0) + pp - 1.0) / v


def zero_bubble(pp: Array, m: Array, v: Array) -> Array:
    """ZB-H2 (Qi et al. 2023): weight gradients fill the idle slots.

    Limits: for m ≥ 2 pp and forward, backward and weight gradients of one length; the optimizer
    must not synchronize the stages.
    """
    return 0.0 * (pp + m + v)


def _gpipe_in_flight(pp: Array, m: Array, v: Array) -> Array:
    return m + 0.0 * (pp + v)


def _interleaved_in_flight(pp: Array, m: Array, v: Array) -> Array:
    """First stage: `min(m, pp (1 + (pp − 1)/(pp v)))`, and `min(m, pp)` for v = 1 (Korthikanti et
    al. 2022, eq. 5)."""
    extra = ramp(v - 1.0) * (pp - 1.0) / v
    return smaller(m, pp + extra)


def _interleaved_in_flight_last(pp: Array, m: Array, v: Array) -> Array:
    """Last stage: its v − 1 earlier chunks wait for pp micro-batches each, its last one for none:
    `min(m, (pp (v − 1) + 1) / v)`."""
    return smaller(m, (pp * (v - 1.0) + 1.0) / v)


def _zero_bubble_in_flight(pp: Array, m: Array, v: Array) -> Array:
    """ZB-H2 holds up to `2 pp − 1` (Qi et al. 2023)."""
    return smaller(m, 2.0 * pp - 1.0) + 0.0 * v


def meetings(plan: Plan, apart: Array) -> Array:
    """Tensor-parallel collectives of a layer, forward, backward and again under full recomputation,
    times their ranks, where stages of a pipeline on several nodes run them [count]: `(4 + again (1
    + last)) tp`; 0 on one rank, and where the stages share a node; linear
    in between. apart: domains of the innermost level that the stages of one pipeline lie in
    [count].
    """
    layout = plan.layout
    each = (4.0 + layout.recompute_layers * (1.0 + plan.software.recompute_last)) * layout.tp
    return each * ramp(layout.tp - 1.0) * ramp(apart - 1.0)


def step_window(pp: Array, m: Array, v: Array) -> Array:
    """Micro-batches whose passes through a stage hide the messages of a step: `1 + (min(pp, m) −
    1)(1 − 1/v)`.

    A stage passes pp micro-batches through one of its v chunks, then through the next (Narayanan et
    al. 2021). Gradients of a chunk are whole after its last micro-batch, so those of the first
    chunk leave while the same micro-batches go through the other v − 1; of the last chunk, and
    where there is one only, they leave layer by layer behind the last micro-batch. Parameters of
    the next step's forward pass arrive the same way.

    Limits: one micro-batch without interleaving; all of a group as v → ∞. At pp = m the slope is
    the mean of both sides.

    >>> float(step_window(8.0, 64.0, 1.0)), float(step_window(8.0, 64.0, 4.0))
    (1.0, 6.25)
    """
    return 1.0 + (smaller(pp, m) - 1.0) * (1.0 - 1.0 / v)


SCHEDULES: dict[str, Schedule] = {
    "gpipe": Schedule(gpipe_bubble, _gpipe_in_flight, _gpipe_in_flight),
    "1f1b": Schedule(interleaved_bubble, _interleaved_in_flight, _interleaved_in_flight_last),
    "interleaved": Schedule(
        interleaved_bubble, _interleaved_in_flight, _interleaved_in_flight_last
    ),
    "zero-bubble": Schedule(zero_bubble, _zero_bubble_in_flight, _interleaved_in_flight_last),
}
