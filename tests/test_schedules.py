"""Schedules that fold a pipeline: DualPipe, DualPipeV, ZB-V. Bubbles and micro-batches in flight
against a simulation of the passes, memory and messages against plans that hold the same."""

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np
import pytest

import dmodel as dm
from calibration.importers import megatron, torchtitan
from dmodel import by_stage, catalog, coefficients, counts
from dmodel.asked import ask
from dmodel.cost import collectives, pipeline
from dmodel.design import relax
from dmodel.design.rows import INDEX, all_rows
from dmodel.design.space import degrees
from dmodel.emit import Job, emit
from dmodel.errors import InputError
from dmodel.messages import messages
from dmodel.placement import place
from dmodel.question import Question
from dmodel.records import MIXED, RULES, SCHEDULES, Mixed, Plan, weight_copies
from dmodel.searching import space_of, stated
from dmodel.smooth import SHARPNESS
from dmodel.stages import last_rank, on_ranks
from dmodel.step import memory_use, step_time

MODEL = catalog.transformer("llama-3-70b", seq_len=4096)
SPARSE = catalog.transformer("deepseek-v3", seq_len=4096)
SYSTEM = catalog.system("H100-DGX")
DEFAULT = coefficients.default()


class Times(NamedTuple):
    """How long passes last: forward, gradients of inputs, those of weights, and a forward pass
    beside a whole backward one."""

    forward: float
    inputs: float
    weights: float
    pair: float


LEAVES = ("pp", "dp", "tp", "ep", "micro_batch", "shard", "global_batch")

EVEN = Times(1.0, 1.0, 1.0, 3.0)
"""Passes as the formulas have them: alike, and pairs no faster than one after the other."""


def turns(ranks: int, rank: int, m: int) -> Iterator[tuple]:
    """What a rank does, as `step` of github.com/deepseek-ai/DualPipe has it: kinds of passes and of
    its two stages, those of a turn side by side. F: forward; I: gradients of inputs; W: those of
    weights that an I has left; B: I and W. ranks: of a V, or half of those of DualPipe."""
    after = ranks - rank - 1
    yield from [(("F", 0),)] * (2 * after)
    yield from [(("F", 0),), (("F", 1),)] * (rank + 1)
    yield from [(("I", 1),), ("W",), (("F", 1),)] * after
    for i in range(m - 2 * ranks + rank + 1):
        if i == 0 and after == 0:
            yield from [(("F", 0),), (("B", 1),)]
        else:
            yield (("F", 0), ("B", 1))
        yield (("F", 1), ("B", 0))
    yield from [(("B", 1),), (("F", 1), ("B", 0))] * after
    split = False
    for i in range(rank + 1):
        half = i == (rank + 1) // 2
        split = split or (half and rank % 2 == 1)
        yield (("I" if split else "B", 1),)
        split = split or (half and rank % 2 == 0)
        yield (("I" if split else "B", 0),)
    yield from [("W",), (("I", 0),)] * after
    yield from [("W",)] * (rank + 1)


class Ran(NamedTuple):
    """A step of all ranks: how long, how much of it the busiest rank works, and the most passes
    forward that were not yet backward on each."""

    end: float
    work: float
    held: list[int]


def simulated(ranks: int, m: int, of: Times, both: bool) -> Ran:
    """All turns of all ranks, each as soon as what it needs has come. both: two models from both
    ends on `2 ranks` ranks, m micro-batches each; else one, folded, on `ranks`."""
    last, count = 2 * ranks - 1, 2 * ranks if both else ranks

    def stage(rank: int, phase: int) -> tuple[int, int]:
        """Model and stage of a rank's phase."""
        near = min(rank, count - 1 - rank) if both else rank
        model = int(both and (rank >= ranks) != (phase == 1))
        return model, near if phase == 0 else last - near

    plans = [list(turns(ranks, min(r, count - 1 - r) if both else r, m)) for r in range(count)]
    done: dict[tuple, float] = {}
    at, clock, seen = [0] * count, [0.0] * count, [{} for _ in range(count)]
    alive, held, work = [0] * count, [0] * count, [0.0] * count
    while any(at[r] < len(plans[r]) for r in range(count)):
        before = list(at)
        for r in range(count):
            while at[r] < len(plans[r]):
                turn = plans[r][at[r]]
                needs, gives, kinds = [], [], [x if x == "W" else x[0] for x in turn]
                for kind, phase in (x for x in turn if x != "W"):
                    model, s = stage(r, phase)
                    way = "F" if kind == "F" else "B"
                    i = seen[r].get((way, phase), 0)
                    gives.append((way, phase, (way, model, s, i)))
                    beyond = s - 1 if way == "F" else s + 1
                    if 0 <= beyond <= last:
                        needs.append((way, model, beyond, i))
                if any(n not in done for n in needs):
                    break
                taken = {"F": of.forward, "I": of.inputs, "W": of.weights}
                taken |= {"B": of.inputs + of.weights}
                long = of.pair if len(kinds) == 2 else taken[kinds[0]]
                start = max([clock[r], *(done[n] for n in needs)])
                clock[r], work[r] = start + long, work[r] + long
                alive[r] += sum(way == "F" for way, _, _ in gives)
                held[r] = max(held[r], alive[r])
                alive[r] -= sum(way == "B" for way, _, _ in gives)
                for way, phase, key in gives:
                    seen[r][way, phase] = seen[r].get((way, phase), 0) + 1
                    done[key] = clock[r]
                at[r] += 1
        assert at != before, "the turns wait for each other"
    assert all(x == 0 for x in alive)
    return Ran(max(clock), max(work), held)


@pytest.mark.parametrize(("pp", "m"), [(2, 4), (4, 8), (4, 20), (8, 20), (16, 32), (16, 120)])
def test_dualpipe_is_the_simulated_schedule(pp, m):
    ran = simulated(pp // 2, m // 2, EVEN, both=True)
    slot, of = EVEN.pair, pipeline.SCHEDULES["dualpipe"]
    assert ran.work == pytest.approx(m * slot)
    at = float(pp), float(m), 1.0
    assert float(of.bubble(*at)) == pytest.approx((ran.end - m * slot) / slot)
    assert ran.held == [int(of.in_flight(*at))] * pp == [int(of.in_flight_last(*at))] * pp
    assert RULES["dualpipe"].allows(pp, m)


@pytest.mark.parametrize(("pp", "m"), [(2, 4), (3, 6), (4, 10), (8, 16), (8, 33)])
def test_dualpipev_is_the_simulated_schedule(pp, m):
    """A rank's passes take half as long as those of a whole stage, and it has two chunks."""
    ran = simulated(pp, m, EVEN, both=False)
    slot, of = 2.0 * EVEN.pair, pipeline.SCHEDULES["dualpipev"]
    at = float(pp), float(m), 2.0
    assert float(of.bubble(*at)) == pytest.approx((ran.end - m * slot) / slot)
    assert ran.held == [int(2.0 * of.in_flight(*at))] * pp
    assert RULES["dualpipev"].allows(pp, m)


@pytest.mark.parametrize("of", [Times(1.0, 1.0, 1.0, 2.5), Times(2.0, 2.5, 1.5, 6.0)])
def test_the_published_bubble_is_that_of_other_times_too(of):
    """`(pp/2 − 1)(F&B + B − 3 W)` of table 2, of which `LEFT_IDLE` is the case of equal times."""
    pp, m = 8, 40
    whole = of.inputs + of.weights
    idle = (pp / 2 - 1) * (of.pair + whole - 3.0 * of.weights)
    middle = simulated(pp // 2, m // 2, of, both=True)
    # passes without a partner take longer than their half of a pair: work, not idle time
    assert middle.end - middle.work <= idle + 1e-9
    even = EVEN
    assert pipeline.LEFT_IDLE == (even.pair + 2.0 - 3.0) / (even.forward + 2.0)


def test_fewer_micro_batches_or_an_odd_number_do_not_run():
    assert not RULES["dualpipe"].allows(8, 14) and not RULES["dualpipe"].allows(8, 17)
    assert not RULES["dualpipe"].allows(7, 20) and RULES["dualpipev"].allows(7, 15)
    assert "multiple of 2 for pp; got 7" in RULES["dualpipe"].refusal(7, 20)
    assert "at least 16 (2 pp) micro-batches, a multiple of 2; got 17" in RULES["dualpipe"].refusal(
        8, 17
    )


def plan(schedule: str = "1f1b", **leaves: float) -> Plan:
    given = {"dp": 4.0, "tp": 2.0, "sp": 1.0, "zero": 1.0, "shard": 4.0, "global_batch": 256.0}
    return Plan.of(**given | leaves, schedule=schedule)


def sent(model, of: Plan):
    groups = place(
        of, SYSTEM.network.size[:, None] if np.ndim(of.layout.dp) else SYSTEM.network.size
    )
    net = collectives.fabric(SYSTEM.network, DEFAULT, SHARPNESS, groups.all)
    return messages(model, of, counts.residents(model, of), groups, net, DEFAULT)


@pytest.mark.parametrize("model", [MODEL, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("zero", [0.0, 1.0, 2.0])
def test_two_stages_of_dualpipe_hold_and_send_what_one_stage_of_twice_the_ranks_does(model, zero):
    """Each of two ranks then has all layers: states, gradients and parameters of a step are those
    of plain data parallelism over both."""
    ep = 4.0 if model is SPARSE else 1.0
    two = plan("dualpipe", pp=2.0, zero=zero, shard=4.0 if zero else 1.0, ep=ep)
    one = plan(pp=1.0, dp=8.0, zero=zero, shard=8.0 if zero else 1.0, ep=ep)
    held, expected = memory_use(model, two), memory_use(model, one)
    for name in ("weights", "gradients", "optimizer"):
        np.testing.assert_allclose(getattr(held, name), getattr(expected, name), rtol=1e-9)
    both = sent(model, two), sent(model, one)
    for name in ("dp", "updated", "scatter"):
        first, other = (float(getattr(x, name)) for x in both)
        assert first == pytest.approx(other, rel=1e-9), name
    assert float(both[1].dp) > 0.0 if zero < 2.0 else float(both[1].scatter) > 0.0


def test_weights_and_gradients_are_held_twice_and_the_state_of_zero_1_once():
    """A rank has two stages, and embedding and head with the outer ones; ZeRO-1 shards their states
    over both ranks that have them."""
    at = {"pp": 8.0, "dp": 4.0, "tp": 1.0}
    once, twice = (memory_use(MODEL, plan(name, **at)) for name in ("1f1b", "dualpipe"))
    parts = counts.residents(MODEL, plan("1f1b", **at))
    layers, table = float(parts.layers), float(MODEL.vocab * MODEL.d_model)
    bits = plan().precision
    assert float(twice.weights) == pytest.approx(
        float(bits.weight_bytes) * (2.0 * layers + 2.0 * table), rel=1e-3
    )
    assert float(twice.gradients) / float(twice.weights) == pytest.approx(
        float(once.gradients) / float(once.weights)
    )
    # one table for each end, of which both ranks share the states
    assert float(twice.optimizer) == pytest.approx(
        float(bits.optimizer_bytes) * (layers + table) / 4.0, rel=1e-3
    )
    whole = memory_use(MODEL, plan("dualpipe", **at, zero=0.0, shard=1.0))
    assert float(whole.optimizer) == pytest.approx(4.0 * 2.0 * float(twice.optimizer), rel=1e-9)


def test_ranks_that_hold_the_same_stages_are_the_halves_of_a_pipeline():
    """Of 16 stages in nodes of 8 devices, tp 2 and dp 4 inside: stages i and 15 − i are on several
    nodes; with stages inside of a node, both are there."""
    apart = place(plan("dualpipe", pp=16.0), SYSTEM.network.size)
    np.testing.assert_allclose(np.asarray(apart.data).ravel(), [4.0, 2.0])
    within = plan("dualpipe", pp=4.0, tp=1.0, sp=0.0, placement=("pp", "tp", "cp", "ep", "dp"))
    np.testing.assert_allclose(
        np.asarray(place(within, SYSTEM.network.size).data).ravel(), [4.0, 2.0]
    )
    plain = place(plan(pp=16.0), SYSTEM.network.size)
    np.testing.assert_allclose(np.asarray(plain.data).ravel(), [4.0, 1.0])


def test_each_end_has_the_head_for_half_of_the_micro_batches():
    c = DEFAULT.replace(head_balance=0.0)
    at = {"pp": 8.0, "tp": 1.0, "sp": 0.0}
    once, twice = (step_time(SYSTEM, MODEL, plan(n, **at), c) for n in ("1f1b", "dualpipe"))
    assert float(twice.head) == pytest.approx(0.5 * float(once.head), rel=1e-6)


def test_a_mixture_is_each_schedule_where_it_has_all():
    at = {"pp": 8.0, "interleave": 2.0}
    for name in SCHEDULES:
        own = plan(name, **at)
        mixed = own.replace(layout=Mixed.of(own.layout))
        for model in (MODEL, SPARSE):
            for found, expected in zip(
                jax.tree.leaves(
                    (step_time(SYSTEM, model, mixed, DEFAULT), memory_use(model, mixed))
                ),
                jax.tree.leaves((step_time(SYSTEM, model, own, DEFAULT), memory_use(model, own))),
                strict=True,
            ):
                np.testing.assert_allclose(found, expected, rtol=1e-12, err_msg=name)


@functools.cache
def compiled(name: str) -> tuple[dict[str, float], Callable, Callable]:
    """Leaves of a plan of a schedule, and of its step and memory the sum and slopes by leaves."""
    base = plan(name, pp=8.0, dp=16.3, shard=16.3, ep=4.7, tp=2.3, interleave=2.0)

    def total(leaves):
        of = base.having(**leaves)
        seconds = step_time(SYSTEM, SPARSE, of, DEFAULT).total
        return seconds * 1.0 + memory_use(SPARSE, of).total * 1e-10

    given = {leaf: float(getattr(base.layout, leaf)) for leaf in LEAVES if leaf != "global_batch"}
    return (
        given | {"global_batch": float(base.global_batch)},
        jax.jit(total),
        jax.jit(jax.grad(total)),
    )


@pytest.mark.parametrize(
    "name", ["zbv", "dualpipe", pytest.param("dualpipev", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("leaf", LEAVES)
def test_gradients_are_finite_differences(name, leaf):
    base, total, slopes = compiled(name)
    at = base | {leaf: 1.003 * base[leaf]}
    slope, step = float(slopes(at)[leaf]), 1e-5 * at[leaf]
    above, below = (float(total(at | {leaf: at[leaf] + x})) for x in (step, -step))
    difference = (above - below) / (2.0 * step)
    assert np.isfinite(slope) and slope == pytest.approx(difference, rel=2e-4, abs=1e-9)


def test_gradients_are_finite_at_one_and_at_two_stages():
    of = plan("dualpipe", pp=2.0)
    slope = jax.jit(jax.grad(lambda x: step_time(SYSTEM, MODEL, of.having(pp=x), DEFAULT).total))
    assert all(np.isfinite(float(slope(pp))) for pp in (1.0, 2.0))


def test_layers_lie_on_ranks_as_schedules_fold_them():
    chunks = tuple(float(k) for k in range(8))
    assert on_ranks(chunks, 4, "loop").tolist() == [4.0, 6.0, 8.0, 10.0]
    assert on_ranks(chunks, 4, "v").tolist() == [7.0] * 4
    assert on_ranks(chunks, 8, "both").tolist() == [3.5] * 8
    assert [last_rank(8, 4, fold) for fold in ("loop", "v")] == [3, 0]


JOB = dm.Job("llama-3-70b", seq_len=4096, global_batch=1024)
CLUSTER = dm.cluster("H100-DGX", devices=128)


def predicted(schedule: str, **layout: float):
    return dm.predict(JOB, CLUSTER, dm.Layout(tp=4, **layout), overrides={"schedule": schedule})


def test_uneven_stages_are_paired():
    """80 layers on 12 ranks: 82 items, of which each end has one fewer; a V folds 24 chunks."""
    cluster = dm.cluster("H100-DGX", devices=96)
    given = {"tp": 4, "pp": 12}
    once, both = (
        dm.predict(JOB, cluster, dm.Layout(**given), overrides={"schedule": name}).case.plan.layout
        for name in ("1f1b", "dualpipe")
    )
    # the first 10 stages have 7 items: layers 6, 7 × 9, 6, 5; in pairs 5.5, 6.5, 7 …
    assert float(once.stage_excess) == pytest.approx(7.0 - 80.0 / 12.0)
    assert float(once.head_displaces) == pytest.approx(2.0)
    assert float(both.stage_excess) == pytest.approx(7.0 - 80.0 / 12.0)
    assert float(both.head_displaces) == pytest.approx(1.5)


def test_stages_of_folded_pipelines_hold_alike():
    for name, held, layers in (
        ("zbv", 8.0, 10.0),
        ("dualpipev", 8.5, 10.0),
        ("dualpipe", 9.0, 10.0),
    ):
        found = predicted(name, pp=8)
        each = found.document["memory_by_stage"]
        assert [x["micro_batches_in_flight"] for x in each] == [held] * 8
        assert [x["layers"] for x in each] == [layers] * 8
        inner = [x["bytes"] for x in each[1:-1]]
        assert max(inner) == pytest.approx(min(inner))
        if name == "dualpipe":
            assert (
                each[0]["bytes"] == pytest.approx(each[-1]["bytes"]) and each[0]["bytes"] > inner[0]
            )
        else:
            assert each[0]["bytes"] > each[-1]["bytes"] == pytest.approx(inner[0])
    assert by_stage.MANY > 1e9


@pytest.mark.parametrize("name", ["dualpipe", "dualpipev", "zbv", "1f1b"])
def test_the_fullest_rank_of_a_folded_pipeline_is_without_ends_where_these_take_a_layer(name):
    found = predicted(name, pp=8).case
    own = {"stage_excess": 0.5, "micro_batch": 1.0}
    alike, apart = (found.plan.having(head_displaces=x, **own) for x in (0.0, 1.0))
    less = float(memory_use(found.model, alike).total) - float(memory_use(found.model, apart).total)
    layers = float(found.model.layers) / 8.0 + 0.5
    parts = counts.residents(found.model, apart)
    a_layer = float(parts.layers + parts.experts) / (layers - 0.5)
    if name == "1f1b":
        assert less == 0.0
    else:
        each = 6.0 * float(weight_copies(apart.layout))
        assert 0.5 * each * min(a_layer, float(parts.ends)) < less
    slope = jax.grad(lambda x: memory_use(found.model, found.plan.having(head_displaces=x)).total)
    assert np.isfinite(float(slope(0.0))) and np.isfinite(float(slope(0.7)))


def test_a_rank_of_a_folded_pipeline_has_two_chunks_where_nothing_is_said():
    found = predicted("dualpipev", pp=8).case.plan.layout
    assert (found.schedule, float(found.interleave)) == ("dualpipev", 2.0)
    with pytest.raises(
        InputError, match="interleave: expected 2 for the schedule 'dualpipev'; got 4"
    ):
        predicted("dualpipev", pp=8, interleave=4)


@pytest.mark.parametrize(
    ("schedule", "layout", "says"),
    [
        (
            "dualpipe",
            {"pp": 8, "micro_batch": 32},
            r"at least 16 \(2 pp\) micro-batches, a multiple",
        ),
        ("dualpipev", {"pp": 8, "micro_batch": 32}, r"at least 16 \(2 pp\) micro-batches; got 8"),
        ("dualpipe", {"pp": 2, "interleave": 2}, "expected 1 for the schedule 'dualpipe'; got 2"),
    ],
)
def test_a_layout_with_which_a_schedule_does_not_run_is_refused(schedule, layout, says):
    with pytest.raises(InputError, match=says):
        predicted(schedule, **layout)


def test_one_stage_has_nothing_to_fold():
    found = predicted("dualpipe", pp=1)
    assert found.case.plan.layout.schedule == "1f1b"
    assert "schedule dualpipe not used: one stage" in {a.text for a in found.assumptions}


def test_dualpipe_asks_for_an_even_number_of_stages():
    cluster = dm.cluster("H100-DGX", devices=160)
    job = dm.Job("llama-3-70b", seq_len=4096, global_batch=1024)
    with pytest.raises(InputError, match="expected a multiple of 2 for pp; got 5"):
        dm.predict(job, cluster, dm.Layout(tp=4, pp=5), overrides={"schedule": "dualpipe"})


def test_deepseek_runs_dualpipe():
    job = dm.Job("deepseek-v3", seq_len=4096, global_batch=15360)
    cluster = dm.cluster("H800-HGX", devices=2048)
    found = dm.predict(job, cluster, dm.Layout(pp=16, ep=64), stack="hai-llm", precision="fp8")
    layout = found.case.plan.layout
    assert layout.schedule == "dualpipe" and float(layout.zero) == 1.0
    assert float(found.case.plan.precision.weight_bytes) == 2.0
    usual = dm.predict(
        job,
        cluster,
        dm.Layout(pp=16, ep=64),
        stack="hai-llm",
        precision="fp8",
        overrides={"schedule": "1f1b"},
    )
    assert float(found.breakdown.bubble) < 0.4 * float(usual.breakdown.bubble)
    held, once = (memory_use(x.case.model, x.case.plan) for x in (found, usual))
    assert float(held.weights) > 1.5 * float(once.weights)
    # it ran: ranks with embedding and head hold fewer layers for them
    assert found.fits and float(held.total) == pytest.approx(
        max(each["bytes"] for each in found.document["memory_by_stage"]), rel=0.03
    )


def titan(schedule: str, **leaves):
    own = dict.fromkeys(("stage_excess", "head_displaces"), 0.0)
    given = {"dp": 8.0, "shard": 8.0, "pp": 8.0, "zero": 3.0, "micro_batch": 1.0} | own | leaves
    return emit("torchtitan", Job(MODEL, plan(schedule, **given), "llama-3-70b", "bf16"))


@pytest.mark.parametrize(
    ("schedule", "name", "interleave"),
    [("zbv", "ZBVZeroBubble", 2.0), ("dualpipev", "DualPipeV", 2.0), ("1f1b", "1F1B", 1.0)],
)
def test_torchtitan_runs_folded_schedules_by_their_names(schedule, name, interleave):
    found = titan(schedule, interleave=interleave)
    key = "parallelism.pipeline_parallel_"
    assert found.settings[key + "schedule"] == name
    assert found.settings[key + "layers_per_stage"] == 80 / (8 * interleave)
    assert not {"schedule", "interleave", "stage_excess"} & {x.field for x in found.left_out}
    assert found.settings["compile.enable"] is (schedule == "1f1b")
    few = titan(schedule, interleave=interleave, global_batch=64.0)
    assert any("fill the pipeline" in rule for rule in few.broken) == (schedule != "1f1b")


def test_torchtitan_has_no_dualpipe_of_two_copies():
    found = titan("dualpipe")
    assert found.settings["parallelism.pipeline_parallel_schedule"] == "DualPipeV"
    [why] = [x.reason for x in found.left_out if x.field == "schedule"]
    assert "two copies" in why


def test_exchanges_hide_in_dualpipev_alone_and_without_recomputation():
    overlap = "parallelism.pipeline_parallel_expert_parallel_overlap"
    given = {"interleave": 2.0, "ep": 8.0, "dp": 8.0, "tp": 1.0, "sp": 0.0, "overlap_ep": 1.0}

    def asked(schedule: str, **more: float):
        own = plan(schedule, **{"pp": 4.0, "zero": 3.0, "shard": 8.0} | given | more)
        found = emit("torchtitan", Job(SPARSE, own, "deepseek-v3", "bf16"))
        return found.settings.get(overlap), "overlap_ep" in {x.field for x in found.left_out}

    assert asked("dualpipev") == (True, False)
    assert asked("dualpipev", overlap_ep=0.0) == (False, False)
    assert asked("dualpipev", recompute_layers=1.0) == (False, True)
    assert asked("interleaved") == (None, True)


@pytest.mark.parametrize("target", ["megatron", "nemo"])
def test_launchers_without_folded_schedules_say_so(target):
    for name in ("zbv", "dualpipe", "dualpipev"):
        found = emit(target, Job(MODEL, plan(name, pp=8.0), "llama-3-70b", "bf16"))
        assert "schedule" in {x.field for x in found.left_out}


@pytest.mark.parametrize(
    ("name", "cell", "note"),
    [
        ("DualPipeV", "schedule=dualpipev", ""),
        ("dualpipev", "schedule=dualpipev", ""),
        ("ZBVZeroBubble", "schedule=zbv", ""),
        ("GPipe", "schedule=gpipe", ""),
        ("1F1B", "", ""),
        ("Interleaved1F1B", "", ""),
        ("InterleavedZeroBubble", "", "schedule interleavedzerobubble: read as 1F1B"),
    ],
)
def test_logs_of_torchtitan_tell_the_schedule(name, cell, note):
    log = torchtitan._Log()
    log.config = {
        "parallelism.pipeline_parallel_degree": "4",
        "parallelism.data_parallel_shard_degree": "8",
        "parallelism.pipeline_parallel_schedule": name,
    }
    cells, notes = torchtitan.described(log)
    assert (cells["set"], "; ".join(notes)) == (cell, note)
    alone = log.config | {"parallelism.pipeline_parallel_degree": "1"}
    assert torchtitan.of_configuration(alone)["set"] == ""


@pytest.mark.parametrize(
    ("given", "cell"),
    [
        ({"schedules_method": "dualpipev"}, "schedule=dualpipev"),
        ({"enable_zero_bubble": "True"}, "schedule=zero-bubble"),
        ({"zero_bubble_v_schedule": "True", "enable_zero_bubble": "True"}, "schedule=zbv"),
        ({"schedules_method": "None", "enable_zero_bubble": "False"}, ""),
    ],
)
def test_logs_of_megatron_s_relatives_tell_the_schedule(given, cell):
    degrees = {"pipeline_model_parallel_size": "4", "num_layers": "80"}
    assert megatron.described(degrees | given)[0]["set"] == cell
    assert megatron.described(given | {"pipeline_model_parallel_size": "1"})[0]["set"] == ""


def test_a_search_of_the_stack_proposes_dualpipe_alone():
    job = dm.Job("mixtral-8x7b", seq_len=4096, global_batch=128)
    best = dm.design(job, dm.cluster("H100-DGX", devices=16), stack="hai-llm")
    every = {x.plan.layout.schedule for x in best.exact} if best.exact else set()
    assert every <= {"1f1b", "dualpipe"}
    asked = ask(Question(SEARCHED), "generic")
    space = stated(asked, space_of(asked)).space
    found = {SCHEDULES[int(row[INDEX["schedule"]])]: row for row in all_rows(space)}
    assert set(found) == {"1f1b", "dualpipe"} and found["1f1b"][INDEX["pp"]] == 1.0
    assert not any(x.pp % 2 for x in degrees(space) if x.pp > 1)


SEARCHED = {
    "model": "mixtral-8x7b",
    "n_accel": 16,
    "stack": "hai-llm",
    "global_batch": 128.0,
    "accelerator": "H100-80GB",
    "precision": "bf16",
    "seq_len": 4096,
}


@pytest.mark.parametrize(
    "offered",
    [("1f1b", "dualpipe"), ("dualpipe",), ("dualpipe", "dualpipev"), ("gpipe", "zero-bubble")],
)
def test_shares_of_relaxed_plans_are_those_of_offered_schedules(offered):
    free = dict(zip(MIXED, np.random.default_rng(3).uniform(size=(len(MIXED), 50)), strict=True))
    mix = relax._mix(free, relax._allowed(offered))
    whole = sum(mix.values())
    assert all((x >= 0.0).all() and (np.any(x) == (MIXED[n] in offered)) for n, x in mix.items())
    if "1f1b" in offered:
        assert (whole < 1.0).all()
    else:
        np.testing.assert_allclose(whole, 1.0)
