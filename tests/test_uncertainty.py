"""Intervals: closed forms, rows left out against fits without them, scatter that is put in and
found, and what profiles keep of it."""

import dataclasses

import numpy as np
import pytest

from calibration import fit, pooling
from calibration.pooling import Mixing
from calibration.predict import predict
from calibration.uncertainty.cells import cells_of, names, reduced
from calibration.uncertainty.identify import identify, information
from calibration.uncertainty.laplace import (
    Noise,
    Rows,
    _parameters,
    expected_noise,
    open_ratios,
    student_weight,
)
from calibration.uncertainty.left_out import left_out
from calibration.uncertainty.scatter import Misses, misses, scatter
from dmodel import uncertainty
from dmodel.coefficients import NAMES
from dmodel.errors import InputError
from dmodel.profiles import Profile, default_profile, load, save
from dmodel.profiles.reading import from_json
from dmodel.profiles.record import Scatter
from dmodel.profiles.writing import to_json
from experiments.uncertainty_coverage import across, lacking, levels_of
from tests.fitting import CHIPS, synthetic
from tests.points import COEFFICIENTS

STACK = "fsdp-test"


def linear(
    rows: int = 9, directions: int = 4, seed: int = 0, noise: float = 0.05
) -> tuple[Rows, np.ndarray]:
    """A linear fit by hand: ratios r = r₀ + D θ with θ standard normal, and the solution θ."""
    rng = np.random.default_rng(seed)
    design, before = 0.2 * rng.standard_normal((rows, directions)), 0.1 * rng.standard_normal(rows)
    weight = np.full(rows, noise**-2)
    theta = -np.linalg.solve(
        np.eye(directions) + (design.T * weight) @ design, design.T @ (weight * before)
    )
    return Rows(
        before + design @ theta,
        design,
        design,
        design @ design.T,
        before,
        weight,
        np.array([noise]),
        np.zeros(rows),
    ), theta


def test_rows_left_out_are_those_of_a_fit_without_them():
    rows, _ = linear()
    groups = np.array([0, 0, 0, 1, 1, 2, 2, 3, 4])
    found = left_out(rows, groups)
    for name in range(5):
        out = groups == name
        kept, w = rows.design[~out], rows.weight[~out]
        sigma = np.linalg.inv(np.eye(4) + (kept.T * w) @ kept)
        theta = -sigma @ kept.T @ (w * rows.before[~out])
        np.testing.assert_allclose(
            found.ratio[out], (rows.before + rows.design @ theta)[out], rtol=1e-9, atol=1e-12
        )
        np.testing.assert_allclose(
            found.variance[out],
            np.einsum("ru,uv,rv->r", rows.design[out], sigma, rows.design[out]),
            rtol=1e-9,
        )
    np.testing.assert_allclose(
        open_ratios(rows.prior, rows.weight),
        rows.design
        @ np.linalg.inv(np.eye(4) + (rows.design.T * rows.weight) @ rows.design)
        @ rows.design.T,
        rtol=1e-9,
        atol=1e-12,
    )


def test_noise_is_found_although_coefficients_could_explain_it():
    """Forty rows, thirty directions, noise of 4 %: residuals of the fit say 1 to 2 %, the expected
    misfit 4 %."""
    rng = np.random.default_rng(1)
    design = 0.3 * rng.standard_normal((40, 30))
    before = design @ rng.standard_normal(30) + 0.04 * rng.standard_t(4.0, 40)
    ones, noise = np.ones(40), np.array([0.03])
    blank = Rows(before, design, design, design @ design.T, before, ones, noise, 0.0 * ones)
    scale, weight = expected_noise(
        blank, np.ones(40), Noise(np.array([0.03]), np.array([0.005]), np.zeros(40, int), 0.0), 4.0
    )
    fitted = np.linalg.solve(np.eye(40) + blank.prior * weight, before)
    assert 0.028 < scale[0] < 0.065 and np.median(np.abs(fitted)) < 0.5 * scale[0]


@pytest.mark.parametrize("noise", [0.02, 0.05])
def test_scatter_is_found_as_it_was_put_in(noise):
    """Near rows have the noise alone, far ones twice it besides; a stack without rows has that of
    all others, and more."""
    rng, n = np.random.default_rng(2), 400
    far = np.repeat([0.0, 4.0], n // 2)
    scale = np.hypot(noise, 2.0 * noise * (far > 0.0))
    made = Misses(np.full(n, "own"), scale * rng.standard_t(4.0, n), np.zeros(n), far, np.ones(n))
    found = scatter(made, default_profile(), fresh=True)
    assert found["own"].noise == pytest.approx(noise, rel=0.2)
    assert found["own"].discrepancy == pytest.approx(2.0 * noise, rel=0.25)
    assert found[""].noise > 0.0 and found[""].discrepancy > 0.0
    kept = scatter(
        made,
        dataclasses.replace(default_profile(), scatter={"other": Scatter(0.1, 0.2)}),
        fresh=False,
    )
    assert kept["other"] == Scatter(0.1, 0.2)


def test_releases_that_disagree_widen_their_stack():
    """Two releases of one stack, measured on the same configurations: each speaks for itself, a
    repeated row of one does not."""
    cases = synthetic(seed=3, truth={STACK: COEFFICIENTS}).take(np.arange(6))
    rows, _ = linear(rows=6)
    group = np.array(["a", "a", "b", "b", "c", "c"])
    for stacks, weight in (
        (np.full(6, f"{STACK}/1"), 0.5),
        (np.array([f"{STACK}/1", f"{STACK}/2"] * 3), 1.0),
    ):
        labelled = cases.replace(labels=cases.labels._replace(stack=stacks, group=group))
        found = misses(rows, labelled, np.ones(6), {})
        np.testing.assert_allclose(found.weight, weight)
        assert set(found.family) == {STACK} and np.isfinite(found.distance).all()
    wide = Misses(
        np.full(6, STACK), 0.3 * np.ones(6), np.full(6, 0.3**2), np.full(6, 2.0), np.ones(6)
    )
    from_nothing, from_a_base = (
        scatter(wide, default_profile(), fresh=fresh)[STACK] for fresh in (True, False)
    )
    assert from_nothing.discrepancy > 1.3 * from_a_base.discrepancy


@pytest.fixture(scope="module")
def profile() -> Profile:
    """Twelve rows of a stack that the prior with a covariance has not seen, fitted from it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pooling, "_measured", lambda accelerator: {})
        base = default_profile()
        base = dataclasses.replace(
            base, covariance=np.diag(base.standard_errors**2), widths=pooling.fresh_widths()
        )
        cases = synthetic(
            seed=3, truth={STACK: COEFFICIENTS.replace(matmul_efficiency=0.45)}, noise=0.008
        )
        return fit.fit(cases.take(np.arange(0, 18, 2)), base, starts=1, name="few")


def test_a_fit_knows_its_cells_and_its_rows(profile):
    assert (
        set(profile.scatter) == {"", STACK}
        and set(profile.seen) == {STACK}
        and profile.seen[STACK].shape[0] == 9
    )
    assert set(profile.pair_covariances) == {f"{chip} {STACK}" for chip in CHIPS}
    own, new = (
        np.diag(np.asarray(uncertainty.covariance(profile, *pair)))
        for pair in ((CHIPS[0], STACK), ("V100-16GB", "own"))
    )
    assert (own <= 1.05 * new).all() and own[NAMES.index("matmul_efficiency")] < 0.1 * new[
        NAMES.index("matmul_efficiency")
    ]
    assert uncertainty.covariance(default_profile(), CHIPS[0], STACK) is None


def test_intervals_widen_away_from_what_was_fitted(profile):
    """Rows that were fitted, rows of the same stack, and rows of a stack that nobody has seen."""
    cases = synthetic(seed=3, truth={STACK: COEFFICIENTS.replace(matmul_efficiency=0.45)})
    other = cases.replace(labels=cases.labels._replace(stack=np.full(len(cases), "own")))
    found, strange = predict(cases, profile), predict(other, profile)
    used = np.zeros(len(cases), bool)
    used[np.arange(0, 18, 2)] = True
    assert np.median(found.scale[used]) < np.median(found.scale[~used]) < np.median(strange.scale)
    low, high = found.interval()
    np.testing.assert_allclose(low * high, found.step_time_s**2, rtol=1e-12)
    assert ((low < cases.labels.step_time_s) & (cases.labels.step_time_s < high)).mean() > 0.8
    assert np.isnan(predict(cases, default_profile()).interval()[0]).all()


@pytest.mark.parametrize(
    ("chip", "stack", "wider"),
    [
        ("MI300X", STACK, ("generation", "accelerator", "port", "pair")),
        ("PVC-1550-tile", "own", ("generation", "accelerator", "port", "pair")),
        ("H200-141GB", STACK, ()),
        ("H100-80GB", "own", ()),
        ("GB200", "own", ()),
    ],
)
def test_chips_of_makers_that_nobody_has_measured_are_the_least_known(profile, chip, stack, wider):
    """By hand: the sum of squared widths of what is unknown, wider for a new maker."""
    groups = uncertainty._unknown_groups(profile, chip, stack)
    base = profile.stack_covariances.get(stack, profile.covariance)
    expected = np.diag(base).copy()
    for group in (g for g in groups if g in profile.widths):
        own = uncertainty.STRANGERS.get(group, 1.0)
        factor = uncertainty.NEW_MAKER if group in wider else own
        expected += (factor * profile.widths[group]) ** 2
    found = np.diag(uncertainty.covariance(profile, chip, stack))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_software_on_a_makers_chips_for_the_first_time_is_less_known(profile):
    """The profile knows chips of AMD, but the stack only on others."""
    offset = np.zeros(len(NAMES))
    offsets = {
        **profile.offsets,
        "generation": {**profile.offsets["generation"], "cdna": offset},
        "accelerator": {**profile.offsets["accelerator"], "MI300X": offset},
        "port": {**profile.offsets["port"], "cdna own": offset},
    }
    knows = dataclasses.replace(profile, offsets=offsets)
    width = {g: profile.widths[g] ** 2 for g in ("port", "pair")}
    brought = np.diag(uncertainty.covariance(knows, "MI300X", STACK))
    base = np.diag(profile.stack_covariances[STACK])
    np.testing.assert_allclose(
        brought - base, uncertainty.NEW_MAKER**2 * sum(width.values()), rtol=1e-9, atol=1e-12
    )
    there = np.diag(uncertainty.covariance(knows, "MI300X", "own"))
    unknown = sum(
        (uncertainty.STRANGERS[g] * profile.widths[g]) ** 2 for g in ("lineage", "stack", "pair")
    )
    np.testing.assert_allclose(there - np.diag(profile.covariance), unknown, rtol=1e-9, atol=1e-12)


def test_sigma_points_carry_linear_and_quadratic_outputs_exactly():
    rng = np.random.default_rng(0)
    root, slope = rng.standard_normal((5, 5)), rng.standard_normal(5)
    z = uncertainty.points(np.ones(5), root @ root.T)
    assert uncertainty.parameter_sd(slope @ z) == pytest.approx(
        np.sqrt(slope @ root @ root.T @ slope), rel=1e-12
    )
    assert (slope @ z)[0] == pytest.approx(slope.sum())
    np.testing.assert_allclose(
        (z[:, 1:6] - z[:, :1]) @ (z[:, 1:6] - z[:, :1]).T / 3.0,
        root @ root.T,
        rtol=1e-9,
        atol=1e-12,
    )
    one = uncertainty.points(np.array([0.7]), np.array([[0.3**2]]))[0]
    assert uncertainty.parameter_sd(one**2) == pytest.approx(
        np.sqrt((2.0 * 0.7 * 0.3) ** 2 + 2.0 * 0.3**4), rel=1e-12
    )


def test_one_plan_against_another(profile):
    """The chance rises with the gap; ½ for a plan and itself; what is common to both does not
    count."""
    cases = synthetic(seed=3, truth={STACK: COEFFICIENTS})
    some = cases.take(np.arange(0, 9, 4))
    found = uncertainty.step_times(profile, CHIPS[0], STACK, some.system, some.model, some.plan)
    assert found is not None
    alone = predict(some, profile)
    np.testing.assert_allclose(found.value, alone.step_time_s, rtol=1e-9)
    np.testing.assert_allclose(found.scale, alone.scale, rtol=1e-6)
    assert uncertainty.probability_faster(found, 0, 0) == pytest.approx(0.5)
    quick, slow = np.argsort(found.value)[[0, -1]]
    assert uncertainty.probability_faster(found, quick, slow) == pytest.approx(
        1.0 - uncertainty.probability_faster(found, slow, quick)
    )
    assert uncertainty.probability_faster(found, quick, slow) > 0.9
    assert (
        uncertainty.step_times(
            default_profile(), CHIPS[0], STACK, some.system, some.model, some.plan
        )
        is None
    )


def test_profiles_keep_it_on_disk(profile, tmp_path):
    save(profile, tmp_path / "p.json")
    back = load(tmp_path / "p.json")
    assert back.scatter == profile.scatter
    np.testing.assert_allclose(back.seen[STACK], profile.seen[STACK], atol=1e-3)
    for name, matrix in profile.pair_covariances.items():
        np.testing.assert_allclose(back.pair_covariances[name], matrix, rtol=5e-3, atol=1e-9)
    document = to_json(profile)
    for field, wrong in (
        ("scatter", {"own": {"noise": -1.0, "discrepancy": 0.1}}),
        ("seen", {"own": [[1.0], [1.0, 2.0]]}),
    ):
        with pytest.raises(InputError, match=field):
            from_json({**document, field: wrong})
    old = from_json(
        {k: v for k, v in document.items() if k not in ("scatter", "seen", "pair_covariances")}
    )
    assert uncertainty.scatter_of(old, STACK) == uncertainty.STRANGER


def test_cells_are_sums_of_their_members():
    groups = pooling.groups_of([CHIPS[0], CHIPS[1], CHIPS[0]], [STACK, STACK, f"{STACK}/x"])
    prior = pooling.prior_for(groups, default_profile(), fresh=True)
    cells = cells_of(prior, groups)
    assert sorted(names(cells, groups)) == sorted(
        [(CHIPS[0], STACK), (CHIPS[1], STACK), (CHIPS[0], f"{STACK}/x")]
    )
    theta = np.random.default_rng(0).standard_normal((1 + len(groups.members), len(NAMES)))
    rows = pooling.rows_of(
        pooling.Parameters(center=theta[0], offset=theta[1:], noise=np.zeros(2)), prior, groups.of
    )
    z = cells.mean + cells.factor @ theta.reshape(-1)
    np.testing.assert_allclose(z[cells.of].T, rows, atol=1e-12)
    small = reduced(cells)
    flat = small.basis.reshape(-1, small.basis.shape[2])
    np.testing.assert_allclose(flat @ flat.T, cells.prior, atol=1e-9)


def test_errors_of_parts_whose_sum_is_known_are_those_of_the_whole_posterior():
    """Standard deviations of center and offsets against the inverse of the full information
    matrix."""
    rng = np.random.default_rng(0)
    rows, parts, n = 9, 4, 3
    members, coefficients = np.array([0, 1, 3]), np.array([0, 2])
    root = np.linalg.cholesky(
        np.stack([np.cov(rng.normal(size=(len(members), 12))) for _ in coefficients])
    )
    whole = np.tile(np.eye(parts), (n, 1, 1))
    whole[np.ix_(coefficients, members, members)] = root
    plain, weight = rng.normal(size=(rows, parts, n)), rng.uniform(0.5, 2.0, rows)
    design = np.einsum("rmc,cmk->rkc", plain, whole).reshape(rows, -1)
    mixing = Mixing(coefficients=coefficients, members=members, root=root)
    errors, center = _parameters(design, design @ design.T, weight, n, mixing)
    prior = np.zeros((parts, n, parts, n))
    for c in range(n):
        prior[:, c, :, c] = whole[c] @ whole[c].T
    flat = plain.reshape(rows, -1)
    posterior = np.linalg.inv(np.linalg.inv(prior.reshape(parts * n, -1)) + flat.T * weight @ flat)
    np.testing.assert_allclose(errors.ravel(), np.sqrt(np.diag(posterior)), rtol=1e-8)
    np.testing.assert_allclose(center, posterior[:n, :n], rtol=1e-7, atol=1e-12)


def test_coefficients_that_only_a_product_tells_are_not_separated():
    n, i, j = len(NAMES), NAMES.index("overlap_dp"), NAMES.index("net_efficiency_outer")
    found = np.zeros((n, n))
    found[np.ix_([i, j], [i, j])] = 50.0
    found[0, 0] = 100.0
    told = identify(found)
    assert [set(m.names) for m in told.mixed] == [
        {"overlap_dp", "net_efficiency_outer"}
    ] and told.known == (NAMES[0],)
    assert "do not separate" in str(told.mixed[0]) and "overlap_dp" in str(told.mixed[0])
    assert len(told.unseen) == n - 3
    assert information(default_profile(), CHIPS[0], STACK) is None


def test_student_weight_is_the_slope_of_the_misfit_over_the_ratio():
    r, s, v, h = 0.1, 0.04, 4.0, 1e-6
    misfit = lambda r: 0.5 * (v + 1.0) * np.log1p(r**2 / (v * s**2))  # noqa: E731
    assert student_weight(np.array(r**2), np.array(s), v) == pytest.approx(
        (misfit(r + h) - misfit(r - h)) / (2.0 * h * r), rel=1e-6
    )


def test_a_factor_that_intervals_lack_is_found_on_half_of_the_sources_and_holds_on_the_others():
    rng = np.random.default_rng(0)
    miss, source = (
        1.3 * np.abs(rng.standard_t(4.0, 8000)),
        np.repeat([f"s{i}" for i in range(8)], 1000),
    )
    assert lacking(miss) == pytest.approx(1.3, rel=0.05) and (
        levels_of(miss / 1.3) <= 0.5
    ).mean() == pytest.approx(0.5, abs=0.03)
    found = across(miss, source)
    assert found["scale"] == pytest.approx(1.3, rel=0.05) and found["coverage"] == pytest.approx(
        90.0, abs=1.0
    )
    assert across(miss[:3000], source[:3000]) == {}
    uneven = np.where(source < "s4", 1.0, 3.0) * miss
    assert across(uneven, source)["coverage"] < 89.0
