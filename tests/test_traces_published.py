"""The published table: what it holds, that it survives, and that its splits do not leak."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pytest

from calibration.traces import fingerprint, published, read, split, to_cases, write
from dmodel import counts
from dmodel.coefficients import SPECS
from dmodel.errors import InputError
from dmodel.left_blank import never_recompute
from dmodel.profiles import load
from dmodel.records import value


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_splits_are_deterministic_hold_whole_groups_and_the_share(seed):
    cases = to_cases(published(), never_recompute)
    held = split(cases, 0.2, seed)
    assert held.tolist() == split(cases, 0.2, seed).tolist()
    assert not set(cases.labels.group[held]) & set(cases.labels.group[~held])
    assert held.mean() == pytest.approx(0.2, abs=0.04)
    of_source = {
        s: Counter(cases.labels.group[cases.labels.source == s].tolist())
        for s in set(cases.labels.source.tolist())
    }
    fine = [
        s
        for s, groups in of_source.items()
        if groups.total() > 30 and max(groups.values()) < 0.3 * groups.total()
    ]
    assert len(fine) > 5 and all(0.08 < held[cases.labels.source == s].mean() < 0.42 for s in fine)


def test_splits_do_not_depend_on_the_order_of_rows_and_change_with_the_seed():
    cases = to_cases(published(), never_recompute)
    order = np.random.default_rng(0).permutation(len(cases))
    assert split(cases.take(order)).tolist() == split(cases)[order].tolist()
    assert split(cases, seed=0).tolist() != split(cases, seed=1).tolist()
    assert not split(cases, 0.0).any() and split(cases, 1.0).all()
    with pytest.raises(InputError, match="0 to 1"):
        split(cases, 20)


def test_composed_rows_are_held_out_by_whole_cells():
    cases = to_cases(
        published().select(lambda row: row.text("source") == "vtrain-single"), never_recompute
    )
    held = split(cases)
    cells = list(
        zip(
            *(
                np.asarray(x).tolist()
                for x in (cases.model.d_model, cases.plan.layout.tp, cases.plan.layout.micro_batch)
            ),
            strict=True,
        )
    )
    assert held.any() and not {c for c, h in zip(cells, held, strict=True) if h} & {
        c for c, h in zip(cells, held, strict=True) if not h
    }


@pytest.mark.parametrize(("chip", "tflops"), [("A100-80GB", 96.0), ("H100-80GB", 173.0)])
def test_long_sequences_of_llm_foundry_tell_the_rate_of_its_attention(chip, tflops):
    """What a token costs more at 32,768 than at 512, over causal products of two halves forward and
    five backward ."""
    cases = to_cases(published(), never_recompute)
    labels, length = cases.labels, np.asarray(cases.model.seq_len)
    asked = (
        (labels.source == "llm-foundry")
        & (labels.model == "mpt-1b")
        & (labels.accelerator == chip)
        & (labels.precision == "bf16")
    )
    seconds = labels.step_time_s * labels.n_accel / (np.asarray(cases.plan.global_batch) * length)
    (short,), (long,) = (np.flatnonzero(asked & (length == s)) for s in (512.0, 32768.0))
    model = jax.tree.map(lambda x: np.asarray(x)[short], cases.model)
    heads = value(model, "n_heads") * value(model, "head_dim")
    flops = 7.0 * model.n_layers * heads * (32768.0 - 512.0)
    assert flops / (seconds[long] - seconds[short]) == pytest.approx(1e12 * tflops, rel=0.01)


@pytest.mark.parametrize("chip", ["A100-80GB", "H100-80GB"])
def test_its_recomputed_rows_agree_with_the_rates_of_both_passes(chip):
    """A recomputed layer runs its forward pass twice: with one rate for both passes of Triton's
    kernels the backward one fitted at 1.46."""
    found = load("generic").coefficients_for(chip, "llm-foundry")
    assert float(found.attention_backward) == pytest.approx(
        SPECS["attention_backward"].default, rel=0.1
    )


USED_AND_ASIDE = {
    "automodel": (13, 0),
    "bigscience": (130, 0),
    "dgxc-maxtext": (24, 0),
    "dgxc-nemo": (315, 0),
    "dgxc-pax": (13, 0),
    "dlperf": (36, 0),
    "flagperf": (27, 0),
    "fms-fsdp": (12, 0),
    "gpu-recipes": (3, 0),
    "internevo": (48, 0),
    "jax-toolbox-maxtext": (1, 0),
    "jax-toolbox-pax": (26, 0),
    "kempnerforge": (30, 0),
    "levanter": (0, 7),
    "llm-foundry": (151, 0),
    "maxtext-a3": (5, 0),
    "maxtext-custom": (0, 7),
    "maxtext-readme": (40, 0),
    "megascale": (16, 0),
    "megatron-bridge": (257, 0),
    "megatron-lm-h100-weak": (0, 9),
    "megatron-lm-llama": (3, 0),
    "megatron-sc21-t1": (10, 0),
    "megatron-sc21-t2": (12, 0),
    "mlperf-train-v4.0": (18, 0),
    "mlperf-train-v5.0": (51, 0),
    "mt-nlg-530b": (3, 0),
    "nemo-docs": (48, 0),
    "nemo-launcher": (37, 11),
    "nemo-launcher-a100": (0, 11),
    "nemo-longseq": (0, 28),
    "torchtitan": (49, 0),
    "tpu-recipes": (31, 0),
    "vtrain-multi": (36, 0),
    "vtrain-single": (300, 0),
    "zero-bubble": (24, 0),
}


def test_published_rows_by_source():
    table = published()
    used, aside = (
        Counter(row.text("source") for row in rows) for rows in (table.rows, table.aside)
    )
    assert {s: (used[s], aside[s]) for s in sorted(set(used) | set(aside))} == USED_AND_ASIDE
    assert table.total == 1842 and len(table.problems) == len(table.aside)


def test_every_source_is_documented_with_its_rows():
    lines = (Path(__file__).parents[1] / "docs" / "data.md").read_text().splitlines()
    told = {
        name: cells
        for name, *cells in (
            line.strip("| ").split(" | ") for line in lines if line.startswith("| `")
        )
    }
    for source, (used, aside) in USED_AND_ASIDE.items():
        assert told[f"`{source}`"][1] == (
            f"{used + aside} ({used} used)" if aside else str(used)
        ), source
    assert len(told) == len(USED_AND_ASIDE)


def test_every_published_row_has_its_citation_an_open_licence_and_a_figure():
    table = published()
    for row in table.rows + table.aside:
        assert row.text("url") and any(
            word in row.text("license")
            for word in ("Apache", "BSD", "MIT", "paper facts", "page facts")
        )
        assert any(
            row.text(n)
            for n in ("step_time_s", "tokens_per_s_per_accel", "mfu_reported", "tflops_reported")
        )


def test_published_rows_span_the_field():
    labels = to_cases(published(), never_recompute).labels
    gpus = {
        "V100-16GB",
        "A100-40GB",
        "A100-80GB",
        "A800-80GB",
        "H100-80GB",
        "H100-96GB",
        "H200-141GB",
        "GB200",
        "GB300",
        "MI300X",
    }
    assert gpus | {"TPU-v5e", "TPU-v5p", "TPU-v6e", "TPU-v7x-core"} <= set(labels.accelerator)
    assert labels.n_accel.min() <= 8 and labels.n_accel.max() >= 8192
    assert np.all(np.isfinite(labels.step_time_s)) and np.all(labels.step_time_s > 0.0)


def test_figures_against_their_source():
    """MPT-70B on 128 H100: 43.36 % MFU and 428 TFLOP/s (LLM Foundry benchmarking README); GPT
    145.6B on 1,536 A100: 148 TFLOP/s with recomputation (Narayanan et al. 2021, table 1), so 3/4 of
    it without."""
    rows = {(r.text("source"), r.text("model"), r.text("n_accel")): r for r in published().rows}
    mpt = rows["llm-foundry", "mpt-70b", "128"]
    assert (mpt.known("mfu_reported"), mpt.known("tflops_reported")) == (0.4336, 428.0)
    assert mpt.known("step_time_s") == pytest.approx(
        1024 * 2048 / (mpt.known("tokens_per_s_per_accel") * 128), rel=1e-5
    )
    gpt = rows["megatron-sc21-t1", "megatron-gpt-145.6b", "1536"]
    assert gpt.known("tflops_reported") == pytest.approx(0.75 * 148)


def test_figures_of_further_stacks_against_their_source():
    """Llama 3.1 8B on 8 H100: 5,762 tokens/s a GPU without compilation, 8,532 with it and 8-bit
    matmuls (torchtitan's report of December 2024); 175B on 12,288 GPUs: 6.34 s a step (MegaScale,
    table 2); 104B of hidden size 11,600 on 128 V100 of 32 GB (BigScience)."""
    rows = {}
    for r in published().rows:
        rows.setdefault((r.text("stack"), r.text("n_accel"), r.text("model")), r)
    assert rows["torchtitan", "8", "llama3.1-8b"].known("tokens_per_s_per_accel") == 5762
    assert rows["torchtitan/float8", "8", "llama3.1-8b"].known("step_time_s") == pytest.approx(
        16 * 8192 / (8 * 8532), rel=1e-6
    )
    assert rows["megascale", "12288", "megascale-175b"].known("step_time_s") == 6.34
    assert (
        rows["megatron-deepspeed/bigscience-tr8", "128", "gpt-h11600-l64"].text("accelerator")
        == "V100-32GB"
    )


def test_figures_of_recipes_at_scale_against_their_source():
    """Llama 3.1 70B on 2,048 H100 with NeMo 24.09: 14.98 s a step in 16 bits, 11.39 in 8; GPT-3
    175B with 24.12: 8.49 and 5.96; Nemotron-4 340B on 512 GB200, batch 128: 2.229 and 1.549
    (NVIDIA's recipes for DGX Cloud)."""
    asked = {
        ("nemo/24.09-dgxc", "2048", "llama3-70b", "4096"): (14.98, 11.39),
        ("nemo/24.12-dgxc", "2048", "gpt3-175b", "4096"): (8.49, 5.96),
        ("nemo/25.04-dgxc", "512", "nemotron-4-340b", "128"): (2.229, 1.549),
    }
    for job, times in asked.items():
        those = [
            r
            for r in published().rows
            if tuple(r.text(c) for c in ("stack", "n_accel", "model", "global_batch")) == job
        ]
        assert (
            tuple(r.known("step_time_s") for r in sorted(those, key=lambda r: r.text("precision")))
            == times
        )


def test_time_tokens_and_degrees_of_a_row_agree():
    for r in published().rows:
        time, tokens = r.number("step_time_s"), r.number("tokens_per_s_per_accel")
        if time and tokens and r.text("source") in USED_AND_ASIDE:
            implied = r.known("global_batch") * r.known("seq_len") / (tokens * r.known("n_accel"))
            assert time == pytest.approx(implied, rel=0.01), (r.text("source"), r.line)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_the_published_table_survives_both_formats(tmp_path, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    write(published(), tmp_path / f"p{suffix}")
    again = read(tmp_path / f"p{suffix}")
    assert [p[1:] for p in again.problems] == [p[1:] for p in published().problems]
    assert [fingerprint(r) for r in again.rows] == [fingerprint(r) for r in published().rows]


def test_records_are_batch_last_and_take_keeps_everything_together():
    cases = to_cases(published())
    rows = len(published().rows)
    assert len(cases) == rows
    assert cases.system.network.bytes_per_s.shape == (2, rows)
    assert (
        cases.system.chip.flops_per_s.shape
        == cases.model.n_layers.shape
        == cases.plan.layout.dp.shape
        == (rows,)
    )
    assert np.allclose(cases.plan.devices, cases.labels.n_accel)
    micro_batches = np.asarray(cases.plan.n_microbatches)
    assert np.all(micro_batches >= 1.0) and np.allclose(micro_batches, np.round(micro_batches))
    assert np.all(np.asarray(cases.plan.layout.shard) <= np.asarray(cases.plan.layout.dp))
    some = cases.take(cases.labels.accelerator == "GB200")
    assert np.all(some.system.network.size[0] == 72.0) and set(some.labels.accelerator) == {"GB200"}
    assert some.model.n_layers.shape == some.labels.line.shape == some.labels.assumptions.shape


def test_reading_traces_needs_no_pandas_and_no_arrow():
    code = (
        "import sys, calibration.traces as t; t.published(); sys.exit(bool({'pandas', 'pyarrow', "
        "'matplotlib'} & set(sys.modules)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], cwd=Path(__file__).parents[1], check=False
        ).returncode
        == 0
    )


def test_shapes_agree_with_published_counts_and_rates():
    """A matrix of the MLP too few makes a model a quarter smaller than its published count, and its
    FLOPs per token 0.76 of those reported.

    Reported rates follow 6N, 6N + 6Lhs, 6N + 12Lhs or 8N (BigScience; InternEvo's recomputed rows);
    4N with a frozen base (LoRA).
    """
    cases = to_cases(published(), never_recompute)
    rows = {(r.file, r.line): r for r in published().rows}
    count = np.asarray(counts.parameters(cases.model))
    six = np.asarray(counts.model_flops_per_token(cases.model, "6N"))
    with_attention = np.asarray(counts.model_flops_per_token(cases.model, "6N+12Lhs"))
    for i, (file, line) in enumerate(zip(cases.labels.file, cases.labels.line, strict=True)):
        row = rows[file, line]
        if given := row.number("n_params"):
            assert abs(count[i] / given - 1.0) < 0.1, (
                row.text("source"),
                row.text("model"),
                count[i],
                given,
            )
        if reported := row.number("tflops_reported"):
            tokens = row.known("global_batch") * row.known("seq_len")
            told = reported * 1e12 * row.known("step_time_s") * row.known("n_accel") / tokens
            low, high = (0.6, 0.8) if "lora" in row.flags else (0.75, 1.1)
            high *= 4.0 / 3.0 if row.text("recompute") == "full" else 1.0
            assert low * six[i] < told < high * with_attention[i], (
                row.text("source"),
                row.text("model"),
                told / six[i],
            )
