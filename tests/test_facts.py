"""What stacks do: facts by release, model, chip and precision, as a job that says nothing else gets
them."""

import numpy as np
import pytest

from calibration.traces import published, read, to_cases
from dmodel.catalog.facts import apply
from dmodel.catalog.stack import consequences, files, stack
from dmodel.deciding import LEAVES
from dmodel.records import leaf, value
from dmodel.settings import SETTINGS
from dmodel.step import memory_use
from dmodel.tables import parameter_groups
from tests.rows import answered, job, table_file


@pytest.mark.parametrize(
    ("stack", "model", "precision", "found"),
    [
        ("megatron-bridge/26.04", "llama3-70b", "fp8", (1.0, 1.0)),
        ("megatron-bridge/26.04", "llama3-70b", "FP8", (1.0, 1.0)),
        ("megatron-bridge/26.04", "nemotron_3_super", "fp8", (0.0, 0.0)),
        ("nemo/25.02-dgxc", "llama3-70b", "fp8", (1.0, 1.0)),
        ("nemo-launcher", "gpt-3-175b", "bf16", (0.0, 1.0)),
        ("torchtitan/float8", "llama3-70b", "fp8", (0.0, 1.0)),
    ],
)
def test_how_messages_of_tensor_parallelism_go(stack, model, precision, found):
    """Forward sums in 8 bits where one scale is for a whole tensor, and the stack has buffers for
    it; nothing hides Nemotron 3 Super's."""
    plan = job(stack, model, "H100-80GB", precision, tp=2).plan
    assert (float(plan.precision.narrow_sums), float(plan.software.overlap_tp)) == found
    assert float(plan.precision.narrow_gathers) == 1.0


def test_scales_by_row_gather_whole():
    plan = job("torchtitan/float8", "llama3-70b", "H100-80GB", "fp8-rowwise", tp=2).plan
    assert float(plan.precision.narrow_gathers) == 0.0
    blocks = job("megatron-bridge/26.04", "llama3-70b", "B200", "mxfp8", tp=2).plan
    assert float(blocks.precision.narrow_sums) == 0.0


@pytest.mark.parametrize(
    ("stack", "precision", "passes"),
    [
        ("torchtitan", "fp8", 0.0),
        ("torchtitan", "fp8-rowwise", 3.0),
        ("torchtitan/float8", "fp8-rowwise", 3.0),
        ("automodel", "fp8-rowwise", 3.0),
        ("torchtitan/float8-rowwise", "fp8-rowwise", 0.0),
        ("torchtitan/async-tp-rowwise", "fp8-rowwise", 0.0),
        ("megatron-bridge", "mxfp8", 1.0),
        ("megatron-bridge", "nvfp4", 2.0),
    ],
)
def test_how_often_a_tensor_is_read_to_be_cast(stack, precision, passes):
    """Scales of rows take two casts, each of which reads the tensor twice; the variants whose rows
    have them are fitted without."""
    chip = "B200" if precision in ("mxfp8", "nvfp4") else "H100-80GB"
    plan = job(stack, "llama3-8b", chip, precision).plan
    assert float(plan.precision.scale_passes) == passes


@pytest.mark.parametrize(("chip", "said"), [("H200-141GB", True), ("MI300X", False)])
def test_cudnn_is_named_of_chips_that_have_it(chip, said):
    told = str(job("te", "llama3-8b", chip, "fp8").assumptions)
    assert ("cuDNN" in told) == said


@pytest.mark.parametrize(
    ("stack", "model", "accelerator", "precision", "ep", "merged", "beside"),
    [
        ("megatron-bridge/26.02", "qwen3-235b-a22b", "H100-80GB", "fp8", 32, 0.0, 1.0),
        ("megatron-bridge/26.02", "qwen3-235b-a22b", "GB200", "mxfp8", 32, 1.0, 0.0),
        ("megatron-bridge/26.06", "qwen3-235b-a22b", "GB200", "mxfp8", 32, 1.0, 1.0),
        ("megatron-bridge/26.02", "gpt-oss-120b", "B300", "bf16", 64, 0.0, 0.0),
        ("megatron-bridge/26.04", "deepseek-v3", "B200", "mxfp8", 32, 1.0, 1.0),
        ("megatron-bridge/25.09", "deepseek-v3", "H100-80GB", "fp8", 64, 1.0, 1.0),
        ("megatron-bridge/26.02", "deepseek-v3", "H100-80GB", "fp8", 64, 1.0, 0.0),
        ("torchtitan", "deepseek-v3", "B200", "mxfp8", 32, 0.0, 0.0),
        ("automodel", "deepseek-v3", "H100-80GB", "bf16", 64, 1.0, 0.0),
        ("maxtext-readme", "deepseek-v3", "TPU-v5p", "bf16", 32, 0.0, 1.0),
    ],
)
def test_dispatchers_are_those_of_the_recipes(
    stack, model, accelerator, precision, ep, merged, beside
):
    software = job(stack, model, accelerator, precision, ep=ep).plan.software
    assert (float(software.merge_copies), float(software.overlap_ep)) == (merged, beside)


LAUNCHES = [
    ("megatron-bridge/26.04", "qwen3-30b-a3b", "GB200", "mxfp8", (0.0, 1.0)),
    ("megatron-bridge/26.04", "qwen3-235b-a22b", "GB200", "mxfp8", (1.0, 1.0)),
    ("megatron-bridge/26.04", "qwen3-235b-a22b", "B300", "mxfp8", (0.0, 1.0)),
    ("megatron-bridge/25.11", "qwen3-235b-a22b", "GB200", "mxfp8", (0.0, 1.0)),
    ("megatron-bridge/25.09", "qwen3-30b-a3b", "B200", "fp8", (1.0, 0.0)),
    ("megatron-bridge/25.09", "qwen3-30b-a3b", "H100-80GB", "fp8", (0.0, 1.0)),
    ("megatron-bridge/26.08", "qwen3-30b-a3b", "H100-80GB", "fp8", (0.0, 1.0)),
    ("megatron-bridge", "qwen3-30b-a3b", "H100-80GB", "fp8", (1.0, 1.0)),
    ("megatron-bridge", "qwen3-30b-a3b", "H100-80GB", "fp8-blockwise128", (1.0, 1.0)),
    ("megatron-bridge", "qwen3-30b-a3b", "H100-80GB", "bf16", (0.0, 1.0)),
    ("megatron-bridge/26.06", "deepseek-v3", "B300", "mxfp8", (1.0, 1.0)),
    ("megatron-bridge/26.08", "deepseek-v3", "B300", "mxfp8", (1.0, 0.0)),
    ("megatron-bridge/26.06", "kimi-k2", "GB300", "mxfp8", (0.0, 1.0)),
    ("megatron-bridge/26.08", "kimi-k2", "GB300", "mxfp8", (1.0, 0.0)),
    ("megatron-bridge/26.08", "qwen3-30b-a3b", "B200", "mxfp8", (1.0, 0.0)),
    ("megatron-bridge/26.08", "deepseek-v3", "B200", "mxfp8", (0.0, 1.0)),
    ("megatron-bridge/26.06", "gpt-oss-120b", "B300", "mxfp8", (1.0, 0.0)),
    ("megatron-bridge/26.06", "gpt-oss-120b", "B200", "bf16", (0.0, 1.0)),
    ("megatron-bridge/26.04", "nemotron_3_super", "B200", "mxfp8", (0.0, 1.0)),
    ("megatron-bridge/26.04", "nemotron_3_super", "B200", "nvfp4", (1.0, 1.0)),
    ("megatron-bridge/26.06", "nemotron_3_nano", "GB200", "mxfp8", (1.0, 1.0)),
    ("megatron-bridge/25.11", "nemotron-3-nano-30b-a3b", "GB200", "mxfp8", (0.0, 1.0)),
    ("megatron-bridge/26.06", "Nemotron 3 Nano", "H100-80GB", "fp8", (0.0, 1.0)),
    ("megatron-bridge/26.02", "llama3-8b", "GB200", "fp8", (1.0, 0.0)),
    ("megatron-bridge/26.02", "llama3-8b", "H100-80GB", "fp8", (0.0, 0.0)),
    ("megatron-bridge/26.02", "llama-3-8b", "GB200", "fp8", (1.0, 0.0)),
    ("mlperf-train-v5.1", "llama-3.1-8b", "GB300", "fp8", (1.0, 0.0)),
    ("mlperf-train-v5.1", "llama-2-70b", "GB300", "fp8", (0.0, 0.0)),
    ("mlperf-train-v5.1", "llama-3.1-8b", "MI325X", "fp8", (0.0, 0.0)),
    ("mlperf-train-v5.0", "llama-3.1-405b", "GB200", "fp8", (0.0, 0.0)),
    ("nemo-launcher", "mixtral-8x7b", "H100-80GB", "bf16", (0.0, 1.0)),
    ("torchtitan", "deepseek-v3", "B200", "bf16", (0.0, 0.0)),
    ("maxtext-readme", "gpt-oss-120b", "TPU-v5p", "bf16", (1.0, 0.0)),
    ("jax-toolbox-pax", "llama-2-7b", "H100-80GB", "bf16", (0.75, 0.0)),
    ("dmodel-collect/jax-0.10", "llama-2-7b", "H100-80GB", "bf16", (0.75, 0.0)),
]


@pytest.mark.parametrize(("stack", "model", "chip", "precision", "expected"), LAUNCHES)
def test_what_recipes_say_of_launches(stack, model, chip, precision, expected):
    dense = "llama" in model
    found = job(stack, model, chip, precision, ep=1 if dense else 8).plan.software
    assert (float(found.graphed), float(found.looped_experts)) == expected
    rotary = model.startswith("gpt-oss") and not stack.startswith("maxtext")
    assert float(found.split_rotary) == float(rotary)


@pytest.mark.parametrize(
    ("release", "model", "chip", "precision", "expected"),
    [
        ("26.06", "qwen3-30b-a3b", "GB200", "mxfp8", 1.0),
        ("26.04", "qwen3-30b-a3b", "GB200", "mxfp8", 2.0),
        ("26.06", "qwen3-30b-a3b", "GB200", "bf16", 2.0),
        ("26.06", "deepseek-v3", "GB300", "mxfp8", 1.0),
        ("26.06", "deepseek-v3", "GB200", "mxfp8", 2.0),
        ("26.06", "gpt-oss-120b", "GB300", "mxfp8", 1.0),
        ("26.06", "gpt-oss-120b", "B300", "mxfp8", 2.0),
        ("26.06", "gpt-oss-20b", "GB300", "mxfp8", 2.0),
        ("26.08", "nemotron_3_super", "GB300", "mxfp8", 2.0),
        ("26.08", "kimi-k2", "GB300", "mxfp8", 2.0),
    ],
)
def test_recipes_whose_attention_runs_in_8_bits(release, model, chip, precision, expected):
    of = model, chip, precision
    assert float(job(f"megatron-bridge/{release}", *of).plan.precision.attention_bytes) == expected
    assert float(job("megatron-lm", *of).plan.precision.attention_bytes) == 2.0


@pytest.mark.parametrize(
    ("stack", "fused", "bucket"),
    [
        ("megatron-bridge/26.04", 1.0, 2e6),
        ("nemo-launcher", 1.0, None),
        ("megatron-lm/zero-bubble", 1.0, None),
        ("megatron-lm", 1.0, None),
        ("flagscale", 1.0, None),
        ("llm-foundry", 0.0, 0.0),
        ("vtrain", 0.0, None),
        ("megatron-sc21-t1", 0.0, None),
        ("megatron-lm/dlperf", 0.0, None),
        ("megatron-deepspeed/bigscience-bf16", 0.0, None),
        ("torchtitan", 0.0, 0.0),
    ],
)
def test_whose_products_add_to_the_gradients_held(stack, fused, bucket):
    plan = answered(stack=stack).plan
    assert float(plan.software.fused_sums) == fused
    assert bucket is None or float(plan.software.bucket_per_rank) == bucket


@pytest.mark.parametrize(
    ("stack", "chip", "devices", "graphed"),
    [
        ("mlperf-train-v5.0", "GB200", 72, 1.0),
        ("mlperf-train-v5.0", "GB200", 8, 0.0),
        ("mlperf-train-v5.0", "MI300X", 32, 0.0),
        ("mlperf-train-v4.0", "H100-80GB", 1024, 0.0),
    ],
)
def test_large_submissions_to_mlperf_5_launch_layers_by_graphs(stack, chip, devices, graphed):
    of = {"n_accel": devices, "global_batch": devices, "tuning": "lora"}
    found = job(stack, "llama2-70b-lora", chip, "fp8", **of)
    assert float(found.plan.software.graphed) == graphed


def test_nemotron_3_super_and_ultra_are_read_by_their_recipes():
    """Shapes, latents and heads of further tokens; 16-bit layers under NVFP4; messages that wait;
    FSDP that the table has no mark for."""
    cases = to_cases(published())
    named = np.char.replace(cases.labels.model.astype(str), "_", "-")
    sup, ultra = (
        cases.take(np.flatnonzero(named == f"nemotron-3-{name}")) for name in ("super", "ultra")
    )
    assert (len(sup), len(ultra)) == (30, 2)
    assert set(np.asarray(value(sup.model, "expert_rank"))) == {1024.0}
    assert set(np.asarray(value(ultra.model, "expert_rank"))) == {2048.0}
    assert set(np.asarray(sup.model.n_mtp)) == set(np.asarray(ultra.model.n_mtp)) == {1.0}
    four = np.asarray(sup.plan.precision.operand_bytes) == 0.5
    np.testing.assert_allclose(sup.plan.precision.wide_layers, np.where(four, 15.0 / 88.0, 0.0))
    split = np.asarray(sup.plan.layout.tp) > 1.0
    np.testing.assert_allclose(sup.plan.software.overlap_tp, np.where(split, 0.0, 1.0))
    assert set(np.asarray(ultra.plan.layout.zero)) == {3.0}
    assert set(np.asarray(ultra.plan.layout.shard)) == {64.0}
    assert set(np.asarray(sup.plan.software.route_bytes)) == {1.0}
    assert not np.asarray(sup.plan.software.fused_experts).any()


def test_a_run_of_nemo_says_what_it_switched_on():
    """Settings that differ by job of one release."""
    row = {"stack": "nemo/25.07", "model": "deepseek-v3", "accelerator": "H100-80GB"}
    row |= {"precision": "fp8", "ep": 8, "recompute": "none"}
    plain = job(**row).plan
    said = {"attention_kernel": "flash-2", "graphed": 1, "looped_experts": 0}
    said |= {"gather_bytes": 1, "dispatcher": "deepep"}
    found = job(**row, **said).plan
    names = ("graphed", "merge_copies", "gather_bytes", "attention_rate")
    assert [float(leaf(plain, n)) for n in names] == [0.0, 0.0, 2.0, 1.0]
    assert [float(leaf(found, n)) for n in names] == pytest.approx([1.0, 1.0, 1.0, 1.0 / 1.73])
    assert float(found.software.looped_experts) == 0.0 < float(plain.software.looped_experts)


HELD = (
    "weight_bytes",
    "optimizer_bytes",
    "gradient_bytes",
    "reduce_bytes",
    "accumulate",
    "logit_bytes",
)


BESIDE = (
    "raw_gradient_bytes",
    "update_bytes",
    "boundary_copies",
    "whole_logits",
    "boundary_buffers",
)


@pytest.mark.parametrize(
    ("stack", "changes", "expected"),
    [
        ("megatron-deepspeed", {"precision": "bf16", "zero_stage": "1"}, (2.0, 0.0, 2.0, 0.0)),
        ("megatron-deepspeed", {"precision": "fp16", "zero_stage": "1"}, (0.0, 6.0, 2.0, 0.0)),
        ("megatron-deepspeed", {"precision": "fp16", "zero_stage": "0"}, (0.0, 0.0, 2.0, 0.0)),
        ("deepspeed", {"zero_stage": "2"}, (0.0, 6.0, 0.0, 0.0)),
        ("deepspeed", {"zero_stage": "3"}, (0.0, 0.0, 0.0, 0.0)),
        ("gpt-neox", {"precision": "fp16", "zero_stage": "1"}, (0.0, 6.0, 2.0, 0.0)),
        ("gpt-neox", {"zero_stage": "1", "tp": "4", "dp": "16"}, (0.0, 0.0, 0.0, 0.0)),
        ("megatron-sc21-t1", {"zero_stage": "1"}, (0.0, 0.0, 0.0, 0.0)),
        ("kempnerforge", {}, (0.0, 0.0, 0.0, 1.0)),
        ("torchtitan", {}, (0.0, 0.0, 0.0, 0.0)),
        ("torchtitan", {"dp": "32", "pp": "2"}, (0.0, 0.0, 0.0, 0.0, 1.0)),
    ],
)
def test_what_stacks_hold_beside_the_states(stack, changes, expected):
    """DeepSpeed keeps 16-bit gradients beside fp32 ones, flattens a rank's share of fp16 ones for
    the update, and keeps what pipeline stages got and sent (GPT-NeoX: where tp does not split it);
    KempnerForge gathers the logits."""
    row = {"zero_stage": "3", "dp": "64", "tp": "1", "pp": "1", "recompute": "none"}
    found = answered(**{**row, **changes, "stack": stack}).plan
    held = [float(leaf(found, name)) for name in BESIDE]
    assert held[: len(expected)] == list(expected)


@pytest.mark.parametrize(
    ("stack", "changes", "expected"),
    [
        ("llm-foundry", {}, (0.0, 12.0, 4.0, 2.0, 0.0, 4.0)),
        ("llm-foundry", {"precision": ""}, (0.0, 12.0, 4.0, 2.0, 0.0, 4.0)),
        ("llm-foundry", {"zero_stage": "2"}, (2.0, 12.0)),
        ("torchtitan", {}, (0.0, 12.0, 4.0, 4.0, 0.0, 1.5)),
        ("torchtitan/0.2.1", {}, (0.0, 12.0, 4.0, 4.0, 0.0, 12.0)),
        ("torchtitan/compile", {}, (0.0, 12.0, 4.0, 4.0, 0.0, 0.5)),
        ("torchtitan/float8", {"set": "logit_bytes=4"}, (0.0, 12.0, 4.0, 4.0, 0.0, 4.0)),
        ("torchtitan/dist-moe-graph", {}, (0.0, 12.0, 4.0, 4.0, 0.0, 8.0)),
        ("maxtext", {}, (0.0, 12.0, 4.0, 2.0, 0.0, 2.0)),
        ("kempnerforge", {}, (2.0, 4.0, 4.0, 4.0, 1.0, 6.0)),
        ("kempnerforge", {"precision": "fp8"}, (2.0, 12.0)),
        ("automodel", {}, (2.0, 4.0, 2.0, 4.0, 0.0, 8.0)),
        ("automodel", {"zero_stage": "2"}, (2.0, 4.0, 4.0)),
        ("fms-fsdp", {}, (0.0, 12.0)),
        ("tpu-recipes/v5p", {}, (0.0, 12.0)),
        ("jax-toolbox-maxtext/24.12", {}, (0.0, 12.0)),
        ("jax-toolbox-pax/24.03", {"flag": "lora"}, (2.0, 12.0)),
        ("deepspeed", {}, (2.0, 12.0, 4.0, 2.0, 0.0, 14.0)),
        ("deepspeed/flagperf", {}, (2.0, 12.0, 4.0, 2.0, 0.0, 8.0)),
        ("huggingface", {}, (2.0, 4.0, 2.0, 2.0, 0.0, 14.0)),
        ("trl", {}, (0.0, 12.0, 4.0, 2.0, 0.0, 0.0)),
        ("trl/0.20", {}, (0.0, 12.0, 4.0, 2.0, 0.0, 14.0)),
        ("axolotl/deepspeed", {}, (2.0, 12.0, 4.0, 2.0, 0.0, 14.0)),
        ("axolotl/pure", {}, (2.0, 4.0, 2.0)),
        ("llama-factory", {}, (2.0, 12.0, 4.0, 2.0, 0.0, 14.0)),
        ("llama-factory/fsdp", {}, (0.0, 12.0, 4.0)),
        ("llama-factory/pure", {}, (2.0, 4.0, 2.0)),
        ("llama-factory", {"zero_stage": "0"}, (4.0, 8.0, 4.0, 4.0)),
        ("unsloth", {"zero_stage": "0"}, (2.0, 4.0, 2.0, 2.0, 0.0, 0.0)),
        ("pytorch/llama-recipes", {"flag": "lora"}, (2.0, 12.0, 4.0, 2.0, 0.0, 14.0)),
        ("torchtune", {}, (2.0, 4.0, 2.0)),
        ("composer", {}, (2.0, 12.0, 4.0)),
        ("megatron-bridge/26.02", {}, (2.0, 12.0)),
    ],
)
def test_what_stacks_hold(stack, changes, expected):
    """No 16-bit copy beside the master weights that FSDP shards; KempnerForge and AutoModel hold no
    master weight, and the first reduces once a step what it accumulates whole; losses that read the
    product of the logits as it is."""
    row = {"zero_stage": "3", "dp": "64", "tp": "1", "pp": "1", "recompute": "none"}
    plan = answered(**{**row, **changes, "stack": stack}).plan
    assert tuple(float(leaf(plan, n)) for n in HELD)[: len(expected)] == expected


def test_gpt_neox_holds_layers_whole_and_sums_in_the_bytes_of_parameters():
    """No sequence parallelism, no fused attention, gradients of fp16 in 16 bits, unless told."""
    of = {"model": "gpt-neox-20b", "accelerator": "A100-80GB", "tp": 2.0, "zero_stage": 1.0}
    found = job("gpt-neox", **of, precision="fp16").plan
    other = job("gpt-neox", **of, precision="bf16", sp=1.0, attention="flash").plan
    for plan, expected in ((found, (0.0, 0.0, 2.0)), (other, (1.0, 1.0, 4.0))):
        held = (plan.layout.sp, plan.software.flash, plan.precision.gradient_bytes)
        assert held == expected


@pytest.mark.parametrize("stack", ["", "huggingface", "litgpt"])
def test_qlora_is_lora_with_frozen_weights_in_4_bits(stack):
    of = {"stack": stack, "model": "llama-2-7b", "accelerator": "RTX-4090"}
    lora, qlora = (job(**of, tuning=way) for way in ("lora", "qlora"))
    assert float(qlora.plan.precision.weight_bytes) == pytest.approx((4.0 + 0.127) / 8.0, abs=1e-3)
    assert float(lora.plan.precision.weight_bytes) == 2.0
    assert qlora.model.trainable == lora.model.trainable == 0.0
    assert qlora.model.first_adapters == lora.model.first_adapters > 0.0
    held = job(**of, tuning="qlora", weight_bytes=1.0)
    assert float(held.plan.precision.weight_bytes) == 1.0


@pytest.mark.parametrize(
    ("stack", "changes", "expected"),
    [
        ("accelerate", {}, 2.0),
        ("accelerate", {"precision": "fp16"}, 4.0),
        ("llama-factory", {}, 4.0),
        ("llama-factory/pure", {}, 2.0),
        ("trl", {"tuning": "lora"}, 4.0),
        ("pytorch", {}, 4.0),
        ("accelerate/deepspeed", {}, 0.0),
        *((stack, {"zero_stage": 3.0}, 0.0) for stack in ("trl", "pytorch")),
        *((stack, {"n_accel": 1.0}, 0.0) for stack in ("trl", "pytorch")),
    ],
)
def test_distributed_data_parallel_holds_all_gradients_twice(stack, changes, expected):
    """In buckets of the bytes of a gradient, where several ranks share nothing."""
    of = {"model": "llama-2-7b", "accelerator": "A100-80GB", "tuning": "sft", "zero_stage": 0.0}
    found = job(stack, **of | changes).plan.precision
    assert float(found.raw_gradient_bytes) == expected
    assert expected in (0.0, float(found.gradient_bytes))


@pytest.mark.parametrize(
    ("stack", "changes", "expected"),
    [
        ("peft", {}, (4.0, 2.0)),
        ("peft/deepspeed", {}, (2.0, 2.0)),
        ("peft/pure", {}, (2.0, 2.0)),
        ("peft", {"tuning": "qlora"}, (0.516, 0.516)),
        ("peft", {"zero_stage": 0.0}, (2.0, 2.0)),
        ("llama-factory/fsdp", {}, (2.0, 2.0)),
    ],
)
def test_frozen_weights_that_peft_loads_for_fsdp_are_in_fp32(stack, changes, expected):
    of = {"model": "llama-2-70b", "accelerator": "H100-80GB", "tuning": "lora", "zero_stage": 3.0}
    found = job(stack, **of | changes).plan.precision
    assert (float(found.weight_bytes), float(found.gather_bytes)) == expected


@pytest.mark.parametrize(
    ("stack", "zero", "whole"),
    [
        *((each, 3.0, 1.0) for each in ("peft", "trl", "llama-factory/fsdp", "pytorch")),
        *((each, 3.0, 0.0) for each in ("peft/deepspeed", "llama-factory", "torchtitan")),
        ("peft", 0.0, 0.0),
    ],
)
def test_whose_root_unit_has_embedding_and_head(stack, zero, whole):
    of = {"model": "llama-2-7b", "accelerator": "H100-80GB", "tuning": "sft", "zero_stage": zero}
    assert float(job(stack, **of).plan.software.whole_ends) == whole


def test_in_4_bits_are_the_layers_alone():
    """Embedding and head of a quantized model stay in 16 bits (bitsandbytes leaves them out)."""
    found = job("", "llama-3-8b", "RTX-4090", tuning="qlora")
    n = parameter_groups(found.model)
    ends, layers = float(n.embedding + n.head), float(n.layers * n.layer.total)
    held = float(memory_use(found.model, found.plan).weights)
    assert held == pytest.approx(2.0 * ends + 0.516 * layers, rel=1e-12)


BYTES_OF = {
    "adamw": {12.0: 12.0, 10.0: 10.0, 8.0: 8.0, 6.0: 6.0, 4.0: 4.0},
    "adamw-8bit": {12.0: 6.0, 10.0: 4.0, 8.0: 2.0, 6.0: 4.0, 4.0: 2.0},
    "adafactor": {12.0: 4.0, 10.0: 2.0, 8.0: 0.0, 6.0: 2.0, 4.0: 0.0},
    "sgd": {12.0: 4.0, 10.0: 2.0, 8.0: 0.0, 6.0: 2.0, 4.0: 0.0},
    "lion": {12.0: 8.0, 10.0: 6.0, 8.0: 4.0, 6.0: 4.0, 4.0: 2.0},
    "muon": {12.0: 8.0, 10.0: 6.0, 8.0: 4.0, 6.0: 4.0, 4.0: 2.0},
}
"""Optimizer → bytes of AdamW's state, which a stack decides → its own."""


def test_every_optimizer_has_its_bytes_beside_whatever_a_stack_holds():
    of_stacks = {
        each.sets["optimizer_bytes"]
        for file in files().values()
        for each in file.facts
        if "optimizer_bytes" in each.sets and "optimizer" not in each.when
    }
    assert set(BYTES_OF) == set(SETTINGS["optimizer"].allowed)
    for word, bytes_of in BYTES_OF.items():
        assert of_stacks <= set(bytes_of)
        for usual, own in bytes_of.items():
            words = {"optimizer": word, "optimizer_bytes": usual}
            assert {**words, **apply(consequences(), words, frozenset()).values}[
                "optimizer_bytes"
            ] == own, (word, usual)


@pytest.mark.parametrize(("stack", "expected"), [("fsdp", 6.0), ("", 6.0), ("huggingface", 2.0)])
def test_an_optimizer_is_that_of_the_plan(stack, expected):
    of = {"stack": stack, "model": "llama-2-7b", "accelerator": "H100-80GB"}
    found = job(**of, optimizer="adamw-8bit").plan.precision
    assert float(found.optimizer_bytes) == expected
    held = job(**of, optimizer="adamw-8bit", optimizer_bytes=7.0).plan.precision
    assert float(held.optimizer_bytes) == 7.0


def test_in_fp32_parameters_are_whole_without_a_copy():
    words = {"stack": "llm-foundry", "precision": "fp32", "zero": 3.0}
    found = LEAVES | apply(stack("llm-foundry").facts, words, frozenset()).values
    held = [found[f"{n}_bytes"] for n in ("weight", "optimizer", "gradient", "reduce")]
    assert held == [4.0, 8.0, 4.0, 4.0]


@pytest.mark.parametrize(
    ("stack", "model", "optimizer"),
    [
        ("nemo-launcher", "llama-2-70b", 10.0),
        ("nemo-launcher", "llama2-70b-sft", 6.0),
        ("nemo/24.07", "mine", 10.0),
        ("nemo/24.12", "mine-sft", 12.0),
    ],
)
def test_nemo_keeps_activations_and_reduces_in_16_bits(tmp_path, stack, model, optimizer):
    """Where a rule would recompute for want of memory, its recipes do not."""
    shape = {"n_layers": "80", "d_model": "8192", "d_ff": "28672", "n_heads": "64"}
    degrees = {"n_accel": "16", "dp": "1", "tp": "4", "pp": "4"}
    row = {**shape, **degrees, "stack": stack, "model": model, "recompute": "", "precision": "fp8"}
    row["step_time_s"] = "35"
    plan = to_cases(read(table_file(tmp_path, row), require_time=False)).plan
    found = [float(leaf(plan, n)[0]) for n in ("recompute_layers", "recompute_attention")]
    assert found == [0.0, 0.0]
    found = [float(leaf(plan, f"{n}_bytes")[0]) for n in ("reduce", "gradient", "optimizer")]
    assert found == [2.0, 2.0, optimizer]
    # the launcher's fine-tuning holds 8-bit weights
    assert plan.precision.gather_bytes[0] == (1.0 if optimizer == 6.0 else 2.0)


LORA = {
    "stack": "mlperf-train-v5.0",
    "model": "llama2-70b-lora",
    "n_layers": "80",
    "d_model": "8192",
    "d_ff": "28672",
    "n_heads": "64",
    "n_kv_heads": "8",
    "seq_len": "8192",
    "precision": "fp8",
    "recompute": "",
    "dp": "4",
    "tp": "4",
    "pp": "1",
    "micro_batch": "1",
    "global_batch": "8",
    "n_accel": "16",
    "accelerator": "H200-141GB",
    "flag": "lora",
}
EIGHT = {"n_accel": "8", "dp": "8", "tp": "1", "sp": "0"}


@pytest.mark.parametrize(
    ("changes", "recomputed", "bits"),
    [
        ({}, 0.0, 2.0),
        ({"stack": "mlperf-train-v4.0"}, 0.0, 1.0),
        (EIGHT | {"accelerator": "MI300X"}, 21.0 / 80.0, 2.0),
        (EIGHT | {"accelerator": "MI325X"}, 0.0, 2.0),
        (EIGHT | {"accelerator": "B200"}, 0.0, 1.0),
        (EIGHT | {"accelerator": "B200", "attention": "none", "precision": "fp8-te"}, 0.0, 2.0),
    ],
)
def test_frozen_weights_are_held_in_8_bits_and_layers_recomputed_by_chip(changes, recomputed, bits):
    plan = answered(**{**LORA, **changes}).plan
    names = ("weight_bytes", "recompute_layers", "attention_bytes")
    assert [float(leaf(plan, n)) for n in names] == pytest.approx([1.0, recomputed, bits])
    full = answered(**{**LORA, **changes, "recompute": "full"}).plan
    assert float(full.layout.recompute_layers) == 1.0


@pytest.mark.parametrize(
    ("tp", "columns", "unpadded"), [(1, 50257, 1), (2, 25128, 0), (8, 6282, 1)]
)
def test_composed_rows_of_vtrain_recompute_nothing_and_hold_words_that_nobody_pads(
    tp, columns, unpadded
):
    degrees = {"tp": str(tp), "dp": str(8 // tp), "pp": "1", "cp": "1", "n_accel": "8"}
    row = {"stack": "vtrain", "recompute": "full", "vocab": "51200", **degrees}
    found = answered(**row, flag="composed")
    names = ("recompute_layers", "unpadded_vocab", "composed")
    assert [float(leaf(found.plan, n)) for n in names] == [0.0, unpadded, 1.0]
    assert float(found.model.vocab) == columns * tp
    assert all(float(leaf(found.plan, f"overlap_{n}")) == 0.0 for n in ("tp", "dp", "pp"))
    for real in (answered(**row), answered(**row | {"stack": "megatron-lm"}, flag="composed")):
        names = ("recompute_layers", "unpadded_vocab", "overlap_pp")
        assert [float(leaf(real.plan, n)) for n in names] == [1.0, 0.0, 1.0]
        assert float(real.model.vocab) == 51200.0


def test_all_published_rows_of_mlperf_fit_their_devices():
    """By count, and within a tenth of what is measured, for an eighth of a sequence on each device
    to a whole one."""
    cases = to_cases(published())
    cases = cases.take(np.char.startswith(cases.labels.stack.astype(str), "mlperf"))
    needed = np.asarray(memory_use(cases.model, cases.plan).total)
    over = needed > np.asarray(cases.system.chip.hbm_bytes)
    assert len(cases) == 69 and not over.any()
    peak = cases.labels.peak_memory_bytes
    known = np.isfinite(peak)
    assert np.abs(np.log(needed[known] / peak[known])).max() < 0.09
