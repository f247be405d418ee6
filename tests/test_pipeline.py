"""Pipeline schedules: bubbles and micro-batches in flight, against the papers and a simulated
schedule."""

import numpy as np
import pytest

from dmodel.cost.pipeline import (
    SCHEDULES,
    gpipe_bubble,
    interleaved_bubble,
    step_window,
    zero_bubble,
)
from dmodel.records import SCHEDULES as NAMES


def simulated(pp: int, m: int) -> tuple[float, int]:
    """1F1B step by step, forward 1 and backward 1: (idle slots of the last stage in micro-batches
    of 2, most in flight on the first)."""
    order = [
        ["F"] * min(pp - s, m) + ["B", "F"] * (m - min(pp - s, m)) + ["B"] * min(pp - s, m)
        for s in range(pp)
    ]
    done: dict[tuple[str, int, int], int] = {}
    at, clock, peak = [0] * pp, [0] * pp, 0
    seen = [{"F": 0, "B": 0} for _ in range(pp)]
    while any(i < len(order[s]) for s, i in enumerate(at)):
        for s in range(pp):
            while at[s] < len(order[s]):
                kind = order[s][at[s]]
                i = seen[s][kind]
                needs = (
                    [("F", s - 1, i)]
                    if kind == "F" and s
                    else [("B", s + 1, i)]
                    if kind == "B" and s < pp - 1
                    else []
                )
                if any(n not in done for n in needs):
                    break
                clock[s] = max([clock[s], *(done[n] for n in needs)]) + 1
                done[kind, s, i] = clock[s]
                seen[s][kind] += 1
                at[s] += 1
                if s == 0:
                    peak = max(peak, seen[0]["F"] - seen[0]["B"])
    return (max(clock) - 2 * m) / 2, peak


@pytest.mark.parametrize(("pp", "m"), [(1, 4), (2, 8), (4, 4), (4, 16), (8, 12), (8, 4)])
def test_1f1b_is_the_simulated_schedule(pp, m):
    bubble, peak = simulated(pp, m)
    one = SCHEDULES["1f1b"]
    assert float(one.bubble(float(pp), float(m), 1.0)) == pytest.approx(bubble)
    assert float(one.in_flight(float(pp), float(m), 1.0)) == pytest.approx(peak)


def test_every_schedule_of_the_plan_has_its_formulas():
    assert tuple(SCHEDULES) == NAMES


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_stage_never_waits_and_holds_one(schedule):
    bubble, in_flight, last, window = SCHEDULES[schedule]
    assert float(bubble(1.0, 16.0, 1.0)) == 0.0
    assert (
        float(in_flight(1.0, 16.0, 1.0))
        == float(last(1.0, 16.0, 1.0))
        == (16.0 if schedule == "gpipe" else 1.0)
    )
    assert float(window(1.0, 16.0, 1.0)) == 1.0


def test_share_of_the_bubble_is_the_published_one():
    """Narayanan et al. 2021: (pp − 1)/m, divided by v when interleaved."""
    for pp, m, v in ((8.0, 64.0, 1.0), (8.0, 64.0, 4.0), (16.0, 32.0, 2.0)):
        assert float(interleaved_bubble(pp, m, v)) / m == pytest.approx((pp - 1.0) / (v * m))
    assert float(gpipe_bubble(8.0, 64.0, 1.0)) == float(interleaved_bubble(8.0, 64.0, 1.0)) == 7.0
    assert float(zero_bubble(8.0, 64.0, 1.0)) == 0.0


def test_too_few_micro_batches_undo_interleaving():
    """With m = 1 every schedule passes each of the pp · v chunks one after the other: pp − 1 + (v −
    1)(pp − 1) of them idle."""
    for v in (1.0, 2.0, 4.0):
        assert float(interleaved_bubble(8.0, 1.0, v)) == pytest.approx(7.0)
    assert float(interleaved_bubble(8.0, 8.0, 4.0)) == pytest.approx(7.0 / 4.0)


def test_in_flight_by_schedule():
    """pp = 8, m = 64: GPipe holds all; 1F1B pp; interleaved pp (1 + (pp − 1)/(pp v)) (Korthikanti
    et al. 2022); ZB-H2 2 pp − 1; ZB-V pp; DualPipe pp + 1, DualPipeV 2 pp + 1 of half the size."""
    held = {
        name: float(s.in_flight(8.0, 64.0, 2.0 if name == "interleaved" else 1.0))
        for name, s in SCHEDULES.items()
    }
    assert held == {
        "gpipe": 64.0,
        "1f1b": 8.0,
        "interleaved": 8.0 * (1.0 + 7.0 / 16.0),
        "zero-bubble": 15.0,
        "zbv": 8.0,
        "dualpipe": 9.0,
        "dualpipev": 8.5,
    }
    for s in SCHEDULES.values():
        assert float(s.in_flight(8.0, 3.0, 1.0)) == 3.0


def test_the_last_stage_holds_one_or_its_waiting_chunks():
    """Of v = 2 chunks the last stage's first one waits while pp micro-batches pass it; without
    interleaving nothing waits there."""
    held = {
        name: float(s.in_flight_last(8.0, 64.0, 2.0 if name == "interleaved" else 1.0))
        for name, s in SCHEDULES.items()
    }
    usual = {"gpipe": 64.0, "1f1b": 1.0, "interleaved": 4.5, "zero-bubble": 1.0}
    assert held == usual | {"zbv": 8.0, "dualpipe": 9.0, "dualpipev": 8.5}


@pytest.mark.parametrize(
    ("pp", "m", "v"), [(8, 64, 1), (4, 8, 2), (6, 6, 8), (2, 16, 4), (1, 8, 3), (8, 4, 2)]
)
def test_messages_of_a_step_hide_as_if_layers_were_sent_one_by_one(pp, m, v):
    """A stage passes a group of micro-batches through one chunk after the other; a layer's gradient
    leaves behind its last one."""
    group, layers, seconds = min(pp, m), 500, 4.0 * pp
    turn, sent = 1.0 / v, 0.0
    for chunk in range(v):
        for layer in range(layers):
            whole = turn * (chunk * group + group - 1 + (layer + 1) / layers)
            sent = max(sent, whole) + seconds / (v * layers)
    assert seconds - (sent - group) == pytest.approx(float(step_window(pp, m, v)), abs=2.0 / layers)


def test_bubbles_of_a_batch():
    pp = np.array([2.0, 4.0, 8.0])
    np.testing.assert_allclose(interleaved_bubble(pp, 16.0 * np.ones(3), np.ones(3)), pp - 1.0)
