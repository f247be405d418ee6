"""Products on tiered memory: the study's own figures, an oracle, the regimes, slopes."""

import csv
from math import inf
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dmodel.errors import InputError
from dmodel.theory import EXACT, RELAXED, REVISION_3A871BE, gpu, gpu_names, matmul_time
from dmodel.theory.tiling import Product, flows, tiles
from tests import theory_reference
from tests.points import batch, case, float64, log_differences, log_slopes, quick

ROWS = list(
    csv.DictReader((Path(__file__).parent / "data" / "theory_matmuls.csv").read_text().splitlines())
)
GPUS = ("V100 SXM", "A100 SXM", "H100 PCIe", "H100 SXM")
NATIVE = {
    "V100 SXM": 1.25583e14,
    "A100 SXM": 3.11869e14,
    "H100 PCIe": 7.56449e14,
    "H100 SXM": 9.89430e14,
}


def column(name: str) -> np.ndarray:
    return np.array([float(row[name]) for row in ROWS])


def chips() -> object:
    return batch([gpu(row["gpu"]).chip for row in ROWS])


@pytest.mark.parametrize("compiled", [False, True])
def test_times_are_those_of_the_study(compiled):
    """Every figure, to 1e-9; found at 5e-16."""
    sizes = [column(name) for name in ("d1", "d2", "b")]
    run = jax.jit(matmul_time) if compiled else matmul_time
    found = run(*sizes, chips(), weight_gradient=column("for_weight_grads"))
    np.testing.assert_allclose(found, column("time_s"), rtol=1e-9)


def test_flows_are_those_of_the_study():
    product = Product(*[column(name) for name in ("d1", "d2", "b", "for_weight_grads")])
    expected = [column(name) for name in ("t_global_s", "t_l2_s", "t_sm_s", "t_arith_s")]
    np.testing.assert_allclose(quick(flows)(product, chips()), expected, rtol=1e-9)


@pytest.mark.parametrize(("rules", "revised"), [(EXACT, False), (REVISION_3A871BE, True)])
def test_any_size_is_the_formula_written_anew(rules, revised):
    """Sizes that divide nothing, and thin ones, on every GPU; the GPU's numbers constants of the
    compiled code."""
    rng = np.random.default_rng(0)
    d1, d2, b = np.exp(rng.uniform(0.0, 12.0, (3, 400))).round()
    d1[:100], d2[100:200] = rng.integers(1, 320, (2, 100))
    gradient = rng.integers(0, 2, 400).astype(float)
    for name in GPUS:
        system = gpu(name)
        found = jax.jit(
            lambda *x, g=system.chip: matmul_time(*x[:3], g, weight_gradient=x[3], rules=rules)
        )(d1, d2, b, gradient)
        sizes = zip(d1.astype(int), d2.astype(int), b.astype(int), gradient, strict=True)
        expected = [
            theory_reference.matmul_time(system, *map(int, x[:3]), bool(x[3]), revised)
            for x in sizes
        ]
        np.testing.assert_allclose(found, expected, rtol=1e-12, err_msg=name)


def test_whole_quotients_keep_their_number_of_tiles():
    """Weights of exactly k capacities, k · capacity bytes, however the compiler divides."""
    capacity = 0.75 * 6 * 2**20
    k = np.arange(1.0, 2000.0)
    sides = k * 64.0, capacity / 128.0
    runs = (
        tiles(*sides, capacity),
        jax.jit(tiles)(*sides, capacity),
        jax.jit(lambda m: tiles(m, sides[1], capacity))(sides[0]),
    )
    for rows, columns in runs:
        np.testing.assert_allclose(rows * columns, k, rtol=1e-14)


def test_regimes_constant_linear_cubic():
    """4.5 µs when small; proportional to the tokens while weights are small; cubic, at the
    sustained rate, when large."""
    chip = gpu("A100 SXM").chip
    assert float(matmul_time(16.0, 16.0, 16.0, chip)) == pytest.approx(4.5e-6, rel=1e-3)
    one, two = (float(matmul_time(64.0, 64.0, b, chip)) - 4.5e-6 for b in (2.0**22, 2.0**23))
    assert two / one == pytest.approx(2.0, rel=1e-3)
    large = 65536.0
    rate = 2.0 * large**3 / (float(matmul_time(large, large, large, chip)) - 4.5e-6)
    assert rate == pytest.approx(0.85 * 3.118694e14, rel=1e-6)


def test_peaks_are_those_of_the_table():
    for name, peak in NATIVE.items():
        assert float(gpu(name).chip.flops_per_s) == pytest.approx(peak, rel=1e-5)


def test_every_variant_differs_from_the_others():
    assert len(gpu_names()) == 12
    kinds = {
        name: tuple(np.concatenate([np.ravel(x) for x in jax.tree.leaves(gpu(name))]))
        for name in gpu_names()
    }
    assert len(set(kinds.values())) == 12
    assert float(gpu("H100_SXM5_Infinite_Network_Low_Latency").network.bytes_per_s[0]) == inf
    assert gpu("H100 SXM Superpod").network.size.tolist() == [8.0, 32.0, inf]
    assert gpu("H100 SXM Scaled").network.latency_s.tolist() == [5e-7, 5e-7]


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("Superpod", "H100 SXM Superpod"),
        ("low latency", "H100 SXM Low Latency"),
        ("Superpod Low Latency", "H100 SXM Superpod Low Latency"),
        ("H100 Global NVLink", "H100 SXM Global NVLink"),
        ("Global NVLink + Low Latency", "H100 SXM Global NVLink and LL"),
        ("H100 SXM Global NVLink+LL", "H100 SXM Global NVLink and LL"),
        ("Infinite Network + Low Latency", "H100 SXM Infinite Network and LL"),
        ("Infinite+LL", "H100 SXM Infinite Network and LL"),
        ("Scaled", "H100 SXM Scaled"),
    ],
)
def test_variants_are_known_as_the_study_names_them(spelling, name):
    found, expected = (
        np.concatenate([np.ravel(x) for x in jax.tree.leaves(gpu(asked))])
        for asked in (spelling, name)
    )
    np.testing.assert_array_equal(found, expected)


def test_unknown_gpu_is_named_with_the_nearest():
    with pytest.raises(InputError, match="H100 SXM"):
        gpu("H101 SXM")
    for unknown in ("", "H100 SXM5 and", "5 Superpod", "A100 Superpod"):
        with pytest.raises(InputError, match="unknown GPU"):
            gpu(unknown)


POINTS = [
    (4100.0, 12700.0, 1900.0, 0.3),
    (133.0, 9001.0, 277.0, 0.8),
    (20011.0, 611.0, 30011.0, 0.1),
    (1300.0, 1400.0, 5.0, 0.6),
]


@pytest.mark.parametrize("sharpness", [8.0, inf])
@pytest.mark.parametrize("name", ["V100 SXM", "H100 SXM"])
def test_relaxed_slopes_are_finite_differences(name, sharpness):
    def log_time(x):
        return jnp.log(
            matmul_time(
                *x["sizes"][:3],
                x["gpu"],
                weight_gradient=x["sizes"][3],
                rules=RELAXED,
                sharpness=sharpness,
            )
        )

    x = batch([float64({"gpu": gpu(name).chip, "sizes": p}) for p in POINTS])
    slopes = log_slopes(x, quick(jax.grad(lambda x: log_time(x).sum()))(x))
    np.testing.assert_allclose(slopes, log_differences(quick(log_time), x), rtol=1e-6, atol=1e-8)
    assert np.isfinite(slopes).all() and np.abs(slopes).max() > 0.1


def test_relaxed_is_never_more_than_exact_and_meets_it_where_sizes_are_whole_and_large():
    rng = np.random.default_rng(1)
    sizes = np.exp(rng.uniform(0.0, 11.0, (3, 500))).round()
    for name in GPUS:
        chip = gpu(name).chip
        for gradient in (0.0, 1.0):
            exact = np.asarray(matmul_time(*sizes, chip, weight_gradient=gradient))
            relaxed = np.asarray(matmul_time(*sizes, chip, weight_gradient=gradient, rules=RELAXED))
            assert (relaxed <= exact * (1.0 + 1e-12)).all() and (relaxed >= 0.2 * exact).all()
            large = [
                float(matmul_time(16384.0, 8192.0, 4096.0, chip, weight_gradient=gradient, rules=r))
                for r in (EXACT, RELAXED)
            ]
            assert large[0] == pytest.approx(large[1], rel=1e-12)


def test_slopes_are_finite_at_every_corner():
    """Sizes of one, weights that just fit, tiles that turn from rows to squares, exact and
    relaxed."""
    sides = np.array([1.0, 8.0, 64.0, 256.0, 313.5, 2048.0, 4096.0, 65536.0])
    d1, d2, b = (x.ravel() for x in np.meshgrid(sides, sides, sides))
    for rules in (EXACT, RELAXED):
        for sharpness in (8.0, inf):
            for gradient in (0.0, 1.0):
                f = quick(
                    jax.grad(
                        lambda x, r=rules, p=sharpness, g=gradient: matmul_time(
                            *x, gpu("H100 SXM").chip, weight_gradient=g, rules=r, sharpness=p
                        ).sum()
                    )
                )
                assert all(np.isfinite(slope).all() for slope in f((d1, d2, b)))


def test_a_batch_is_a_loop():
    x = batch(
        [float64({"gpu": gpu(name).chip, "sizes": p}) for name, p in zip(GPUS, POINTS, strict=True)]
    )
    whole = matmul_time(*x["sizes"][:3], x["gpu"], weight_gradient=x["sizes"][3])
    for i in range(4):
        one = case(x, i)
        np.testing.assert_allclose(
            matmul_time(*one["sizes"][:3], one["gpu"], weight_gradient=one["sizes"][3]),
            whole[i],
            rtol=1e-14,
        )
