"""From words to records: what fills blanks is said, facts of stacks decide leaves, and what is said
decides before them."""

import numpy as np
import pytest

from calibration.traces import read, to_cases
from dmodel.catalog.facts import Rule
from dmodel.coefficients import default
from dmodel.deciding import evaluated
from dmodel.errors import InputError
from dmodel.left_blank import Chosen, cheapest_that_fits, never_recompute
from dmodel.question import Question
from dmodel.records import leaf
from dmodel.resolve import part, resolve
from dmodel.settings import changed
from dmodel.step import step_time
from tests.rows import answered, asked, job, one_case, table_file, told


@pytest.mark.parametrize(
    ("changes", "field", "value", "said"),
    [
        ({"dp": ""}, "dp", 8.0, "dp blank: 8"),
        ({"tp": ""}, "tp", 4.0, "tp blank: 4"),
        ({"pp": ""}, "pp", 2.0, "pp blank: 2"),
        ({"cp": ""}, "cp", 1.0, "cp blank: 1"),
        ({"sp": ""}, "sp", 1.0, "sp blank: 1"),
        ({"sp": "", "tp": "1", "dp": "32"}, "sp", 0.0, "sp blank: 0"),
        ({"zero_stage": ""}, "zero", 1.0, "zero_stage blank: 1"),
        ({"interleave": ""}, "interleave", 1.0, "interleave blank: 1"),
        ({"micro_batch": ""}, "micro_batch", 1.0, "micro_batch blank: 1"),
        ({"attention": ""}, "flash", 1.0, "attention blank: flash"),
        ({"attention": "none"}, "flash", 0.0, ""),
        ({"recompute": ""}, "recompute_layers", 0.0, "recompute blank: none"),
        ({"precision": ""}, "operand_bytes", 2.0, "precision blank: bf16"),
        ({"precision": "fp8-blockwise128"}, "operand_bytes", 1.0, ""),
        ({"zero_stage": "3"}, "shard", 8.0, "shard blank: 8, all ranks of dp"),
        ({"zero_stage": "0"}, "shard", 1.0, ""),
        ({"zero_stage": "3", "shard": "4"}, "shard", 4.0, ""),
        ({"zero_stage": "0", "shard": "8"}, "shard", 1.0, "shard 8 not used: ZeRO stage 0"),
        ({}, "tp", 4.0, "head_dim blank: 128"),
        ({}, "tp", 4.0, "n_experts blank: no experts"),
    ],
)
def test_blanks_become_stated_assumptions(changes, field, value, said):
    found = answered(**changes)
    assert float(leaf(found.plan, field)) == value
    texts = told(found).splitlines()
    assert not said or any(text.startswith(said) for text in texts)
    blank = {text.partition(" blank")[0] for text in texts if " blank" in text}
    assert said or blank <= {"head_dim", "n_experts", "shard"}, "columns that the row has not got"


SC21 = {"stack": "megatron-sc21-t1", "n_layers": "80", "zero_stage": "0"}
ZERO_3 = {"zero_stage": "3"}


@pytest.mark.parametrize(
    ("stack", "changes", "leaves"),
    [
        ("megatron-lm", {}, {"reduce_bytes": 4.0, "overlap_dp": 1.0, "cp_balanced": 1.0}),
        ("megatron-lm", {"precision": "fp16"}, {"reduce_bytes": 2.0}),
        ("nanotron/main", {}, {"reduce_bytes": 8.0, "overlap_dp": 0.0}),
        ("nanotron/main", {"zero_stage": "0"}, {"reduce_bytes": 4.0, "overlap_dp": 1.0}),
        ("torchtitan", ZERO_3, {"reduce_bytes": 4.0}),
        ("torchtitan", {"zero_stage": "2"}, {"zero": 1.0}),
        ("kempnerforge", {"zero_stage": "2"}, {"zero": 2.0}),
        (
            "torchtitan",
            ZERO_3 | {"model": "llama-3.1-405b", "precision": "fp8"},
            {"gather_bytes": 1.0},
        ),
        ("torchtitan", ZERO_3 | {"model": "llama-8b", "precision": "fp8"}, {"gather_bytes": 2.0}),
        ("maxtext", ZERO_3 | {"shard": "2"}, {"overlap_replica": 0.0}),
        ("maxtext", ZERO_3, {"overlap_replica": 1.0}),
        ("torchtitan", ZERO_3 | {"shard": "2"}, {"overlap_replica": 1.0}),
        ("torchtitan", {"cp": "2", "dp": "4"}, {"cp_balanced": 0.0}),
        ("megatron-lm", {"cp": "2", "dp": "4"}, {"cp_balanced": 1.0}),
        (
            "llm-foundry",
            {"accelerator": "A100-80GB"},
            {"attention_rate": 1.0 / 1.4, "attention_backward_rate": 0.5},
        ),
        (
            "llm-foundry",
            {"accelerator": "H100-80GB"},
            {
                "attention_rate": 1.0 / 1.4 / 1.73,
                "attention_backward_rate": 0.5 / 1.62,
                "reduce_bytes": 2.0,
            },
        ),
        ("llm-foundry", {"attention": "none"}, {"attention_rate": 1.0}),
        (
            "torchtitan",
            {"accelerator": "H100-80GB"},
            {"attention_rate": 1.0 / 1.73, "attention_backward_rate": 1.0 / 1.62},
        ),
        ("torchtitan", {"accelerator": "A100-80GB"}, {"attention_rate": 1.0}),
        ("nemo/24.12", {"accelerator": "H100-80GB"}, {"attention_rate": 1.0}),
        ("megatron-bridge/26.02", {}, {"reduce_bytes": 2.0, "gradient_bytes": 2.0}),
        ("megatron-bridge/26.02", {"precision": "fp8"}, {"gather_bytes": 1.0}),
        ("megatron-bridge/26.02", {"precision": "bf16"}, {"gather_bytes": 2.0}),
        ("megatron-sc21-t1", SC21 | {"micro_batch": ""}, {"micro_batch": 2.0}),
        ("megatron-sc21-t1", SC21 | {"interleave": ""}, {"interleave": 2.0}),
        ("megatron-sc21-t1", SC21, {"overlap_dp": 0.0}),
        ("megatron-sc21-t1", SC21 | {"n_layers": "36"}, {"overlap_dp": 1.0}),
        ("vtrain", {}, {"overlap_dp": 0.0}),
        ("megatron-deepspeed/bigscience-bf16", {}, {"overlap_dp": 0.0}),
        ("mlperf-train-v4.0", {}, {"reduce_bytes": 2.0}),
        ("mlperf-train-v4.0", {"pp": "4", "dp": "4", "interleave": ""}, {"interleave": 8.0}),
        ("nemo-launcher", {"interleave": ""}, {"interleave": 16.0}),
        ("nemo/24.07", {"interleave": "", "flag": "lora"}, {"interleave": 1.0}),
        (
            "nemo-launcher",
            {"model": "llama3-70b", "n_layers": "80", "interleave": ""},
            {"interleave": 5.0},
        ),
        ("maxtext", {"sp": "0"}, {"sp": 1.0}),
        ("nemo", {"sp": "0"}, {"sp": 0.0}),
    ],
)
def test_facts_of_stacks_decide_leaves(stack, changes, leaves):
    found = answered(**{**changes, "stack": stack})
    assert {n: float(leaf(found.plan, n)) for n in leaves} == pytest.approx(leaves, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "said", "fact"),
    [("reduce_bytes", 4.0, 2.0), ("gradient_bytes", 4.0, 2.0), ("graphed", 0.5, 0.0)],
)
def test_what_is_said_goes_before_what_stacks_do(name, said, fact):
    stack = ("megatron-bridge/26.02", "llama3-8b", "H100-80GB")
    assert float(leaf(job(*stack).plan, name)) == fact
    assert float(leaf(job(*stack, **{name: said}).plan, name)) == said


def test_facts_that_decide_are_assumptions_with_source_and_date():
    found = [a for a in answered(stack="megatron-bridge/26.02").assumptions if a.source]
    assert found and all(a.text and a.date[:2] == "20" for a in found)
    assert all(a.source in str(a) and a.date in str(a) for a in found)


def test_an_unknown_stack_has_the_facts_of_all_alone():
    found = answered(stack="of-our-own")
    assert float(found.plan.software.overlap_dp) == 1.0
    assert float(found.plan.precision.gradient_bytes) == 4.0


@pytest.mark.parametrize(
    ("changes", "size", "said"),
    [
        ({"accel_per_node": "4"}, 4.0, "domain_size blank: 4, the devices of a host"),
        ({"accel_per_node": "1"}, 1.0, "domain_size blank: 1, the devices of a host"),
        ({"accel_per_node": "4", "domain_size": "8"}, 8.0, ""),
        ({"accel_per_node": "8"}, 8.0, "domain_size blank: the catalog's"),
        ({"accel_per_node": "16"}, 8.0, "domain_size blank: the catalog's"),
        ({"accel_per_node": "4", "accelerator": "GB200"}, 72.0, "domain_size blank: the catalog's"),
        ({"accel_per_node": "4", "accelerator": "TPU-v5e"}, 64.0, "domain_size blank: 64, the sl"),
        ({"accel_per_node": "1", "stack": "dmodel-collect/jax"}, 8.0, "domain_size blank: the cat"),
    ],
)
def test_hosts_smaller_than_the_catalogs_are_the_fast_domain(changes, size, said):
    found = answered(**{"domain_size": "", **changes})
    assert found.cluster.network.size[0] == size
    assert said in told(found)


def test_smaller_hosts_cost_what_smaller_domains_do(tmp_path):
    whole = {"n_accel": "64", "dp": "8", "tp": "8", "pp": "1", "domain_size": ""}
    four, written, eight = (
        {**whole, "accel_per_node": "4"},
        {**whole, "domain_size": "4"},
        {**whole, "accel_per_node": "8"},
    )
    cases = to_cases(read(table_file(tmp_path, four, written, eight)), never_recompute)
    seconds = np.asarray(step_time(cases.system, cases.model, cases.plan, default()).total)
    assert seconds[0] == seconds[1] > 1.05 * seconds[2]


def test_one_question_and_a_batch_say_the_same(tmp_path):
    alone, row = answered(), one_case(tmp_path)
    assert float(alone.plan.software.overlap_dp) == float(row.plan.software.overlap_dp[0])
    assert tuple(map(str, alone.assumptions)) == row.labels.assumptions[0]


def test_a_question_without_a_shape_or_a_known_chip_names_what_it_needs():
    with pytest.raises(InputError, match="unknown model"):
        job("nemo", "of-our-own", "H100-80GB")
    with pytest.raises(InputError, match="unknown chip '(?i:H100X)'; nearest: H100-80GB"):
        job("nemo", "llama-2-7b", "H100X")
    with pytest.raises(InputError, match="accelerator|unknown chip"):
        resolve(changed(Question({}), {"model": "llama-2-7b", "n_accel": 8, "global_batch": 8}))


def test_a_rule_decides_open_recomputation_and_only_that(tmp_path):
    table = read(table_file(tmp_path, {"recompute": ""}, {"recompute": "full"}, {"recompute": ""}))
    count = 2
    cases = to_cases(table, lambda some: Chosen(np.zeros(count), np.ones(count), ["so"] * count))
    assert np.asarray(cases.plan.layout.recompute_attention).tolist() == [1.0, 0.0, 1.0]
    assert np.asarray(cases.plan.layout.recompute_layers).tolist() == [0.0, 1.0, 0.0]


def test_the_cheapest_recomputation_that_fits(tmp_path):
    big = {"micro_batch": "16", "tp": "1", "dp": "32", "global_batch": "1024", "n_layers": "64"}
    big["step_time_s"] = "30"
    rows = {"recompute": ""}, {"recompute": "", **big}
    found = to_cases(read(table_file(tmp_path, *rows)))
    assert np.asarray(found.plan.layout.recompute_layers).tolist() == [0.0, 1.0]
    assert [x.tolist() for x in cheapest_that_fits(found)[:2]] == [[0.0, 1.0], [0.0, 0.0]]


def test_rules_that_leave_a_name_open_set_nothing():
    words = {"stage_layers": 3.5, "pp": 2.0, "reduce_bytes": 4.0}
    asked_for = {"interleave": Rule("one_layer_chunks", {}), "x": 1.0}
    assert evaluated(asked_for, words) == {"x": 1.0}


def test_interleaving_needs_its_schedule():
    with pytest.raises(InputError, match="interleave: expected 1 for the schedule 'gpipe'; got 2"):
        answered(interleave="2", set="schedule=gpipe")
    assert answered(interleave="2").plan.layout.schedule == "interleaved"
    assert asked(set="schedule=gpipe").settings == {"schedule": "gpipe"}


def test_the_same_question_asked_again_has_the_same_answer_and_its_own_place():
    first, second = ([], [])
    question = asked(tp="")
    known = part(question, first)
    assert part(question._replace(where="elsewhere:3"), second) is known
    assert first == second and first
    first.clear()
    assert part(question, third := []) is known and third == second
    for where in ("a.csv:2", "b.csv:7"):
        with pytest.raises(InputError, match=where):
            part(asked(tp="3")._replace(where=where), [])


def test_rows_that_differ_in_one_word_are_not_taken_for_each_other():
    for name, value in (("seq_len", "2048"), ("attention", "none"), ("set", "n_mtp=1")):
        one, other = part(asked(), []), part(asked(**{name: value}), [])
        assert one is not other and (one.model != other.model or one.leaves != other.leaves)
