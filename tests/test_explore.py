"""Programs of the page say what JAX says."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dmodel.explore.javascript import javascript
from dmodel.explore.limits import limits, sweep
from dmodel.explore.programs import SLOPED, paths, program, sizes, sloped
from dmodel.explore.scalars import Scalars
from dmodel.footprint import SPREAD
from dmodel.left_blank import never_recompute
from dmodel.operations import OPERATIONS, Unknown
from dmodel.profiles import load
from dmodel.question import Question
from dmodel.recording import recorded
from dmodel.records.case import Case
from dmodel.resolve import resolve
from tests.javascript import needs_node, outputs

MANY = 200
"""Settings of a quick test."""

VECTORS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "max": lambda a, b: jnp.maximum(a, b),
    "min": lambda a, b: jnp.minimum(a, b),
    "rem": lambda a, b: jax.lax.rem(a, b),
    "pow": lambda a, b: jnp.abs(a) ** b,
    "neg": lambda a, b: -a,
    "abs": lambda a, b: jnp.abs(a),
    "sign": lambda a, b: jnp.sign(a),
    "sqrt": lambda a, b: jnp.sqrt(jnp.abs(a)),
    "rsqrt": lambda a, b: jax.lax.rsqrt(jnp.abs(a)),
    "square": lambda a, b: jnp.square(a),
    "exp": lambda a, b: jnp.exp(a),
    "expm1": lambda a, b: jnp.expm1(a),
    "log": lambda a, b: jnp.log(jnp.abs(a)),
    "log1p": lambda a, b: jnp.log1p(jnp.abs(a)),
    "tanh": lambda a, b: jnp.tanh(a),
    "logistic": lambda a, b: jax.nn.sigmoid(a),
    "floor": lambda a, b: jnp.floor(a),
    "ceil": lambda a, b: jnp.ceil(a),
    "round": lambda a, b: jnp.round(a),
    "eq": lambda a, b: jnp.where(jnp.round(a) == jnp.round(b), 1.0, 0.0),
    "ne": lambda a, b: jnp.where(jnp.round(a) != jnp.round(b), 1.0, 0.0),
    "lt": lambda a, b: jnp.where(a < b, 1.0, 0.0),
    "le": lambda a, b: jnp.where(a <= b, 1.0, 0.0),
    "gt": lambda a, b: (a > b).astype(float),
    "ge": lambda a, b: (a >= b).astype(float),
    "and": lambda a, b: ((a > 0.0) & (b > 0.0)).astype(float),
    "or": lambda a, b: ((a > 0.0) | (b > 0.0)).astype(float),
    "not": lambda a, b: (~(a > 0.0)).astype(float),
    "clamp": lambda a, b: jax.lax.clamp(-1.0, a, 1.0),
    "erf": lambda a, b: jax.scipy.special.erf(a),
    "erfc": lambda a, b: jax.scipy.special.erfc(a),
    "integer_pow": lambda a, b: a**2 + a**3 + a**-1 + a**5,
    "broadcast_in_dim": lambda a, b: jnp.broadcast_to(a, (2, a.size)) * b[:2, None],
    "reshape": lambda a, b: a.reshape(2, -1) * b[:2, None],
    "transpose": lambda a, b: a.reshape(2, -1).T @ jnp.ones(2),
    "rev": lambda a, b: jnp.flip(a) + b,
    "slice": lambda a, b: a[1:5:2] * b[2:4],
    "concatenate": lambda a, b: jnp.concatenate([a, b]),
    "split": lambda a, b: jnp.concatenate(jnp.split(a, 2)[::-1]),
    "pad": lambda a, b: jnp.pad(a, (2, 1)) + b[0],
    "stack": lambda a, b: jnp.stack([a, b], 1).ravel(),
    "reduce_sum": lambda a, b: (a * b).reshape(2, -1).sum(1),
    "reduce_prod": lambda a, b: a.reshape(2, -1).prod(0),
    "reduce_max": lambda a, b: a.reshape(2, -1).max(1),
    "reduce_min": lambda a, b: a.reshape(2, -1).min(0),
    "cumsum": lambda a, b: jnp.cumsum(a) + jnp.flip(jnp.cumsum(jnp.flip(b))),
    "dot_general": lambda a, b: a.reshape(2, 4) @ b.reshape(4, 2),
}
"""A function of two vectors of eight numbers for each operation."""


@needs_node
def test_every_operation_is_that_of_jax(tmp_path):
    a = np.array([0.3, -1.7, 2.5, -0.5, 0.9, 1.5, -3.1, 7.0])
    b = np.array([-2.2, 0.4, 1.0, 3.5, -0.5, 2.5, 0.7, -4.0])
    every = lambda a, b: {name: function(a, b) for name, function in VECTORS.items()}  # noqa: E731
    made = program(every, a, b, names={"a": a, "b": b})
    found = outputs(made.text, np.concatenate([a, b])[None], len(made.outputs), tmp_path)[0]
    want = jax.tree.leaves(jax.jit(every)(a, b))
    np.testing.assert_allclose(found, np.concatenate([np.ravel(x) for x in want]), 1e-12, 1e-15)
    left = set(OPERATIONS) - set(VECTORS)
    assert left <= {"add_any", "select_n", "convert_element_type", "squeeze", "iota", "unstack"}


@needs_node
@pytest.mark.parametrize("name", ["erf", "erfc", "logistic", "expm1", "log1p", "tanh"])
def test_special_functions_keep_their_digits(name, tmp_path):
    x = np.concatenate([np.linspace(-6.0, 6.0, 1201), np.logspace(-12, 1.3, 200)])[:, None]
    one = lambda a: {"y": VECTORS[name](a, a)}  # noqa: E731
    made = program(one, np.float64(1.0), names={"a": 1.0})
    found = outputs(made.text, x, 1, tmp_path)
    np.testing.assert_allclose(found, jax.jit(one)(x)["y"], 2e-12, 1e-300)


def test_an_unknown_operation_is_named():
    with pytest.raises(Unknown, match="lgamma"):
        program(lambda x: {"y": jax.lax.lgamma(x)}, np.float64(2.0), names={"x": 1.0})


def case_of(question: Question) -> Case:
    found, profile = resolve(question, never_recompute), load("generic")
    return Case(
        cluster=found.cluster,
        model=found.model.replace(order=()),
        plan=found.plan,
        coefficients=profile.coefficients_for(question.text("accelerator"), question.text("stack")),
        footprint=profile.footprint_for(question.text("stack")).footprint,
    )


CASES = {
    "dense": {"model": "llama-3-70b", "dp": 32, "tp": 8, "pp": 2, "n_accel": 512},
    "experts": {"model": "mixtral-8x7b", "dp": 64, "tp": 2, "pp": 4, "ep": 8, "n_accel": 512},
    "latent": {"model": "deepseek-v3", "dp": 128, "pp": 16, "ep": 8, "n_accel": 2048},
    "delta": {"model": "qwen-3-next-80b-a3b", "dp": 64, "ep": 8, "n_accel": 64},
    "mamba": {"model": "nemotron-h-8b", "dp": 16, "tp": 4, "n_accel": 64},
}
"""Models of unlike structures."""

COMMON = {"accelerator": "H100-80GB", "global_batch": 2048, "precision": "fp8"}


def moved(case: Case, many: int, seed: int) -> np.ndarray:
    """Inputs of settings at random about a case, `[setting, input]`: sizes by a third, choices
    between their values."""
    rng = np.random.default_rng(seed)
    here = np.concatenate([np.ravel(x) for x in jax.tree.leaves((case, SPREAD))]).astype(float)
    is_size = np.array([name in {*sizes(case)} for name in paths(case)] + [False])
    factor = np.exp(np.where(is_size, rng.normal(0.0, 0.3, (many, len(here))), 0.0))
    found = here * factor
    share = np.array([_is_share(name) for name in paths(case)] + [False])
    return np.where(share, np.minimum(found, 1.0), found)


def _is_share(path: str) -> bool:
    names = "recompute_ wide_layers overlap_ hidden shares head_balance kept last_stage copies"
    return any(name in path for name in names.split())


def worst(
    names: Sequence[str], found: np.ndarray, want: np.ndarray, scale: np.ndarray, most: float
) -> None:
    """Differences are small relative to what is wanted, or to a scale where that is larger."""
    known = np.isfinite(want)
    assert (np.isfinite(found) == known).all()
    gap = np.abs(np.where(known, found, 0.0) - np.where(known, want, 0.0))
    whole = np.maximum(np.maximum(np.where(known, np.abs(want), 1.0), scale), 1e-300)
    each = (gap / whole).max(0)
    assert each.max() < most, [(n, float(e)) for n, e in zip(names, each, strict=True) if e >= most]


def _scale_of(name: str, scales: dict[str, np.ndarray], many: int) -> np.ndarray:
    return scales.get(name, scales.get(name.partition(".")[0], np.zeros(many)))


def check(case: Case, many: int, seed: int, folder: Path) -> None:
    made = program(sloped, case, SPREAD, names={"case": case, "spread": SPREAD}, first="value")
    x = moved(case, many, seed)
    leaves, tree = jax.tree.flatten((case, SPREAD))
    ends = np.cumsum([prod(np.shape(leaf)) for leaf in leaves])[:-1]
    columns = np.split(x, ends, 1)
    shaped = [c.reshape(-1, *np.shape(leaf)) for c, leaf in zip(columns, leaves, strict=True)]
    want = jax.jit(jax.vmap(sloped))(*jax.tree.unflatten(tree, shaped))
    values = np.stack(jax.tree.leaves(want["value"]), 1)
    slopes = np.stack(jax.tree.leaves(want["slopes"]), 1)
    found = outputs(made.text, x, len(made.outputs), folder)
    short = outputs(made.text, x, made.first, folder, entry=0)
    np.testing.assert_array_equal(short, found[:, : made.first])
    # terms that cancel are judged by the step, slopes by what a change of all of a size would do
    totals = np.stack([want["value"]["outputs"][of] for of in ("step_time_s", "memory_bytes")], 1)
    time, memory = (1e-3 * totals[:, i] for i in (0, 1))
    scales = {"time": time, "outputs.headroom_bytes": memory, "memory": memory}
    each = [_scale_of(n, scales, many) for n in made.outputs[: made.first]]
    scale = np.stack(each, 1)
    valid = (totals > 0.0).all(1) & np.isfinite(totals).all(1)
    assert valid.mean() > 0.9
    names, n = made.outputs, made.first
    worst(names[:n], found[valid, :n], values[valid], scale[valid], 1e-12)
    place = [made.inputs.index("case." + each.partition(".")[2]) for each in names[n:]]
    of = [SLOPED.index(each.partition(".")[0]) for each in names[n:]]
    each = 1e-3 * totals[:, of] / np.maximum(np.abs(x[:, place]), 1e-9)
    worst(names[n:], found[valid, n:], slopes[valid], each[valid], 1e-10)


@needs_node
@pytest.mark.parametrize("kind", ["dense"])
def test_values_and_slopes_are_those_of_jax(kind, tmp_path):
    check(case_of(Question(COMMON | CASES[kind])), MANY, 1, tmp_path)


@needs_node
@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_many_values_and_slopes_are_those_of_jax(kind, tmp_path):
    check(case_of(Question(COMMON | CASES[kind])), 2000, 2, tmp_path)


def test_constants_are_computed_and_repeats_shared():
    with jax.enable_x64(True):
        record = recorded(lambda x: {"y": (x * 2.0) * 3.0 + (x * 2.0)}, np.float64(1.0))
    made = Scalars(record, [()])
    assert [n.name for n in made.graph.nodes].count("mul") == 2
    assert "const A=x[0]*2;y[0]=(A*3)+A;}" in javascript(made)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [("H100 SXM", "dense"), ("A100 SXM", "sparse")])
def test_limits_are_those_of_the_study_as_of_now(name, kind):
    assert limits()["gpus"][name][kind] == sweep(name, kind == "sparse")
