"""Steps measured kernel by kernel: names to kinds, rows and back, and the records that they are for
the model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from calibration.torch_step import kinds, record
from calibration.torch_step.cases import Case, cases
from dmodel import catalog, coefficients, counts
from dmodel.step import step_time

DATA = Path(kinds.__file__).parent / "data"


def test_cases_have_names_of_their_own_and_sizes_that_divide() -> None:
    """Names tell cases apart; heads share keys evenly."""
    found = cases()
    assert len({case.name for case in found}) == len(found) > 30
    assert all(case.n_heads % case.n_kv_heads == 0 for case in found)
    # each base has a case without layers, to be taken off
    bases = {case.name.split("/")[0] for case in found}
    assert {case.name.split("/")[0] for case in found if not case.n_layers} == bases


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma", "attention"),
        ("void cudnn::fusion::convert_dq_to_16bits<true>", "attention"),
        ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>", "optimizer"),
        ("void cutlass::device_kernel<GemmUniversal<GroupProblemShape>>", "grouped"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32", "products"),
        ("Memcpy DtoD (Device -> Device)", "streaming"),
    ],
)
def test_kernels_are_told_by_name(name: str, kind: str) -> None:
    """Names as the profiler gives them."""
    assert kinds.kind_of(name) == kind


def a_record() -> dict:
    """A measurement as `measure` writes it."""
    kernels = {
        "nvjet_a": [3.0, 0.5],
        "flash": [1.0, 0.2],
        "adam": [2.0, 0.1],
        "copy": [4.0, 0.05],
        "busy": [10.0, 0.8],
    }
    found = {
        "environment": {"device": "D", "torch": "2"},
        "case": cases()[3]._asdict(),
        "parameters": 7,
        "step_s": 0.9,
        "host_s": 0.1,
    }
    return found | {
        "kernels": kernels,
        "watts": None,
        "readings": [{"sm_mhz": 3}, {"sm_mhz": 1}, {"sm_mhz": 2}],
        "peak_bytes": 5,
    }


def test_a_row_sums_kernels_by_kind_and_gives_the_case_back(tmp_path: Path) -> None:
    """Times and counts by kind; the middle clock; the case unchanged after a file."""
    row = kinds.row(a_record())
    assert (
        row["products_s"],
        row["attention_s"],
        row["optimizer_s"],
        row["streaming_s"],
        row["grouped_s"],
    ) == (0.5, 0.2, 0.1, 0.05, 0.0)
    assert (row["products_kernels"], row["busy_s"], row["clock_mhz"], row["watts"]) == (
        3,
        0.8,
        2,
        None,
    )
    kinds.write(tmp_path / "steps.csv", [row])
    assert kinds.case_of(kinds.read(tmp_path / "steps.csv")[0]) == cases()[3]


def test_the_command_makes_tables_of_records(tmp_path: Path) -> None:
    """Steps and products beside something else go to tables of their own; a step that failed goes
    to none."""
    duty = {
        "environment": {"device": "D"},
        "duty": "bf16",
        "beside": "copy",
        "share": 1.0,
        "product_s": 1e-3,
        "watts": 5.0,
        "readings": [],
    }
    shape = {
        "dtype": "bf16",
        "rows": 8,
        "columns": 4,
        "inner": 2,
        "groups": 1,
        "how": "one",
        "layout": "forward",
    }
    made = {"environment": {"device": "D"}}
    single = [
        made | {"product": shape, "product_s": 1e-5},
        made | {"product": shape, "failed": "out of memory"},
    ]
    work = made | {"channels": 4, "work": "bf16", "work_s": 1e-3, "copied_bytes_per_s": 1e11}
    steady = made | {
        "steady": 8,
        "blocks_s": [9.0, 9.0, 1.0, 1.0, 2.0, 2.0],
        "readings": [{"sm_mhz": 5}, {"sm_mhz": 7}, {"sm_mhz": 6}],
    }
    lines = [
        a_record(),
        duty,
        *single,
        work,
        steady,
        {"case": cases()[0]._asdict(), "failed": "out of memory"},
    ]
    (tmp_path / "all.jsonl").write_text("\n".join(map(json.dumps, lines)))
    subprocess.run(
        [
            sys.executable,
            "-m",
            "calibration.torch_step.kinds",
            tmp_path / "all.jsonl",
            "--out",
            tmp_path,
        ],
        check=True,
    )
    assert all(len(kinds.read(tmp_path / f"{name}.csv")) == 1 for name in kinds.TABLES)
    (found,) = kinds.read(tmp_path / "steady.csv")
    # of 1, 1, 2 and 2 the larger of two is 2 three times of four
    assert (found["blocks"], found["least_mhz"], found["most_mhz"]) == ("4", "6", "7")
    assert float(found["slowest_of_2"]) == pytest.approx(1.75 / 1.5 - 1.0, rel=1e-5)
    assert float(found["wander"]) == pytest.approx(0.5 * np.log(2.0), rel=1e-5)


def test_measured_kernels_fit_into_their_steps() -> None:
    """Of the shipped table: kinds overlap little, and no step is shorter than its kernels by more
    than the clock's wandering."""
    rows = kinds.read(DATA / "steps.csv")
    assert {row["device"] for row in rows} == {"NVIDIA H100 80GB HBM3", "NVIDIA H200"}
    for row in rows:
        total = sum(float(row[f"{kind}_s"]) for kind in kinds.KINDS)
        assert float(row["busy_s"]) == pytest.approx(total, rel=0.02)
        assert float(row["step_s"]) > 0.93 * float(row["busy_s"])


def test_parameters_of_a_case_are_those_that_were_allocated() -> None:
    """The record's count against PyTorch's: all but norms, biases, learned positions and
    adapters."""
    for row in kinds.read(DATA / "steps.csv"):
        case = kinds.case_of(row)
        if case.n_layers and not case.adapters and case.style == "llama":
            assert float(np.asarray(counts.parameters(record.transformer(case)))) == pytest.approx(
                float(row["parameters"]), rel=1e-3
            )


def test_every_case_has_a_step_time() -> None:
    """The records are plans that the model takes."""
    system = catalog.system("H100-DGX")
    for case in (Case("a"), *cases()[::7]):
        total = step_time(
            system, record.transformer(case), record.plan(case), coefficients.default()
        ).total
        assert 1e-3 < float(np.asarray(total)) < 10.0


@pytest.mark.parametrize("arguments", [["--only", "nothing"], []])
def test_without_pytorch_or_with_an_unknown_case_it_says_so(
    arguments: list[str], tmp_path: Path
) -> None:
    """A message and exit code 2, no traceback; in an interpreter that finds no PyTorch."""
    code = (
        "import sys; sys.modules['torch'] = None; from calibration.torch_step.__main__ import "
        "main; main()"
    )
    command = [sys.executable, "-c", code, "--out", str(tmp_path / "x.jsonl"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr and "error:" in done.stderr
