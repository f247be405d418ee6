"""Stages of pipelines whose number does not divide the layers: in the search, in one plan, in the
step."""

import numpy as np
import pytest

from dmodel import by_stage, catalog, unlike
from dmodel.coefficients import default
from dmodel.counts import parameters
from dmodel.design import Choices, design
from dmodel.design import rows as rows_
from dmodel.design.constraints import violated
from dmodel.design.optimum import problem
from dmodel.layouts import Pipeline, stages
from dmodel.stages import held, layout, on_ranks, short_by
from dmodel.step import step_time
from dmodel.unlike import kinds_of
from tests import reference_parts
from tests.plans import plan as plan_of
from tests.points import COEFFICIENTS, quick

SYSTEM = catalog.system("H100-DGX")
LARGE = catalog.transformer("llama-3.1-405b", 8192.0)
STEP = quick(step_time)


@pytest.mark.parametrize(
    ("layers", "pp", "v", "mtp", "fullest", "last"),
    [
        (126, 16, 1, 0, 8, 7),
        (126, 16, 8, 0, 8, 7),
        (126, 14, 3, 0, 9, 9),
        (70, 12, 1, 0, 6, 5),
        (94, 16, 3, 0, 6, 5),
        (64, 8, 1, 1, 9, 9),
        (61, 16, 1, 1, 4, 3),
        (61, 2, 1, 0, 31, 30),
        (27, 4, 1, 0, 7, 6),
    ],
)
def test_what_stages_hold(layers, pp, v, mtp, fullest, last):
    """By hand; of published runs Llama 3 405B, BLOOM and Qwen3 235B are laid out so."""
    found = held(layers, pp, v, mtp)
    assert (float(found.fullest), float(found.last)) == (fullest, last)
    laid, mean = layout(layers, pp, v, mtp), (layers + mtp) / pp
    assert float(laid["stage_excess"]) == pytest.approx(fullest - mean, rel=1e-12)
    assert float(laid["head_displaces"]) == fullest - last


def dealt(layers, pp, v):
    """Layers of every stage when embedding, layers and head are dealt out to chunks in order, the
    first ones one item more."""
    items = ["embedding", *["layer"] * layers, "head"]
    each, over = divmod(len(items), pp * v)
    stages = [0] * pp
    for chunk in range(pp * v):
        taken, items = items[: each + (chunk < over)], items[each + (chunk < over) :]
        stages[chunk % pp] += taken.count("layer")
    return stages


def test_stages_hold_what_dealing_the_layers_out_gives_them():
    for layers in (6, 11, 13, 27, 35, 61, 62, 70, 78, 94, 126):
        for pp, v in (
            (pp, v)
            for pp in range(2, 25)
            for v in range(1, 6)
            if pp * v <= layers and layers % (pp * v)
        ):
            stages = dealt(layers, pp, v)
            found = held(layers, pp, v)
            assert sum(stages) == layers
            assert (float(found.fullest), float(found.last)) == (max(stages), stages[-1]), (
                layers,
                pp,
                v,
            )
            if layers % pp and not short_by(layers, pp, v):
                assert min(stages) >= 1, (layers, pp, v)


def test_one_stage_holds_all():
    assert all(float(value) == 0.0 for value in layout(61, 1, 1, 1).values())


def test_alike_stages_of_a_model_with_one_head_are_alike():
    assert all(float(value) == 0.0 for value in layout(64, 16, 2).values())


@pytest.mark.parametrize(
    ("layers", "pp", "v", "mtp"),
    [(64, 16, 2, 1), (64, 8, 1, 2), (61, 16, 1, 1), (61, 4, 1, 0), (126, 16, 8, 0)],
)
def test_plans_made_and_rows_read_lay_stages_out_alike(layers, pp, v, mtp):
    """What `design` judges is what `predict` would of the same degrees, for a stack without a
    layout of its own."""
    read, made = stages("counted", Pipeline(layers, 1.0, pp, v, mtp)), layout(layers, pp, v, mtp)
    excess = read.fullest - (layers + mtp) / pp
    assert (float(made["stage_excess"]), float(made["head_displaces"])) == pytest.approx(
        (excess, read.fullest - read.last), rel=1e-12
    )


@pytest.mark.parametrize(
    ("layers", "pp", "v", "short"),
    [
        (80, 8, 5, 0),
        (80, 8, 3, 8),
        (126, 16, 8, 0),
        (126, 8, 2, 0),
        (126, 2, 64, 126),
        (61, 16, 1, 0),
        (61, 16, 2, 0),
        (61, 16, 4, 1),
        (61, 8, 3, 7),
        (80, 32, 1, 12),
        (24, 16, 1, 6),
        (3, 4, 1, 4),
        (94, 16, 6, 0),
        (13, 8, 1, 1),
    ],
)
def test_which_stages_can_be_laid_out(layers, pp, v, short):
    assert float(short_by(layers, pp, v)) == short


def test_one_plan_and_rows_of_traces_lay_layers_out_alike():
    for pp, v in ((16, 1), (16, 8), (8, 4), (2, 63)):
        plan = plan_of(LARGE, 8 * pp, global_batch=16 * pp, tp=8, pp=pp, interleave=v)
        said = stages("counted", Pipeline(126.0, 2.0, float(pp), float(v), 0.0))
        assert (float(plan.layout.stage_excess), float(plan.layout.head_displaces)) == (
            said.fullest - 126.0 / pp,
            said.fullest - said.last,
        )


@pytest.mark.slow
def test_the_search_finds_the_stages_of_llama_3_405b():
    """Its 16 stages of the report (arXiv 2407.21783, table 4) do not divide 126 layers; the plan
    found obeys the rules and takes as long as one plan of the same degrees."""
    narrow = Choices(zero=(1,), recompute=(0.0, 1.0), shards="whole", sp=(1,))
    found = design(SYSTEM, LARGE, 1024, 128, default(), method="both", choices=narrow)
    assert found.best is not None and found.certificate is not None
    plan = found.best.plan
    assert (
        126 % int(plan.layout.pp)
        and float(plan.layout.head_displaces) == 1.0
        and not violated(LARGE, plan)
    )
    again = plan_of(
        LARGE,
        1024,
        global_batch=128,
        tp=int(plan.layout.tp),
        cp=int(plan.layout.cp),
        pp=int(plan.layout.pp),
        interleave=int(plan.layout.interleave),
        zero=1,
        micro_batch=int(plan.layout.micro_batch),
        recompute=float(plan.layout.recompute_layers),
    )
    assert float(step_time(SYSTEM, LARGE, again, default()).total) == pytest.approx(
        found.best.step_time_s, rel=1e-9
    )


def test_all_rows_of_a_space_carry_their_layout():
    asked = problem(SYSTEM, LARGE, 64, 64, default())
    rows = rows_.all_rows(asked.space)
    found = rows_.numbers(asked.space, SYSTEM, rows)
    pp = found["pp"]
    apart = np.mod(126.0, pp) != 0.0
    assert apart.any() and (~apart).any()
    assert (found["head_displaces"] == apart).all()
    np.testing.assert_allclose(found["stage_excess"], np.where(apart, 2.0 / pp, 0.0), atol=1e-12)


def test_a_step_with_a_layer_less_at_the_ends_lies_between_those_of_fewer_and_more_layers():
    """112 or 128 layers on 16 stages are alike; with 126 the fullest stage is that of 128, less
    what the head no longer adds to it."""
    plans = {
        n: plan_of(LARGE.replace(n_layers=float(n)), 128, global_batch=64, tp=8, pp=16)
        for n in (112, 126, 128)
    }
    times = {
        n: float(STEP(SYSTEM, LARGE.replace(n_layers=float(n)), plan, COEFFICIENTS).total)
        for n, plan in plans.items()
    }
    assert times[112] < times[126] < times[128]
    head = float(STEP(SYSTEM, LARGE.replace(n_layers=126.0), plans[126], COEFFICIENTS).head)
    assert head < float(STEP(SYSTEM, LARGE.replace(n_layers=128.0), plans[128], COEFFICIENTS).head)


def flops(model, plan, mixer, feed):
    """Forward FLOPs of a layer by the reference."""
    found = 0.0
    for part in filter(None, (mixer, feed)):
        rows = reference_parts.products(part, model, plan)
        found += sum(2.0 * x.rows * x.columns * x.inner * x.copies for x in rows)
        found += sum(x.flops for x in reference_parts.cores(part, model, plan))
    return found


@pytest.mark.parametrize("name", ["deepseek-v3", "nemotron-h-8b", "gpt-oss-20b"])
def test_unlike_layers_count_by_their_flops(name):
    model = catalog.transformer(name, 4096.0)
    found = kinds_of(model)
    if not model.order:
        assert found is None
        return
    by_hand = np.array([flops(model, unlike.ALONE, *block[:2]) for block in model.blocks])
    mean = sum(float(s) * x for s, x in zip(model.shares, by_hand, strict=True))
    assert found.order == model.order
    np.testing.assert_allclose(found.costs, by_hand / mean, rtol=1e-12)
    assert found.further == pytest.approx(
        float(model.n_mtp) * sum(np.array(model.further) * found.costs)
    )


def test_layers_that_are_alike_have_no_kinds():
    assert kinds_of(LARGE) is None


def test_a_stage_takes_what_its_layers_do():
    """Light layers first, heads of further tokens on the last chunk."""
    kinds = unlike.Kinds((0, 0, 1, 1, 1, 1), (0.4, 1.3), 0.5)
    assert unlike.loads(kinds, (2, 2, 2)) == pytest.approx([0.8, 2.6, 3.1])
    # of two chunks a stage
    each = unlike.loads(kinds, (1, 2, 2, 1))
    assert on_ranks(each, 2, "loop") == pytest.approx([3.0, 1.7 + 1.3 + 0.5])
    assert on_ranks(each, 2, "v") == pytest.approx([0.4 + 1.3 + 0.5, 1.7 + 2.6])


def test_stages_hold_all_of_a_model_between_them():
    """Layers, and weights but for a last norm on each; on the first most micro-batches are in
    flight, the logits are on the last."""
    model = catalog.transformer("llama-2-7b", 4096.0)
    plan = plan_of(model, 32, global_batch=64, tp=4, pp=4)
    found = by_stage.stages(model, plan, (9, 8, 8, 7))
    assert [x.layers for x in found] == [9.0, 8.0, 8.0, 7.0]
    assert [x.in_flight for x in found] == [4.0, 3.0, 2.0, 1.0]
    whole = sum(x.memory.weights for x in found) - 3.0 * 2.0 * float(model.d_model) / 4.0
    assert whole == pytest.approx(2.0 * float(parameters(model)) / 4.0, rel=1e-12)
    assert [x.memory.logits > 0.0 for x in found] == [False, False, False, True]
    assert [x.moment for x in found] == ["backward", "backward", "backward", "loss"]
    one, two = (x.memory.activations for x in found[:2])
    assert one == pytest.approx(two * 9.0 * 4.0 / (8.0 * 3.0), rel=1e-12)


def test_stages_hold_the_kinds_of_layers_in_their_order():
    """DeepSeek-V3: dense layers are on the first stage, with the embedding."""
    model = catalog.transformer("deepseek-v3", 4096.0)
    plan = plan_of(model, 64, global_batch=64, pp=4, ep=16)
    found = by_stage.stages(model, plan, (15, 15, 15, 16))
    assert sum(x.layers for x in found) == 61.0
    each = [x.memory.weights for x in found]
    dense, experts = (feed.parameters(model.d_model) for feed in model.feeds)
    lighter = float(experts.total - experts.routed * 15.0 / 16.0 - dense.total)
    embedding = float(model.vocab * model.d_model)
    assert each[1] == pytest.approx(each[2], rel=1e-12)
    assert each[0] - each[1] == pytest.approx(2.0 * (embedding - 3.0 * lighter), rel=1e-9)
