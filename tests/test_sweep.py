"""The driver of sweeps: the same numbers whatever the chunks, threads and padding; one compilation;
gradients of what is asked, cheaply."""

import importlib
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dmodel import coefficients
from dmodel.catalog.shapes import decoder
from dmodel.records import Chip, Cluster, Network, Plan, leaf
from dmodel.step import memory_use, step_time
from tests.points import quick

# the package gives the function of that name
sweep = importlib.import_module("dmodel.sweep")

SYSTEM = Cluster(
    chip=Chip(
        flops_per_s=9.9e14,
        attention_flops_per_s=9.9e14,
        exponentials_per_s=3.9e12,
        hbm_bytes=8.0e10,
        hbm_bytes_per_s=3.3e12,
        kernel_latency_s=4e-6,
        idle_watts=100.0,
        peak_watts=700.0,
        price_per_s=1e-3,
    ),
    network=Network(
        size=np.array([8.0, np.inf]),
        bytes_per_s=np.array([4.5e11, 5e10]),
        latency_s=np.array([1e-6, 5e-6]),
        torus_axes=np.array([1.0, 1.0]),
        in_network_reduction=np.array([0.0, 0.0]),
    ),
)
MODEL = decoder(
    n_layers=32.0,
    d_model=4096.0,
    d_ff=14336.0,
    gated_mlp=1.0,
    n_heads=32.0,
    n_kv_heads=8.0,
    head_dim=128.0,
    vocab=128256.0,
    seq_len=8192.0,
)
FIXED = {"system": SYSTEM, "model": MODEL, "coefficients": coefficients.default()}
DEGREES = ("dp", "tp", "pp", "micro_batch", "recompute_layers")
STEP, MEMORY = quick(step_time), quick(memory_use)


def plans(n, seed=0):
    draw = np.random.default_rng(seed)
    return Plan.of(
        dp=draw.choice([2.0, 8.0, 32.0], n),
        tp=draw.choice([1.0, 2.0, 8.0], n),
        pp=draw.choice([1.0, 4.0], n),
        zero=draw.choice([0.0, 1.0, 3.0], n),
        shard=2.0,
        micro_batch=draw.choice([1.0, 2.0], n),
        global_batch=256.0,
        recompute_layers=draw.random(n),
        recompute_attention=0.0,
    )


def polynomial(batch, fixed):
    """Cheap, with outputs of several shapes: a scalar, one per case, and one with an axis in
    front."""
    x, y = batch["x"], batch["y"]
    return {"constant": fixed * 2.0, "sum": x * x + y, "powers": jnp.stack([x, x * y])}


def curve(batch, fixed):
    """One number per case, with a slope by everything: `a x² y + Σ w y²`."""
    weights = fixed["w"].reshape(fixed["w"].shape[0], -1)
    return fixed["a"] * batch["x"] ** 2 * batch["y"] + (weights * batch["y"][None] ** 2).sum(0)


def pairs(n):
    draw = np.random.default_rng(n)
    return {"x": draw.normal(size=n), "y": draw.normal(size=n)}


def seconds(plan, fixed):
    return step_time(fixed["system"], fixed["model"], plan, fixed["coefficients"]).total


@pytest.mark.parametrize("n", [1, 7, 64, 65, 1000])
def test_padding_never_shows(n, monkeypatch):
    monkeypatch.setattr(sweep, "BLOCK", 128)
    batch = pairs(n)
    found = sweep.sweep(polynomial, batch, 3.0, chunk=64)
    assert {k: v.shape for k, v in found.items()} == {
        "constant": (n,),
        "sum": (n,),
        "powers": (2, n),
    }
    np.testing.assert_allclose(found["sum"], batch["x"] ** 2 + batch["y"], rtol=1e-15, atol=1e-15)
    np.testing.assert_allclose(found["powers"], [batch["x"], batch["x"] * batch["y"]], rtol=1e-15)
    np.testing.assert_array_equal(found["constant"], 6.0)


def test_an_empty_batch_gives_empty_answers():
    found = sweep.sweep(polynomial, pairs(0), 3.0, chunk=64)
    assert found["sum"].shape == (0,) and found["powers"].shape == (2, 0)


def test_plans_give_the_same_bits_whatever_the_threads_and_all_but_the_last_whatever_the_chunks(
    monkeypatch,
):
    """The compiler fuses products into sums otherwise for another chunk: a last bit of a term may
    differ."""
    monkeypatch.setattr(sweep, "BLOCK", 512)
    batch = plans(1300)
    found = [
        sweep.sweep(sweep.totals(), batch, FIXED, chunk=c, threads=t)
        for c, t in ((128, 1), (128, 3), (512, 2))
    ]
    for other, allowed in zip(found[1:], (0.0, 1e-15), strict=True):
        np.testing.assert_allclose(found[0].step_time_s, other.step_time_s, rtol=allowed)
        np.testing.assert_allclose(found[0].memory_bytes, other.memory_bytes, rtol=allowed)


def test_gradients_are_the_same_bits_whatever_the_threads(monkeypatch):
    monkeypatch.setattr(sweep, "BLOCK", 256)
    one, several = (
        sweep.gradients(curve, pairs(1000), {"a": 2.0, "w": np.ones(2)}, chunk=64, threads=t)
        for t in (1, 3)
    )
    np.testing.assert_array_equal(one[0], several[0])
    for name in ("x", "y"):
        np.testing.assert_array_equal(one[1][name], several[1][name])


def test_a_sweep_is_a_loop_over_plans():
    batch = plans(6)
    found = sweep.evaluate(batch, SYSTEM, MODEL, FIXED["coefficients"])
    for i in range(6):
        one = jax.tree.map(lambda x, i=i: float(x if np.ndim(x) == 0 else x[i]), batch)
        assert found.step_time_s[i] == pytest.approx(
            float(STEP(SYSTEM, MODEL, one, FIXED["coefficients"]).total), rel=1e-12
        )
        assert found.memory_bytes[i] == pytest.approx(float(MEMORY(MODEL, one).total), rel=1e-12)


@pytest.mark.parametrize("change", [1, 5000])
def test_another_size_does_not_compile_again(change):
    fixed = {"a": 2.0, "w": np.ones(2)}
    sweep.gradients(curve, pairs(300), fixed, wrt=("x",), chunk=32)
    before = len(sweep._COMPILED)
    sweep.gradients(curve, pairs(300 + change), fixed, wrt=("x",), chunk=32)
    assert len(sweep._COMPILED) == before
    sweep.gradients(curve, pairs(300), fixed, wrt=("x",), chunk=16 * change)
    assert len(sweep._COMPILED) == before + 1


def test_the_function_is_traced_once_for_all_sizes():
    traced = []

    def counted(batch, fixed):
        traced.append(batch.shape)
        return batch + fixed

    for n in (3, 40000, 17):
        sweep.sweep(counted, np.arange(n, dtype=float), 1.0)
    # a shape evaluation and the loop's body belong to one compilation
    assert 0 < len(traced) <= 3 and set(traced) == {(sweep.CHUNK,)}


def test_static_fields_compile_their_own_code():
    batch = plans(5)
    default = sweep.evaluate(batch, SYSTEM, MODEL, FIXED["coefficients"])
    gpipe = sweep.evaluate(batch.having(schedule="gpipe"), SYSTEM, MODEL, FIXED["coefficients"])
    deep = np.asarray(batch.layout.pp) > 1.0
    assert (gpipe.memory_bytes[deep] > default.memory_bytes[deep]).all()


@pytest.mark.parametrize("fused", [None, False, True])
def test_gradients_by_the_batch_and_by_what_cases_share(fused):
    batch, fixed = pairs(50), {"a": 2.0, "w": np.array([1.0, 3.0])}
    value, slopes = sweep.gradients(curve, batch, fixed, wrt=("x", "a", "w"), fused=fused)
    x, y = batch["x"], batch["y"]
    np.testing.assert_allclose(value, 2.0 * x**2 * y + 4.0 * y**2, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(slopes["x"], 4.0 * x * y, rtol=1e-13)
    np.testing.assert_allclose(slopes["a"], x**2 * y, rtol=1e-13)
    np.testing.assert_allclose(slopes["w"], [y**2, y**2], rtol=1e-13)
    assert list(slopes) == ["x", "a", "w"]


def test_gradients_of_plans_are_those_of_jax():
    batch = plans(40)
    value, slopes = sweep.gradients(
        seconds, batch, FIXED, wrt=(*DEGREES, "system.network.bytes_per_s")
    )
    full = jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x), (40,)), batch)
    total, expected = quick(jax.value_and_grad(lambda p: seconds(p, FIXED).sum()))(full)
    np.testing.assert_allclose(value.sum(), total, rtol=1e-12)
    for name in DEGREES:
        np.testing.assert_allclose(slopes[name], leaf(expected, name), rtol=1e-9, atol=1e-12)
    assert slopes["system.network.bytes_per_s"].shape == (2, 40)
    assert (slopes["system.network.bytes_per_s"] <= 0.0).all()


def test_names_are_dotted_paths():
    assert sweep.names(SYSTEM)[0] == "chip.flops_per_s"
    assert "system.network.latency_s" in sweep.names(FIXED)


def test_numbers_become_floats():
    found = sweep.sweep(polynomial, {"x": np.arange(4), "y": 1}, 3)
    np.testing.assert_array_equal(found["sum"], [1.0, 2.0, 5.0, 10.0])
    assert found["sum"].dtype == np.float64


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="one length N"):
        sweep.sweep(polynomial, {"x": np.ones(3), "y": np.ones(4)}, 1.0)
    with pytest.raises(ValueError, match=r"no such leaf: z; expected some of x, y"):
        sweep.gradients(curve, pairs(3), {"a": 1.0, "w": np.ones(2)}, wrt=("z",))
    with pytest.raises(ValueError, match="batch last"):
        sweep.sweep(lambda batch, fixed: jnp.ones((3,)), pairs(4)["x"], 1.0)


def test_nothing_is_set_at_import():
    code = (
        "import os; from dmodel.sweep import _gradients_fuse; print('XLA_FLAGS' in os.environ, "
        "_gradients_fuse())"
    )
    environ = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_what_cases_share_comes_back_with_its_shapes_and_types():
    """Shared leaves travel end to end, by type."""
    fixed = {
        "a": np.arange(6.0).reshape(2, 3),
        "b": np.float32(0.1),
        "c": [7, np.empty((0, 2)), jnp.asarray([1.5, 2.5], jnp.float32)],
        "d": np.array([[-1.0]]),
    }
    seen = []

    def case(batch, shared):
        seen.append(jax.tree.map(lambda x: (x.shape, x.dtype.name), shared))
        parts = [
            shared["a"].ravel(),
            shared["b"],
            shared["c"][0],
            *shared["c"][2],
            shared["d"].ravel(),
        ]
        return jnp.stack(
            [
                jnp.full_like(batch, value)
                for part in parts
                for value in jnp.atleast_1d(part).astype(float)
            ]
        )

    found = sweep.sweep(case, np.zeros(3), fixed)
    assert seen[0] == {
        "a": ((2, 3), "float64"),
        "b": ((), "float32"),
        "c": [((), "float64"), ((0, 2), "float64"), ((2,), "float32")],
        "d": ((1, 1), "float64"),
    }
    np.testing.assert_array_equal(
        found, np.repeat([[0, 1, 2, 3, 4, 5, np.float32(0.1), 7, 1.5, 2.5, -1.0]], 3, 0).T
    )


def multiplies(jaxpr):
    """Multiplications of a jaxpr, those of inner ones too."""
    count = 0
    for equation in jaxpr.eqns:
        inner = [
            getattr(v, "jaxpr", v)
            for v in equation.params.values()
            if hasattr(v, "eqns") or hasattr(v, "jaxpr")
        ]
        count += sum(map(multiplies, inner)) + (
            equation.primitive.name in ("mul", "integer_pow", "square")
        )
    return count


@pytest.mark.slow
def test_the_compiled_gradient_does_not_repeat_its_arithmetic():
    """XLA's fusion copies cheap operations into every consumer; without it, or cured, compiled
    multiplies stay those of the formula."""
    block = sweep.Block(seconds, DEGREES, 512, fused=sweep._gradients_fuse())
    batch = jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x), (512,)), plans(512))

    def value_and_slopes(batch):
        value, pull = jax.vjp(lambda p: seconds(p, FIXED), batch)
        return value, pull(jnp.ones_like(value))

    written = multiplies(jax.make_jaxpr(value_and_slopes)(batch).jaxpr)
    compiled = len(re.findall(r" multiply\(", sweep.lower(block, batch, FIXED).compile().as_text()))
    assert 100 < compiled <= 1.5 * written, f"{compiled} multiplies compiled of {written} written"
