"""The fit: recovers what the rows determine, leaves the rest, is not led by one bad row, and
repeats itself to the bit."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calibration import descent, fit, objective, pooling
from calibration.micro.priors import priors
from calibration.objective import FREEDOM, Objective
from calibration.predict import predict
from calibration.ratios import Data, log_time, slopes
from calibration.starts import SLOW_MEETING
from calibration.uncertainty import laplace, narrowing, offset_errors
from calibration.uncertainty.cells import cells_of
from calibration.uncertainty.laplace import student_weight
from dmodel.coefficients import NAMES, SPECS
from dmodel.cost.power import slowed
from dmodel.errors import InputError
from dmodel.profiles import GROUPINGS, Profile, default_profile, members
from dmodel.profiles.store import load
from dmodel.profiles.writing import to_json
from tests.fitting import CHIPS, NOISE, TRUTH, held_out, retimed, synthetic
from tests.points import COEFFICIENTS, quick

UNSEEN = (
    "low_precision_efficiency",
    "cast_traffic",
    "grouped_efficiency",
    "softmax_traffic",
    "overlap_cp",
    "overlap_ep",
)
"""Coefficients that no synthetic row uses: 16-bit dense models with flash attention."""

FSDP, MEGATRON = "fsdp-test", "megatron-test"


MEASURED = pooling._measured

READINGS = [
    pytest.param({}, id="nothing measured", marks=pytest.mark.slow),
    pytest.param({0: (-0.3, 0.1), 7: (0.2, 0.05)}, id="measured"),
]
"""Readings of micro-benchmarks that a fit begins with."""


@pytest.fixture(scope="module", autouse=True)
def made_up_chips():
    """The chips here are made up, and benchmarks of real ones would mislead."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pooling, "_measured", lambda accelerator: {})
        yield


def fitted_to(cases, **options) -> Profile:
    return fit.fit(cases, **{"held_out": held_out(cases), "starts": 2, "rounds": 1, **options})


def at_the_limit(c) -> float:
    """Rate of products that have the device to themselves over that at the full clock [1]."""
    return 1.0 / float(slowed(1.0, 0.0, 0.0, 1.0, c.power_demand))


def gaps(cases, profile) -> np.ndarray:
    """|predicted / measured − 1| of every row."""
    return np.abs(predict(cases, profile).step_time_s / cases.labels.step_time_s - 1.0)


@pytest.fixture(scope="module")
def cases():
    return synthetic()


@pytest.fixture(scope="module")
def profile(cases) -> Profile:
    return fitted_to(cases)


def test_rows_kept_out_are_predicted(cases, profile):
    """1 % of noise goes in; the prior alone misses by more than a fifth somewhere."""
    kept_out = held_out(cases)
    error = gaps(cases, profile)
    assert (
        np.median(error[kept_out]) < 0.02
        and error[kept_out].max() < 0.05
        and error[~kept_out].max() < 0.05
    )
    assert gaps(cases, default_profile())[kept_out].max() > 0.2


ALIKE = ("H100-80GB", "H200-141GB")
"""Chips of one generation, which a stack is brought to once: rows of both tell bandwidth from
overlap, those of A100 alone do not."""


@pytest.fixture(scope="module")
def alike() -> Profile:
    """Half the noise: with the usual one products and what hides are told to 7 and 14 %, with a
    quarter to 5 and 1."""
    return fitted_to(synthetic(chips=ALIKE, noise=0.5 * NOISE))


@pytest.mark.parametrize("chip", ALIKE)
@pytest.mark.parametrize(
    ("stack", "name", "tolerance"),
    [
        # what tensor ranks send and wait for leaves less to say about products
        (MEGATRON, "matmul_efficiency", 0.08),
        (FSDP, "matmul_efficiency", 0.06),
        (FSDP, "net_efficiency_outer", 0.08),
        (FSDP, "overlap_fsdp", 0.10),
    ],
)
def test_what_the_rows_determine_is_recovered(alike, chip, stack, name, tolerance):
    true = getattr(TRUTH[stack], name)
    found = alike.coefficients_for(chip, stack)
    # products in layers tell their rate at the clock that power leaves, not at the full one
    clock = found if name == "matmul_efficiency" else TRUTH[stack]
    assert float(getattr(found, name)) * at_the_limit(clock) == pytest.approx(
        true * at_the_limit(TRUTH[stack]), rel=tolerance
    )
    if name == "overlap_fsdp" or stack == FSDP and name != "matmul_efficiency":
        assert abs(SPECS[name].default / true - 1.0) > 3.0 * tolerance


@pytest.mark.parametrize("name", UNSEEN)
def test_what_no_row_uses_stays_at_the_prior(profile, name):
    i = NAMES.index(name)
    for stack in TRUTH:
        assert float(getattr(profile.coefficients_for(CHIPS[0], stack), name)) == pytest.approx(
            SPECS[name].default, rel=1e-6
        )
    assert profile.standard_errors[i] == pytest.approx(SPECS[name].width, rel=1e-6)


def test_errors_shrink_where_rows_speak(profile):
    """Standard errors lie between 0 and the prior's width; the covariance is theirs and
    positive."""
    widths = np.array([s.width for s in SPECS.values()])
    assert (profile.standard_errors > 0.0).all() and (
        profile.standard_errors <= widths * (1.0 + 1e-9)
    ).all()
    assert (
        profile.standard_errors[NAMES.index("matmul_efficiency")]
        < 0.8 * SPECS["matmul_efficiency"].width
    )
    np.testing.assert_allclose(
        np.sqrt(np.diag(profile.covariance)), profile.standard_errors, rtol=1e-9
    )
    np.testing.assert_allclose(profile.covariance, profile.covariance.T, atol=1e-12)
    assert np.linalg.eigvalsh(profile.covariance).min() > 0.0


def test_the_same_seed_gives_the_same_profile_and_kept_out_times_do_not_matter(cases, profile):
    times = np.where(held_out(cases), 7.0, 1.0) * cases.labels.step_time_s
    again = fitted_to(retimed(cases, times))
    assert json.dumps(to_json(again)) == json.dumps(to_json(profile))


def test_another_seed_gives_nearly_the_same_predictions(cases, profile):
    other = fitted_to(cases, seed=5)
    ratio = predict(cases, other).step_time_s / predict(cases, profile).step_time_s
    assert np.abs(np.log(ratio)).max() < 0.01


def test_one_bad_row_hardly_matters(cases, profile):
    """One row of 30 five times too slow: the others' predictions stay within 2 %, the row itself is
    not followed."""
    bad = 7
    times = np.where(np.arange(len(cases)) == bad, 5.0, 1.0) * cases.labels.step_time_s
    spoilt = fitted_to(retimed(cases, times))
    ratio = predict(cases, spoilt).step_time_s / predict(cases, profile).step_time_s
    assert np.median(np.abs(ratio - 1.0)) < 0.02 and np.abs(ratio - 1.0).max() < 0.06


def test_the_profile_says_what_it_was_fitted_on(cases, profile):
    kept = ~held_out(cases)
    assert set(profile.accelerators) == set(CHIPS) == set(profile.offsets["accelerator"])
    assert set(profile.stacks) == set(TRUTH) == set(profile.offsets["stack"]) == set(profile.noise)
    assert set(profile.offsets["generation"]) == {"ampere", "hopper"} and set(
        profile.offsets["lineage"]
    ) == {"fsdp", "megatron"}
    assert (
        set(profile.offsets["pair"]) == {f"{chip} {stack}" for chip in CHIPS for stack in TRUTH}
        and not profile.offsets["variant"]
    )
    assert set(profile.fitted_rows) == set(cases.labels.fingerprint[kept])
    assert sum(d["rows"] for d in profile.data) == kept.sum()
    assert {"jax", "flax", "optax", "python", "dmodel"} <= set(profile.versions)
    # the scale of the fitted residuals falls below the noise of 1 %; that of rows left out does not
    assert all(0.001 < scale < NOISE for scale in profile.noise.values())
    assert all(0.5 * NOISE < profile.scatter[stack].noise < 2.5 * NOISE for stack in TRUTH)


# --- starting from a profile


@pytest.fixture(scope="module")
def dozen():
    """A dozen rows of a stack that no profile knows: less efficient matmuls, no overlap."""
    truth = {"fsdp-new": COEFFICIENTS.replace(matmul_efficiency=0.45, overlap_fsdp=0.3)}
    found = synthetic(seed=3, truth=truth)
    return found, np.arange(len(found)) % 3 == 2


@pytest.fixture(scope="module")
def moved(profile, dozen) -> Profile:
    rows, kept_out = dozen
    seen = []
    result = fit.fit(
        rows,
        profile,
        held_out=kept_out,
        starts=2,
        progress=lambda done, loss: seen.append((done, loss)),
    )
    done = [d for d, _ in seen]
    assert done == sorted(done) and done[-1] == 1.0 and all(np.isfinite(loss) for _, loss in seen)
    return result


def test_a_dozen_rows_move_a_profile_to_a_new_stack(profile, moved, dozen):
    rows, kept_out = dozen
    before, after = gaps(rows, profile)[kept_out], gaps(rows, moved)[kept_out]
    assert np.median(after) < 0.03 < 0.1 < np.median(before)
    found = moved.coefficients_for(CHIPS[0], "fsdp-new")
    assert float(found.matmul_efficiency) * at_the_limit(found) == pytest.approx(
        0.45 * at_the_limit(COEFFICIENTS), rel=0.1
    )


def test_they_move_nothing_else(cases, profile, moved):
    for name in UNSEEN:
        was, now = (
            float(getattr(p.coefficients_for(CHIPS[0], "fsdp-new"), name)) for p in (profile, moved)
        )
        assert now == pytest.approx(was, rel=1e-6), name
    for grouping, known in profile.offsets.items():
        for member, offset in known.items():
            np.testing.assert_array_equal(moved.offsets[grouping][member], offset, err_msg=member)
    assert (
        set(moved.fitted_rows) > set(profile.fitted_rows)
        and len(moved.data) == len(profile.data) + 1
    )
    assert (moved.standard_errors <= profile.standard_errors * (1.0 + 1e-9)).all()


@pytest.fixture(scope="module")
def slower(cases):
    """One row of a known stack, 20 % slower than it was."""
    one = cases.take(np.flatnonzero(cases.labels.stack == FSDP)[:1])
    return retimed(one, 1.2 * one.labels.step_time_s)


@pytest.fixture(scope="module")
def again(slower, profile) -> Profile:
    """One more row of a stack that the profile knows well."""
    return fit.fit(slower, profile, starts=1)


def test_a_known_stack_keeps_what_it_shares(profile, again):
    np.testing.assert_array_equal(again.center, profile.center)
    np.testing.assert_array_equal(again.standard_errors, profile.standard_errors)
    for grouping in set(GROUPINGS) - {"stack"}:
        assert set(again.offsets[grouping]) == set(profile.offsets[grouping])
        for member, offset in profile.offsets[grouping].items():
            np.testing.assert_array_equal(again.offsets[grouping][member], offset, err_msg=member)
    assert set(again.stack_covariances) == set(profile.stack_covariances) == set(TRUTH)


def test_a_known_stack_is_led_less_by_one_row(cases, profile, again, slower):
    """Seventeen rows said otherwise: the others of the stack follow it less than those of a stack
    that nothing is known of would."""
    rest = cases.take(np.flatnonzero(cases.labels.stack == FSDP)[1:])
    unknown = fit.fit(slower, dataclasses.replace(profile, stack_covariances={}), starts=1)
    known, new = (
        np.median(predict(rest, p).step_time_s / predict(rest, profile).step_time_s)
        for p in (again, unknown)
    )
    assert 1.0 < known < 1.15 and known < new


def _offsets(start: np.ndarray) -> np.ndarray:
    """Center and offsets `[1 + M, C]` of a start, whose noise comes last."""
    return start[: len(start) // len(NAMES) * len(NAMES)].reshape(-1, len(NAMES))


def test_fits_from_a_base_begin_once_with_hosts_that_wait_for_each_other(
    profile, dozen, monkeypatch
):
    """Where hosts have time this wait has no slope, and starts that are scattered around the prior
    would not find it."""
    begun = []

    def descents(loss, starts, **options):
        begun.append([_offsets(start)[1:, NAMES.index("rendezvous")].min() for start in starts])
        return descent.descents(loss, starts, **options)

    monkeypatch.setattr(fit, "descents", descents)
    rows, _ = dozen
    fit.fit(rows, profile, starts=1, rounds=1)
    fit.fit(rows, starts=1, rounds=1)
    assert begun == [[0.0, SLOW_MEETING], [0.0]]


def test_a_dozen_rows_are_never_met_without_noise(profile, dozen):
    """Rows as the base has them: the noise falls to its floor, from where no coefficient gains by
    going astray, and stays there in a fit from that fit."""
    rows, _ = dozen
    exact = retimed(rows, np.asarray(predict(rows, profile).step_time_s))
    (name,) = np.unique(exact.labels.stack)
    first = fit.fit(exact, profile, starts=1)
    second = fit.fit(exact, first, starts=1)
    assert pooling.NOISE_FLOOR < first.noise[name] < 1.5 * pooling.NOISE_FLOOR
    assert second.noise[name] < first.noise[name]


def test_a_coefficient_that_is_held_stays_for_all_rows(profile, dozen):
    rows, kept_out = dozen
    held = fit.fit(
        rows, profile, held_out=kept_out, starts=1, held={"overhead": 0.123, "overlap_fsdp": 0.25}
    )
    for chip in CHIPS:
        c = held.coefficients_for(chip, "fsdp-new")
        assert float(c.overhead) == pytest.approx(0.123, rel=1e-9) and float(
            c.overlap_fsdp
        ) == pytest.approx(0.25, rel=1e-9)
    with pytest.raises(InputError, match="no coefficient overheat; there are: matmul_efficiency"):
        fit.fit(rows, profile, held={"overheat": 1.0})


# --- parts


@pytest.mark.parametrize("reason", ["all kept out", "no times", "set aside"])
def test_nothing_to_fit_is_said(cases, reason):
    none = np.ones(len(cases), bool) if reason == "all kept out" else None
    if reason == "no times":
        cases = retimed(cases, np.full(len(cases), np.nan))
    if reason == "set aside":
        cases = cases.replace(labels=cases.labels._replace(flag=np.full(len(cases), "offload")))
    with pytest.raises(InputError, match="nothing to fit"):
        fit.fit(cases, held_out=none)


def test_flags_weigh_rows():
    weights = fit.weights_of(
        np.array(
            [
                "",
                "offload",
                "derived-from-tflops; other",
                "slow-unexplained derived-from-tflops",
                "unknown",
            ]
        )
    )
    np.testing.assert_array_equal(weights, [1.0, 0.0, 0.5, 0.5, 1.0])
    composed = fit.weights_of(np.array(["composed"] * 1000 + [""]))
    assert composed[-1] == 1.0 and 0.0 < composed[0] < 1.0


def small_problem():
    """Prior and data of four rows, two chips, two stacks."""
    rows = synthetic().take(np.array([0, 13, 20, 33]))
    groups = pooling.groups_of(rows.labels.accelerator, rows.labels.stack)
    prior = pooling.prior_for(groups, default_profile(), fresh=True)
    times, ones = np.log(rows.labels.step_time_s), np.ones(4)
    return (
        groups,
        prior,
        Data(
            rows.system, rows.model, rows.plan, times, ones, groups.of, groups.stack_of, 0.0 * ones
        ),
    )


def anywhere(prior, seed: int = 0) -> pooling.Parameters:
    """Parameters all of which differ from 0."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: 0.3 * rng.standard_normal(x.shape), pooling.start(prior))


@pytest.mark.parametrize("measured", READINGS)
@pytest.mark.parametrize(("fresh", "repeats"), [(True, 0.0), (False, 1e-3)])
def test_loss_and_gradient_are_those_of_automatic_differentiation(
    monkeypatch, measured, fresh, repeats
):
    """`Σ w [ln s + (ν + 1)/2 · ln(1 + r² / (ν s²))] + ½ |θ|²`, with r by the coefficients of each
    row, which are a sum of what its groups move, and s the wider for the scatter of its repeats."""
    variance = repeats * np.arange(4.0)
    monkeypatch.setattr(pooling, "_measured", lambda accelerator: measured)
    groups, prior, data = small_problem()
    prior = prior.replace(fresh=fresh)
    data = data._replace(weight=np.array([1.0, 0.5, 2.0, 1.0]), variance=variance)
    assert (prior.mixing is None) == (not measured)
    loss = Objective(prior, data)
    points = np.stack([loss.flat(anywhere(prior, seed)) for seed in range(3)])
    zero = pooling.rows_of(loss.whole(0.0 * points[0]), prior, data.of)
    matrix = np.stack(
        [pooling.rows_of(loss.whole(e), prior, data.of) - zero for e in np.eye(points.shape[1])],
        -1,
    )

    def plain(x):
        noise = x[-len(groups.stacks) :]
        own = prior.noise * jnp.exp(pooling.NOISE_WIDTH * noise)
        s = jnp.sqrt((prior.noise_floor**2 + own**2)[groups.stack_of] + variance)
        r = log_time(data.system, data.model, data.plan, zero + matrix @ x) - data.log_measured
        misfit = jnp.log(s) + 0.5 * (FREEDOM + 1.0) * jnp.log1p((r / s) ** 2 / FREEDOM)
        return (data.weight * misfit).sum() + 0.5 * (x**2).sum()

    both = quick(jax.value_and_grad(plain))
    expected = [both(x) for x in points]
    values, gradients = loss(points)
    np.testing.assert_allclose(values, [v for v, _ in expected], rtol=1e-12)
    np.testing.assert_allclose(gradients, [g for _, g in expected], rtol=1e-8, atol=1e-9)
    for x, value, gradient in zip(points, values, gradients, strict=True):
        one = loss(x[None])
        np.testing.assert_allclose(one[0], [value], rtol=1e-13)
        np.testing.assert_allclose(one[1], [gradient], rtol=1e-9, atol=1e-11)


def test_many_rows_are_computed_one_set_after_the_other(monkeypatch):
    groups, prior, data = small_problem()
    points = np.stack([Objective(prior, data).flat(anywhere(prior, seed)) for seed in range(3)])
    together = Objective(prior, data)(points)
    monkeypatch.setattr(objective, "FEW", 3)
    for found, expected in zip(Objective(prior, data)(points), together, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


def test_loss_falls_along_its_gradient_as_it_says():
    _, prior, data = small_problem()
    loss = Objective(prior, data)
    start, direction = (loss.flat(anywhere(prior, seed)) for seed in (0, 1))

    def at(t: float) -> float:
        return float(loss((start + t * direction)[None])[0][0])

    h = 1e-4
    difference = (8.0 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12.0 * h)
    assert loss(start[None])[1][0] @ direction == pytest.approx(difference, rel=1e-7)


def optimized(monkeypatch, ruined: int) -> pooling.Parameters:
    """The small problem from three starts, the first `ruined` of which end at no number; the second
    ends lowest."""
    groups, prior, data = small_problem()

    def ends(loss, starts, **options):
        losses = [np.nan if i < ruined else value for i, value in enumerate((3.0, 1.0, 2.0))]
        return [descent.End(p, value) for p, value in zip(starts, losses, strict=True)]

    monkeypatch.setattr(fit, "descents", ends)
    return fit.optimize(
        prior, data, groups, seed=0, starts=3, polish=1, progress=lambda done, loss: None
    )


def test_the_lowest_number_wins_and_without_one_there_is_no_fit(monkeypatch):
    second, third = optimized(monkeypatch, 1), optimized(monkeypatch, 2)
    assert np.isfinite(second.center).all() and not np.array_equal(second.center, third.center)
    np.testing.assert_array_equal(optimized(monkeypatch, 0).center, second.center)
    with pytest.raises(FloatingPointError, match="defect of dmodel"):
        optimized(monkeypatch, 3)


def test_from_a_base_the_place_with_most_room_wins_unless_its_rows_are_met_worse(monkeypatch):
    """Losses 1.0, 1.5 and 3.0, narrowed by 2.0, 0.5 and 0.1: the second, and of a fit from nothing
    the first; found twice counts once."""
    groups, fresh, data = small_problem()
    room, asked = {1.0: 2.0, 1.5: 0.5, 3.0: 0.1}, []

    def ends(loss, starts, **options):
        losses = (3.0, 1.0, 1.0 + 0.1 * fit.SAME, 1.5)
        noise = len(groups.stacks)
        return [
            descent.End(np.append(p[:-noise], np.full(noise, value)), value)
            for p, value in zip(starts, losses, strict=True)
        ]

    def narrowing(p, *others):
        asked.append(float(p.noise[0]))
        return room[asked[-1]]

    monkeypatch.setattr(fit, "descents", ends)
    monkeypatch.setattr(fit, "narrowing", narrowing)
    monkeypatch.setattr(fit, "_settled", lambda loss, ends: list(map(loss.whole, ends)))
    found = {
        how: float(
            fit.optimize(
                prior, data, groups, seed=0, starts=n, polish=1, progress=lambda done, loss: None
            ).noise[0]
        )
        for how, prior, n in (("fresh", fresh, 4), ("from a base", fresh.replace(fresh=False), 3))
    }
    assert found == {"fresh": 1.0, "from a base": 1.5} and asked == [1.0, 1.5, 3.0]


def test_starts_agree_that_end_as_near_to_the_best_as_is_asked():
    ends = [descent.End(np.zeros(1), loss) for loss in (0.0, 0.1, 0.3, 0.9)]
    assert [fit._alike(ends, 0.2, agree) for agree in (1, 2)] == [True, False]
    assert [fit._alike(ends, same, 1) for same in (0.01, 0.15)] == [False, True]
    assert [len(fit._apart(ends, same)) for same in (0.15, 0.5)] == [3, 2]


def test_places_as_good_as_each_other_are_enough_of_many_rows_alone(monkeypatch):
    groups, prior, data = small_problem()
    enough = []

    def ends(loss, starts, **options):
        found = [descent.End(p, 0.4 * i) for i, p in enumerate(starts)]
        enough.append((options["enough"](found[:2]), options["enough"](found[::2])))
        return found[:1]

    monkeypatch.setattr(fit, "descents", ends)
    for many in (len(data.weight), len(data.weight) + 1):
        monkeypatch.setattr(fit, "MANY", many)
        how = {"seed": 0, "starts": 2, "polish": 1, "progress": lambda done, loss: None}
        fit.optimize(prior.replace(fresh=False, mixing=None), data, groups, **how)
    assert enough == [(True, False), (False, False)]


def test_of_many_rows_two_starts_that_agree_are_enough(cases, profile, monkeypatch):
    """By the curvature of the rows, which L-BFGS is told, and at a loss that no start without it
    ends below."""
    asked = []

    def descents(loss, starts, **options):
        ends = descent.descents(loss, starts, **options)
        asked.append((options["together"], options["curvature"] is not None, ends))
        return ends

    monkeypatch.setattr(fit, "descents", descents)
    for many in (len(cases), len(cases) + 1):
        monkeypatch.setattr(fit, "MANY", many)
        fit.fit(cases, profile, starts=3)
    (together, told, found), (few, untold, others) = asked
    assert (together, told, few, untold) == (2, True, descent.TOGETHER, False)
    assert min(end.loss for end in found) < min(end.loss for end in others) + 1e-3


def test_the_inverse_of_the_curvature_is_that_of_all_parameters(monkeypatch):
    """`(1 + Bᵀ B)⁻¹` by center and offsets with the slopes of the log ratios, one by one."""
    monkeypatch.setattr(pooling, "_measured", lambda accelerator: {})
    groups, prior, data = small_problem()
    data = data._replace(weight=np.array([1.0, 0.5, 2.0, 1.0]))
    loss = Objective(prior, data)
    x = loss.flat(anywhere(prior))
    p, size = loss.whole(x), len(x) - len(groups.stacks)
    ratio, slope = slopes(pooling.rows_of(p, prior, data.of), data)
    scale = pooling.noise_scale(p, prior)[groups.stack_of]
    weight = data.weight * student_weight(ratio**2, scale, FREEDOM)
    zero = pooling.rows_of(loss.whole(0.0 * x), prior, data.of)
    moved = [pooling.rows_of(loss.whole(e), prior, data.of) - zero for e in np.eye(len(x))[:size]]
    design = np.einsum("rc,pcr->rp", slope, moved) * np.sqrt(weight)[:, None]
    found = np.stack([loss.inverse(x)(e) for e in np.eye(len(x))])
    expected = np.linalg.inv(np.eye(size) + design.T @ design)
    np.testing.assert_allclose(found[:size, :size], expected, rtol=1e-8, atol=1e-10)
    np.testing.assert_array_equal(found[:size, size:], 0.0)
    assert (np.diag(found)[size:] < 1.0).all()


@pytest.mark.parametrize("measured", READINGS)
def test_the_room_that_rows_leave_is_that_of_all_parameters(monkeypatch, measured):
    """`½ ln det(1 + Jᵀ W J)` with J of the log ratios by center and offsets, however many, by
    automatic differentiation."""
    monkeypatch.setattr(pooling, "_measured", lambda accelerator: measured)
    groups, prior, data = small_problem()
    p = jax.tree.map(lambda x: x + 0.1, pooling.start(prior))
    z = pooling.rows_of(p, prior, data.of)

    def ratios(z):
        return log_time(data.system, data.model, data.plan, z) - data.log_measured

    ratio, by_row = np.asarray(quick(ratios)(z)), np.asarray(quick(jax.jacrev(ratios))(z))
    loss = Objective(prior, data)
    own = loss.flat(p)[: -len(groups.stacks)]
    moved = [
        pooling.rows_of(loss.whole(np.append(e, 0.0 * p.noise)), prior, data.of)
        for e in (*np.eye(len(own)), 0.0 * own)
    ]
    jacobian = np.stack([np.einsum("rci,ci->r", by_row, m - moved[-1]) for m in moved[:-1]], 1)
    weight = np.asarray(data.weight) * student_weight(
        ratio**2, pooling.noise_scale(p, prior)[groups.stack_of], FREEDOM
    )
    curvature = (jacobian.T * weight) @ jacobian
    expected = 0.5 * np.log1p(np.maximum(np.linalg.eigvalsh(curvature), 0.0)).sum()
    found = narrowing(p, prior, data, groups, FREEDOM)
    assert found == pytest.approx(expected, rel=1e-6) and found > 1.0
    assert narrowing(
        p, prior, data._replace(weight=0.0 * data.weight), groups, FREEDOM
    ) == pytest.approx(0.0, abs=1e-12)


def test_errors_of_a_round_are_those_of_the_whole(monkeypatch):
    monkeypatch.setattr(pooling, "_measured", lambda accelerator: {0: (-0.3, 0.1), 7: (0.2, 0.05)})
    groups, prior, data = small_problem()
    p = jax.tree.map(lambda x: x + 0.1, pooling.start(prior))
    here = (p, prior, data, groups, FREEDOM)
    np.testing.assert_array_equal(offset_errors(*here), laplace(*here).offset_errors)


def _only(offset: np.ndarray, i: int) -> np.ndarray:
    """Offsets of which one member's are 1 and all others 0."""
    return np.where(np.arange(len(offset))[:, None] == i, 1.0, 0.0 * offset)


def test_offsets_move_only_their_own_rows_and_kind():
    """Chips and their generation move hardware coefficients of their rows, stacks and code bases
    software ones, both together all."""
    groups, prior, data = small_problem()
    zero = pooling.start(prior)
    shared = np.asarray(pooling.rows_of(zero, prior, data.of))
    for i, (grouping, _) in enumerate(groups.members[1:], 1):
        p = zero.replace(offset=_only(zero.offset, i))
        change = np.asarray(pooling.rows_of(p, prior, data.of)) - shared
        mine = groups.of[GROUPINGS.index(grouping)] == i
        assert (
            mine.any()
            and (np.abs(change) > 0.0).tolist()
            == np.outer(pooling.SCOPES[grouping] > 0.0, mine).tolist()
        ), grouping
    nobody = zero.replace(offset=_only(zero.offset, 0))
    np.testing.assert_array_equal(pooling.rows_of(nobody, prior, data.of), shared)


def test_rows_are_in_the_groups_of_their_names():
    groups = pooling.groups_of(["A100-80GB", "Z80", "A100-80GB"], ["megatron-lm", "own/1", "own"])
    found = [[groups.members[i] for i in row] for row in groups.of.T]
    for row, (chip, stack) in zip(
        found, [("A100-80GB", "megatron-lm"), ("Z80", "own/1"), ("A100-80GB", "own")], strict=True
    ):
        assert [name for _, name in row] == list(members(chip, stack).values())
        assert all(grouping in (g, "") for g, (grouping, _) in zip(GROUPINGS, row, strict=True))
    assert [groups.stacks[i] for i in groups.stack_of] == ["megatron-lm", "own/1", "own"]
    assert groups.members[0] == ("", "") and len(set(groups.members)) == len(groups.members)


def test_micro_benchmarks_say_where_a_new_chip_starts(monkeypatch):
    """What was measured of it is its mean and width; a chip that the base knows, and one without
    measurements, have neither."""
    monkeypatch.setattr(pooling, "_measured", MEASURED)
    known = priors("H100-80GB")
    base = default_profile()

    def of_chip(chip: str, base: Profile) -> tuple[np.ndarray, np.ndarray]:
        groups = pooling.groups_of([chip], ["own"])
        prior, i = (
            pooling.prior_for(groups, base, fresh=False),
            groups.members.index(("accelerator", chip)),
        )
        return np.asarray(prior.offset)[i], np.diagonal(np.asarray(prior.factor)[i])

    offset, width = of_chip("H100-80GB", base)
    other, usual = of_chip("Z80", base)
    assert not other.any() and known
    for i, name in enumerate(NAMES):
        if pooling.HARDWARE[i] and name in known:
            assert base.center[i] + offset[i] == pytest.approx(known[name].mean, rel=1e-12), name
            assert width[i] == pytest.approx(known[name].sd, rel=1e-12), name
        else:
            assert offset[i] == 0.0 and width[i] == usual[i], name
    fitted = dataclasses.replace(
        base, offsets=base.offsets | {"accelerator": {"H100-80GB": 0.1 * np.ones(len(NAMES))}}
    )
    offset, width = of_chip("H100-80GB", fitted)
    np.testing.assert_array_equal(offset, fitted.offsets["accelerator"]["H100-80GB"])
    assert not width.any()


def test_a_fit_from_nothing_holds_chips_to_what_was_measured_of_them(monkeypatch):
    """Not the offset of a chip, its sum with the generation and the center: the product of the
    prior of the sum and the measurement."""
    monkeypatch.setattr(pooling, "_measured", MEASURED)
    groups = pooling.groups_of(["H100-80GB", "H200-141GB", "Z80"], ["own"] * 3)
    monkeypatch.setattr(pooling, "_measured", lambda name: {})
    plain = cells_of(
        pooling.prior_for(groups, default_profile(), fresh=True).replace(mixing=None), groups
    )
    monkeypatch.setattr(pooling, "_measured", MEASURED)
    found = cells_of(pooling.prior_for(groups, default_profile(), fresh=True), groups)
    measured = {cell: MEASURED(groups.members[m[1]][1]) for cell, m in enumerate(found.members)}
    widths = pooling.fresh_widths()
    n, ports = len(NAMES), np.array([m[GROUPINGS.index("port")] for m in found.members])
    ported = (ports[:, None] == ports) & (ports > 0)
    shared = widths["lineage"] ** 2 + widths["stack"] ** 2
    for c in np.flatnonzero(pooling.TOTALS):
        at = np.arange(len(found.members)) * n + c
        before, mean = plain.prior[np.ix_(at, at)], plain.mean[:, c]
        # what chips have, without their software: what is measured
        chips = (
            before
            - shared[c]
            - widths["pair"][c] ** 2 * np.eye(len(at))
            - widths["port"][c] ** 2 * ported
        )
        seen = [cell for cell in range(len(at)) if c in measured[cell]]
        gain = chips[:, seen] @ np.linalg.inv(
            chips[np.ix_(seen, seen)] + np.diag([measured[cell][c][1] ** 2 for cell in seen])
        )
        wanted = mean + gain @ (np.array([measured[cell][c][0] for cell in seen]) - mean[seen])
        np.testing.assert_allclose(found.mean[:, c], wanted, rtol=1e-9, atol=1e-9, err_msg=NAMES[c])
        np.testing.assert_allclose(
            found.prior[np.ix_(at, at)],
            before - gain @ chips[seen],
            rtol=1e-8,
            atol=1e-9,
            err_msg=NAMES[c],
        )
    assert sum(map(len, measured.values())) > 10


def test_a_round_starts_where_the_one_before_ended(monkeypatch):
    """Parameters of other widths, and of sums that are known, for the same coefficients."""
    monkeypatch.setattr(pooling, "_measured", MEASURED)
    groups = pooling.groups_of(["H100-80GB", "A100-80GB"], ["own/1", "other"])
    before, rng = pooling.prior_for(groups, default_profile(), fresh=True), np.random.default_rng(0)
    p = pooling.start(before)
    p = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), p)
    wider = {g: 1.5 * w for g, w in pooling.fresh_widths().items()}
    after = pooling.prior_for(
        groups, dataclasses.replace(default_profile(), widths=wider), fresh=True
    )
    assert before.mixing is not None and after.mixing is not None
    parts = (pooling.center, pooling.offsets, pooling.noise_scale)
    found = pooling.located(after, *(f(p, before) for f in parts))
    # what is frozen stays where the prior has it
    for name, f in zip(("center", "offsets", "noise"), parts, strict=True):
        np.testing.assert_allclose(
            f(found, after), f(p, before), rtol=1e-9, atol=1e-9, err_msg=name
        )


def test_a_known_stack_moves_no_further_than_strangers_differ():
    """Whatever a dozen rows leave open: in no direction is the prior of a known stack wider than
    members of all groupings are."""
    base = load("generic")
    stack = sorted(base.stack_covariances)[0]
    wide = {**base.stack_covariances, stack: 1e4 * base.stack_covariances[stack]}
    groups = pooling.groups_of([base.accelerators[0]], [stack])
    own = groups.members.index(("stack", stack))
    strangers = sum((base.widths[g] * pooling.SCOPES[g]) ** 2 for g in pooling.GROUPINGS)
    for covariances, least in ((base.stack_covariances, 0.0), (wide, 0.9)):
        factor = pooling.prior_for(
            groups, dataclasses.replace(base, stack_covariances=covariances), fresh=False
        ).factor[own]
        share = np.linalg.eigvalsh(factor @ factor.T / np.sqrt(np.outer(strangers, strangers)))
        assert least < share.max() < 1.0


def test_widths_are_learned_from_the_members():
    """A coefficient in which members differ gets a wider prior than one in which they agree; none
    becomes immovable."""
    groups, prior, _ = small_problem()
    i, j = NAMES.index("overlap_dp"), NAMES.index("overlap_tp")
    stacks = [m for m, (grouping, _) in enumerate(groups.members) if grouping == "stack"]
    parameters = pooling.start(prior)
    parameters.offset[stacks, i] = 2.0, -2.0
    sure = np.full((len(groups.members), len(NAMES)), 1e-3)
    before, after = pooling.fresh_widths(), fit.refined_widths(parameters, sure, prior, groups)
    n = fit.PSEUDO
    assert after["stack"][i] == pytest.approx(
        before["stack"][i] * np.sqrt((n + 2 * 2.0**2) / (n + 2)), rel=1e-5
    )
    assert after["stack"][j] == pytest.approx(before["stack"][j] * np.sqrt(n / (n + 2)), rel=1e-5)
    np.testing.assert_array_equal(after["variant"], before["variant"])
    for grouping, widths in after.items():
        assert ((widths > 0.0) == (pooling.SCOPES[grouping] > 0.0)).all(), grouping


# --- pooling across variants

VARIANTS = tuple(f"fsdp-own/{i}" for i in range(4))


@pytest.fixture(scope="module")
def variants():
    """Rows of four variants of a new stack: its matmuls are far from what is known, and each
    differs a little in the elementwise work."""
    truth = COEFFICIENTS.replace(matmul_efficiency=0.45, elementwise_traffic=1.0)
    own = {v: truth.replace(elementwise_traffic=1.0 + 0.05 * i) for i, v in enumerate(VARIANTS)}
    return synthetic(seed=4, truth=own)


def test_variants_say_together_what_none_says_alone(profile, variants):
    """Two rows of each of four variants: rows of a fifth, which none of them is, are predicted
    better than from two rows of one."""
    order = np.array([np.flatnonzero(variants.labels.stack == v) for v in VARIANTS])
    pairs = [order[v, [v, 9 + (v + 4) % 9]] for v in range(4)]
    rest = variants.take(np.setdiff1d(np.arange(len(variants)), np.concatenate(pairs)))
    fifth = rest.replace(labels=rest.labels._replace(stack=np.full(len(rest), "fsdp-own/new")))
    together = fit.fit(variants.take(np.concatenate(pairs)), profile, starts=1)
    alone = [fit.fit(variants.take(pair), profile, starts=1) for pair in pairs]
    before, after = np.median(gaps(fifth, profile)), np.median(gaps(fifth, together))
    assert after < np.mean([np.median(gaps(fifth, p)) for p in alone]) and after < 0.5 * before

    def missed(p: Profile) -> float:
        return abs(np.log(float(p.coefficients_for(CHIPS[0], "fsdp-own").matmul_efficiency) / 0.45))

    assert missed(together) < np.mean([missed(p) for p in alone])
    assert (
        set(together.offsets["variant"]) == set(VARIANTS)
        and "fsdp-own" in together.stack_covariances
    )


def test_a_variant_starts_from_its_stack_and_a_stack_from_its_code_base(profile, moved):
    """What is not known of them is what is known above them."""
    np.testing.assert_array_equal(
        moved.unconstrained(CHIPS[0], "fsdp-new/x"), moved.unconstrained(CHIPS[0], "fsdp-new")
    )
    for p in (profile, moved):
        stranger = p.unconstrained(CHIPS[0], "torchtitan") - p.unconstrained(CHIPS[0])
        np.testing.assert_allclose(stranger, p.offsets["lineage"]["fsdp"], atol=1e-12)
    groups = pooling.groups_of([CHIPS[0]], ["fsdp-new/x"])
    prior = pooling.prior_for(groups, moved, fresh=False)
    zero = pooling.start(prior)
    np.testing.assert_allclose(
        pooling.rows_of(zero, prior, groups.of)[:, 0],
        moved.unconstrained(CHIPS[0], "fsdp-new"),
        atol=1e-12,
    )
