"""Monte Carlo over coefficients, plans and jobs: against loops and numpy, and the same bits by
every executor."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest
from typer.testing import CliRunner

import dmodel
from dmodel.asked import ask
from dmodel.cli import app
from dmodel.coefficients import from_unconstrained
from dmodel.design.judge import evaluate_draws
from dmodel.design.rows import all_rows
from dmodel.errors import InputError
from dmodel.montecarlo import histogram as bins
from dmodel.montecarlo import listed, of_space, sweep_of, swept
from dmodel.montecarlo import moments as means
from dmodel.montecarlo.cut import blocks
from dmodel.montecarlo.draws import GROUP, drawn, factor
from dmodel.montecarlo.evaluated import by_numpy, compiled
from dmodel.montecarlo.table import flat, front, joined, table_of, thinned, whole
from dmodel.parts import Folder, opened
from dmodel.question import Question
from dmodel.settings import changed
from dmodel.types import enable_float64
from dmodel.uncertainty import covariance

JOB = "--system H100-DGX --devices 4 --model llama-3-8b --seq-len 4096 --global-batch 8"
ARGS = [*JOB.split(), "--stack", "torchtitan"]
DRAWS, SEED = 40, 3
RUN = CliRunner()


@pytest.fixture(scope="module")
def asked():
    enable_float64()
    words = {"n_accel": 8, "model": "llama-3-8b", "seq_len": 4096, "global_batch": 8}
    return ask(changed(Question({}, system="H100-DGX"), {**words, "stack": "torchtitan"}))


@pytest.fixture(scope="module")
def space(asked):
    return of_space(asked)


@pytest.fixture(scope="module")
def usual(asked, space):
    return swept([sweep_of(asked, space, DRAWS, seed=SEED, pairs=20_000)])[0]


@pytest.fixture(scope="module")
def table(asked, space):
    """Step times `[draw, plan]` and memory `[plan]` of all plans, by what searches judge by."""
    sigma = np.asarray(covariance(asked.profile, asked.accelerator, asked.stack))
    mean = asked.profile.unconstrained(asked.accelerator, asked.stack)
    draws = from_unconstrained(drawn(mean, sigma, SEED, 0, DRAWS))
    found = evaluate_draws(space.problem, all_rows(space.problem.space), draws)
    return np.asarray(found.step_time_s), np.asarray(found.memory_bytes)[0]


def fitting(usual, table):
    return np.flatnonzero(table[1] <= usual.sweep.memory)


def test_counts_and_means_are_those_of_all_plans_one_by_one(usual, table, space):
    fits = fitting(usual, table)
    times = table[0][:, fits].T
    assert (usual.considered, usual.fits) == (space.count, len(fits))
    assert usual.evaluations == times.size
    np.testing.assert_allclose(usual.mean, times.mean(), rtol=1e-12)
    np.testing.assert_allclose(usual.deviation, times.std(ddof=1), rtol=1e-10)
    order = np.argsort(times.mean(1), kind="stable")[: len(usual.best)]
    np.testing.assert_allclose([p.mean for p in usual.best], times.mean(1)[order], rtol=1e-12)
    np.testing.assert_allclose(
        [p.deviation for p in usual.best],
        [times[list(fits).index(p.number)].std(ddof=1) for p in usual.best],
        rtol=1e-9,
    )


def test_chances_of_being_best_are_counted_over_all_draws(usual, table):
    fits = fitting(usual, table)
    winner = fits[table[0][:, fits].argmin(1)]
    assert {p.number: p.best for p in usual.often} == {
        int(n): float((winner == n).mean()) for n in np.unique(winner)
    }
    assert sum(p.best for p in usual.often) == pytest.approx(1.0)


def test_the_front_is_that_of_mean_and_memory(usual, table):
    fits = fitting(usual, table)
    mean, memory = table[0][:, fits].mean(0), table[1][fits]
    for p in usual.front:
        beats = (mean <= p.mean * (1 - 1e-12)) & (memory <= p.memory_bytes)
        assert not beats.any()
    best = min(zip(memory, mean, strict=True))
    assert usual.front[-1].memory_bytes == best[0]


def test_quantiles_are_within_what_is_said(usual, table):
    fits = fitting(usual, table)
    times = table[0][:, fits]
    exact = np.quantile(times, (0.05, 0.5, 0.95), method="inverted_cdf")
    np.testing.assert_allclose(usual.quantiles, exact, rtol=bins.ERROR * 1.0001)


@pytest.mark.parametrize("pairs", [3_000, 1_000_000])
def test_the_answer_is_the_same_whatever_the_blocks(asked, space, usual, pairs):
    other = swept([sweep_of(asked, space, DRAWS, seed=SEED, pairs=pairs)])[0]
    assert [p.number for p in other.best] == [p.number for p in usual.best]
    assert [p.quantiles for p in other.often] == [p.quantiles for p in usual.often]
    np.testing.assert_allclose(other.mean, usual.mean, rtol=1e-13)


def same(one, other):
    """Whether two answers have the same bits."""
    return repr(one._replace(sweep=None)) == repr(other._replace(sweep=None))


def test_processes_give_the_same_bits_and_find_what_is_kept(asked, space, usual, tmp_path):
    sweep = sweep_of(asked, space, DRAWS, seed=SEED, pairs=20_000)
    folder, states = Folder(tmp_path, print), []
    with opened(2) as executor:
        assert same(swept([sweep], executor=executor, folder=folder)[0], usual)
    again = swept([sweep], folder=folder, progress=states.append)[0]
    assert same(again, usual) and states[-1].computed == 0
    with ThreadPoolExecutor(1) as executor:
        assert same(swept([sweep], executor=executor)[0], usual)


def test_ranges_of_draws_are_joined(asked, space, usual, monkeypatch):
    """Draws beyond one block: the first ones stay the first."""
    monkeypatch.setattr("dmodel.montecarlo.cut.MOST_DRAWS", GROUP)
    sweep = sweep_of(asked, listed(asked, [{"tp": 8}, {"tp": 4}, {"tp": 2}]), 2 * GROUP + 5)
    assert len(list(blocks(sweep))) == 3
    found = swept([sweep])[0]
    assert found.evaluations == 3 * (2 * GROUP + 5) and found.considered == 3
    monkeypatch.setattr("dmodel.montecarlo.cut.MOST_DRAWS", 4 * GROUP)
    at_once = swept([sweep])[0]
    assert [p.quantiles for p in found.best] == [p.quantiles for p in at_once.best]
    assert [p.best for p in found.best] == [p.best for p in at_once.best]
    np.testing.assert_allclose(
        [p.mean for p in found.best], [p.mean for p in at_once.best], rtol=1e-13
    )


def test_a_listed_plan_is_the_one_that_is_predicted(asked):
    """At the mean of the coefficients, for layouts with other schedules and degrees."""
    words = [
        {"tp": 8, "micro_batch": 2},
        {"tp": 2, "pp": 2, "interleave": 4},
        {"tp": 1, "zero": 3},
        {"tp": 2, "cp": 2, "zero": 1},
        {"pp": 4, "schedule": "gpipe"},
        {"pp": 4, "schedule": "zero-bubble"},
    ]
    job = dmodel.Job("llama-3-8b", 4096, 8)
    site = dmodel.cluster("H100-DGX", 8)
    found = dmodel.monte_carlo(job, site, words, draws=2, stack="torchtitan", risk=0.5)
    for p in found.best:
        one = dmodel.predict(job, site, stack="torchtitan", overrides=words[p.number])
        np.testing.assert_allclose(p.center, one.step_time_s, rtol=1e-9)
        np.testing.assert_allclose(
            p.memory_bytes, one.document["memory_bytes_per_device"], rtol=1e-9
        )
    assert len(found.best) >= 4


def test_draws_have_the_mean_and_the_covariance(asked):
    sigma = np.asarray(covariance(asked.profile, asked.accelerator, asked.stack))
    found = factor(sigma)
    np.testing.assert_allclose(found @ found.T, sigma, atol=1e-9 * sigma.max())
    many = drawn(np.zeros(len(sigma)), sigma, 0, 0, 20 * GROUP)
    wide = np.sqrt(np.diag(sigma))
    np.testing.assert_allclose(
        np.cov(many) / np.outer(wide, wide), sigma / np.outer(wide, wide), atol=0.05
    )
    np.testing.assert_array_equal(
        many[:, GROUP : GROUP + 7], drawn(np.zeros(len(sigma)), sigma, 0, GROUP, GROUP + 7)
    )


def test_directions_without_variance_do_not_move():
    sigma = np.diag([0.0, 4.0, 0.0])
    found = drawn(np.array([1.0, 2.0, 3.0]), sigma, 0, 0, 50)
    assert (found[0] == 1.0).all() and (found[2] == 3.0).all() and found[1].std() > 1.0


@pytest.mark.parametrize("cut", [1, 7, 40])
def test_moments_merge_to_those_of_all(cut):
    values = np.random.default_rng(0).lognormal(size=(3, 41)) + 1e6
    found = means.merged(means.moments(values[:, :cut]), means.moments(values[:, cut:]))
    np.testing.assert_allclose(found.mean, values.mean(1), rtol=1e-15)
    np.testing.assert_allclose(found.deviation, values.std(1, ddof=1), rtol=1e-7)


def test_nothing_merged_with_something_is_that():
    some = means.moments(np.ones((1, 4)))
    nothing = means.Moments(*(np.zeros(1) for _ in range(3)))
    assert means.merged(nothing, some) == some and means.merged(nothing, nothing) == nothing


@pytest.mark.parametrize("level", [0.0, 0.01, 0.5, 0.99, 1.0])
def test_quantiles_of_histograms_are_near_the_exact_ones(level):
    values = np.random.default_rng(1).lognormal(sigma=3.0, size=(1, 5001))
    found = bins.merged(bins.histogram(values[:, :900]), bins.histogram(values[:, 900:]))
    at_once = bins.histogram(values)
    for one, other in zip(found, at_once, strict=True):
        np.testing.assert_array_equal(one, other)
    exact = np.quantile(values, level, method="inverted_cdf")
    assert abs(bins.quantile(found, level) / exact - 1.0) <= bins.ERROR * 1.0001


def test_a_table_is_the_same_from_its_arrays():
    draw = np.random.default_rng(0)
    n, d = 30, 12
    times, memory = draw.lognormal(size=(n, d)), draw.choice([1.0, 2.0, 3.0], n)
    known = np.arange(n), np.zeros((n, 1)), memory, times.mean(1), np.arange(d)
    table = table_of(times, *known)
    again = whole(flat(table))
    assert repr(again) == repr(table)
    kept = thinned(table, d, 4).leaders.plan
    mean = times.mean(1)
    expected = {*np.argsort(mean)[:4], *front(mean, memory), *times.argmin(0)}
    assert set(kept) == expected


def test_thinned_parts_merge_to_the_thinned_whole():
    draw = np.random.default_rng(2)
    n, d = 40, 9
    times, memory = draw.lognormal(size=(n, d)), draw.lognormal(size=n)

    def some(at, of):
        row = np.zeros((len(at), 1))
        cells = times[np.ix_(at, of)]
        return table_of(cells, at, row, memory[at], times[at].mean(1), np.asarray(of))

    every = list(range(d))
    at_once = thinned(some(np.arange(n), every), d, 3)
    merged = None
    for first in range(0, n, 8):
        for of in (every[:4], every[4:]):
            part = thinned(some(np.arange(first, first + 8), of), d, 3)
            merged = part if merged is None else joined(merged, part)
            merged = thinned(merged, d, 3)
    assert merged is not None
    np.testing.assert_array_equal(merged.leaders.plan, at_once.leaders.plan)
    np.testing.assert_array_equal(merged.winner, at_once.winner)
    np.testing.assert_allclose(merged.leaders.moments.mean, at_once.leaders.moments.mean)


@pytest.mark.slow
def test_a_compiled_program_gives_what_numpy_gives(asked, space):
    block = next(iter(blocks(sweep_of(asked, space, 4, pairs=64))))
    shared, plans = block.arguments["shared"], block.arguments["plans"]
    leaves = {n: np.broadcast_to(x, 16) for n, x in plans.items()}
    draws = np.stack([np.asarray(x) for x in _columns(block.arguments)])
    pairs = np.stack([np.repeat(np.arange(16), 4), np.tile(np.arange(4), 16)])
    for one, other in zip(
        by_numpy(shared, leaves, draws, pairs), compiled(shared, leaves, draws, pairs), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-11)


def _columns(arguments):
    from dmodel.coefficients import NAMES

    z = drawn(arguments["mean"], arguments["sigma"], 0, 0, 4)
    found = from_unconstrained(z)
    return [getattr(found, name) for name in NAMES]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"draws": 0}, "draws"),
        ({"draws": 10**15}, "evaluations"),
        ({"draws": 4, "top": 0}, "top"),
        ({"draws": 4, "risk": 0.7}, "max_risk"),
    ],
)
def test_numbers_that_are_none_are_refused(asked, space, how, said):
    with pytest.raises(InputError, match=said):
        sweep_of(asked, space, **how)


def shell(*words):
    found = RUN.invoke(app, ["sweep", *ARGS, *words])
    return found.exit_code, found.stdout, found.stderr


def document(*words):
    code, out, err = shell(*words, "--json")
    assert code == 0, err
    return json.loads(out)


def test_the_command_says_what_python_says(tmp_path):
    plans = tmp_path / "plans.csv"
    plans.write_text("tp,zero\n4,1\n2,1\n1,3\n")
    found = document("--plans", str(plans), "--draws", "16", "--seed", "5")
    job = dmodel.Job("llama-3-8b", 4096, 8)
    words = [{"tp": 4, "zero": 1}, {"tp": 2, "zero": 1}, {"tp": 1, "zero": 3}]
    site = dmodel.cluster("H100-DGX", 4)
    same = dmodel.monte_carlo(job, site, words, draws=16, seed=5, stack="torchtitan")
    (told,) = found["jobs"]
    assert told["considered"] == 3 and told["fits"] == same.fits
    assert [p["number"] for p in told["best"]] == [p.number for p in same.best]
    assert [p["step_time_s"]["mean"] for p in told["best"]] == [p.mean for p in same.best]


def test_jobs_vary(tmp_path):
    plans = tmp_path / "plans.csv"
    plans.write_text("tp\n4\n2\n")
    base = ("--plans", str(plans), "--draws", "4")
    found = document(*base, "--vary", "global_batch=8,16", "--vary", "seq_len=2048,4096")
    assert [(j["global_batch"], j["seq_len"]) for j in found["jobs"]] == [
        (8, 2048),
        (8, 4096),
        (16, 2048),
        (16, 4096),
    ]
    assert found["jobs"][1]["best"] == document(*base)["jobs"][0]["best"]


def test_where_nothing_fits_the_answer_is_no(tmp_path):
    plans = tmp_path / "plans.csv"
    plans.write_text("tp,zero,micro_batch\n1,0,8\n")
    code, out, err = shell("--plans", str(plans), "--set", "n_accel=1", "--devices", "1", "--json")
    assert code == 1 and "fits" in err and json.loads(out)["jobs"][0]["best"] == []


class Wrong(NamedTuple):
    words: str
    says: str


@pytest.mark.parametrize(
    "wrong",
    [
        Wrong("--draws 0", "--draws"),
        Wrong("--workers 2 --cluster tcp://127.0.0.1:1", "--workers, --cluster"),
        Wrong("--workers 0", "--workers"),
        Wrong("--plans nowhere.csv", "nowhere.csv"),
        Wrong("--space some", "--space"),
        Wrong("--vary seq_len", "--vary"),
        Wrong("--vary seq_len=1,,2", "--vary seq_len"),
        Wrong("--vary seq_len=1,2 --set seq_len=3", "--vary seq_len"),
        Wrong("--max-risk 70%", "risk"),
    ],
    ids=lambda w: w.words,
)
def test_mistakes_are_told(wrong):
    code, out, err = shell(*wrong.words.split())
    assert code == 2 and out == "" and wrong.says in err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "heading"),
        ("tp,tp\n1,2\n", "heading"),
        ("tp\n", "a row for each plan"),
        ("tp,pp\n4\n", "line 2"),
        ("tp,pp\n3,1\n", "plan 1"),
        ("tensor\n4\n", "tensor"),
    ],
)
def test_files_of_plans_that_are_none_are_told(tmp_path, text, says):
    path = tmp_path / "plans.csv"
    path.write_text(text)
    code, out, err = shell("--plans", str(path))
    assert code == 2 and out == "" and says in err
