"""What a kernel does, by its name, and measurements as tables: `python -m calibration.torch_step.kinds FILE… --out DIR`."""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from calibration.torch_step.cases import Case

KINDS = ("products", "grouped", "attention", "streaming", "optimizer")
"""What kernels do: products, those of experts in one kernel, the fused attention core with what belongs to it, everything that goes
through memory (casts, copies and fills too), and the update."""

NAMES = (
    ("optimizer", re.compile(r"multi_tensor|adam", re.I)),
    ("attention", re.compile(r"sdpa|flash|fmha|cudnn::fusion", re.I)),
    ("grouped", re.compile(r"grouped|groupproblem", re.I)),
    ("products", re.compile(r"nvjet|gemm|cutlass|cublas|xmma|splitk", re.I)),
)
"""The first that a kernel's name matches, of PyTorch 2.11 on Hopper; the others stream."""

DIGITS = 6


def kind_of(name: str) -> str:
    """What a kernel does.

    >>> kind_of("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"), kind_of("void at::native::vectorized_elementwise_kernel<8>")
    ('products', 'streaming')
    """
    return next((kind for kind, pattern in NAMES if pattern.search(name)), "streaming")


def row(record: Mapping[str, Any]) -> dict[str, Any]:
    """A measured step as a row: device, software, the case, times [s], kernels per step by kind, power [W], clock [MHz], memory [byte]."""
    kernels = {name: found for name, found in record["kernels"].items() if name != "busy"}
    sums = {kind: [0.0, 0.0] for kind in KINDS}
    for name, found in kernels.items():
        one = sums[kind_of(name)]
        one[:] = one[0] + found[0], one[1] + found[1]
    clocks = sorted(reading["sm_mhz"] for reading in record["readings"])
    return {
        "device": record["environment"]["device"],
        "torch": record["environment"]["torch"],
        **record["case"],
        "parameters": record["parameters"],
        "step_s": _rounded(record["step_s"]),
        "host_s": _rounded(record["host_s"]),
        "busy_s": _rounded(record["kernels"]["busy"][1]),
        **{f"{kind}_s": _rounded(time) for kind, (_, time) in sums.items()},
        **{f"{kind}_kernels": round(count) for kind, (count, _) in sums.items()},
        "watts": _rounded(record["watts"]),
        "clock_mhz": clocks[len(clocks) // 2] if clocks else None,
        "peak_bytes": record["peak_bytes"],
    }


def duty_row(record: Mapping[str, Any]) -> dict[str, Any]:
    """A product beside something else as a row (`duty`)."""
    clocks = [reading["sm_mhz"] for reading in record["readings"]]
    return {
        "device": record["environment"]["device"],
        "product": record["duty"],
        "beside": record["beside"],
        "share": record["share"],
        "product_s": _rounded(record["product_s"]),
        "watts": _rounded(record["watts"]),
        "clock_mhz": clocks[-1] if clocks else None,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


def read(path: Path) -> list[dict[str, str]]:
    """A table of these, cells as text."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def case_of(cells: Mapping[str, str]) -> Case:
    """The case of a row.

    Raises:
      ValueError: a cell is not of its kind.
    """
    kinds = {int: int, float: float, str: str, bool: lambda text: text == "True"}
    defaults = Case("")._asdict()
    return Case(**{name: kinds[type(default)](cells[name]) for name, default in defaults.items()})  # type: ignore[arg-type]


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Rows as CSV."""
    lines = list(rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def main() -> None:
    """Records of any number of runs, as `steps.csv` and `duty.csv`."""
    parser = argparse.ArgumentParser(prog="python -m calibration.torch_step.kinds", description=main.__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args()
    records = [json.loads(line) for path in a.files for line in path.read_text(encoding="utf-8").splitlines()]
    steps, duty = [r for r in records if "kernels" in r], [r for r in records if "duty" in r]
    if steps:
        write(a.out / "steps.csv", map(row, steps))
    if duty:
        write(a.out / "duty.csv", map(duty_row, duty))


if __name__ == "__main__":
    main()
