"""Closed forms of the two walls: the published figures, and every exponent by differentiation."""

from __future__ import annotations

import csv
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dmodel.theory.closed_form import Wall, growth, nanobatch_tokens, shard_words, t_crit, t_limit

FIGURES = Path(__file__).parents[1] / "experiments" / "reference" / "theory_closed_form.csv"

GPUS = {
    "V100 SXM": (80 * 128 * 8 * 1533e6, 1.25e10, 900e9),
    "A100 SXM": (108 * 128 * 16 * 1410e6, 5e10, 1555e9),
    "H100 SXM": (132 * 128 * 32 * 1830e6, 1e11, 3352e9),
    "H100 PCIe": (114 * 128 * 32 * 1620e6, 1e11, 2039e9),
}
"""Peak FLOP/s, network between nodes and HBM [byte/s], both directions together, as in the study's
table."""

HEADLINES = {("V100 SXM", 0.0): 1.30e27, ("A100 SXM", 0.0): 2.62e28, ("H100 SXM", 0.0): 1.92e28}
HEADLINES |= {("V100 SXM", 0.2): 2.19e29, ("A100 SXM", 0.2): 3.25e31, ("H100 SXM", 0.2): 1.94e31}


def wall(gpu: str, alpha: float) -> Wall:
    rate, network, hbm = GPUS[gpu]
    return Wall(
        flops_per_s=rate, network_bytes_per_s=network, hbm_bytes_per_s=hbm, batch_exponent=alpha
    )


def figures() -> list[dict[str, str]]:
    with FIGURES.open(encoding="utf-8") as lines:
        return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def elasticities(value, at: Wall) -> Wall:
    """Elasticities to the rates, times and sizes; semi-elasticities ∂ln/∂x to the two exponents."""
    slopes = jax.grad(lambda x: jnp.log(value(x)))(jax.tree.map(jnp.asarray, at))
    scaled = jax.tree.map(lambda slope, x: slope * x, slopes, at)
    return scaled.replace(
        batch_exponent=slopes.batch_exponent, depth_exponent=slopes.depth_exponent
    )


def test_published_figures():
    rows = figures()
    assert len(rows) == 40
    for row in rows:
        at = wall(row["gpu"], float(row["alpha"]))
        found = [t_crit(at), t_limit(at), t_crit(at) / 2.0, nanobatch_tokens(at), shard_words(at)]
        published = [
            row[k]
            for k in (
                "T_crit_flop",
                "T_limit_flop_9us",
                "T_crit_mac",
                "nanobatch_tokens",
                "activation_shard_words",
            )
        ]
        np.testing.assert_allclose(found, [float(x) for x in published], rtol=1e-10)


@pytest.mark.parametrize(("gpu", "alpha"), HEADLINES)
def test_headlines(gpu, alpha):
    assert float(f"{t_crit(wall(gpu, alpha)):.2e}") == HEADLINES[gpu, alpha]
    assert float(f"{t_limit(wall(gpu, 0.0)):.3e}") == 2.305e31


@pytest.mark.parametrize("alpha", [-0.2, 0.0, 1 / 6 - 0.1154, 0.2])
def test_exponents(alpha):
    at = wall("H100 SXM", 0.25).replace(depth_exponent=0.25 - alpha)
    assert growth(at) == pytest.approx(alpha)
    one = 1.0 / (1.0 - 2.0 * alpha)
    shared = {
        "deadline_s": 2 * one,
        "batch_tokens": 2 * one,
        "n_layers": -2 * one,
        "reference_compute": -2 * alpha * one,
    }
    expected = {
        t_crit: shared
        | {
            "flops_per_s": -4 * one,
            "network_bytes_per_s": 4 * one,
            "hbm_bytes_per_s": 2 * one,
            "layer_latency_s": 0.0,
        },
        t_limit: shared
        | {
            "flops_per_s": 0.0,
            "network_bytes_per_s": 0.0,
            "hbm_bytes_per_s": 0.0,
            "layer_latency_s": -2 * one,
        },
    }
    for value, by_name in expected.items():
        found = elasticities(value, at)
        # (1 − 2α) ln T = A − 2α ln T0, T in multiply-adds
        by_alpha = 2 * one * float(jnp.log(value(at) / 2.0 / at.reference_compute))
        for name, exponent in (
            by_name | {"batch_exponent": by_alpha, "depth_exponent": -by_alpha}
        ).items():
            assert float(getattr(found, name)) == pytest.approx(exponent, rel=1e-6, abs=1e-12), (
                value.__name__,
                name,
            )


def test_vmap_and_jit_agree():
    alphas = jnp.linspace(-0.2, 0.2, 5)
    many = jax.jit(jax.vmap(lambda a: t_crit(wall("A100 SXM", 0.0).replace(batch_exponent=a))))(
        alphas
    )
    np.testing.assert_allclose(
        many, [t_crit(wall("A100 SXM", float(a))) for a in alphas], rtol=1e-12
    )
