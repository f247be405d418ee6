"""Laws of the scaling study: its own figures, rounding and ties, exponents, and gradients of the
unrounded laws."""

from __future__ import annotations

import csv
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dmodel.theory import laws
from dmodel.theory.laws import BATCH_LAWS, STUDY, rounded

TABLE = Path(__file__).parent / "data" / "theory_scaling_laws.csv"


def columns() -> dict[str, np.ndarray]:
    with TABLE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


STUDIED = columns()
WIDTH, D_FF = STUDIED["d_model"], STUDIED["d_ff"]


def test_the_whole_table_is_there():
    assert len(WIDTH) == 75
    assert set(laws.WIDTHS) <= set(WIDTH)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_runs_are_those_of_the_study(kind):
    run = laws.run(WIDTH, sparse=kind == "sparse")
    found = {
        "d_ff": run.d_ff,
        "layers_rounded": run.layers,
        "n_params_dense" if kind == "dense" else "n_params_sparse_total": run.parameters,
        f"training_flop_{kind}": run.flop,
        f"batch_tokens_{kind}": run.batch_tokens,
    }
    if kind == "sparse":
        found["sparsity_rounded"] = run.experts
    for name, values in found.items():
        np.testing.assert_allclose(values, STUDIED[name], rtol=1e-15, err_msg=name)
    np.testing.assert_array_equal(run.dataset_tokens, 20 * run.parameters)


def test_batch_in_sequences():
    np.testing.assert_array_equal(
        laws.run(WIDTH).batch_tokens / STUDY.seq_len, STUDIED["batch_seqs_dense_2048"]
    )


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_batch_of_deepseek(kind):
    run = laws.run(WIDTH, sparse=kind == "sparse", laws=STUDY.replace(batch=BATCH_LAWS["deepseek"]))
    np.testing.assert_array_equal(run.batch_tokens, STUDIED[f"batch_tokens_deepseek_{kind}"])


def test_constant_batch():
    run = laws.run(WIDTH, laws=STUDY.replace(batch=BATCH_LAWS["none"]))
    assert set(np.unique(run.batch_tokens)) == {2.0**22}


def test_laws_before_rounding():
    np.testing.assert_allclose(
        laws.layers(WIDTH, D_FF, rounding=False), STUDIED["layers_unrounded"], rtol=1e-13
    )
    np.testing.assert_allclose(
        laws.sparsity(WIDTH, D_FF, rounding=False), STUDIED["sparsity_unrounded"], rtol=1e-13
    )
    for kind in ("dense", "sparse"):
        run = laws.run(WIDTH, sparse=kind == "sparse")
        tokens = laws.batch_tokens(run.flop, run.experts, rounding=False)
        np.testing.assert_allclose(tokens, STUDIED[f"batch_tokens_unrounded_{kind}"], rtol=1e-13)


def test_rounding():
    x = np.array(
        [
            0.0,
            0.3,
            1.0,
            1.5,
            1.51,
            2.5,
            3.5,
            5.5,
            9.5,
            11.0,
            13.0,
            13.01,
            15.0,
            17.0,
            2.0**40 * 11.0,
        ]
    )
    np.testing.assert_array_equal(
        rounded(x), [1, 1, 1, 1, 2, 2, 3, 5, 9, 10, 12, 14, 14, 16, 2.0**40 * 10]
    )
    np.testing.assert_array_equal(rounded(laws.GOOD_NUMBERS), laws.GOOD_NUMBERS)


def test_exponents_against_compute():
    """The ones the study states for sparse and dense models."""
    width = jnp.array([2e4, 4e4])
    for sparse, expected in ((False, (0.1364, 0.1818, 0.5)), (True, (0.1154, 0.1538, 0.5769))):
        run = laws.run(width, sparse=sparse, rounding=False)
        flop = np.diff(np.log(run.flop))
        found = [
            float((np.diff(np.log(x)) / flop)[0]) for x in (run.layers, run.d_model, run.parameters)
        ]
        np.testing.assert_allclose(found, expected, atol=1.5e-4)


@pytest.mark.parametrize("sparse", [False, True])
def test_unrounded_laws_are_differentiable(sparse):
    """By reverse mode against the exponents: d ln(tokens) / d ln(width), and by the laws' own
    constants."""

    def log_tokens(log_width, given):
        return jnp.log(
            laws.run(jnp.exp(log_width), sparse=sparse, laws=given, rounding=False).batch_tokens
        )

    given = jax.tree.map(jnp.asarray, STUDY)
    by_width, by_laws = jax.grad(log_tokens, (0, 1))(jnp.log(3e4), given)
    depth = 2 * 0.3751  # L ~ width^depth
    by_flop = 2 * (2 + depth) + (1.0 if sparse else 0.0)  # C ~ P^2 / S, P ~ width^2 L S
    assert float(by_width) == pytest.approx(by_flop / 6 + (0.5 if sparse else 0.0), rel=1e-12)
    assert float(by_laws.depth * given.depth) == pytest.approx(2 / 6, rel=1e-12)
    assert float(by_laws.batch.tokens * given.batch.tokens) == pytest.approx(1.0, rel=1e-12)
    assert all(np.isfinite(x) for x in jax.tree.leaves(by_laws))


def test_thirty_one_widths_reach_the_end_of_the_sweep():
    """12288 to 196608, where the study's dense sweep ends."""
    assert WIDTH[0] < laws.WIDTHS[0] == 12288 and laws.WIDTHS[-1] == 12288 * 128
    assert len([w for w in laws.WIDTHS if w <= 196608]) == 31
