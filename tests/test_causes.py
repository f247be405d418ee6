"""Causes of what stands around a step, of what a figure counts, and of experts and memory."""

import jax
import numpy as np
import pytest

import dmodel
from dmodel import counts
from dmodel.api import question
from dmodel.asked import ask, laid
from dmodel.blocks.attention import scored, scores_kept
from dmodel.blocks.part import site
from dmodel.called import TIME
from dmodel.diagnose.causes import Effect, beliefs, cause_named
from dmodel.diagnose.causes import tests as known_tests
from dmodel.diagnose.diagnosis import diagnose
from dmodel.diagnose.measured import Measured, measured
from dmodel.diagnose.posterior import apparent, table
from dmodel.diagnose.responses import responses
from dmodel.diagnose.subject import stated, subject
from dmodel.diagnose.variants import variants
from dmodel.records import sized, value
from dmodel.smooth import SHARPNESS


def of(model: str, devices: int, layout: dmodel.Layout, batch: int = 64):
    words = question(dmodel.Job(model, 4096, batch), dmodel.cluster("H100-DGX", devices), layout)
    asked = ask(words, None)
    run = subject(stated(asked, laid(asked, {})))
    cases = variants(run, beliefs().causes)
    return asked, run, cases, responses(run, cases)


@pytest.fixture(scope="module")
def dense():
    return of("llama-3-8b", 16, dmodel.Layout(zero=3))


@pytest.fixture(scope="module")
def sparse():
    return of("mixtral-8x7b", 16, dmodel.Layout(ep=8, tp=2))


def columns(cases, name):
    index = [c.name for c in beliefs().causes].index(name)
    return np.flatnonzero(cases.cause == index)


def named(answer):
    return {each.name: each for each in answer.causes}


def test_rates_of_sequences_do_not_know_how_long_these_are(dense):
    """Half the length hardly changes sequences of a step, and halves its tokens."""
    _, _, cases, found = dense
    i = next(j for j in columns(cases, "other-sequence") if cases.size[j] == 0.5)
    assert apparent(found, "tokens_per_s")[i] == pytest.approx(np.log(2.0))
    assert apparent(found, "sequences_per_s")[i] == apparent(found, "time")[i] == 0.0
    j = next(j for j in columns(cases, "other-batch") if cases.size[j] == 2.0)
    assert apparent(found, "sequences_per_s_per_device")[j] == pytest.approx(-np.log(2.0))


def test_short_sequences_explain_many_samples_a_second_and_not_many_tokens(dense):
    _, run, _, found = dense
    rate = 64 / float(found.time[0])
    by_samples = named(diagnose(run, measured([f"{3 * rate} samples/s"])))
    by_tokens = named(diagnose(run, measured([f"{3 * 4096 * rate} tok/s"])))
    assert by_samples["other-sequence"].probability > 0.15
    assert by_tokens["other-sequence"].probability < 0.05


def test_padding_lowers_rates_of_tokens_alone(dense):
    _, run, _, found = dense
    seconds = float(found.time[0])
    slow = named(diagnose(run, measured([f"{0.4 * 64 * 4096 / seconds} tok/s"])))
    assert slow["padding"].probability > 0.01 and 0.3 < slow["padding"].size < 0.7
    for other in (f"{2.5 * seconds}s", f"{0.4 * 64 / seconds} samples/s"):
        assert "padding" not in named(diagnose(run, measured([other])))


def test_what_lies_between_steps_goes_away_with_single_steps(dense):
    _, run, cases, found = dense
    i = columns(cases, "between-steps")[6]
    assert found.time[i] == pytest.approx(cases.size[i] * found.time[0])
    assert (found.seconds[1:, 0, i] == found.seconds[1:, 0, 0]).all()
    seconds = float(found.time[0])
    whole = [f"{2.0 * seconds}s"]
    before = named(diagnose(run, measured(whole)))["between-steps"].probability
    same = named(diagnose(run, measured([*whole, f"single-steps={2.0 * seconds}s"])))
    gone = named(diagnose(run, measured([*whole, f"single-steps={seconds}s"])))
    assert same["between-steps"].probability < 0.2 * before
    assert gone["between-steps"].probability > 0.5 > before


def test_an_update_in_host_memory_lengthens_the_update_alone(dense):
    _, _, cases, found = dense
    i = columns(cases, "host-optimizer")[8]
    more = (cases.size[i] - 1.0) * found.terms["optimizer"]
    assert found.time[i] == pytest.approx(found.time[0] + more)
    assert (found.seconds[1:, 0, i] == found.seconds[1:, 0, 0]).all()


def test_wider_products_take_as_long_as_on_a_slower_chip_with_wider_operands(dense):
    asked, run, cases, found = dense
    cluster, model, plan = run.records
    i = columns(cases, "full-precision")[0]
    chip = cluster.chip.replace(
        flops_per_s=0.5 * cluster.chip.flops_per_s,
        attention_flops_per_s=0.5 * cluster.chip.attention_flops_per_s,
    )
    wide = plan.having(operand_bytes=4.0)
    terms = TIME(cluster.replace(chip=chip), model, wide, asked.coefficients, sharpness=SHARPNESS)
    assert found.time[i] == pytest.approx(float(sum(terms.values())))
    assert found.time[i] > 1.3 * found.time[0]


def test_uneven_experts_are_a_cause_of_models_with_experts(dense, sparse):
    asked, run, cases, found = sparse
    cluster, model, plan = run.records
    own = columns(cases, "uneven-experts")
    i = own[np.argmin(np.abs(cases.size[own] - 2.0))]
    load = value(model, "imbalance") * cases.size[i]
    uneven = sized(model, imbalance=load)
    terms = TIME(cluster, uneven, plan, asked.coefficients, sharpness=SHARPNESS)
    assert found.time[i] == pytest.approx(float(sum(terms.values())))
    assert found.time[i] > 1.2 * found.time[0]
    assert cases.number("model.imbalance")[i] == pytest.approx(load)
    _, run, cases, found = dense
    assert "uneven-experts" in table(run, cases, found, beliefs()).faint


def test_the_allocator_is_a_cause_where_memory_may_be_full(dense):
    _, run, _, found = dense
    cluster = run.records.cluster
    told = Measured("time", 2.0 * float(found.time[0]))

    def with_memory(size: float):
        chip = cluster.chip.replace(hbm_bytes=size)
        records = run.records._replace(cluster=cluster.replace(chip=chip))
        return named(diagnose(run._replace(records=records), told))

    fullest = float(found.memory[0]) * np.exp(2.0 * run.memory_spread)
    least = cause_named("allocator").fills
    assert "allocator" in with_memory(0.99 * fullest / least)
    assert "allocator" not in with_memory(1.01 * fullest / least)


def test_each_new_cause_has_a_test_that_tells_it(dense, sparse):
    told = {test.name for test in known_tests()}
    for (_, run, _, found), name, test in (
        (dense, "between-steps", "single-steps"),
        (dense, "host-optimizer", "update"),
        (sparse, "uneven-experts", "experts"),
    ):
        answer = named(diagnose(run, Measured("time", 2.0 * float(found.time[0]))))
        known = answer[name].test
        assert test in told and known is not None and known["name"] == test


def test_utilizations_depend_on_what_is_counted_and_rates_of_flops_not_on_a_peak(dense):
    _, _, cases, found = dense
    i = next(j for j in columns(cases, "other-count") if cases.size[j] == 0.75)
    j = next(j for j in columns(cases, "other-peak") if cases.size[j] == 2.0)
    for kind, flops, peak in (
        ("mfu", 0.75, 2.0),
        ("flops_per_s_per_device", 0.75, 1.0),
        ("tokens_per_s", 1.0, 1.0),
        ("time", 1.0, 1.0),
    ):
        seems = apparent(found, kind)
        assert seems[i] == pytest.approx(-np.log(flops)) and seems[j] == pytest.approx(np.log(peak))


def test_no_hypothesis_lets_a_chip_compute_beyond_its_peak(dense):
    """A step of a third of the floor can be one of shorter sequences, and no ordinary one."""
    _, run, _, found = dense
    params = float(counts.active_parameters(run.records.model)) - 128256 * 4096
    floor = 64 * 4096 * 6 * params / (16 * 989.4e12)
    assert found.least[0] == pytest.approx(floor, rel=1e-3)
    beyond, above = (named(diagnose(run, Measured("time", x * floor))) for x in (0.33, 1.3))
    for name in ("nothing", "straggler", "slow-host"):
        assert beyond[name].probability < 1e-9
    assert above["nothing"].probability > 0.1
    short = beyond["other-sequence"]
    assert short.probability > 2.0 * cause_named("other-sequence").probability
    assert short.size is not None and short.size <= 0.25
    assert sum(each.probability for each in beyond.values()) == pytest.approx(1.0)


@pytest.fixture(scope="module")
def one_node():
    return of("llama-2-7b", 4, dmodel.Layout(zero=3))


def test_causes_that_show_the_same_are_one(one_node, dense):
    """Servers of PCIe cards have another network between nodes, which one node does not use."""
    by_name = {}
    for run in (one_node, dense):
        _, subject_, cases, found = run
        each = table(subject_, cases, found, beliefs())
        by_name[run[0].devices] = dict(zip(each.names, each.prior * sum_of(each), strict=True))
    both = sum(cause_named(n).probability for n in ("pcie-inside", "pcie-server"))
    assert "pcie-server" not in by_name[4] and "pcie-server" in by_name[16]
    assert by_name[4]["pcie-inside"] == pytest.approx(both)
    assert by_name[16]["pcie-inside"] == pytest.approx(cause_named("pcie-inside").probability)


def sum_of(each):
    """What the priors of a table added up to before they were normed."""
    return beliefs().otherwise[0] / each.prior[-1]


def test_a_test_is_told_with_outcomes_that_differ_by_more_than_its_noise(one_node, dense):
    noise = {test.name: test.noise for test in known_tests()}
    for _, run, _, found in (one_node, dense):
        answer = diagnose(run, Measured("time", 12.0 * float(found.time[0])))
        assert answer.test is not None and answer.test["tells"]
        for each in answer.causes:
            if each.test is None:
                continue
            pair = each.test["expected"], each.test["otherwise"]["expected"]
            assert min(pair) == 0.0 or abs(np.log(pair[0] / pair[1])) > noise[each.test["name"]]
        for each in answer.test["tells"]:
            assert each["expected"] != pytest.approx(each["otherwise"], rel=0.02)


def test_a_test_of_many_numbers_says_which_one_each_cause_changes(dense):
    _, run, _, found = dense
    answer = diagnose(run, measured([f"{4.0 * float(found.time[0])}s"]))
    test = diagnose(run, Measured("time", 1.4 * float(found.time[0]))).test
    assert answer.verdict == "slower" and test is not None and test["name"] == "configuration"
    known = {each["name"]: each["looks"] for each in test["tells"]}
    assert len(set(known.values())) > 1
    assert known.get("other-batch", "sequences of a step").startswith("sequences of a step")


def test_a_batch_forty_times_the_stated_one_is_found():
    """Accumulation that is on by default."""
    one = dmodel.Layout(micro_batch=8)
    _, run, cases, _ = of("gpt-2", 1, one, 8)
    _, _, _, found = of("gpt-2", 1, one, 8 * 40)
    assert 8 * 32 in cases.number("plan.global_batch")[columns(cases, "other-batch")]
    answer = diagnose(run, Measured("time", float(found.time[0])))
    first = next(each for each in answer.causes if each.name not in ("nothing", "otherwise"))
    assert (first.name, first.size) in (("other-batch", 32.0), ("other-batch", 64.0))


def test_the_further_off_a_statement_the_less_probable():
    effect = Effect(0.05, 1.0, 3.0, stated=1.0)
    far = effect.weight(np.log(np.array([1.01, 2.0, 4.0, 32.0, 1.0 / 32.0])), stated=True)
    assert far == pytest.approx([0.0, 1.0, 1 / 2, 1 / 5, 1 / 5])
    far = effect.weight(np.log(np.array([2.0, 4.0, 32.0])), stated=False)
    assert far == pytest.approx([1.0, 1 / 8, 1 / 125])


def test_eager_attention_is_a_run_with_scores_in_kernels_of_their_own(dense):
    asked, run, cases, found = dense
    cluster, model, plan = run.records
    i, unfused = columns(cases, "eager-attention")[0], columns(cases, "unfused-attention")[-1]
    eager = plan.having(flash=0.0, split_softmax=1.0)
    terms = TIME(cluster, model, eager, asked.coefficients, sharpness=SHARPNESS)
    assert found.time[i] == pytest.approx(float(sum(terms.values())))
    assert found.time[i] > 1.1 * found.time[unfused] > 1.1 * found.time[0]


def test_unfused_attention_moves_and_keeps_more_bytes_where_nothing_of_it_is_fused(dense):
    """24 bytes for 13 a score, of which 6 and 5 stay, by hand; fused attention moves none."""
    _, run, _, _ = dense
    model, plan = run.records.model, run.records.plan
    for flash, split, moved, kept in ((0, 0, 13, 5), (0, 1, 24, 6), (1, 0, 0, 0), (1, 1, 0, 0)):
        at = site(model, plan.having(flash=float(flash), split_softmax=float(split)))
        found = float(scored(at, 32.0, 256.0, 1.0).softmax_bytes), float(scores_kept(at, 32.0))
        assert found == pytest.approx((moved * 4096.0 * 4096 * 32, kept * 4096.0 * 32))


def on(system: str, devices: int, **overrides: float):
    job, plan = dmodel.Job("llama-3-8b", 4096, 64), dmodel.Layout(zero=3)
    words = question(job, dmodel.cluster(system, devices), plan, overrides=overrides)
    asked = ask(words, None)
    return subject(stated(asked, laid(asked, {})))


def test_a_die_counted_as_a_chip_is_the_run_on_dies():
    """Chips of two dies read as dies, and dies as chips, are what the catalog has of them."""
    chips, dies = on("MI250X-OAM", 8), on("Frontier", 8)
    for one, other in ((chips, dies), (dies, chips)):
        (reading,) = one.others["parts"]
        own, known = reading.records.cluster, other.records.cluster
        for leaf, right in zip(*map(jax.tree.leaves, (own.chip, known.chip)), strict=True):
            assert float(leaf) == pytest.approx(float(right))
        for leaf, right in zip(*map(jax.tree.leaves, (own.network, known.network)), strict=True):
            assert leaf == pytest.approx(np.asarray(right))


def test_a_run_on_dies_is_found_where_chips_were_stated():
    chips = on("MI250X-OAM", 8)
    cases = variants(chips, beliefs().causes)
    found = responses(chips, cases)
    i = columns(cases, "parts-of-chips")[0]
    assert found.time[i] > 1.5 * found.time[0]
    answer = named(diagnose(chips, Measured("time", float(found.time[i]))))
    assert answer["parts-of-chips"].probability > cause_named("parts-of-chips").probability
    assert answer["parts-of-chips"].says == "as MI250X-GCD"


def test_only_chips_of_parts_are_counted_in_parts(dense):
    _, run, cases, _ = dense
    assert run.others["parts"] == () and not columns(cases, "parts-of-chips").size
    (core,) = on("TPU-v4", 64).others["parts"]
    assert core.label == "1/2 of TPU-v4"
    (kept,) = on("MI250X-OAM", 8, domain_size=8).others["parts"]
    assert kept.records.cluster.network.size[0] == 8.0
