"""The training step to measure: its description, and the same numbers on every mesh (in a process
of its own, with 8 virtual devices)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calibration.collect.workload import WorkloadSpec, build, from_row, plan, to_row, transformer
from calibration.collect.workload.attention import blocked, written
from calibration.collect.workload.experts import combine, dispatch
from calibration.collect.workload.model import init_params
from calibration.collect.workload.spec import check
from dmodel.counts import parameters
from dmodel.errors import InputError
from dmodel.question import Question
from dmodel.records import LEAVES, leaf
from dmodel.resolve import resolve
from dmodel.sweep import quick_to_compile

ROOT = Path(__file__).parents[1]
QUICK_MESHES = (
    "dense, pipeline 2 · fsdp 2 · tensor 2",
    "dense, fsdp 2 · tensor 2 · context 2",
    "experts, expert 4 · fsdp 2",
)
SHARDED = WorkloadSpec(
    data=2,
    fsdp=2,
    zero=3,
    expert=2,
    n_experts=4,
    top_k=2,
    tensor=2,
    context=2,
    pipeline=2,
    n_microbatches=4,
)


def command(module: str, *arguments: str) -> object:
    """What a command prints as JSON; the cache of compiled programs is that of this process."""
    environment = {
        "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    }
    done = subprocess.run(
        [sys.executable, "-m", module, "--json", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def assert_equal(found: list[dict[str, float]]) -> None:
    for mesh in found:
        assert abs(mesh["loss"]) <= 1e-5, mesh
        assert abs(mesh["updated"]) <= 1e-5, mesh
        # first moments after a step are the gradients, by a factor
        assert mesh["gradients"] <= 1e-5, mesh


def test_losses_and_gradients_are_the_same_on_every_mesh():
    found = command("calibration.collect.workload.equal", "--only", *QUICK_MESHES)
    assert {mesh["mesh"] for mesh in found} == set(QUICK_MESHES)
    assert_equal(found)


@pytest.mark.slow
def test_losses_and_gradients_are_the_same_on_all_meshes():
    assert_equal(command("calibration.collect.workload.equal"))


@pytest.fixture(scope="module")
def trained():
    """Losses of a few steps on one batch, by precision."""
    losses = {}
    for precision in ("fp32", "bf16"):
        workload = build(
            WorkloadSpec(precision=precision, n_layers=1),
            jax.devices()[:1],
            compiler_options=quick_to_compile(),
        )
        state, seen = workload.state, []
        for _ in range(20):
            state, loss = workload.step(state, workload.batch())
            seen.append(float(loss))
        losses[precision] = np.array(seen)
    return losses


def test_training_lowers_the_loss(trained):
    assert trained["fp32"][0] == pytest.approx(np.log(256), abs=1.0)
    assert trained["fp32"][-1] < 0.5 * trained["fp32"][0]


def test_bf16_follows_fp32(trained):
    np.testing.assert_allclose(trained["bf16"], trained["fp32"], rtol=0.05)


def test_batches_are_random_and_hold_no_zeros():
    workload = build(WorkloadSpec(n_layers=1), jax.devices()[:1])
    first, again, second = workload.batch(0), workload.batch(0), workload.batch(1)
    assert (np.asarray(first.tokens) > 0).all() and (np.asarray(first.tokens) < 256).all()
    np.testing.assert_array_equal(first.tokens, again.tokens)
    assert (np.asarray(first.tokens) != np.asarray(second.tokens)).mean() > 0.9
    np.testing.assert_array_equal(first.labels[..., :-1], first.tokens[..., 1:])


def test_state_holds_the_parameters_that_the_model_counts():
    for spec in (
        WorkloadSpec(),
        WorkloadSpec(tied=True, gated=False),
        WorkloadSpec(n_experts=4, top_k=2),
    ):
        shapes = jax.eval_shape(lambda spec=spec: init_params(spec, jax.random.key(0)))
        assert sum(x.size for x in jax.tree.leaves(shapes)) == float(parameters(transformer(spec)))


@pytest.mark.parametrize(
    "spec",
    [
        WorkloadSpec(),
        WorkloadSpec(
            precision="fp32",
            remat="full",
            attention="flash",
            sequence_parallel=True,
            tensor=2,
            n_microbatches=3,
            micro_batch=5,
        ),
        SHARDED,
    ],
)
def test_a_row_of_traces_says_it_all(spec):
    row = to_row(spec)
    assert from_row({name: str(value) for name, value in row.items()}) == spec
    assert row["dp"] * row["tp"] * row["pp"] * row["cp"] == row["n_accel"] == spec.devices


def test_the_plan_of_a_row_is_the_plan_of_the_spec():
    layout = plan(SHARDED)
    assert float(layout.devices) == SHARDED.devices
    assert float(layout.n_microbatches) == SHARDED.n_microbatches
    assert (layout.layout.dp, layout.layout.ep, layout.layout.shard, layout.layout.zero) == (
        8.0,
        2.0,
        4.0,
        3.0,
    )


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"n_layers": 3, "pipeline": 2}, "n_layers = 3"),
        ({"tensor": 4}, "n_kv_heads = 2"),
        ({"fsdp": 2}, "zero = 3"),
        ({"zero": 2}, "zero: expected 0 or 3"),
        ({"pipeline": 2}, "n_microbatches = 1"),
        ({"precision": "fp8"}, "precision"),
        ({"remat": "some"}, "remat"),
        ({"micro_batch": 0}, "micro_batch: expected 1 or more"),
        ({"expert": 2}, "n_experts = 1"),
        ({"context": 3}, "seq_len = 64"),
    ],
)
def test_what_cannot_be_built_is_said(changed, word):
    with pytest.raises(InputError, match=word):
        check(WorkloadSpec(**changed))


def test_the_wrong_number_of_devices_is_said():
    with pytest.raises(InputError, match="needs 2 devices .data 2., got 1"):
        build(WorkloadSpec(data=2), jax.devices()[:1])


def test_blocked_attention_is_attention():
    q, k, v = (
        jax.random.normal(key, (2, 256, heads, 16), jnp.float32)
        for key, heads in zip(jax.random.split(jax.random.key(0), 3), (4, 2, 2), strict=True)
    )
    positions = jnp.arange(256, dtype=jnp.int32)
    spec = WorkloadSpec(attention="flash")

    def both(f):
        return jax.value_and_grad(lambda *x: (f(*x) ** 2).sum(), (0, 1, 2))(q, k, v)

    for a, b in zip(
        jax.tree.leaves(both(lambda *x: blocked(spec, *x, positions))),
        jax.tree.leaves(both(lambda *x: written(*x, positions))),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_experts_with_places_for_all_bring_every_token_home():
    """Weights of a token add up to 1, so experts that do nothing give the tokens back."""
    spec = WorkloadSpec(n_experts=4, top_k=2, capacity_factor=2.0, expert_group=8)
    x = jax.random.normal(jax.random.key(0), (2, 16, 64), jnp.float32)
    router = jax.random.normal(jax.random.key(1), (64, 4), jnp.float32)
    sent, routes = dispatch(spec, x, router)
    np.testing.assert_allclose(combine(sent, routes, x), x, rtol=1e-5, atol=1e-6)


def test_a_full_expert_drops_who_comes_last():
    """All tokens want expert 0, which has half as many places."""
    spec = WorkloadSpec(n_experts=2, top_k=1, capacity_factor=1.0, expert_group=8)
    x = jnp.ones((1, 16, 64), jnp.float32) * jnp.arange(1, 17, dtype=jnp.float32)[None, :, None]
    router = jnp.stack([jnp.ones(64, jnp.float32), jnp.zeros(64, jnp.float32)], 1)
    sent, routes = dispatch(spec, x, router)
    home = np.asarray(combine(sent, routes, x))[0, :, 0]
    kept = np.tile(np.arange(8) < 4, 2)
    np.testing.assert_allclose(home, np.where(kept, np.arange(1, 17), 0.0))


@pytest.mark.parametrize(
    "changes",
    [
        {"remat": "full"},
        {"remat": "selective"},
        {"remat": "selective", "attention": "flash"},
        {"zero": 3, "fsdp": 4},
        {"tensor": 2, "sequence_parallel": True},
        {"zero": 3, "expert": 2, "tensor": 2, "n_experts": 4, "top_k": 2, "remat": "full"},
    ],
    ids=str,
)
def test_the_row_of_a_step_is_read_as_the_plan_of_what_runs(changes):
    """Beside the name of a pipeline's schedule, and what the host launches."""
    spec = check(WorkloadSpec(**changes))
    cells = {name: value for name, value in to_row(spec).items() if value != ""}
    cells |= {"stack": "dmodel-collect/jax-0.7", "accelerator": "H100-80GB"}
    found, ran = resolve(Question(cells)).plan, plan(spec)
    besides = {"graphed", "schedule", "placement"} | ({"etp"} if spec.n_experts == 1 else set())
    for name in set(LEAVES) - besides:
        assert float(leaf(found, name)) == float(leaf(ran, name)), name
