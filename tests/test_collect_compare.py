"""The model against XLA on the same step, and the reader of compiled programs."""

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
from jax import lax

from calibration.collect import expected, hlo, known
from calibration.collect.compare import Comparison, Line, Report, faults, main
from calibration.collect.known import Cause
from calibration.collect.workload import WorkloadSpec
from dmodel.errors import InputError

ROOT = Path(__file__).parents[1]
STEPS, ANALYSIS, MEMORY = "products and collectives: ", "cost analysis: ", "memory: "
QUICK = (
    STEPS + "fsdp 2 · tensor 2 · context 2",
    STEPS + "fsdp 2 · expert 2 · tensor 2",
    STEPS + "pipeline 2 · data 2 · tensor 2",
    ANALYSIS + "one device",
    MEMORY + "one device, full",
    MEMORY + "fsdp 2 · tensor 2 · context 2",
    MEMORY + "fsdp 2 · expert 2 · tensor 2",
    MEMORY + "pipeline 2 · data 2 · tensor 2",
)
CHANGED = {known.HALF_CORE, known.BUBBLE, known.STAGES, known.KEPT_KEYS, known.UNSPLIT}
"""Causes that change the work by more than the targets: what recomputation really repeats, idle
slots of the pipeline, split experts."""


def report(*only: str) -> dict:
    environment = {
        "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    }
    arguments = ["--only", *only] if only else []
    done = subprocess.run(
        [sys.executable, "-m", "calibration.collect.compare", "--json", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def quick():
    return report(*QUICK)


def check(found: dict, memory_target: float = 0.15) -> None:
    """Every figure within its target, or changed by a cause that has a name; and nothing beyond the
    causes."""
    for case in found["cases"]:
        for kind, target in (("flops", 0.02), ("wire", 0.05)):
            for line in case[kind]:
                named = {part for cause in line["known"] for part in cause["reason"].split("; ")}
                assert abs(line["difference"]) <= target or named & {
                    r for c in CHANGED for r in c.split("; ")
                }, (case["name"], line)
                assert abs(line["unexplained"]) <= 1e-3, (case["name"], line)
    for line in found["cost_analysis"]:
        assert abs(line["difference"]) <= 0.02, line
    for line in found["memory"]:
        assert abs(line["unexplained"]) <= 0.07, line
        assert abs(line["difference"]) <= memory_target or "pipeline" in line["what"], line


def test_the_model_counts_what_xla_does(quick):
    assert len(quick["cases"]) >= 3 and len(quick["memory"]) >= 4 and quick["cost_analysis"]
    check(quick)


@pytest.mark.slow
def test_the_model_counts_what_xla_does_in_all_cases():
    check(report())


def test_a_difference_without_a_cause_is_a_fault():
    named = Line("all products", 100.0, 110.0, (Cause("because", 10.0),))
    report = Report(
        (Comparison("case", (named, named._replace(known=())), (), {}),),
        (),
        (Line("small", 100.0, 110.0),),
    )
    assert faults(report) == [
        "case, all products: +10.00% of the model has no known cause; at most 2% may"
    ]


def test_a_case_that_is_none_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--only", "nonsense"])
    assert ended.value.code == 2 and "pipeline 4 · fsdp 2" in capsys.readouterr().err


def test_every_axis_is_compared(quick):
    seen = {line["what"] for case in quick["cases"] for line in case["wire"]}
    assert {
        "data all-reduce",
        "fsdp all-gather",
        "fsdp reduce-scatter",
        "tensor all-reduce",
        "tensor all-gather",
        "tensor reduce-scatter",
        "context all-gather",
        "context reduce-scatter",
        "expert all-to-all",
        "pipeline collective-permute",
    } <= seen


def test_what_the_model_leaves_out_is_listed(quick):
    """Nothing that the program sends is in neither table."""
    left = {reason for case in quick["cases"] for reason in case["left_out"]}
    assert "softmax of the vocabulary-parallel head: a few numbers per token" in left
    assert "sequence parallelism: the gather repeated behind the weight gradients" in left


def test_wire_bytes_of_the_model_follow_the_ring():
    """An all-reduce of fp32 gradients of all parameters over 8 ranks, by hand."""
    spec = WorkloadSpec(data=8, precision="fp32")
    parameters = 2 * (2 * 64 * (4 + 2) * 16 + 2 * 64 + 3 * 64 * 256) + 2 * 256 * 64 + 64
    found = expected.wire_bytes(spec)
    assert found.keys() == {("data", "all-reduce")}
    np.testing.assert_allclose(
        found["data", "all-reduce"], 2.0 * 7.0 / 8.0 * 4.0 * parameters, rtol=1e-12
    )


def program(f, *arguments) -> hlo.Module:
    return hlo.parse(jax.jit(f).lower(*arguments).compile().as_text())


def test_products_count_as_often_as_loops_turn():
    w, x = jnp.ones((5, 32, 32), jnp.float32), jnp.ones((16, 32), jnp.float32)

    def f(x, w):
        return lax.scan(
            lambda x, w: (
                lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length=3)[0],
                None,
            ),
            x,
            w,
        )[0]

    found = hlo.products(program(f, x, w))
    assert sum(p.flops * p.times for p in found) == 5 * 3 * 2 * 16 * 32 * 32


def test_a_loop_of_unknown_length_is_refused():
    x = jnp.ones((4, 4), jnp.float32)
    module = program(lambda x: lax.while_loop(lambda x: x.sum() < 100.0, lambda x: x @ x, x), x)
    with pytest.raises(InputError, match="how often it turns"):
        hlo.products(module)


def test_text_that_is_no_program_is_refused():
    with pytest.raises(InputError, match="ENTRY"):
        hlo.parse("not a program\n")


PAIRS = frozenset({frozenset({0, 1}), frozenset({2, 3})})
STRIDED = frozenset({frozenset({0, 2}), frozenset({1, 3})})
GROUPS = [
    ("{{0,1},{2,3}}", PAIRS),
    ("[2,2]<=[4]", PAIRS),
    ("[2,2]<=[2,2]T(1,0)", STRIDED),
    ("mesh['a'=2,'b'=2] {'b'}", PAIRS),
    ("mesh['a'=2,'b'=1,'c'=2], {'a'}", STRIDED),
]


@pytest.mark.parametrize(("text", "groups"), GROUPS)
@pytest.mark.parametrize("opcode", ["all-gather", "all-gather-start"])
def test_groups_are_read_in_every_form(text, groups, opcode):
    shape = (
        "f32[8,64]{1,0:T(8,128)}"
        if opcode == "all-gather"
        else "(f32[4,64]{1,0}, f32[8,64]{1,0:T(8,128)})"
    )
    lines = [
        "HloModule m",
        "",
        "ENTRY %main (p: f32[4,64]) -> f32[8,64] {",
        "  %p = f32[4,64]{1,0} parameter(0)",
        (
            f"  ROOT %g = {shape} {opcode}(%p), channel_id=1, replica_groups={text}, "
            f'dimensions={{0}}, metadata={{op_name="a/weights/b"}}'
        ),
        "}",
    ]
    (found,) = hlo.collectives(hlo.parse("\n".join(lines)))
    assert (found.kind, found.nbytes, found.groups, found.dtype, found.op_name) == (
        "all-gather",
        1024.0,
        groups,
        "f32",
        "a/weights/b",
    )
    assert found.wire_bytes == 1024.0


def test_a_group_in_an_unknown_form_is_refused():
    text = (
        "ENTRY %main (p: f32[4]) -> f32[4] {\n  %p = f32[4] parameter(0)\n  ROOT %g = f32[4] "
        "all-reduce(%p), replica_groups=what\n}"
    )
    with pytest.raises(InputError, match="known form"):
        hlo.collectives(hlo.parse(text))


def test_library_calls_of_products_count():
    text = "\n".join(
        [
            "ENTRY %main (a: bf16[16,32], b: bf16[32,8]) -> (bf16[16,8], s8[4]) {",
            "  %a = bf16[16,32]{1,0} parameter(0)",
            "  %b = bf16[32,8]{1,0} parameter(1)",
            "  ROOT %c = (bf16[16,8]{1,0}, s8[4]{0}) custom-call(%a, %b), "
            'custom_call_target="__cublas$gemm", '
            'backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dime'
            'nsions":["1"]}}}',
            "}",
        ]
    )
    (found,) = hlo.products(hlo.parse(text))
    assert found.flops == 2 * 16 * 32 * 8


def test_bytes_on_the_wire_by_kind():
    group = frozenset({frozenset(range(4))})
    sent = {
        kind: hlo.Collective(kind, 100.0, group, 2.0, "f32", "").wire_bytes for kind in hlo.KINDS
    }
    assert sent == {
        "all-reduce": 300.0,
        "all-gather": 600.0,
        "reduce-scatter": 150.0,
        "all-to-all": 150.0,
        "collective-permute": 200.0,
    }
