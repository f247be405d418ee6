"""What the theory adds to the study: today's chips, attention in the layer, failures; all off by default."""

from __future__ import annotations

from math import inf

import jax
import numpy as np
import pytest

from dmodel import catalog
from dmodel.theory import gpu, gpu_names, matmul_time
from dmodel.theory.gpus import WORD_BYTES, assumptions

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
    assert float(found.chip.hbm_bytes_per_s) == pytest.approx(float(listed.chip.hbm_bytes_per_s), rel=1e-2)
    assert 0.88 < float(found.chip.hbm_bytes) / float(listed.chip.hbm_bytes) < 1.01
    np.testing.assert_allclose(found.network.bytes_per_s, listed.network.bytes_per_s)
    assert float(found.network.size[0]) <= float(listed.network.size[0]) and float(found.network.size[-1]) == inf
    assert "sustained" in assumptions(name)


@pytest.mark.parametrize("name", gpu_names(beyond=True))
def test_large_products_reach_the_sustained_rate(name):
    """The tiers that are assumed do not limit what a chip is known to reach."""
    chip, n = gpu(name).chip, 16384.0
    rate = 2.0 * n**3 / float(matmul_time(n, n, n, chip))
    assert rate == pytest.approx(float(chip.sustained * chip.flops_per_s), rel=0.02)
    assert all(np.isfinite(x) and x > 0 or x == inf or x == 0 for x in map(float, jax.tree.leaves(chip)))


def test_a_chip_of_four_byte_words_counts_half():
    chip, network = gpu("gtx580").chip, gpu("gtx580").network
    assert float(chip.flops_per_s) == pytest.approx(1.581e12, rel=1e-3)
    assert float(chip.hbm_bytes_per_s) == WORD_BYTES / 4 * 1.924e11
    assert float(network.bytes_per_s[0]) == 0.5 * 8e9


def test_names_of_the_study_stay_apart():
    assert not set(gpu_names()) & set(gpu_names(beyond=True))
    assert assumptions("H100 SXM") == {}
