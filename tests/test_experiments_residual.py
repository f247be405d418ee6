"""Learned corrections: what they do to residuals that are known, and the study of them in its quick
mode."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments.residual_methods import LIMIT, SPREAD, Known, Points, kernel, kriging, mlp

ROOT = Path(__file__).parents[1]


def scattered(rows, seed, chip="A"):
    place = np.random.default_rng(seed).normal(size=(rows, 3))
    return Points(place, place, np.full((rows, 3), chip), np.arange(rows).astype(str))


def test_kriging_repeats_what_it_knows_and_forgets_with_distance():
    known = Known(scattered(12, 0), np.full(12, 0.2), np.ones(12))
    near, far = known.points, scattered(12, 0)._replace(place=known.points.place + 100.0)
    assert 0.15 < kriging(known, near, 0).mean() < 0.2
    np.testing.assert_allclose(kriging(known, far, 0), 0.0, atol=1e-12)
    # the variance of one row, and a tenth off for each of chip, stack and precision
    np.testing.assert_allclose(np.diag(kernel(near, near)), SPREAD**2, rtol=1e-6)
    np.testing.assert_allclose(
        np.diag(kernel(near, scattered(12, 0, "B"))), 0.9**3 * SPREAD**2, rtol=1e-6
    )


def test_kriging_leaves_out_rows_without_weight():
    rows = scattered(12, 0)
    weight = (np.arange(12) > 3).astype(float)
    half = Known(Points(*(part[4:] for part in rows)), np.full(8, 0.2), np.ones(8))
    np.testing.assert_allclose(
        kriging(Known(rows, np.where(weight > 0.0, 0.2, -0.3), weight), rows, 0),
        kriging(half, rows, 0),
        atol=1e-12,
    )


def test_network_learns_what_is_there_and_nothing_from_noise():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        rows, asked = scattered(60, 1), scattered(60, 2)
        truth = lambda p: 0.15 * np.tanh(p.features[:, 0])  # noqa: E731
        found = mlp(Known(rows, truth(rows), np.ones(60)), asked, 0)
        assert np.abs(found).max() <= LIMIT
        assert np.abs(found - truth(asked)).mean() < 0.3 * np.abs(truth(asked)).mean()
        noise = mlp(
            Known(rows, np.random.default_rng(3).normal(0.0, 0.1, 60), np.ones(60)), asked, 0
        )
        assert np.abs(noise).mean() < 0.03


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    out = tmp_path_factory.mktemp("residual")
    command = [sys.executable, "-m", "experiments.residual", "--quick", "--json", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return out, json.loads(done.stdout), done.stderr


@pytest.mark.slow
def test_study(document):
    out, found, said = document
    lines = {line["protocol"]: line for line in found["rows"]}
    few, none = lines["few-shot 12 vtrain-multi"], lines["no rows, other stack: vtrain-multi"]
    assert (few["known"], few["judged"], none["judged"]) == (12, 24, 36) and none["known"] > 300
    for line in (few, none):
        pairs = {
            name: line[f"{name}_median"] * line[f"{name}_mean"]
            for name in ("none", "mlp", "kriging")
        }
        assert line["winner"] == min(pairs, key=pairs.__getitem__)
    assert lines["few-shot 12: geometric mean of 1"]["mlp_mean"] == pytest.approx(few["mlp_mean"])
    assert said.count("worth shipping, by the rule") == 2
    assert (out / "residual.png").stat().st_size > 10_000 and (out / "residual.csv").exists()
