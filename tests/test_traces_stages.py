"""Stages of pipelines that are not alike: by published layouts, by nanotron's rule, and what they
do to a step."""

import numpy as np
import pytest
from calibration.traces.stages import LAYER, Stages, by_cost, head_cost, stages

from calibration.traces import fingerprint, read, to_cases
from dmodel import catalog
from dmodel.records import Plan
from dmodel.step import step_time
from tests.points import COEFFICIENTS, batch, quick
from tests.rows import table_file

STEP = quick(step_time)
HEAD = 2.1


@pytest.mark.parametrize(
    ("stack", "model", "layers", "pp", "v", "mtp", "fullest", "head"),
    [
        ("megatron-lm/zero-bubble", "gpt-1.5b", 22, 8, 1, 0, 3, 2),
        ("megatron-lm/zero-bubble", "gpt-28.3b", 62, 32, 2, 0, 2, 1),
        ("megatron-deepspeed/bigscience-bf16", "gpt-h14336-l70", 70, 12, 1, 0, 6, 5),
        ("megatron-bridge/26.04", "llama3.1-405b", 126, 16, 8, 0, 8, 7),
        ("megatron-bridge/26.02", "qwen3-235b-a22b", 94, 8, 4, 0, 12, 11),
        # Et*4|(t*4|)*14tmL, Et|(tt|)*30mL and Kimi's without heads of further tokens
        ("megatron-bridge/26.04", "deepseek-v3", 61, 16, 1, 1, 4, 2),
        ("megatron-bridge/26.04", "deepseek-v3", 61, 4, 4, 1, 16, 14),
        ("megatron-bridge/25.09", "deepseek-v3", 61, 8, 4, 1, 8, 7),
        ("megatron-bridge/26.04", "kimi-k2", 61, 4, 4, 0, 16, 13),
        ("torchtitan/async-tp", "llama3.1-405b", 126, 8, 2, 0, 16, 15),
        # by no recipe: what is left over goes to some chunks, not to all; further tokens stand on
        # the last stage
        ("megatron-lm", "a", 66, 8, 8, 0, 9, 7),
        ("megatron-lm", "a", 30, 4, 7, 0, 8, 7),
        ("megatron-bridge/26.04", "deepseek-v3", 61, 24, 1, 1, 3, 2),
        ("megatron-lm", "a", 64, 8, 1, 1, 9, 9),
    ],
)
def test_published_layouts(stack, model, layers, pp, v, mtp, fullest, head):
    found = stages(stack, model, layers, HEAD, float(pp), float(v), float(mtp))
    mean = (layers + mtp) / pp
    assert mean + found.excess == pytest.approx(fullest, rel=1e-12)
    assert mean + found.excess - found.displaced == pytest.approx(head, rel=1e-12)
    assert f"holds {fullest} layers" in found.said[0] and f"head {head}:" in found.said[0]


@pytest.mark.parametrize(
    ("stack", "layers", "pp", "v"),
    [("megatron-lm", 96, 8, 3), ("vtrain", 24, 4, 1), ("nanotron", 32, 1, 1)],
)
def test_stages_that_are_alike_say_nothing(stack, layers, pp, v):
    assert stages(stack, "a", layers, HEAD, float(pp), float(v)) == Stages()


def test_a_row_says_what_its_stages_hold(tmp_path):
    """Written layouts count whatever the stack does; those that cannot be set the row aside."""
    found = stages("nanotron", "a", 30.0, HEAD, 4.0, 1.0, written=(9.0, 9.0, 8.0, 4.0))
    assert (found.excess, found.displaced, found.said) == (1.5, 5.0, ())
    further = stages("megatron-lm", "a", 30.0, HEAD, 4.0, 1.0, 1.0, (9.0, 9.0, 8.0, 4.0))
    assert (further.excess, further.displaced) == (9.0 - 31.0 / 4.0, 4.0)
    for wrong in ("9 9 8", "9 9 9 9", "9 9 8 4.5", "30"):
        table = read(
            table_file(tmp_path, {"n_layers": "30", "pp": "4", "dp": "4", "stage_layers": wrong})
        )
        assert (
            not table.rows
            and "expected 4 numbers (pp) that add up to n_layers = 30" in table.problems[0].reason
        )
    plain, laid = (
        table_file(tmp_path, {"n_layers": "30", "pp": "2", "stage_layers": x}, name=f"{len(x)}.csv")
        for x in ("", "16 14")
    )
    assert fingerprint(read(plain).rows[0]) != fingerprint(read(laid).rows[0])
    assert float(to_cases(read(laid)).plan.layout.stage_excess[0]) == 1.0


def test_nanotron_lays_out_by_cost():
    """Llama 3 8B on 8 stages, as its authors print it: 5, 4, 4, 5, 4, 4, 4 layers, and 2 with the
    head."""
    found = stages("ultrascale-playbook", "a", 32.0, head_cost(4096.0, 14336.0, 128256.0), 8.0, 1.0)
    assert (found.excess, found.displaced) == (1.0, 3.0)
    assert by_cost(16, 4.0 / LAYER, 2) == ([10, 6], 1)
    assert by_cost(32, 2.207 / LAYER, 16)[1] == 15


@pytest.mark.parametrize("seed", range(20))
def test_every_layer_has_a_stage_and_no_stage_overflows_by_more_than_one(seed):
    rng = np.random.default_rng(seed)
    layers, head, pp = (
        int(rng.integers(8, 100)),
        float(rng.uniform(0.1, 5.0)),
        int(2 ** rng.integers(0, 5)),
    )
    held, last = by_cost(layers, head, pp)
    share = (layers + head) / pp
    assert sum(held) == layers and sum(held[last + 1 :]) == 0 and max(held) <= share + 1.0
    assert np.all(np.cumsum(held)[:last] > share * np.arange(1, last + 1))


def test_a_head_costs_what_it_takes_beyond_the_layers_it_displaces():
    """But for the share of it that every stage carries, of which each has 1/pp."""
    system, model = catalog.system("A100-DGX"), catalog.transformer("gpt-3-13b")
    alike = Plan.of(dp=2.0, tp=2.0, pp=8.0, global_batch=256.0, schedule="interleaved")
    plans = [
        alike,
        alike.having(head_displaces=1.0),
        alike.having(head_displaces=20.0),
        alike.having(stage_excess=1.0),
    ]
    found = STEP(
        *(
            batch(part)
            for part in zip(*[(system, model, plan, COEFFICIENTS) for plan in plans], strict=True)
        )
    )
    head, matmul = np.asarray(found.head), np.asarray(found.matmul)
    carried = COEFFICIENTS.head_balance / 8.0
    assert head[0] > head[1] > head[2]
    assert head[2] == pytest.approx(
        head[0] * carried / (1.0 - COEFFICIENTS.head_balance + carried), rel=1e-6
    )
    np.testing.assert_allclose(matmul[:3], matmul[0], rtol=1e-14)
    assert matmul[3] == pytest.approx(matmul[0] * (5.0 + 1.0) / 5.0, rel=1e-12)
