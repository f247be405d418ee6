"""Traces: what the recipes, releases and notes of stacks say that no column holds."""

import numpy as np
import pytest
from calibration.traces.experts import dispatch, fused_experts, launches, narrow_attention
from calibration.traces.modules import modules
from calibration.traces.recipes import chunks, further_tokens, fuses_sums, tensor, widths
from calibration.traces.sharding import bucket_per_rank, reduction

from calibration.traces import never_recompute, published, read, to_cases
from dmodel.cli.question import Degrees, Job, plan, plan_document, setting, settings
from dmodel.cost import memory
from dmodel.records import Plan, leaf
from tests.rows import one_case, table_file


@pytest.mark.parametrize("name", ["nemotron_3_nano", "nemotron-3-nano-30b-a3b", "Nemotron 3 Nano"])
def test_nemotron_3_is_launched_by_graphs_and_its_experts_are_not_fused(name):
    """Its activation has no gate; by any spelling, on Blackwell, from 26.02 on, and not the dense
    models of that name."""
    job = ("megatron-bridge/26.06", name, "GB200", "mxfp8")
    assert not fused_experts(*job) and fused_experts(
        "megatron-bridge/26.06", "qwen3-30b-a3b", "GB200", "mxfp8"
    )
    assert (launches(*job, 128.0, 8.0).graphed, dispatch(*job, 8.0).overlap) == (1.0, 0.0)
    assert launches("megatron-bridge/25.11", *job[1:], 128.0, 8.0).graphed == 0.0
    assert launches(job[0], name, "H100-80GB", "fp8", 128.0, 8.0).graphed == 0.0
    assert launches(job[0], "nemotron-3-8b", *job[2:], 1.0, 1.0).graphed == 0.0


@pytest.mark.parametrize(
    ("stack", "model", "precision", "found"),
    [
        ("megatron-bridge/26.04", "llama3-70b", "fp8", (1.0, 1.0, 1.0, 1)),
        ("megatron-bridge/26.04", "llama3-70b", "FP8", (1.0, 1.0, 1.0, 1)),
        ("megatron-bridge/26.04", "llama3-70b", "mxfp8", (1.0, 0.0, 1.0, 0)),
        ("megatron-bridge/26.04", "nemotron_3_super", "fp8", (1.0, 0.0, 0.0, 1)),
        ("nemo/25.02-dgxc", "llama3-70b", "fp8", (1.0, 1.0, 1.0, 1)),
        ("nemo-launcher", "gpt-3-175b", "bf16", (1.0, 0.0, 1.0, 0)),
        ("torchtitan/float8", "llama3-70b", "fp8", (1.0, 0.0, 1.0, 0)),
        ("torchtitan/float8", "llama3-70b", "fp8-rowwise", (0.0, 0.0, 1.0, 1)),
    ],
)
def test_how_messages_of_tensor_parallelism_go(stack, model, precision, found):
    """Forward sums in 8 bits where one scale is for a whole tensor, and the stack has buffers for
    it; nothing hides Nemotron 3 Super's."""
    told = tensor(stack, model, precision)
    assert (*told[:3], len(told.said)) == found


def test_rows_and_questions_have_the_same_messages_of_tensor_parallelism():
    cases = to_cases(published())
    of = (
        (cases.labels.stack == "megatron-bridge/26.04")
        & (cases.labels.precision == "fp8")
        & (np.asarray(cases.plan.layout.tp) > 1.0)
    )
    assert of.any() and set(np.asarray(cases.plan.precision.narrow_sums)[of]) == {1.0}
    assert all(
        any("forward sums" in text for text in said) for said in cases.labels.assumptions[of]
    )
    assert not np.asarray(cases.plan.precision.narrow_sums)[cases.labels.precision == "bf16"].any()
    job = setting(
        Job(
            system="H100-DGX",
            model="llama-3-70b",
            devices=64,
            global_batch=128,
            precision="fp8",
            stack="megatron-bridge/26.04",
        )
    )
    made, said = plan(job, Degrees(tp=4, pp=4))
    assert float(made.precision.narrow_sums) == 1.0 and any("forward sums" in text for text in said)


@pytest.mark.parametrize(
    ("layers", "found"), [(20.0, 5.0), (10.0, 5.0), (8.0, 8.0), (4.0, 4.0), (3.5, None)]
)
def test_chunks_divide_the_layers_of_a_stage(layers, found):
    assert chunks("nemo-launcher", "llama3-70b", layers, False) == found
    assert chunks("nemo-launcher", "llama3-70b", layers, True) == (None if found is None else 1.0)
    assert chunks("megatron-lm", "llama3-70b", layers, False) is None


@pytest.mark.parametrize(
    ("system", "model", "precision", "parts"),
    [
        ("GB200-NVL72", "deepseek-v3", "fp8", "mla_up_proj"),
        ("H100-DGX", "llama-3-8b", "fp8", "5 layers"),
        ("H100-DGX", "llama-3-8b", "fp8-blockwise128", "5 layers"),
        ("H100-DGX", "llama-3-8b", "FP8", "5 layers"),
        ("H100-DGX", "llama-3-8b", "bf16", ""),
    ],
)
def test_the_shell_recomputes_what_the_recipe_of_the_stack_does(system, model, precision, parts):
    """Left out, as a blank cell of a file; said, to the letter."""
    job = setting(
        Job(
            system,
            64,
            model,
            4096,
            64,
            precision=precision,
            profile="generic",
            stack="megatron-bridge/26.04",
        )
    )
    left, said = plan(job, Degrees(tp=1, pp=2, ep=32 if model == "deepseek-v3" else 1))
    told, _ = plan(
        job, Degrees(tp=1, pp=2, ep=32 if model == "deepseek-v3" else 1, recompute="none")
    )
    again = [float(x) for x in (left.layout.recompute_layers, left.layout.recompute_products)]
    assert (
        (sum(again) > 0.0)
        == bool(parts)
        == any(parts in text and "recompute blank" in text for text in said)
    )
    assert [float(x) for x in (told.layout.recompute_layers, told.layout.recompute_products)] == [
        0.0,
        0.0,
    ]


@pytest.mark.parametrize(
    ("done", "words"),
    [
        ({}, "none"),
        ({"recompute_attention": 1.0}, "selective"),
        ({"recompute_elementwise": 1.0, "recompute_products": 0.5}, "selective"),
        ({"recompute_products": 0.2}, "parts of a layer"),
        ({"recompute_products": 0.6, "recompute_attention": 1.0}, "parts of a layer"),
        ({"recompute_layers": 1.0}, "full"),
        ({"recompute_layers": 0.25}, "0.25 of the layers"),
    ],
)
def test_a_document_says_what_is_done_again(done, words):
    assert plan_document(Plan.of(dp=1.0, global_batch=1.0, **done))["recompute"] == words


def test_a_search_does_not_count_on_what_one_stage_keeps():
    """NeMo's distributed Adam is ZeRO-1's: where the stage is open, plans of others must fit
    too."""

    def kept(stack: str, zero: int | None) -> tuple[float, float, str]:
        base, said = settings(
            setting(Job("H100-DGX", 64, "llama-2-7b", 4096, 64, profile="generic", stack=stack)),
            "flash",
            zero,
        )
        return (
            float(base.precision.gradient_bytes),
            float(base.precision.optimizer_bytes),
            "; ".join(said),
        )

    assert kept("nemo-launcher", 1)[:2] == (2.0, 10.0)
    assert kept("nemo-launcher", 3)[:2] == kept("nemo-launcher", None)[:2] == (4.0, 12.0)
    assert kept("megatron-bridge", None)[:2] == (2.0, 12.0)
    assert "where layers are recomputed, recomputation ends before" in kept("llm-foundry", None)[2]
    assert "recomputation ends" not in kept("nemo-launcher", None)[2] + kept("llm-foundry", 3)[2]


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
        ("megatron-bridge/26.04", "deepseek-v3", "B200", "mxfp8", 1, 0.0, 1.0),
        ("torchtitan", "deepseek-v3", "B200", "mxfp8", 32, 0.0, 0.0),
        ("automodel", "deepseek-v3", "H100-80GB", "bf16", 64, 1.0, 0.0),
        ("maxtext-readme", "deepseek-v3", "TPU-v5p", "bf16", 32, 0.0, 1.0),
    ],
)
def test_dispatchers_are_those_of_the_recipes(
    stack, model, accelerator, precision, ep, merged, beside
):
    found = dispatch(stack, model, accelerator, precision, float(ep))
    assert (found.merge_copies, found.overlap) == (merged, beside)
    assert bool(found.said) == (ep > 1 and not stack.startswith("maxtext"))


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
    shape = {
        "n_layers": "80",
        "d_model": "8192",
        "d_ff": "28672",
        "n_heads": "64",
        "n_accel": "16",
        "dp": "1",
        "tp": "4",
        "pp": "4",
    }
    row = {**shape, "stack": stack, "model": model, "recompute": "", "precision": "fp8"}
    found = to_cases(read(table_file(tmp_path, row), require_time=False))
    plan = found.plan
    assert (plan.layout.recompute_layers[0], plan.layout.recompute_attention[0]) == (0.0, 0.0)
    assert (
        plan.precision.reduce_bytes[0],
        plan.precision.gradient_bytes[0],
        plan.precision.optimizer_bytes[0],
    ) == (
        2.0,
        2.0,
        optimizer,
    )
    assert plan.precision.gather_bytes[0] == (1.0 if optimizer == 6.0 else 2.0), (
        "the launcher's fine-tuning holds 8-bit weights"
    )
    assert (
        widths(stack, "bf16", 1.0, model).gathered == 2.0
        and widths(stack, "fp8", 3.0, model) is None
    )
    assert "recompute blank: none, as the stack's recipes have it" in found.labels.assumptions[0]


@pytest.mark.parametrize(
    ("changes", "share", "last"),
    [
        ({"stack": "llm-foundry", "recompute": "full"}, 1.0, 0.0),
        ({"stack": "llm-foundry/pure", "recompute": "full"}, 1.0, 1.0),
        ({"stack": "maxtext", "recompute": "full"}, 1.0, 0.0),
        ({"stack": "megatron-lm", "recompute": "full"}, 1.0, 1.0),
        ({"stack": "automodel", "recompute": "full", "flag": "lora"}, 1.0, 1.0),
        ({"stack": "automodel", "recompute": "full", "n_experts": "8", "top_k": "2"}, 1.0, 1.0),
        (
            {"stack": "torchtitan", "recompute": "", "note": "every second layer recomputed"},
            0.5,
            0.0,
        ),
        ({"stack": "torchtitan", "recompute": "none"}, 0.0, 0.0),
    ],
)
def test_where_recomputation_ends(tmp_path, changes, share, last):
    found = to_cases(read(table_file(tmp_path, changes), require_time=False))
    assert (found.plan.layout.recompute_layers[0], found.plan.software.recompute_last[0]) == (
        share,
        last,
    )
    assert any("before the last product" in said for said in found.labels.assumptions[0]) == (
        share > 0.0 and last == 0.0
    )


@pytest.mark.parametrize(
    ("tp", "columns", "unpadded"),
    [(1, 50257, 1.0), (2, 25128, 0.0), (4, 12564, 1.0), (8, 6282, 1.0)],
)
def test_composed_rows_of_vtrain_recompute_nothing_and_hold_words_that_nobody_pads(
    tmp_path, tp, columns, unpadded
):
    degrees = {"tp": str(tp), "dp": str(8 // tp), "pp": "1", "cp": "1", "n_accel": "8"}
    changes = {"stack": "vtrain", "recompute": "full", "vocab": "51200", **degrees}
    found = one_case(tmp_path, **changes, flag="composed")
    assert (
        found.plan.layout.recompute_layers[0],
        found.model.vocab[0],
        found.plan.software.unpadded_vocab[0],
    ) == (
        0.0,
        columns * tp,
        unpadded,
    )
    assert (
        found.plan.software.composed[0],
        found.plan.software.overlap_tp[0],
        found.plan.software.overlap_dp[0],
        found.plan.software.overlap_pp[0],
    ) == (1.0, 0.0, 0.0, 0.0)
    assert any("composed rows hide no messages" in said for said in found.labels.assumptions[0])
    assert (
        sum(
            "composed rows recompute nothing" in said or "words a rank" in said
            for said in found.labels.assumptions[0]
        )
        == 2
    )
    for real in (
        one_case(tmp_path, **changes),
        one_case(tmp_path, **changes | {"stack": "megatron-lm"}, flag="composed"),
    ):
        assert (
            real.plan.layout.recompute_layers[0],
            real.model.vocab[0],
            real.plan.software.unpadded_vocab[0],
        ) == (1.0, 51200.0, 0.0)
        assert (real.plan.software.composed[0], real.plan.software.overlap_pp[0]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("stack", "model", "chip", "precision", "experts", "expected"),
    [
        ("megatron-bridge/26.04", "qwen3-30b-a3b", "GB200", "mxfp8", 128.0, (0.0, 1.0)),
        ("megatron-bridge/26.04", "qwen3-235b-a22b", "GB200", "mxfp8", 128.0, (1.0, 1.0)),
        ("megatron-bridge/26.04", "qwen3-235b-a22b", "B300", "mxfp8", 128.0, (0.0, 1.0)),
        ("megatron-bridge/25.11", "qwen3-235b-a22b", "GB200", "mxfp8", 128.0, (0.0, 1.0)),
        ("megatron-bridge/25.09", "qwen3-30b-a3b", "B200", "fp8", 128.0, (1.0, 0.0)),
        ("megatron-bridge/25.09", "qwen3-30b-a3b", "H100-80GB", "fp8", 128.0, (0.0, 1.0)),
        ("megatron-bridge/26.06", "deepseek-v3", "B300", "mxfp8", 256.0, (1.0, 1.0)),
        ("megatron-bridge/26.08", "deepseek-v3", "B300", "mxfp8", 256.0, (1.0, 0.0)),
        ("megatron-bridge/26.06", "kimi-k2", "GB300", "mxfp8", 384.0, (0.0, 1.0)),
        ("megatron-bridge/26.08", "kimi-k2", "GB300", "mxfp8", 384.0, (1.0, 0.0)),
        ("megatron-bridge/26.08", "qwen3-30b-a3b", "B200", "mxfp8", 128.0, (1.0, 0.0)),
        ("megatron-bridge/26.08", "deepseek-v3", "B200", "mxfp8", 256.0, (0.0, 1.0)),
        ("megatron-bridge/26.06", "gpt-oss-120b", "B300", "mxfp8", 128.0, (1.0, 0.0)),
        ("megatron-bridge/26.06", "gpt-oss-120b", "B200", "bf16", 128.0, (0.0, 1.0)),
        ("megatron-bridge/26.04", "nemotron_3_super", "B200", "mxfp8", 512.0, (0.0, 1.0)),
        ("megatron-bridge/26.04", "nemotron_3_super", "B200", "nvfp4", 512.0, (1.0, 1.0)),
        ("megatron-bridge/26.02", "llama3-8b", "GB200", "fp8", 1.0, (1.0, 0.0)),
        ("megatron-bridge/26.02", "llama3-8b", "H100-80GB", "fp8", 1.0, (0.0, 0.0)),
        ("megatron-bridge/26.02", "llama-3-8b", "GB200", "fp8", 1.0, (1.0, 0.0)),
        ("mlperf-train-v5.1", "llama-3.1-8b", "GB300", "fp8", 1.0, (1.0, 0.0)),
        ("mlperf-train-v5.1", "llama-2-70b", "GB300", "fp8", 1.0, (0.0, 0.0)),
        ("mlperf-train-v5.1", "llama-3.1-8b", "MI355X", "fp8", 1.0, (0.0, 0.0)),
        ("mlperf-train-v5.0", "llama-3.1-405b", "GB200", "fp8", 1.0, (0.0, 0.0)),
        ("nemo-launcher", "mixtral-8x7b", "H100-80GB", "bf16", 8.0, (0.0, 1.0)),
        ("torchtitan", "deepseek-v3", "B200", "bf16", 256.0, (0.0, 0.0)),
        ("maxtext-readme", "gpt-oss-120b", "TPU-v5p", "bf16", 128.0, (1.0, 0.0)),
        ("jax-toolbox-pax", "llama-2-7b", "H100-80GB", "bf16", 1.0, (0.75, 0.0)),
        ("dmodel-collect/jax-0.10", "llama-2-7b", "H100-80GB", "bf16", 1.0, (0.75, 0.0)),
    ],
)
def test_what_recipes_say_of_launches(stack, model, chip, precision, experts, expected):
    found = launches(stack, model, chip, precision, experts, 8.0)
    assert (found.graphed, found.looped) == expected
    assert found.rotary == float(model.startswith("gpt-oss") and not stack.startswith("maxtext"))
    assert found.fused == float(fused_experts(stack, model, chip, precision) and experts > 1.0)
    assert len(found.said) == (found.graphed > 0.0) + (found.looped > 0.0) + (found.fused > 0.0) + (
        found.rotary > 0.0
    )


@pytest.mark.parametrize(
    ("note", "graphed"),
    [
        ("layout by config_DGXH100_1344x8x6x4x6_mbs1_cg.sh", 1.0),
        ("layout by config_GB200_640x4x24xtp4pp8cp2_cg_fp4.sh", 1.0),
        ("layout by config_DGXH100_1344x8x8x4x8_mbs1.sh", 0.0),
        ("CUDA graphs on", 1.0),
    ],
)
def test_what_notes_say_of_launches(note, graphed):
    assert (
        launches("mlperf-train-v4.0", "gpt3-175b", "H100-80GB", "fp8", 1.0, 1.0, note).graphed
        == graphed
    )


@pytest.mark.parametrize(
    ("release", "model", "chip", "precision", "expected"),
    [
        ("26.06", "qwen3-30b-a3b", "GB200", "mxfp8", True),
        ("26.04", "qwen3-30b-a3b", "GB200", "mxfp8", False),
        ("26.06", "qwen3-30b-a3b", "GB200", "bf16", False),
        ("26.06", "deepseek-v3", "GB300", "mxfp8", True),
        ("26.06", "deepseek-v3", "GB200", "mxfp8", False),
        ("26.06", "gpt-oss-120b", "GB300", "mxfp8", True),
        ("26.06", "gpt-oss-120b", "B300", "mxfp8", False),
        ("26.06", "gpt-oss-20b", "GB300", "mxfp8", False),
        ("26.08", "nemotron_3_super", "GB300", "mxfp8", False),
        ("26.08", "kimi-k2", "GB300", "mxfp8", False),
        ("26.08", "deepseek-v2", "GB300", "mxfp8", False),
    ],
)
def test_recipes_whose_attention_runs_in_8_bits(release, model, chip, precision, expected):
    assert narrow_attention(f"megatron-bridge/{release}", model, chip, precision, 128.0) is expected
    assert not narrow_attention("megatron-lm", model, chip, precision, 128.0)
    assert not narrow_attention(f"megatron-bridge/{release}", model, chip, precision, 1.0)


def test_nemotron_3_super_and_ultra_are_read_by_their_recipes():
    """Shapes, latents and heads of further tokens; 16-bit layers under NVFP4; messages that wait;
    FSDP that the table has no mark for."""
    cases = to_cases(published())
    named = np.char.replace(cases.labels.model.astype(str), "_", "-")
    sup, ultra = (
        cases.take(np.flatnonzero(named == f"nemotron-3-{name}")) for name in ("super", "ultra")
    )
    assert (len(sup), len(ultra)) == (30, 2)
    assert set(np.asarray(sup.model.expert_rank)) == {1024.0} and set(
        np.asarray(ultra.model.expert_rank)
    ) == {2048.0}
    assert set(np.asarray(sup.model.n_mtp)) == set(np.asarray(ultra.model.n_mtp)) == {1.0}
    four = np.asarray(sup.plan.precision.operand_bytes) == 0.5
    np.testing.assert_allclose(sup.plan.precision.wide_layers, np.where(four, 15.0 / 88.0, 0.0))
    np.testing.assert_allclose(
        sup.plan.software.overlap_tp, np.where(np.asarray(sup.plan.layout.tp) > 1.0, 0.0, 1.0)
    )
    assert set(np.asarray(ultra.plan.layout.zero)) == {3.0} and set(
        np.asarray(ultra.plan.layout.shard)
    ) == {64.0}
    assert (
        set(np.asarray(sup.plan.software.route_bytes)) == {1.0}
        and not np.asarray(sup.plan.software.fused_experts).any()
    )


def test_whose_products_add_to_the_gradients_held():
    assert all(
        map(
            fuses_sums,
            (
                "megatron-bridge/26.04",
                "nemo-launcher",
                "megatron-lm/zero-bubble",
                "megatron-lm",
                "flagscale",
            ),
        )
    )
    older = (
        "llm-foundry",
        "vtrain",
        "megatron-sc21-t1",
        "megatron-lm/dlperf",
        "megatron-deepspeed/bigscience-bf16",
    )
    assert not any(map(fuses_sums, older))
    assert [
        bucket_per_rank(stack, 4.0) for stack in ("megatron-bridge/26.04", older[0], "torchtitan")
    ] == [4e6, 0.0, 0.0]


def test_further_tokens_are_the_notes_or_the_recipes():
    assert further_tokens("megatron-bridge/26.02", "deepseek-v3", "")[0] == 1.0
    assert (
        further_tokens("megatron-bridge/25.11", "deepseek-v3", "variant DeepSeekV3 (w/o MTP)")[0]
        == 0.0
    )
    assert [
        further_tokens("megatron-bridge/26.08", f"nemotron_3_{name}", "")[0]
        for name in ("nano", "super", "ultra", "5_lightning")
    ] == [0.0, 1.0, 1.0, 2.0]
    assert (
        further_tokens("own", "deepseek-v3", "")[0] == 0.0
        and further_tokens("own", "deepseek-v3", "w/ MTP")[0] == 1.0
    )


def parts(case) -> tuple[float, ...]:
    """What is done again: of layers, the core of attention, products, and what streams."""
    return tuple(
        float(leaf(case.plan, f"recompute_{part}")[0])
        for part in ("layers", "attention", "products", "elementwise")
    )


def test_what_maxtext_keeps_and_splits(tmp_path):
    """A layer has products of 1 (queries), 1, 1, 1 (output of attention) and 3 · 3.5 parts, of
    which 7 go into the MLP."""
    shape = {
        "n_layers": "64",
        "d_model": "8192",
        "d_ff": "57344",
        "n_heads": "128",
        "n_kv_heads": "128",
        "head_dim": "128",
    }
    ff = 57344 / 16384
    every = 4.0 + 3.0 * ff
    out, up = 1.0 / every, 2.0 * ff / every

    def redone(
        note: str, stack: str = "tpu-recipes", recompute: str = "selective"
    ) -> tuple[float, ...]:
        return parts(one_case(tmp_path, stack=stack, recompute=recompute, note=note, **shape))

    rest = "kept in host memory, the rest recomputed"
    assert redone(f"q, k, v and layer inputs {rest}") == pytest.approx((0.0, 1.0, out + up, 1.0))
    assert redone(
        f"q, k, v, results of the output projection and layer inputs {rest}"
    ) == pytest.approx((0.0, 1.0, up, 1.0))
    assert redone(
        "devices are cores; q, k, v and attention outputs kept, the rest recomputed"
    ) == pytest.approx((0.0, 0.0, out + up, 1.0))
    assert redone("remat=qkv_proj_offloaded", "maxtext") == pytest.approx((0.0, 1.0, out + up, 1.0))
    assert (
        redone("rematerialization minimal", "maxtext")
        == redone("", "maxtext")
        == (0.0, 1.0, 0.0, 1.0)
    )
    assert redone("remat_policy minimal_with_context", "maxtext", "") == (0.0, 0.0, 0.0, 1.0)
    assert redone("rematerialization full", "maxtext", "full") == (1.0, 0.0, 0.0, 0.0)
    assert redone(
        f"recipes 24.11; q, k, v and results of the output projection {rest}; XLA "
        "rematerialization off"
    ) == redone(f"q, k, v and results of the output projection {rest}")
    assert redone("rematerialization of our own", "nemo") == (0.0, 1.0, 0.0, 0.0)
    experts = one_case(
        tmp_path,
        stack="tpu-recipes",
        recompute="selective",
        note=f"q, k, v {rest}",
        n_experts="8",
        top_k="2",
        **shape,
    )
    visited = 4.0 + 6.0 * ff
    again = (0.0, 1.0, 1.0 - 3.0 / visited, 1.0)
    assert parts(experts) == pytest.approx(again, rel=1e-4), (
        "results of experts are weighted: needed again; the router's are few"
    )
    assert (
        one_case(tmp_path, stack="maxtext", recompute="selective", sp="0", **shape).plan.layout.sp[
            0
        ]
        == 1.0
    )
    assert (
        one_case(tmp_path, stack="nemo", recompute="selective", sp="0", **shape).plan.layout.sp[0]
        == 0.0
    )


def test_what_waits_in_the_host_s_memory(tmp_path):
    """By notes and names of policies, as shares of the bytes kept: queries, keys and values are 3
    of 4 widths beside the layer's input."""
    shape = {
        "n_layers": "64",
        "d_model": "8192",
        "d_ff": "57344",
        "n_heads": "64",
        "n_kv_heads": "64",
        "head_dim": "128",
    }

    def share(note: str, recompute: str = "selective", **cells: str) -> float:
        return float(
            one_case(
                tmp_path,
                **{"stack": "tpu-recipes", "recompute": recompute, "note": note} | shape | cells,
            ).plan.layout.offload[0]
        )

    assert share(
        "q, k, v and layer inputs kept in host memory, the rest recomputed"
    ) == pytest.approx(1.0)
    assert share("q, k, v kept in host memory, the rest recomputed") == pytest.approx(0.75)
    assert share("remat=qkv_proj_offloaded", stack="maxtext") == pytest.approx(0.75)
    assert share(
        "devices are cores, two to a chip; layer inputs kept in host memory", "full"
    ) == pytest.approx(1.0)
    assert share("Activations of 16 of 64 layers kept in host memory", "none") == pytest.approx(
        0.25
    )
    for nothing in (
        "q, k, v kept, the rest recomputed",
        "optimizer state kept in host memory",
        "no activations kept in host memory",
        "",
    ):
        assert share(nothing, "full") == 0.0, nothing
    fsdp = {
        "stack": "megatron-bridge/26.04",
        "recompute": "",
        "model": "llama3-70b",
        "zero_stage": "3",
        "pp": "1",
        "dp": "16",
    }
    fsdp["precision"] = "fp8"
    found = {
        chip: one_case(tmp_path, accelerator=chip, **fsdp)
        for chip in ("GB200", "GB300", "B200", "H100-80GB")
    }
    assert [float(case.plan.layout.offload[0]) for case in found.values()] == [
        40.0 / 80.0,
        20.0 / 80.0,
        5.0 / 80.0,
        0.0,
    ]
    assert (
        one_case(tmp_path, accelerator="GB300", **fsdp | {"precision": "bf16"}).plan.layout.offload[
            0
        ]
        == 30.0 / 80.0
    )
    assert (
        one_case(
            tmp_path, accelerator="GB200", **fsdp | {"model": "llama3.1-405b"}
        ).plan.layout.offload[0]
        == 95.0 / 126.0
    )
    assert any(
        "wait in host memory, as the stack's recipe" in text
        for text in found["GB200"].labels.assumptions[0]
    )
    for change in (
        {"zero_stage": "1"},
        {"pp": "2", "dp": "8"},
        {"recompute": "full"},
        {"model": "llama3-70b-sft"},
        {"flag": "lora"},
    ):
        assert (
            one_case(tmp_path, accelerator="GB200", **{**fsdp, **change}).plan.layout.offload[0]
            == 0.0
        ), change


def test_a_rule_that_recomputes_leaves_the_same_parts_in_the_host_s_memory(tmp_path):
    """Layer inputs are a small share of what layers keep, and all of it once they are
    recomputed."""
    row = {"stack": "tpu-recipes", "recompute": "", "note": "layer inputs kept in host memory"}
    table = read(table_file(tmp_path, row))
    nothing, everything = (
        to_cases(table, rule).plan
        for rule in (never_recompute, lambda cases: (np.ones(1), np.zeros(1)))
    )
    assert 0.0 < nothing.layout.offload[0] < 0.1 and (
        everything.layout.recompute_layers[0],
        everything.layout.offload[0],
    ) == (1.0, 1.0)


def test_torchtitan_keeps_every_second_product(tmp_path):
    """Llama 3 8B has products of 4, 1, 1, 4, 14, 14 and 14 parts: q, v, w1 and w2 are kept, k, the
    output's and w3 done again."""
    shape = {
        "n_layers": "32",
        "d_model": "4096",
        "d_ff": "14336",
        "n_heads": "32",
        "n_kv_heads": "8",
        "head_dim": "128",
        "gated_mlp": "1",
    }
    case = one_case(tmp_path, stack="torchtitan", recompute="selective", **shape)
    assert parts(case) == pytest.approx((0.0, 0.0, (1.0 + 4.0 + 14.0) / 52.0, 1.0))
    assert (
        case.plan.software.last_kept[0] == 1.0
        and one_case(
            tmp_path, stack="maxtext", recompute="selective", **shape
        ).plan.software.last_kept[0]
        == 0.0
    )
    plain = one_case(
        tmp_path, stack="torchtitan", recompute="selective", **shape | {"gated_mlp": "0"}
    )
    assert parts(plain) == pytest.approx((0.0, 0.0, (1.0 + 4.0) / 38.0, 1.0)), (
        "without a gate the sixth product is the last"
    )


def test_a_note_says_what_a_run_of_nemo_switched_on(tmp_path):
    """Settings that differ by job of one release: modules done again, dispatcher, graphs, what is
    gathered, kernels of attention."""
    shape = {
        "n_layers": "61",
        "d_model": "7168",
        "d_ff": "2048",
        "n_heads": "128",
        "n_kv_heads": "128",
        "n_experts": "256",
        "top_k": "8",
    }
    row = {
        "stack": "nemo/25.07",
        "model": "deepseek-v3",
        "recompute": "",
        "precision": "fp8",
        "tp": "1",
        "dp": "32",
        "ep": "8",
        **shape,
    }
    plain = one_case(tmp_path, **row)
    said = (
        "FlashAttention-2; CUDA graphs on; fp8 parameters; dispatcher DeepEP; recompute of "
        "modules mla_up_proj, mlp, moe; steps 35-44"
    )
    noted = one_case(tmp_path, **row, note=said)

    def read_as(cases, name):
        return float(leaf(cases.plan, name)[0])

    assert [
        read_as(plain, name)
        for name in ("graphed", "merge_copies", "gather_bytes", "attention_rate")
    ] == [0.0, 0.0, 2.0, 1.0]
    assert [read_as(noted, name) for name in ("graphed", "merge_copies", "gather_bytes")] == [
        1.0,
        1.0,
        1.0,
    ]
    assert read_as(noted, "attention_rate") == pytest.approx(1.0 / 1.73)
    assert read_as(noted, "looped_experts") == 0.0 < read_as(plain, "looped_experts")
    assert read_as(noted, "recompute_products") > 0.6 and not any(parts(plain))
    told = "\n".join(noted.labels.assumptions[0])
    for words in (
        "mla_up_proj, mlp, moe, the note",
        "whole layers: the note",
        "DeepEP, by the note",
        "FlashAttention-2",
    ):
        assert words in told
    bridge = one_case(
        tmp_path, **row | {"stack": "megatron-bridge/26.02"}, note="recompute of modules core_attn"
    )
    assert parts(bridge)[1] == 1.0 and read_as(bridge, "recompute_products") == 0.0, (
        "a note goes before the recipe"
    )
    other = one_case(tmp_path, **row, note="recompute of modules core_attn, shared_experts")
    assert parts(other) == parts(bridge), "modules that are not counted change nothing"
    assert "recompute of shared_experts, the note: not counted; counted are core_attn" in "\n".join(
        other.labels.assumptions[0]
    )


def test_modules_that_run_again_keep_less(tmp_path):
    """DeepSeek-V3: what queries, dense MLPs and experts keep goes with the module, by hand; norms
    and the activation too, which take no time here. Policies that do all that streams again count
    what is left of results instead."""
    shape = {
        "n_layers": "61",
        "d_model": "7168",
        "d_ff": "2048",
        "n_heads": "128",
        "n_kv_heads": "128",
        "n_experts": "256",
        "top_k": "8",
    }
    row = {
        "stack": "nemo/25.07",
        "model": "deepseek-v3",
        "recompute": "",
        "tp": "1",
        "dp": "64",
        "pp": "1",
        "ep": "1",
    } | shape

    def kept(names: str) -> float:
        case = one_case(tmp_path, **row, note=f"recompute of modules {names}" if names else "")
        return float(memory.layer_activation_bytes(case.model, case.plan)[0])

    plain = one_case(tmp_path, **row)
    t, h, f, experts = (
        float(plain.model.seq_len[0] * plain.plan.layout.micro_batch[0]),
        7168.0,
        2048.0,
        8.0 * 58.0 / 61.0,
    )
    queries = t * 2.0 * (256.0 * (128.0 + 64.0) + 128.0 * 128.0)
    dense, shared = t * 6.0 * 18432.0 * 3.0 / 61.0, t * 6.0 * f * 58.0 / 61.0
    routed, norms = t * experts * (2.0 * h + 6.0 * f), t * 2.0 * 2.0 * h
    gone = {"mla_up_proj": queries, "mlp": dense, "moe": routed + shared, "core_attn": 0.0}
    gone |= {"moe_act": t * experts * 2.0 * f, "layernorm": norms}
    for name, expected in gone.items():
        assert kept("") - kept(name) == pytest.approx(expected, rel=1e-9, abs=1e-6), name
    assert kept("") - kept("mla_up_proj, mlp, moe") == pytest.approx(
        queries + dense + routed + shared, rel=1e-9
    )
    assert kept("moe, moe_act") == kept("moe"), "what is gone is not gone twice"
    again = [
        one_case(tmp_path, **row, note=f"recompute of modules {names}").plan
        for names in ("mlp", "moe", "mlp, moe")
    ]
    shares = [float(plan.layout.recompute_products[0]) for plan in again]
    assert shares[0] + shares[1] == pytest.approx(shares[2], rel=1e-9) and shares[2] < 1.0, (
        "dense layers' MLPs are no experts"
    )
    told = [
        one_case(tmp_path, **row, note=f"recompute of modules {name}").plan
        for name in ("layernorm, moe_act", "moe")
    ]
    assert (
        told[0].layout.recompute_products[0] == 0.0 < told[1].layout.recompute_products[0]
        and 0.0 < told[0].layout.recompute_bytes[0] < 1.0
    )
    lone = one_case(
        tmp_path, stack="nemo/25.07", recompute="", note="recompute of modules mla_up_proj, moe"
    )
    assert lone.plan.layout.recompute_bytes[0] == lone.plan.layout.recompute_products[0] == 0.0, (
        "no latents, no experts"
    )
    assert any(
        "recompute of moe, the note: not counted" in text for text in lone.labels.assumptions[0]
    )
    mlp = one_case(tmp_path, stack="nemo/25.07", recompute="", note="recompute of modules mlp")
    assert (
        0.3 < mlp.plan.layout.recompute_products[0] < 0.9
        and 0.3 < mlp.plan.layout.recompute_bytes[0] < 0.9
    ), "all layers of a dense model"
    policy = one_case(tmp_path, stack="torchtitan", recompute="selective", note="")
    assert (policy.plan.layout.recompute_elementwise[0], policy.plan.layout.recompute_bytes[0]) == (
        1.0,
        0.0,
    )


def test_what_stacks_on_pytorch_and_xla_hold(tmp_path):
    """No 16-bit copy beside the master weights that FSDP shards; KempnerForge and AutoModel hold no
    master weight, and the first reduces once a step what it accumulates whole; losses that read the
    product of the logits as it is."""
    row = {
        "zero_stage": "3",
        "dp": "64",
        "tp": "1",
        "pp": "1",
        "recompute": "none",
        "precision": "bf16",
    }

    def held(stack: str, **cells: str) -> tuple[float, ...]:
        plan = one_case(tmp_path, stack=stack, **row | cells).plan
        names = (
            "weight_bytes",
            "optimizer_bytes",
            "gradient_bytes",
            "reduce_bytes",
            "accumulate",
            "logit_bytes",
        )
        return tuple(float(leaf(plan, name)[0]) for name in names)

    assert held("llm-foundry") == (0.0, 12.0, 4.0, 2.0, 0.0, 4.0)
    assert held("torchtitan") == (0.0, 12.0, 4.0, 4.0, 0.0, 8.0)
    assert held("maxtext") == (0.0, 12.0, 4.0, 2.0, 0.0, 2.0)
    assert held("maxtext", note="weights in 16 bits") == (0.0, 6.0, 2.0, 2.0, 0.0, 2.0)
    assert held("maxtext", note="weights in 16 bits", zero_stage="2")[1] == 12.0
    assert held("kempnerforge") == (2.0, 4.0, 4.0, 4.0, 1.0, 8.0)
    assert held("automodel") == (2.0, 4.0, 2.0, 4.0, 0.0, 8.0)
    assert held("automodel", zero_stage="2")[:3] == (2.0, 4.0, 4.0), (
        "reduced once a step, they add up in fp32"
    )
    assert (
        held("fms-fsdp")[:2]
        == held("tpu-recipes/v5p")[:2]
        == held("jax-toolbox-maxtext/24.12")[:2]
        == (0.0, 12.0)
    )
    assert held("jax-toolbox-pax/24.03", flag="lora")[:2] == (2.0, 12.0), (
        "frozen weights have no master copy"
    )
    assert reduction("llm-foundry", 3.0, "fp32")[3:] == (4.0, 4.0, 8.0, 4.0), (
        "whole parameters, without a 16-bit copy"
    )
    assert held("dmodel-collect/jax")[-1] == 8.0, "its products of the logits are fp32"
    assert held("llm-foundry", precision="") == held("llm-foundry")
    assert held("deepspeed") == (2.0, 12.0, 4.0, 2.0, 0.0, 8.0)
    assert held("llm-foundry", zero_stage="2")[:2] == (2.0, 12.0), "gathered weights are whole"
    assert held("kempnerforge", precision="fp8")[:2] == (2.0, 12.0), (
        "what other formats hold is not known"
    )
    assert held("megatron-bridge/26.02")[:2] == (2.0, 12.0)


@pytest.mark.parametrize(
    ("stack", "model", "accelerator", "precision", "names", "layers"),
    [
        ("megatron-bridge/26.02", "deepseek-v3", "GB200", "mxfp8", ("mla_up_proj",), 0.0),
        ("megatron-bridge/25.09", "deepseek-v3", "H100-80GB", "fp8", ("mla_up_proj", "mlp"), 0.0),
        ("megatron-bridge/26.06", "deepseek-v3", "GB300", "mxfp8", (), 0.0),
        ("megatron-bridge/26.04", "kimi-k2", "GB300", "mxfp8", ("mla_up_proj",), 0.0),
        ("megatron-bridge/26.04", "qwen3-30b-a3b", "B200", "mxfp8", (), 0.0),
        ("megatron-bridge/26.02", "llama3-8b", "H100-80GB", "fp8", (), 5.0),
        ("megatron-bridge/25.11", "llama3-8b", "H100-80GB", "fp8", (), 0.0),
    ],
)
def test_modules_that_megatron_bridge_does_again(
    stack, model, accelerator, precision, names, layers
):
    assert modules(stack, model, accelerator, precision) == (names, layers)


def test_layers_and_products_from_latents_of_megatron_bridge(tmp_path):
    """Five of 32 layers on one stage; of DeepSeek-V3, 9.3 % of the products of the mean layer come
    from latents (54.5 of 583 million)."""
    shape = {
        "n_layers": "32",
        "d_model": "4096",
        "d_ff": "14336",
        "n_heads": "32",
        "n_kv_heads": "8",
        "head_dim": "128",
        "gated_mlp": "1",
    }
    degrees = {"pp": "1", "tp": "1", "dp": "64"}
    row = {
        "stack": "megatron-bridge/26.02",
        "accelerator": "H100-80GB",
        "precision": "fp8",
        "recompute": "",
        **degrees,
    }
    assert parts(one_case(tmp_path, model="llama3-8b", **row | shape)) == (
        5.0 / 32.0,
        0.0,
        0.0,
        0.0,
    )
    assert parts(one_case(tmp_path, model="llama3-8b", **row | shape | {"flag": "lora"})) == (
        0.0,
        0.0,
        0.0,
        0.0,
    )
    table = published()
    rows = tuple(
        r
        for r in table.rows
        if r.text("model") == "deepseek-v3" and r.stack == "megatron-bridge/26.02"
    )
    found = to_cases(table._replace(rows=rows))
    np.testing.assert_allclose(found.plan.layout.recompute_products, 0.093, atol=0.001)
    assert not np.any(found.plan.layout.recompute_elementwise) and not np.any(
        found.plan.layout.recompute_layers
    )
    for said in found.labels.assumptions:
        assert [text for text in said if "recompute" in text] == [
            "recompute blank: mla_up_proj, as the stack's recipe has it"
        ]


def test_fused_programs_of_collect_do_no_core_again(tmp_path):
    for attention, core in (("flash", 0.0), ("none", 1.0)):
        assert parts(
            one_case(tmp_path, stack="dmodel-collect", recompute="selective", attention=attention)
        ) == (0.0, core, 0.0, 0.0)
