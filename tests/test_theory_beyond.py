"""What the theory adds to the study: today's chips, attention in the layer, failures; all off by
default."""

from __future__ import annotations

from math import inf

import jax
import numpy as np
import pytest

from dmodel import catalog
from dmodel.goodput import Reliability, goodput
from dmodel.theory import (
    RELAXED,
    LevelLayout,
    Problem,
    best_layouts,
    gpu,
    gpu_names,
    laws,
    matmul_time,
    smallest_clusters,
    training,
)
from dmodel.theory.gpus import WORD_BYTES, assumptions
from dmodel.theory.study import DEADLINE_S

CATALOG = {
    "H200 SXM": "H200-HGX",
    "B200 SXM": "B200-DGX",
    "GB200 NVL72": "GB200-NVL72",
    "TPU v5p": "TPU-v5p",
    "TPU v7x": "TPU-v7x",
}


@pytest.mark.parametrize("name", CATALOG)
def test_rates_are_those_of_the_catalog(name):
    found, listed = gpu(name), catalog.system(CATALOG[name])
    assert float(found.chip.flops_per_s) == pytest.approx(float(listed.chip.flops_per_s), rel=1e-3)
    assert float(found.chip.hbm_bytes_per_s) == pytest.approx(
        float(listed.chip.hbm_bytes_per_s), rel=1e-2
    )
    assert 0.88 < float(found.chip.hbm_bytes) / float(listed.chip.hbm_bytes) < 1.01
    np.testing.assert_allclose(found.network.bytes_per_s, listed.network.bytes_per_s)
    assert (
        float(found.network.size[0]) <= float(listed.network.size[0])
        and float(found.network.size[-1]) == inf
    )
    assert "sustained" in assumptions(name)


@pytest.mark.parametrize("name", gpu_names(beyond=True))
def test_large_products_reach_the_sustained_rate(name):
    """The tiers that are assumed do not limit what a chip is known to reach."""
    chip, n = gpu(name).chip, 16384.0
    rate = 2.0 * n**3 / float(matmul_time(n, n, n, chip))
    assert rate == pytest.approx(float(chip.sustained * chip.flops_per_s), rel=0.02)
    assert all(
        np.isfinite(x) and x > 0 or x == inf or x == 0 for x in map(float, jax.tree.leaves(chip))
    )


def test_a_chip_of_four_byte_words_counts_half():
    chip, network = gpu("gtx580").chip, gpu("gtx580").network
    assert float(chip.flops_per_s) == pytest.approx(1.581e12, rel=1e-3)
    assert float(chip.hbm_bytes_per_s) == WORD_BYTES / 4 * 1.924e11
    assert float(network.bytes_per_s[0]) == 0.5 * 8e9


def test_names_of_the_study_stay_apart():
    assert not set(gpu_names()) & set(gpu_names(beyond=True))
    assert assumptions("H100 SXM") == {}


WITH = laws.STUDY.replace(attention=True)


def test_attention_counts():
    """Against the counts of GPT-3's shape: 4 d² of 12 d² parameters, 6 s d L of arithmetic per
    token."""
    plain, found = laws.run(12288.0), laws.run(12288.0, laws=WITH)
    assert found.parameters / plain.parameters == pytest.approx(1.5)
    core = 6.0 * 2048.0 * 12288.0 * float(found.layers)
    assert found.flop == pytest.approx((6.0 * found.parameters + core) * found.dataset_tokens)
    sparse = laws.run(16384.0, sparse=True, laws=WITH)
    own = 4.0 * 16384.0**2 * float(sparse.layers)
    active = (sparse.parameters - own) / sparse.experts + own
    assert float(laws.flop_of(sparse, 1.0)) == pytest.approx(
        6.0 * active + 6.0 * 2048.0 * 16384.0 * float(sparse.layers)
    )
    assert plain.attention is None and float(
        laws.flop_of(plain, plain.dataset_tokens)
    ) == pytest.approx(float(plain.flop))


def layout(**levels: float) -> LevelLayout:
    one = {f"{kind}_levels": [1.0, 1.0] for kind in ("dp", "tp_model", "tp_ff", "pp", "ep")}
    return LevelLayout(
        **jax.tree.map(np.asarray, one | levels, is_leaf=lambda x: isinstance(x, list)),
        n_microbatches=1.0,
    )


def test_time_of_attention_on_one_gpu():
    """One GPU, large products: the arithmetic of projections and core, the core's backward pass 2.5
    times its forward one."""
    chip, run = gpu("H100 SXM"), laws.run(16384.0, laws=WITH)
    took = training(chip, run, layout())
    rate = float(chip.chip.sustained * chip.chip.flops_per_s)
    per_token = 6.0 * run.parameters + 3.5 * 2.0 * 2048.0 * 16384.0 * float(run.layers)
    assert float(took.step_time_s) == pytest.approx(
        per_token * float(run.batch_tokens) / rate, rel=0.01
    )
    assert 0.69 < float(took.utilization) < 0.7


def test_all_reduces_of_attention():
    run, plain = laws.run(16384.0, laws=WITH), laws.run(16384.0)
    cut = layout(tp_model_levels=[2.0, 1.0], tp_ff_levels=[4.0, 1.0])
    with_it, without = (
        training(gpu("A100 SXM"), r, cut) for r in (run, run.replace(attention=None))
    )
    d, f = 16384.0, 65536.0
    words = ((2 - 1) * (f + 3 * d) + (4 - 1) * 2 * d, (2 - 1) * f + (4 - 1) * d)
    assert float(with_it.tp_comm_s / without.tp_comm_s) == pytest.approx(words[0] / words[1])
    assert float(with_it.latency_s / without.latency_s) == pytest.approx(2.0)
    assert run.layers == plain.layers


def test_attention_is_searched_exactly_and_has_slopes():
    chip, run = gpu("H100 SXM"), laws.run(16384.0, laws=WITH)
    found = best_layouts([Problem(run, 8192)], chip)[0]
    took = training(chip, run, found.layout)
    assert float(took.train_time_s) == pytest.approx(found.train_time_s, rel=1e-12)
    assert float(took.utilization) == pytest.approx(found.utilization, rel=1e-12)

    def seconds(seq_len):
        longer = run.replace(attention=laws.Attention(seq_len=seq_len))
        return training(chip, longer, found.layout, rules=RELAXED, sharpness=64.0).step_time_s

    slope, step = float(jax.grad(seconds)(2048.0)), 1e-2
    assert slope > 0.0 and slope == pytest.approx(
        float(seconds(2048.0 + step) - seconds(2048.0 - step)) / (2 * step), rel=1e-4
    )


def test_failures_take_their_share_of_the_deadline():
    chip, runs = gpu("H100 SXM"), [laws.run(float(w)) for w in (12288.0, 20480.0, 24576.0)]
    perfect = smallest_clusters(runs, chip)
    never = smallest_clusters(runs, chip, reliability=Reliability(failures_per_device_s=0.0))
    assert [c.best.n_gpus for c in never if c.best] == [c.best.n_gpus for c in perfect if c.best]
    real = smallest_clusters(runs, chip, reliability=Reliability())
    for a, b in zip(perfect, real, strict=True):
        assert a.best is not None and (b.best is None or b.best.n_gpus >= a.best.n_gpus)
        if b.best is not None:
            assert (
                b.best.train_time_s / float(goodput(float(b.best.n_gpus), Reliability()))
                < DEADLINE_S
            )
    assert smallest_clusters([laws.run(53248.0)], chip, reliability=Reliability())[0].best is None
