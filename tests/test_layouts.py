"""How layers lie on stages, by published layouts and by rules; and rules of software that take
arithmetic."""

import numpy as np
import pytest

from calibration.traces import fingerprint, read, to_cases
from dmodel import catalog, layouts
from dmodel.errors import InputError
from dmodel.layouts import LAYER, Pipeline, Stages, blocks_by_cost, head_cost, stages
from dmodel.records import Plan
from dmodel.resolve import Resolved
from dmodel.step import step_time
from tests.points import COEFFICIENTS, batch, quick
from tests.rows import answered, table_file, told

STEP = quick(step_time)
HEAD = 2.1
LLAMA_405B = {"model": "llama3.1-405b", "n_heads": "128", "d_model": "16384", "d_ff": "53248"}
LLAMA_405B |= {"n_kv_heads": "8"}


def laid(stack: str, layers: int, pp: int, v: int = 1, mtp: int = 0, **cells: str) -> Resolved:
    """A job with one rank per stage."""
    degrees = {"pp": pp, "dp": 1, "tp": 1, "n_accel": pp, "interleave": v, "n_layers": layers}
    said = {"set": f"n_mtp={mtp}", "micro_batch": "1", "stack": stack}
    return answered(**{n: str(x) for n, x in degrees.items()}, **said, **cells)


@pytest.mark.parametrize(
    ("stack", "cells", "layers", "pp", "v", "mtp", "fullest", "head"),
    [
        ("megatron-lm/zero-bubble", {}, 22, 8, 1, 0, 3, 2),
        ("megatron-lm/zero-bubble", {}, 62, 32, 2, 0, 2, 1),
        ("megatron-deepspeed/bigscience-bf16", {}, 70, 12, 1, 0, 6, 5),
        ("megatron-bridge/26.04", LLAMA_405B, 126, 16, 8, 0, 8, 7),
        ("megatron-bridge/26.02", {}, 94, 8, 4, 0, 12, 11),
        # Et*4|(t*4|)*14tmL, Et|(tt|)*30mL and Kimi's without heads of further tokens
        ("megatron-bridge/26.04", {"model": "deepseek-v3"}, 61, 16, 1, 1, 4, 2),
        ("megatron-bridge/26.04", {"model": "deepseek-v3"}, 61, 4, 4, 1, 16, 14),
        ("megatron-bridge/25.09", {"model": "deepseek-v3"}, 61, 8, 4, 1, 8, 7),
        ("megatron-bridge/26.04", {"model": "kimi-k2"}, 61, 4, 4, 0, 16, 13),
        ("torchtitan/async-tp", LLAMA_405B, 126, 8, 2, 0, 16, 15),
        # by no recipe: what is left over goes to some chunks, not to all; further tokens stand on
        # the last stage
        ("megatron-lm", {}, 66, 8, 8, 0, 9, 7),
        ("megatron-lm", {}, 30, 4, 7, 0, 8, 7),
        ("megatron-bridge/26.04", {"model": "deepseek-v3"}, 61, 24, 1, 1, 3, 2),
        ("megatron-lm", {}, 64, 8, 1, 1, 9, 9),
    ],
)
def test_published_layouts(stack, cells, layers, pp, v, mtp, fullest, head):
    found = laid(stack, layers, pp, v, mtp, **cells)
    layout, mean = found.plan.layout, (layers + mtp) / pp
    assert mean + float(layout.stage_excess) == pytest.approx(fullest, rel=1e-12)
    last = mean + float(layout.stage_excess) - float(layout.head_displaces)
    assert last == pytest.approx(head, rel=1e-12)
    assert f"holds {fullest} layers" in told(found) and f"head {head}:" in told(found)


@pytest.mark.parametrize(
    ("stack", "layers", "pp", "v"),
    [("megatron-lm", 96, 8, 3), ("vtrain", 24, 4, 1), ("nanotron", 32, 1, 1)],
)
def test_stages_that_are_alike_say_nothing(stack, layers, pp, v):
    found = laid(stack, layers, pp, v)
    assert float(found.plan.layout.stage_excess) == 0.0
    assert float(found.plan.layout.head_displaces) == 0.0
    assert "fullest stage" not in told(found)


def test_written_layouts_count_whatever_the_stack_does():
    found = laid("nanotron", 30, 4, stage_layers="9 9 8 4").plan.layout
    assert (float(found.stage_excess), float(found.head_displaces)) == (1.5, 5.0)
    further = laid("megatron-lm", 30, 4, mtp=1, stage_layers="9 9 8 4").plan.layout
    assert float(further.stage_excess) == 9.0 - 31.0 / 4.0 and float(further.head_displaces) == 4.0
    with pytest.raises(InputError, match=r"stage_layers = '9 9 8': expected 4 numbers \(pp\)"):
        laid("nanotron", 30, 4, stage_layers="9 9 8")


def test_layouts_that_cannot_be_set_the_row_aside(tmp_path):
    for wrong in ("9 9 8", "9 9 9 9", "9 9 8 4.5", "30"):
        cells = {"n_layers": "30", "pp": "4", "dp": "4", "stage_layers": wrong}
        table = read(table_file(tmp_path, cells))
        expected = "expected 4 numbers (pp) that add up to n_layers = 30"
        assert not table.rows and expected in table.problems[0].reason
    cells = {"n_layers": "30", "pp": "2"}
    plain, written = (
        read(table_file(tmp_path, {**cells, "stage_layers": x}, name=f"{len(x)}.csv"))
        for x in ("", "16 14")
    )
    assert fingerprint(plain.rows[0]) != fingerprint(written.rows[0])
    assert float(to_cases(written).plan.layout.stage_excess[0]) == 1.0


def test_nanotron_lays_out_by_cost():
    """Llama 3 8B on 8 stages, as its authors print it: 5, 4, 4, 5, 4, 4, 4 layers, and 2 with the
    head."""
    cells = {"d_model": "4096", "d_ff": "14336", "vocab": "128256"}
    found = laid("ultrascale-playbook", 32, 8, **cells).plan.layout
    assert (float(found.stage_excess), float(found.head_displaces)) == (1.0, 3.0)
    assert blocks_by_cost(16, 4.0 / LAYER, 2) == ([10, 6], 1)
    assert blocks_by_cost(32, 2.207 / LAYER, 16)[1] == 15
    assert head_cost(4096.0, 14336.0, 128256.0) == pytest.approx(2.06, abs=0.01)


@pytest.mark.parametrize("seed", range(20))
def test_every_layer_has_a_stage_and_no_stage_overflows_by_more_than_one(seed):
    rng = np.random.default_rng(seed)
    layers, head = int(rng.integers(8, 100)), float(rng.uniform(0.1, 5.0))
    pp = int(2 ** rng.integers(0, 5))
    held, last = blocks_by_cost(layers, head, pp)
    share = (layers + head) / pp
    assert sum(held) == layers and sum(held[last + 1 :]) == 0 and max(held) <= share + 1.0
    assert np.all(np.cumsum(held)[:last] > share * np.arange(1, last + 1))


def test_the_stage_with_the_head_may_be_the_fullest():
    of = Pipeline(layers=8.0, head=HEAD, pp=2.0, interleave=1.0, n_mtp=3.0)
    found = stages("counted", of, written=(4.0, 4.0))
    assert (found.fullest, found.last) == (7.0, 7.0)
    assert stages("by_cost", of._replace(pp=1.0)) == Stages(11.0, 11.0)


def test_a_head_costs_what_it_takes_beyond_the_layers_it_displaces():
    """But for the share of it that every stage carries, of which each has 1/pp."""
    system, model = catalog.system("A100-DGX"), catalog.transformer("gpt-3-13b")
    alike = Plan.of(dp=2.0, tp=2.0, pp=8.0, global_batch=256.0, schedule="interleaved")
    changes = ({}, {"head_displaces": 1.0}, {"head_displaces": 20.0}, {"stage_excess": 1.0})
    cases = [(system, model, alike.having(**change), COEFFICIENTS) for change in changes]
    found = STEP(*(batch(part) for part in zip(*cases, strict=True)))
    head, matmul = np.asarray(found.head), np.asarray(found.matmul)
    carried = COEFFICIENTS.head_balance / 8.0
    assert head[0] > head[1] > head[2]
    share = carried / (1.0 - COEFFICIENTS.head_balance + carried)
    assert head[2] == pytest.approx(head[0] * share, rel=1e-6)
    np.testing.assert_allclose(matmul[:3], matmul[0], rtol=1e-14)
    assert matmul[3] == pytest.approx(matmul[0] * (5.0 + 1.0) / 5.0, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "words", "arguments", "found"),
    [
        ("at_most_dp", {"dp": 8.0}, {"ranks": 64.0}, 8.0),
        ("at_most_dp", {"dp": 128.0}, {"ranks": 64.0}, 64.0),
        ("share_of_layers", {"n_layers": 88.0}, {"layers": 15.0}, 15.0 / 88.0),
        ("share_of_layers", {"n_layers": 8.0}, {"layers": 15.0}, 1.0),
        ("share_of_stage", {"stage_layers": 16.0}, {"layers": 5.0}, 5.0 / 16.0),
        ("one_layer_chunks", {"stage_layers": 20.0, "pp": 4.0}, {"at_most": 5.0}, 5.0),
        ("one_layer_chunks", {"stage_layers": 8.0, "pp": 4.0}, {"at_most": 5.0}, 8.0),
        ("one_layer_chunks", {"stage_layers": 4.0, "pp": 4.0}, {}, 4.0),
        ("one_layer_chunks", {"stage_layers": 3.5, "pp": 4.0}, {}, None),
        ("one_layer_chunks", {"stage_layers": 8.0, "pp": 1.0}, {}, None),
        ("bytes_of_gradients", {"reduce_bytes": 4.0}, {"count": 1e6}, 4e6),
        ("padded_to_busiest", {"n_experts": 16.0, "top_k": 2.0}, {}, 4.5),
        ("padded_to_busiest", {"n_experts": 1.0, "top_k": 1.0}, {}, 1.0),
        ("whole_words_a_rank", {"tp": 2.0}, {"vocabulary": 50257.0}, 50256.0),
        ("words_a_rank_not_of_8", {"tp": 2.0}, {"vocabulary": 50257.0}, 0.0),
        ("words_a_rank_not_of_8", {"tp": 4.0}, {"vocabulary": 50257.0}, 1.0),
    ],
)
def test_rules(name, words, arguments, found):
    assert layouts.RULES[name](words, **arguments) == found
