"""The step of the study: its own figures, an oracle over every switch, sums, slopes, units."""

import csv
from math import inf
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dmodel.breakdown import TERMS
from dmodel.physics import Physics
from dmodel.step import CALIBRATED, memory_use, step_time
from dmodel.theory import EXACT, IDEAL, RELAXED, LevelLayout, Run, gpu, run, theory, training
from dmodel.theory.layout import KINDS
from dmodel.theory.rows import LAYOUT_RESULTS, layouts
from tests import theory_reference
from tests.points import batch, case, float64, log_differences, log_slopes, quick

ROWS = list(
    csv.DictReader((Path(__file__).parent / "data" / "theory_layouts.csv").read_text().splitlines())
)
NETWORKS = {1: "H100 SXM Global NVLink", 2: "V100 SXM", 3: "H100 SXM Superpod"}


def test_layouts_are_those_of_the_study():
    """Every figure of every row, to 1e-9; found at 7e-16."""
    found = layouts(ROWS)
    assert not any(found.reasons)
    for name in LAYOUT_RESULTS:
        np.testing.assert_allclose(
            found.columns[name], [float(row[name]) for row in ROWS], rtol=1e-9, err_msg=name
        )


def test_the_figures_reach_every_branch():
    assert {row["gpu"] for row in ROWS} >= {
        "V100 SXM",
        "A100 SXM",
        "H100 SXM",
        "H100 SXM Superpod",
        "H100 SXM Global NVLink",
    }
    for name in ("zero_bubble", "overlap_TP", "overlap_DP", "overlap_PP"):
        assert {row[name] for row in ROWS} == {"0", "1"}
    assert {row["recompute_activations"] for row in ROWS} == {"", "True", "False"}
    assert any(int(row["pp_interleaving"]) > 1 for row in ROWS) and any(
        int(row["sparsity_factor"]) > 1 for row in ROWS
    )


def whole_case(rng: np.random.Generator, levels: int) -> tuple[dict, dict[str, tuple[int, ...]]]:
    """A layout that divides its model, with each switch either way."""
    d = {kind: tuple(int(x) for x in 2 ** rng.integers(0, 3, levels)) for kind in KINDS}
    size = {kind: int(np.prod(x)) for kind, x in d.items()}
    zb = int(rng.integers(0, 2))
    v = 1 if zb or size["pp"] == 1 else int(rng.choice([1, 2, 3]))
    m = int(rng.choice([1, 3, 5])) * (2 * size["pp"] if zb else 1)
    experts = size["ep"] * int(rng.choice([1, 3]))
    n = {
        "d_model": size["tp_model"] * int(rng.integers(30, 3000)),
        "d_ff": size["tp_ff"] * int(rng.integers(30, 9000)),
        "layers": size["pp"] * v * int(rng.integers(2, 7)),
        "experts": experts,
        "tokens": size["dp"] * m * experts * int(rng.integers(1, 5000)),
        "m": m,
        "v": v,
        "zb": zb,
    }
    return n | {
        name: int(rng.integers(0, 2)) for name in ("over_tp", "over_dp", "over_pp", "recompute")
    }, d


def records(n: dict, d: dict[str, tuple[int, ...]]) -> tuple[Run, LevelLayout]:
    parameters = 2.0 * n["d_model"] * n["d_ff"] * n["layers"] * n["experts"]
    model = Run(
        d_model=n["d_model"],
        d_ff=n["d_ff"],
        layers=n["layers"],
        experts=n["experts"],
        parameters=parameters,
        dataset_tokens=20.0 * parameters,
        flop=0.0,
        batch_tokens=n["tokens"],
    )
    layout = LevelLayout(
        **{f"{kind}_levels": np.array(x) for kind, x in d.items()},
        n_microbatches=n["m"],
        interleave=n["v"],
        zero_bubble=n["zb"],
        overlap_tp=n["over_tp"],
        overlap_dp=n["over_dp"],
        overlap_pp=n["over_pp"],
        recompute=n["recompute"],
    )
    return model, layout


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_any_layout_is_the_formulas_written_anew(levels):
    rng, system = np.random.default_rng(levels), gpu(NETWORKS[levels])
    cases = [whole_case(rng, levels) for _ in range(200)]
    x = batch([float64(records(*c)) for c in cases])
    found = quick(lambda x: training(system, *x).train_time_s)(x)
    np.testing.assert_allclose(
        found, [theory_reference.train_time(system, *c) for c in cases], rtol=1e-12
    )


def relaxed_case(rng: np.random.Generator, name: str) -> tuple:
    """A machine, a run without rounding and a layout half-way in everything, off every kink."""
    levels = len(gpu(name).network.size)

    def degrees(most: float) -> np.ndarray:
        return 1.0 + most * rng.uniform(0.1, 1.0, levels)

    layout = LevelLayout(
        dp_levels=degrees(8.0),
        tp_model_levels=degrees(3.0),
        tp_ff_levels=degrees(3.0),
        pp_levels=degrees(3.0),
        ep_levels=degrees(1.5),
        n_microbatches=rng.uniform(20.0, 200.0),
        interleave=rng.uniform(1.0, 4.0),
        zero_bubble=rng.uniform(),
        overlap_tp=rng.uniform(),
        overlap_dp=rng.uniform(),
        overlap_pp=rng.uniform(),
        recompute=rng.uniform(),
        activations=rng.uniform(),
    )
    return gpu(name), run(2e4 * np.exp(rng.uniform(0.0, 1.5)), sparse=True, rounding=False), layout


@pytest.mark.parametrize("sharpness", [8.0, inf])
@pytest.mark.parametrize("name", ["H100 SXM Superpod"])
def test_relaxed_slopes_are_finite_differences(name, sharpness):
    """Of time and of memory, by every number of the machine, the run and the layout."""
    rng = np.random.default_rng(0)
    x = batch([float64(relaxed_case(rng, name)) for _ in range(5)])

    def logs(x):
        found = training(*x, rules=RELAXED, sharpness=sharpness)
        return (
            jnp.log(found.train_time_s)
            + 0.3 * jnp.log(found.mem_required_bytes)
            + 0.1 * jnp.log(found.pp_ep_comm_s)
        )

    slopes = log_slopes(x, quick(jax.grad(lambda x: logs(x).sum()))(x))
    np.testing.assert_allclose(slopes, log_differences(quick(logs), x), rtol=1e-6, atol=1e-8)
    assert np.isfinite(slopes).all() and (np.abs(slopes).max(1) > 1e-4).sum() > 25


@pytest.mark.parametrize(("rules", "sharpness"), [(EXACT, inf), (RELAXED, 8.0)])
@pytest.mark.parametrize("name", ["H100 SXM", "H100 SXM Infinite Network and LL"])
def test_slopes_are_finite_at_every_corner(name, rules, sharpness):
    """Degrees of one everywhere and of two at each place, nothing and everything overlapped, one
    micro-batch."""
    system, model = gpu(name), run(12288.0)
    ones = np.ones(len(system.network.size))
    alone = {f"{kind}_levels": ones for kind in KINDS}
    corners = [LevelLayout(**alone, n_microbatches=1.0)]
    for kind in KINDS:
        for level in range(len(ones)):
            degree = np.where(np.arange(len(ones)) == level, 2.0, 1.0)
            placed = {**alone, f"{kind}_levels": degree}
            corners.append(LevelLayout(**placed, n_microbatches=4.0, zero_bubble=level % 2))
            corners.append(
                LevelLayout(
                    **placed, n_microbatches=1.0, overlap_tp=0.0, overlap_dp=1.0, overlap_pp=0.0
                )
            )
    x = batch([float64(c) for c in corners])

    def total(system, model, x):
        found = training(system, model, x, rules=rules, sharpness=sharpness)
        return found.train_time_s.sum(), found

    gradient, found = quick(jax.grad(total, argnums=(0, 1, 2), has_aux=True))(
        system, float64(model), x
    )
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((found, gradient)))


@pytest.mark.parametrize("sharpness", [8.0, inf])
def test_terms_are_not_negative_and_add_up_to_the_step(sharpness):
    rng, name = np.random.default_rng(2), "H100 SXM"
    system, model, layout = batch([float64(relaxed_case(rng, name)) for _ in range(50)])
    found = step_time(system, model, layout, IDEAL, sharpness=sharpness, physics=theory(RELAXED))
    assert all((np.asarray(getattr(found, term)) >= 0.0).all() for term in TERMS)
    whole = training(system, model, layout, rules=RELAXED, sharpness=sharpness)
    np.testing.assert_allclose(found.total, whole.step_time_s, rtol=1e-14)
    assert {term for term in TERMS if np.asarray(getattr(found, term)).any()} == {
        "matmul",
        "recompute",
        "tensor_parallel",
        "data_parallel",
        "pipeline_transfer",
        "bubble",
        "overhead",
    }


def test_elasticities_of_rates_less_those_of_times_are_minus_one():
    rng = np.random.default_rng(3)
    system, model, layout = batch(
        [float64(relaxed_case(rng, "H100 SXM Superpod")) for _ in range(20)]
    )

    def log_time(system):
        return jnp.log(
            training(system, model, layout, rules=RELAXED, sharpness=8.0).train_time_s
        ).sum()

    by = quick(jax.grad(log_time))(system)
    chip, net = system.chip, system.network
    rates = sum(
        getattr(by.chip, n) * getattr(chip, n)
        for n in ("flops_per_s", "hbm_bytes_per_s", "l2_bytes_per_s", "shared_bytes_per_s")
    )
    rates = rates + (by.network.bytes_per_s * net.bytes_per_s).sum(0)
    times = by.chip.kernel_latency_s * chip.kernel_latency_s + (
        by.network.latency_s * net.latency_s
    ).sum(0)
    np.testing.assert_allclose(rates - times, -1.0, atol=1e-10)


def test_sharper_and_sharper_is_the_hard_model():
    rng = np.random.default_rng(4)
    x = batch([float64(relaxed_case(rng, "V100 SXM")) for _ in range(40)])
    hard = np.asarray(training(*x, rules=RELAXED).train_time_s)
    gaps = [
        np.abs(np.asarray(training(*x, rules=RELAXED, sharpness=p).train_time_s) / hard - 1.0).max()
        for p in (8.0, 64.0, 4096.0)
    ]
    assert gaps[0] < 0.3 and all(
        4.0 * later < sooner for sooner, later in zip(gaps, gaps[1:], strict=False)
    ), gaps


def test_relaxed_is_never_slower_than_exact_on_whole_layouts():
    for levels in (1, 2, 3):
        rng, system = np.random.default_rng(10 + levels), gpu(NETWORKS[levels])
        x = batch([float64(records(*whole_case(rng, levels))) for _ in range(100)])
        exact, relaxed = quick(
            lambda x, s=system: [
                training(s, *x, rules=rules).train_time_s for rules in (EXACT, RELAXED)
            ]
        )(x)
        assert (relaxed <= exact * (1.0 + 1e-12)).all() and (relaxed > 0.2 * exact).all(), levels


def test_latency_alone_costs_27_us_per_layer_and_micro_batch():
    """Cut until nothing is left to compute: six products of 4.5 µs each."""
    system, model = gpu("A100 SXM"), run(12288.0)
    ones = np.ones(2)
    layout = LevelLayout(
        dp_levels=ones,
        tp_model_levels=np.array([8.0, 1536.0]),
        tp_ff_levels=np.array([1.0, 49152.0]),
        pp_levels=ones,
        ep_levels=ones,
        n_microbatches=model.batch_tokens,
        overlap_dp=1.0,
    )
    found = step_time(system, model, layout, IDEAL, sharpness=inf, physics=theory(EXACT))
    assert float(found.matmul) / (model.layers * model.batch_tokens) == pytest.approx(
        27e-6, rel=1e-3
    )


def test_the_study_and_the_calibrated_model_are_one_step_with_two_physics():
    """What differs is one object; the calibrated physics is the default of `step_time` and
    `memory_use`."""
    assert (
        step_time.__kwdefaults__["physics"] is CALIBRATED
        and memory_use.__kwdefaults__["physics"] is CALIBRATED
    )
    assert theory(EXACT) is theory(EXACT) and set(theory()._fields) == set(Physics._fields)


def test_a_batch_is_a_loop_and_one_case_needs_no_batch():
    rng = np.random.default_rng(5)
    x = batch([float64(relaxed_case(rng, "H100 SXM")) for _ in range(3)])
    whole = training(*x, rules=RELAXED, sharpness=8.0)
    for i in range(3):
        one = training(*case(x, i), rules=RELAXED, sharpness=8.0)
        jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a, b[i], rtol=1e-13), one, whole)
