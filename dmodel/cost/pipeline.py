"""Pipeline schedules: the bubble, the micro-batches whose activations are alive at once, and the
collectives that meet in stages.

A new schedule is a line of functions in `SCHEDULES`, and one of what it asks of a layout in
`dmodel.records.schedule.RULES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dmodel.records import Plan, blended
from dmodel.smooth import ramp
from dmodel.types import Array, larger, smaller

OfRun = Callable[[Array, Array, Array], Array]


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


def _one_window(pp: Array, m: Array, v: Array) -> Array:
    """Where a rank's two chunks take turns to the end, gradients of both leave behind the last
    micro-batch."""
    return 1.0 + 0.0 * (pp + m + v)


class Schedule(NamedTuple):
    """bubble(pp, m, v): idle slots, in units of one micro-batch on one stage. in_flight(pp, m, v)
    and in_flight_last: micro-batches of a whole stage held by the first stage and by the last one.
    window(pp, m, v): micro-batches behind which messages of a step may hide.
    """

    bubble: OfRun
    in_flight: OfRun
    in_flight_last: OfRun
    window: OfRun = step_window


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
    """ZB-H2 and ZB-V (Qi et al. 2023): weight gradients fill the idle slots.

    Limits: for m ≥ 2 pp and forward, backward and weight gradients of one length; the optimizer
    must not synchronize the stages.
    """
    return 0.0 * (pp + m + v)


LEFT_IDLE = 2.0 / 3.0
"""What DualPipe leaves idle for each pair of stages but one, `F&B + B − 3 W`, over a micro-batch on
a stage, F + B [1]: forward pass F, gradients of inputs and those of weights W one as long as the
other, B = 2 W, and a forward pass beside a backward one, F&B, as long as both."""


def dualpipe_bubble(pp: Array, m: Array, v: Array) -> Array:
    """DualPipe (DeepSeek-AI 2024, arXiv 2412.19437, table 2): `(pp/2 − 1)(F&B + B − 3 W)`;
    micro-batches enter at both ends, and weight gradients fill what is idle.

    Limits: 0 for two stages; for m ≥ 2 pp. Where a forward pass beside a backward one takes less
    than both, micro-batches outside of such pairs take longer than those inside, which is not
    counted.

    >>> float(dualpipe_bubble(8.0, 20.0, 1.0))
    2.0
    """
    return LEFT_IDLE * larger(0.5 * pp - 1.0, 0.0) + 0.0 * (m + v)


def dualpipev_bubble(pp: Array, m: Array, v: Array) -> Array:
    """DualPipeV (github.com/deepseek-ai/DualPipe, README, 2025-03, after "Cut-in-half" of Sea AI
    Lab): DualPipe of 2 pp stages of half the layers on pp ranks, `(pp − 1)(F&B + B − 3 W) / 2` by
    the passes of a rank.

    Limits: 0 for one rank; otherwise those of `dualpipe_bubble`.

    >>> float(dualpipev_bubble(4.0, 10.0, 2.0))
    1.0
    """
    return 0.5 * LEFT_IDLE * (pp - 1.0) + 0.0 * (m + v)


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


def _zbv_in_flight(pp: Array, m: Array, v: Array) -> Array:
    """Every rank holds 2 pp of chunks of half the layers, as 1F1B's first stage does (Qi et al.
    2023, section 6)."""
    return smaller(m, pp) + 0.0 * v


def _dualpipe_in_flight(pp: Array, m: Array, v: Array) -> Array:
    """Every rank holds pp + 1 (arXiv 2412.19437, table 2), of both of its stages together; one rank
    holds one."""
    return smaller(m, pp + ramp(pp - 1.0)) + 0.0 * v


def _dualpipev_in_flight(pp: Array, m: Array, v: Array) -> Array:
    """Every rank holds 2 pp + 1 of chunks of half the layers; one rank holds one."""
    return smaller(m, pp + 0.5 * ramp(pp - 1.0)) + 0.0 * v


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


_ONE_F_ONE_B = Schedule(interleaved_bubble, _interleaved_in_flight, _interleaved_in_flight_last)

SCHEDULES: dict[str, Schedule] = {
    "gpipe": Schedule(gpipe_bubble, _gpipe_in_flight, _gpipe_in_flight),
    "1f1b": _ONE_F_ONE_B,
    "interleaved": _ONE_F_ONE_B,
    "zero-bubble": Schedule(zero_bubble, _zero_bubble_in_flight, _interleaved_in_flight_last),
    "zbv": Schedule(zero_bubble, _zbv_in_flight, _zbv_in_flight, _one_window),
    "dualpipe": Schedule(dualpipe_bubble, _dualpipe_in_flight, _dualpipe_in_flight, _one_window),
    "dualpipev": Schedule(
        dualpipev_bubble, _dualpipev_in_flight, _dualpipev_in_flight, _one_window
    ),
}


def _of(plan: Plan, which: str) -> Array:
    """What the schedule of a plan has of one of the functions of `Schedule`."""
    at = plan.layout.pp, plan.n_microbatches, plan.layout.interleave
    return blended(plan.layout, lambda name: getattr(SCHEDULES[name], which)(*at))


def idle_slots(plan: Plan) -> Array:
    """Idle slots of a plan's pipeline, in units of one micro-batch on one stage."""
    return _of(plan, "bubble")


def in_flight(plan: Plan) -> Array:
    """Micro-batches of a whole stage whose activations the first stage holds at once [count]."""
    return _of(plan, "in_flight")


def in_flight_last(plan: Plan) -> Array:
    """Micro-batches of a whole stage whose activations the last stage holds at once [count]."""
    return _of(plan, "in_flight_last")


def hiding_window(plan: Plan) -> Array:
    """Micro-batches whose passes through a stage hide the messages of a step [count]."""
    return _of(plan, "window")
