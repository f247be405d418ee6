"""Benchmarks: what they compute is what they say, their inputs are not zeros, and the compiler's
count agrees with theirs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calibration.collect import budget, measure, program
from calibration.collect import machine as machines
from calibration.collect.assumed import system_at
from calibration.collect.kinds import (
    BENCHMARKS,
    attention,
    collectives,
    host,
    matmul,
    memory,
    overlap,
    steps,
)
from calibration.collect.machine import MIB, Machine, accelerator_name
from calibration.collect.program import DTYPES, Options, random_array, sets
from calibration.collect.runner import Job, Unavailable
from calibration.collect.tasks import make
from calibration.collect.timing import Settings
from dmodel import coefficients
from dmodel.coefficients import to_unconstrained
from dmodel.errors import InputError

ROOT = Path(__file__).parents[1]
QUICK = Options(
    Settings(fewest=6, most=6, warmup_s=0.0, sample_s=0.0, longest_s=0.0), device_time=False
)
HERE = machines.machine()
GIB = 2**30
GPU = Machine(
    "gpu",
    "NVIDIA H200",
    "H200-141GB",
    True,
    8,
    8,
    1,
    50 * MIB,
    141 * GIB,
    ("bf16", "fp16", "tf32", "fp32", "int8", "fp8"),
)
TPU = Machine(
    "tpu", "TPU v5", "TPU-v5p", True, 16, 4, 4, 128 * MIB, 95 * GIB, ("bf16", "int8", "fp32")
)
SMALL = {
    "matmul": matmul.Matmul(32, 48, 16, "fp32"),
    "attention": attention.Attention(1, 32, 4, 2, 8, "fp32"),
    "memory": memory.Stream("triad", 4096, "fp32"),
    "elementwise": memory.Elementwise("norm", 16, 32, "fp32"),
    "optimizer": memory.Update(4096, 2),
    "launch": host.Launch(3),
    "dispatch": host.Dispatch(2),
}


@pytest.fixture(autouse=True)
def _as_when_collecting():
    """Collecting runs in 32 bits; optax raises floats to integer powers, which strict promotion
    forbids."""
    with (
        jax.enable_x64(False),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        yield


@pytest.mark.parametrize("where", [HERE, GPU, TPU], ids=["here", "gpu", "tpu"])
@pytest.mark.parametrize("kind", BENCHMARKS)
def test_grids_hold_tasks_that_can_be_read_back(kind, where):
    found = BENCHMARKS[kind].grid(where)
    assert found or (where.n_devices == 1 and kind in ("collectives", "overlap"))
    tasks = [make(kind, p) for p in found]
    assert [measure.parameters_of(task) for task in tasks] == list(found)
    assert len({task.key("x") for task in tasks}) == len(tasks)


@pytest.mark.parametrize("kind", SMALL)
def test_every_kind_is_measured(kind):
    found = measure.measurer(HERE, QUICK, Job())(make(kind, SMALL[kind]))
    assert found["time"]["samples"] == 6 and 0.0 < found["time"]["median_s"] < 10.0
    assert found["compile"]["compile_s"] > 0.0 and found["compile"]["memory"]["argument_bytes"] > 0
    assert "unavailable" in found["device_time"] and "unavailable" in found["sensors"]
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("kind", BENCHMARKS)
def test_the_model_foresees_every_kind_with_finite_slopes(kind):
    tasks = [make(kind, p) for p in BENCHMARKS[kind].grid(GPU)[:2]]
    with jax.enable_x64(True):
        mean = np.asarray(to_unconstrained(coefficients.default()))
        found = budget.forecast(tasks, lambda precision: system_at(GPU, precision), mean, GPU)
    assert (
        (found.time_s > 0.0).all()
        and (found.cost_s > found.time_s).all()
        and np.isfinite(found.jacobian).all()
    )
    assert kind == "dispatch" or (np.abs(found.jacobian).sum(1) > 0.01).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_are_random_and_never_zero(dtype):
    one, other = (np.asarray(random_array((300, 7), dtype, i).astype(jnp.float32)) for i in (1, 2))
    assert (one != 0).all() and (other != 0).all()
    assert len(np.unique(one)) > 40 and (one != other).mean() > 0.9


def test_rotating_inputs_exceed_the_cache_and_fit_the_memory():
    assert sets(MIB, GPU) * MIB > GPU.cache_bytes
    assert sets(20 * GIB, GPU) == 1 and sets(60 * MIB, GPU) >= 2


def test_the_compiler_counts_the_flops_of_a_product():
    built = matmul.build(matmul.Matmul(64, 32, 128, "fp32"), HERE)
    _, cost = program.compiled_apart(built)
    assert cost["cost"]["flops"] == pytest.approx(built.work["flops"], rel=0.02)
    assert cost["cost"]["bytes"] == pytest.approx(built.work["bytes"], rel=0.02)


def reference_attention(q, k, v):
    k, v = (np.repeat(x, q.shape[2] // k.shape[2], 2) for x in (k, v))
    scores = np.einsum("bsae,btae->bast", q, k) / np.sqrt(q.shape[-1])
    scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bast,btae->bsae", weights / weights.sum(-1, keepdims=True), v)


def test_attention_is_causal_attention_and_its_backward_pass_its_gradient():
    p = attention.Attention(1, 16, 4, 2, 8, "fp32")
    built = attention.build(p, HERE)
    expected = reference_attention(*(np.asarray(x) for x in built.inputs[0]))
    np.testing.assert_allclose(built.function(*built.inputs[0]), expected, rtol=2e-5, atol=2e-6)
    backward = attention.build(p._replace(direction="bwd"), HERE)
    slopes = backward.function(*backward.inputs[0])
    whole = jax.grad(lambda *x: (built.function(*x) * backward.inputs[0][1]).sum(), (0, 1, 2))(
        *built.inputs[0]
    )
    for slope, expected in zip(slopes, whole, strict=True):
        np.testing.assert_allclose(slope, expected, rtol=2e-5, atol=2e-6)


def test_no_fused_attention_here_is_said_and_not_failed():
    with pytest.raises(Unavailable, match="no fused attention kernel on cpu"):
        attention.build(attention.Attention(1, 16, 4, 2, 8, "fp32", kernel="flash"), HERE)


@pytest.mark.parametrize("operation", memory.ELEMENTWISE_KERNELS)
def test_elementwise_kernels_run_and_count_their_passes(operation):
    built = memory.build_elementwise(memory.Elementwise(operation, 8, 16, "fp32"), HERE)
    result = built.function(*built.inputs[0])
    assert bool(jnp.isfinite(result).all())
    arrays = memory.ELEMENTWISE_KERNELS[operation][1]
    moved = arrays * 8 * 16 * 4 + (result.size * 4 if result.ndim > 1 else 0)
    assert built.work["bytes"] == pytest.approx(moved, rel=0.25)


def test_an_update_changes_its_parameters_as_adamw_does():
    built = memory.build_update(memory.Update(64, 2), HERE)
    before = np.asarray(built.state[0][0])
    (parameters, _), _ = built.function(built.state, *built.inputs[0])
    moved = np.asarray(parameters[0]) - before
    # the first step of Adam moves every parameter by the rate against its gradient's sign, and
    # decays it
    np.testing.assert_allclose(
        moved,
        -1e-4 * (np.sign(np.asarray(built.inputs[0][0][0])) + 0.1 * before),
        rtol=2e-3,
        atol=2e-7,
    )


@pytest.mark.parametrize(
    ("kind", "p"),
    [
        ("matmul", matmul.Matmul(2, 2, 2, "fp7")),
        ("memory", memory.Stream("sort", 64)),
        ("elementwise", memory.Elementwise("sort", 2, 2)),
        ("attention", attention.Attention(1, 8, 3, 2, 8)),
        ("steps", steps.WorkloadSpec(n_heads=3, n_kv_heads=2)),
        ("collectives", collectives.Collective("all_gather", 64, 64)),
        ("overlap", overlap.Overlap(8, 64, 64)),
    ],
)
def test_what_makes_no_sense_is_recorded_with_its_reason(kind, p):
    with pytest.raises((Unavailable, InputError)):
        BENCHMARKS[kind].build(p, HERE)
    with pytest.raises(Unavailable):
        measure.measurer(HERE, QUICK, Job())(make(kind, p))


@pytest.mark.parametrize(
    ("kind", "platform", "name"),
    [
        ("NVIDIA H200", "gpu", "H200-141GB"),
        ("NVIDIA A100-SXM4-80GB", "gpu", "A100-80GB"),
        ("NVIDIA H100 80GB HBM3", "gpu", "H100-80GB"),
        ("NVIDIA GB200", "gpu", "GB200"),
        ("Tesla V100-SXM2-32GB", "gpu", "V100-32GB"),
        ("AMD Instinct MI300X", "gpu", "MI300X"),
        ("TPU v4", "tpu", "TPU-v4"),
        ("TPU v5", "tpu", "TPU-v5p"),
        ("TPU v6 lite", "tpu", "TPU-v6e"),
    ],
)
def test_devices_get_their_names_in_the_catalog(kind, platform, name):
    assert accelerator_name(kind, platform) == (name, True)


def test_unknown_devices_get_a_name_of_their_own():
    assert accelerator_name("NVIDIA Imaginary 9000", "gpu") == ("nvidia-imaginary-9000", False)


def test_the_environment_holds_flags_but_no_secrets_and_no_paths(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/data/secret/place --xla_a=1")
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("MY_TOKEN", "hunter2")
    found = machines.environment(HERE)
    text = json.dumps(found)
    assert (
        found["flags"]["XLA_FLAGS"] == "--xla_dump_to=<path> --xla_a=1"
        and found["flags"]["NCCL_ALGO"] == "Ring"
    )
    assert "hunter2" not in text and "/data" not in text
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    again = machines.environment(HERE)
    assert again["id"] != found["id"] and again["identity"] == found["identity"]
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=2")
    assert machines.environment(HERE)["identity"] != found["identity"]


COLLECTIVES = """
import jax, json, numpy as np
from calibration.collect.kinds import collectives as c, overlap
from calibration.collect.machine import machine
m, wrong = machine(), []
for spacing in ("inner", "outer"):
    for name in c.OPERATIONS:
        p = c.Collective(name, 64, 2, spacing, "fp32")
        built = c.build(p, m)
        x = np.asarray(built.inputs[0][0])
        n = x.size // 4
        groups = [[0, 1], [2, 3]] if spacing == "inner" else [[0, 2], [1, 3]]
        # the array is laid out group by group, member by member
        local = x.reshape(2, 2, n)
        out = np.asarray(built.function(*built.inputs[0])).reshape(2, 2, -1)
        for g in range(2):
            a, b = local[g]
            h = n // 2
            want = {
                "all_gather": [np.concatenate([a, b])] * 2,
                "all_reduce": [a + b] * 2,
                "reduce_scatter": [(a + b)[:h], (a + b)[h:]],
                "all_to_all": [np.concatenate([a[:h], b[:h]]), np.concatenate([a[h:], b[h:]])],
                "permute": [b, a],
            }[name]
            if not np.allclose(out[g], want, rtol=1e-6):
                wrong.append([spacing, name, g])
        mesh = built.inputs[0][0].sharding.mesh
        if [[d.id for d in row] for row in mesh.devices] != groups:
            wrong.append([spacing, "groups"])
        size = {"all_gather": 2 * x.nbytes // 4}.get(name, x.nbytes // 4)
        if built.work["bytes"] != size:
            wrong.append([name, "bytes", built.work["bytes"], size])
both = overlap.build(overlap.Overlap(4, 64, 4, "both", "fp32"), m)
product, total = both.function(*both.inputs[0])
a, b, x = (np.asarray(v) for v in both.inputs[0])
want = a.reshape(4, 4, 4) @ b.reshape(4, 4, 4)
if not np.allclose(np.asarray(product).reshape(4, 4, 4), want, rtol=1e-4, atol=1e-5):
    wrong.append("overlap product")
if not np.allclose(np.asarray(total).reshape(4, -1), x.reshape(4, -1).sum(0), rtol=1e-5):
    wrong.append("overlap sum")
print(json.dumps(wrong))
"""


def test_collectives_do_what_they_are_called_on_four_devices():
    environ = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, "-c", COLLECTIVES],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == []
