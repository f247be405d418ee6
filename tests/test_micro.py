"""Laws of single operations: the step model's where they add nothing, recovered from their own
times, right on shapes not fitted."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calibration.micro import attention, collectives, matmul, priors, published
from calibration.micro.fitting import (
    Fitted,
    Problem,
    constrained,
    fit,
    log_ratios,
    problem,
    take,
    unconstrained,
)
from calibration.micro.groups import Group, form_of, groups, half_of_shapes, problem_of
from calibration.micro.priors import LARGE_SHARE, fits, shipped
from dmodel import catalog, coefficients
from dmodel.coefficients import SPECS
from dmodel.cost import collectives as step_collectives
from dmodel.cost.compute import attention_time, matmul_time
from dmodel.errors import InputError
from dmodel.tables import Matmuls

NOTHING = 1e-30


def defaults(form, **changed):
    return {name: spec.default for name, spec in form.specs.items()} | changed


def group(kind: str, chip: str, variant: str = "") -> Group:
    return next(g for g in groups(published(kind)) if g.chip == chip and variant in g.variant)


def test_matmul_is_the_step_models_where_a_single_call_adds_nothing():
    chip, c = catalog.chip("H100-80GB"), coefficients.default()
    m, n, k = (
        jnp.array(x) for x in ([64.0, 4096.0, 1e4], [512.0, 4096.0, 2e3], [8192.0, 512.0, 3e3])
    )
    x = matmul.Cases(m, n, k, jnp.ones(3), 2.0, 0.0, chip.flops_per_s, chip.hbm_bytes_per_s)
    halves = {
        name: getattr(c, f"matmul_{name}") for name in ("half_rows", "half_columns", "half_inner")
    } | {"half_area": 0.0}
    mine = defaults(
        matmul.FORM,
        efficiency=c.matmul_efficiency,
        memory_efficiency=c.memory_efficiency,
        launch=0.0,
        **halves,
    )
    products = Matmuls(rows=m, columns=n, inner=k, copies=jnp.ones(3))
    np.testing.assert_allclose(
        matmul.time(mine, x), matmul_time(products, chip.flops_per_s, 2.0, chip, c), rtol=1e-12
    )


def test_attention_is_the_step_models_where_a_single_call_adds_nothing():
    chip, c = catalog.chip("A100-80GB"), coefficients.default()
    x = attention.Cases(
        2.0,
        4096.0,
        32.0,
        8.0,
        64.0,
        0.5,
        chip.attention_flops_per_s,
        chip.exponentials_per_s,
        np.inf,
    )
    mine = defaults(
        attention.FORM,
        efficiency=c.attention_efficiency,
        exponentials=c.attention_exponentials,
        half_sequence=0.0,
        half_queries=0.0,
        launch=0.0,
    )
    scores = 2.0 * 32.0 * 4096.0**2 / 2.0
    np.testing.assert_allclose(
        attention.time(mine, x),
        attention_time(4.0 * 64.0 * scores, scores, 0.0, chip, c),
        rtol=1e-12,
    )


@pytest.mark.parametrize(
    ("kind", "name"), [(1, "gather_time"), (2, "gather_time"), (3, "all_to_all_time")]
)
def test_the_inner_level_is_the_step_models_where_a_single_call_adds_nothing(kind, name):
    net, c = (
        catalog.system("A100-DGX").network,
        coefficients.default().replace(collective_start=0.0),
    )
    v, g = jnp.array([1e3, 1e6, 1e9]), jnp.array([2.0, 4.0, 8.0])
    x = collectives.Cases(
        jnp.full(3, float(kind)),
        v,
        g,
        jnp.ones(3),
        tuple(net.bytes_per_s),
        tuple(net.latency_s),
        jnp.zeros(3),
    )
    ones = dict.fromkeys(("exchange", "low_latency", "exchange_low", "middle"), 1.0)
    none = dict.fromkeys(("base", "crowding", "middle_over", "switch_over"), NOTHING)
    # a ring also copies its own part, an exchange of the step model does not
    own = step_collectives.OWN_PART if name == "gather_time" else NOTHING
    mine = defaults(
        collectives.FORM,
        efficiency_inner=c.net_efficiency_inner,
        latency_inner=c.net_latency_inner,
        partners=own,
        **ones,
        **none,
    )
    fabric = step_collectives.fabric(net, c, sharpness=jnp.inf)
    expected = getattr(step_collectives, name)(v, jnp.stack([g, jnp.ones(3)]), fabric)
    # the smooth minimum of three equal protocols is below them
    ends = collectives.hops(mine, x) + collectives.flow(mine, x)
    np.testing.assert_allclose(ends, expected, rtol=1e-9)


def test_hops_between_nodes_are_the_step_models_in_lines_and_the_tables_in_other_protocols():
    # trees are far below rings, the smooth minimum 2 % below trees
    d = jnp.array([2.0, 2.0**14, 2.0**20])
    x = collectives.Cases(
        jnp.array([1.0, 0.0, 0.0]),
        jnp.full(3, 1e6),
        jnp.full(3, 8.0),
        d,
        (1e11, 1e10),
        (1e-6, 5e-6),
        jnp.zeros(3),
    )
    mine = defaults(collectives.FORM, latency_inner=NOTHING, latency_outer=2.0)
    words, lines, blocks = (collectives.hops(mine, x, p) for p in range(3))
    tree = 2.0 * step_collectives.TREE_HOP * jnp.log2(d[1:]) * 1e-5
    np.testing.assert_allclose(lines, jnp.concatenate([(d[:1] - 1.0) * 1e-5, tree]), rtol=0.03)
    np.testing.assert_allclose(words / lines, [2.7 / 4.0, 5.0 / 8.5, 5.0 / 8.5], rtol=0.03)
    np.testing.assert_allclose(blocks / lines, [14.0 / 4.0, 14.0 / 8.5, 14.0 / 8.5], rtol=0.03)
    alone = x._replace(outer=jnp.ones(3))
    np.testing.assert_allclose(
        collectives.hops(mine, alone, 2), collectives.hops(mine, alone, 0), rtol=1e-12
    )


RECOVERED = [
    ("matmul", "H100-80GB", "fp8"),
    ("attention", "H200-141GB", ""),
    ("collective", "H100-80GB", "one domain"),
]
HALVED = [
    ("matmul", "A100-80GB", "bf16"),
    ("matmul", "H100-80GB", "fp8"),
    ("attention", "H100-80GB", "sglang"),
    ("collective", "A100-80GB", "one domain"),
    ("collective", "H100-80GB", "default fabric"),
]


class Halves(NamedTuple):
    """A fit to one half of the shapes, and of the other half ln(predicted / measured) by the fit
    and by the prior alone."""

    found: Fitted
    ratio: np.ndarray
    before: np.ndarray


ENOUGH = 128
"""Rows from which coefficients are recovered, about: a fit costs what its longest table costs."""


def remade(kind: str, chip: str, variant: str) -> tuple[Fitted, Problem]:
    """What is shipped, and its own times with noise of 2 %, of rows all over the table."""
    truth = shipped(kind, chip, variant or group(kind, chip).variant)
    rows = problem_of(group(kind, chip, variant))
    count = len(rows.weight)
    rows = take(rows, np.arange(count) % -(-count // ENOUGH) == 0)
    noise = 0.02 * np.random.default_rng(0).standard_normal(len(rows.weight))
    return truth, rows._replace(log_seconds=np.log(truth.seconds(rows.cases)) + noise)


@cache
def fits_of(kind: str) -> dict[tuple, Fitted | Halves]:
    """All fits of one law at once, so that it compiles once."""
    again = {case: remade(*case)[1] for case in RECOVERED if case[0] == kind}
    cut = {
        case: (problem_of(group(*case)), half_of_shapes(group(*case).table, 0))
        for case in HALVED
        if case[0] == kind
    }
    found = fit(
        form_of(kind),
        [*again.values(), *(take(rows, half) for rows, half in cut.values())],
        starts=2,
    )
    ends, others = found[len(again) :], [take(rows, ~half) for rows, half in cut.values()]
    priors_alone = [
        end._replace(z=np.asarray(rows.mean)) for end, rows in zip(ends, others, strict=True)
    ]
    ratios = log_ratios([*ends, *priors_alone], others * 2)
    halves = map(Halves, ends, ratios, ratios[len(ends) :])
    return {("again", *case): end for case, end in zip(again, found, strict=False)} | dict(
        zip(cut, halves, strict=True)
    )


@pytest.mark.parametrize(("kind", "chip", "variant"), RECOVERED)
def test_coefficients_are_recovered_from_their_own_times(kind, chip, variant):
    truth, again = remade(kind, chip, variant)[0], fits_of(kind)["again", kind, chip, variant]
    assert again.scale == pytest.approx(0.02, rel=0.35)
    told = np.sqrt(np.diag(again.covariance)) < 0.15
    assert told.sum() >= 4
    np.testing.assert_array_less(np.abs(again.z - truth.z)[told], 0.3)


@pytest.mark.parametrize(
    ("kind", "chip", "variant", "most"),
    [(*c, m) for c, m in zip(HALVED, (8.0, 8.0, 8.0, 12.0, 10.0), strict=True)],
)
def test_shapes_not_fitted_are_predicted(kind, chip, variant, most):
    halves = fits_of(kind)[kind, chip, variant]
    error = np.median(np.abs(np.expm1(halves.ratio)))
    assert 100 * error < most
    # a fit tells something: the prior alone is far worse
    assert error < 0.5 * np.median(np.abs(np.expm1(halves.before)))


def test_rows_of_one_shape_stay_together():
    table = group("collective", "B200").table
    half = half_of_shapes(table, 3)
    shapes = [
        (row.text("collective"), row.text("n_accel"), row.text("message_bytes"))
        for row in table.rows
    ]
    fitted = {shape for shape, chosen in zip(shapes, half, strict=True) if chosen}
    assert not fitted & {shape for shape, chosen in zip(shapes, half, strict=True) if not chosen}
    assert 0.4 < half.mean() < 0.6 and len(fitted) < half.sum()


@pytest.mark.parametrize("kind", ["matmul", "attention", "collective"])
def test_gradients_of_every_law_are_finite_and_right(kind):
    rows, form = problem_of(next(groups(published(kind)))), form_of(kind)
    z = jnp.asarray(unconstrained(form.specs, defaults(form)))

    @jax.jit
    def total(z):
        return jnp.log(form.time(constrained(form.specs, z), rows.cases)).sum()

    slope = jax.jit(jax.grad(total))(z)
    step = 1e-5 * jnp.eye(len(z))
    numeric = jnp.array([(total(z + d) - total(z - d)) / 2e-5 for d in step])
    np.testing.assert_allclose(slope, numeric, rtol=1e-4, atol=1e-4)


def test_shares_and_positive_numbers_go_to_the_unconstrained_space_and_back():
    form = form_of("matmul")
    values = defaults(form)
    back = constrained(form.specs, unconstrained(form.specs, values))
    assert {name: float(v) for name, v in back.items()} == pytest.approx(values)


def test_a_fit_needs_only_the_rows_with_weight():
    rows = problem_of(group("attention", "A100-80GB"))
    few = take(rows, np.arange(len(rows.weight)) < 60)
    longer = problem(form_of("attention"), rows.cases, np.exp(np.asarray(rows.log_seconds)))
    alone, padded = (
        fit(form_of("attention"), [few], starts=1)[0],
        fit(form_of("attention"), [few, longer], starts=1)[0],
    )
    np.testing.assert_allclose(alone.z, padded.z, atol=1e-3)


def test_shipped_fits_predict_the_table_they_were_fitted_to():
    entry = shipped("matmul", "H100-80GB", "bf16")
    rows = problem_of(group("matmul", "H100-80GB", "bf16"))
    assert np.median(np.abs(np.expm1(log_ratios([entry], [rows])[0]))) < 0.07
    with pytest.raises(InputError, match="no fit of matmul for TPU-v4"):
        shipped("matmul", "TPU-v4", "bf16")


def test_priors_are_coefficients_of_the_step_model():
    for chip in sorted({entry["chip"] for entry in fits()}):
        found = priors(chip)
        assert set(found) <= set(SPECS)
        for name, prior in found.items():
            # four L40S of one host reach a sixth of what two do: of another host that says nearly
            # nothing
            widest = 4.0 if (chip, name) == ("L40S", "net_efficiency_inner") else 1.5
            # what power leaves was measured beside idle time, and is carried over from no single
            # call
            least = 0.1 if name == "power_demand" else 0.2
            assert np.isfinite(prior.mean) and least < prior.sd < widest, (chip, name)
            assert (
                SPECS[name].bound == "positive"
                or prior.mean <= np.log(LARGE_SHARE / (1 - LARGE_SHARE)) + 1e-9
            )
    assert priors("TPU-v4") == priors("V100-32GB") == {}
    # what power leaves of the clock is known of chips that run products faster for 10 ms than for
    # longer
    assert priors("GB200")["power_demand"].mean > priors("A100-40GB")["power_demand"].mean > 0.0
    assert priors("h100") == priors("H100-80GB")


def test_chips_of_one_processor_share_what_products_and_attention_say():
    """Links are each one's own."""
    mine, other = priors("A100-40GB"), priors("A100-80GB")
    assert (
        mine
        == {name: prior for name, prior in other.items() if not name.startswith("net_")}
        != other
    )
    assert priors("H800")["matmul_half_inner"] == priors("H100-80GB")["matmul_half_inner"]


def test_products_of_experts_keep_what_was_measured_of_them_where_it_was():
    means = {
        chip: priors(chip).get("grouped_efficiency")
        for chip in ("H100-80GB", "H200-141GB", "H800", "A100-80GB", "B200", "TPU-v5p")
    }
    for chip in ("H100-80GB", "H200-141GB", "H800"):
        assert 1.0 / (1.0 + np.exp(-means.pop(chip).mean)) == pytest.approx(0.93)
    assert set(means.values()) == {None}


def test_priors_say_what_the_tables_show():
    def value(chip, name):
        mean = priors(chip)[name].mean
        return 1.0 / (1.0 + np.exp(-mean)) if SPECS[name].bound == "share" else np.exp(mean)

    # an A100 comes nearer to its peak than a B200, and fp8 costs little beside its casts
    assert value("A100-80GB", "matmul_efficiency") > value("B200", "matmul_efficiency") + 0.05
    assert value("H100-80GB", "low_precision_efficiency") > 0.9
    assert 0.6 < value("H100-80GB", "net_efficiency_inner") < 0.85
    # half as many bits again: peaks promise three times the rate of 8 bits on GB300 and twice on
    # GB200, products keep less of the more
    assert value("GB300", "four_bit_efficiency") < value("GB200", "four_bit_efficiency") - 0.1
    assert "four_bit_efficiency" not in priors("H100-80GB")
