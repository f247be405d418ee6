"""What products in 8 bits bring over 16, beside public measurements of both and where they bring
nothing."""

import pytest

from dmodel.api import Job, Layout, Prediction, cluster, predict

TORCHAO = {"bf16": 6150.0, "fp8": 7689.5, "fp8-rowwise": 6768.0}
"""Tokens/s of a device: Llama 3 8B, FSDP, one sequence of 8,192 tokens for each, selective
recomputation, compiled (torchao, float8/README.md, June 2025)."""


def sharded(precision: str) -> Prediction:
    """That job."""
    return predict(
        Job("llama-3-8b", seq_len=8192, global_batch=8),
        cluster("H100-DGX", 8),
        Layout(zero=3.0),
        stack="torchtitan/compile",
        precision=precision,
        overrides={"recompute": "selective"},
    )


def mixture(precision: str, graphed: float) -> Prediction:
    """Qwen3 30B-A3B, one sequence a micro-batch, as Megatron-Bridge's recipes for 32 H100 have
    it."""
    return predict(
        Job("qwen-3-30b-a3b", seq_len=4096, global_batch=256),
        cluster("H100-DGX", 32),
        Layout(ep=8.0, micro_batch=1.0, zero=1.0),
        stack="megatron-lm",
        precision=precision,
        overrides={"recompute": "none", "dispatcher": "hybridep", "graphed": graphed},
    )


def test_scales_of_rows_keep_less_of_what_8_bits_bring():
    """As measured, within 15 %: a fifth of the step with one scale for each tensor, a tenth with
    one for each row, which is cast along rows and along columns."""
    times = {precision: sharded(precision).step_time_s for precision in TORCHAO}
    assert times["fp8"] < 0.98 * times["fp8-rowwise"] < 0.98 * times["bf16"]
    for precision, rate in TORCHAO.items():
        ratio = times[precision] / times["bf16"]
        assert ratio == pytest.approx(TORCHAO["bf16"] / rate, rel=0.15), precision


def test_8_bits_bring_nothing_where_the_host_decides_and_graphs_give_it_back():
    """240.5 TFLOP/s in 16 bits without graphs, 242.9 in 8 with them, of 23.0 GFLOP a token:
    3.13 and 3.10 s (NVIDIA/Megatron-LM#5728). Without them 8 bits launch more, and wait."""
    wide, narrow, waiting = (
        mixture(*asked) for asked in (("bf16", 0.0), ("fp8", 1.0), ("fp8", 0.0))
    )
    assert wide.step_time_s == pytest.approx(3.13, rel=0.15)
    assert narrow.step_time_s == pytest.approx(3.10, rel=0.15)
    assert waiting.step_time_s > wide.step_time_s
    longer = float(waiting.breakdown.launch - narrow.breakdown.launch)
    assert longer > 0.9 * (waiting.step_time_s - narrow.step_time_s)
