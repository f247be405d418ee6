"""What a kernel does, by its name, and measurements as tables: `python -m
calibration.torch_step.kinds FILE… --out DIR`."""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from calibration.importers.kernels import group
from calibration.torch_step.cases import Case
from dmodel.errors import InputError

KINDS = ("products", "grouped", "attention", "streaming", "optimizer")
"""What kernels do: products, those of experts in one kernel, the attention core with what belongs
to it (the softmax, where it is not fused), everything else that goes through memory (casts, copies
and fills too), and the update."""

OF_GROUP = {"matmul": "products", "attention": "attention", "optimizer": "optimizer"}
"""Kinds by the groups that profiles are read in (`importers.kernels`); the others stream."""

GROUPED = re.compile(r"grouped|groupproblem", re.IGNORECASE)
"""Names of products of several experts in one kernel."""

DIGITS = 6


def kind_of(name: str) -> str:
    """What a kernel does.

    >>> kind_of("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT")
    'products'
    >>> kind_of("void at::native::vectorized_elementwise_kernel<8>")
    'streaming'
    """
    return "grouped" if GROUPED.search(name) else OF_GROUP.get(group(name), "streaming")


def row(record: Mapping[str, Any]) -> dict[str, Any]:
    """A measured step as a row: device, software, the case, times [s], kernels per step by kind,
    power [W], clock [MHz], memory [byte]."""
    sums = _by_kind(record["kernels"])
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


def _by_kind(kernels: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Number and time [s] of kernels by what they do; without "busy", which is the sum of all."""
    sums = {kind: [0.0, 0.0] for kind in KINDS}
    for name, (count, time) in kernels.items():
        if name != "busy":
            one = sums[kind_of(name)]
            one[:] = one[0] + count, one[1] + time
    return sums


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


def product_row(record: Mapping[str, Any]) -> dict[str, Any]:
    """A product, or those of several experts, as a row (`products`)."""
    shape = record["product"] | {
        name: record["product"].get(name, usual) for name, usual in (("bits", 16), ("adds", False))
    }
    return {
        "device": record["environment"]["device"],
        **shape,
        "product_s": _rounded(record["product_s"]),
    }


def channel_row(record: Mapping[str, Any]) -> dict[str, Any]:
    """Work beside channels that copy as a row (`channels`)."""
    copied = _rounded(record.get("copied_bytes_per_s"))
    work = {name: record[name] for name in ("work", "channels")}
    return {
        "device": record["environment"]["device"],
        **work,
        "work_s": _rounded(record["work_s"]),
        "copied_bytes_per_s": copied,
    }


SETTLED = 1 / 3
"""Share of the blocks before those that count: until the limit of power has its clock."""


def steady_row(record: Mapping[str, Any]) -> dict[str, Any]:
    """Blocks alike, one after the other, as a row: their middle time [s], the standard deviation of
    its logarithm, how far the slowest of 2 and of 8 such devices is behind their mean, were each at
    a time of its own [1], and the clock's range [MHz]."""
    blocks = record["blocks_s"][int(SETTLED * len(record["blocks_s"])) :]
    clocks = [reading["sm_mhz"] for reading in record["readings"]]
    clocks = clocks[int(SETTLED * len(clocks)) :]
    return {
        "device": record["environment"]["device"],
        "width": record["steady"],
        "blocks": len(blocks),
        "block_s": _rounded(sorted(blocks)[len(blocks) // 2]),
        "wander": _rounded(statistics.pstdev(map(math.log, blocks))),
        **{
            f"slowest_of_{n}": _rounded(_largest(blocks, n) / statistics.fmean(blocks) - 1.0)
            for n in (2, 8)
        },
        "least_mhz": min(clocks, default=None),
        "most_mhz": max(clocks, default=None),
    }


def _largest(values: Sequence[float], n: int) -> float:
    """Mean of the largest of n values drawn from those given."""
    count = len(values)
    shares = [(i / count) ** n for i in range(count + 1)]
    return sum(
        value * (above - below)
        for value, below, above in zip(sorted(values), shares[:-1], shares[1:], strict=True)
    )


TABLES = {
    "steps": ("kernels", row),
    "duty": ("duty", duty_row),
    "products": ("product", product_row),
    "channels": ("channels", channel_row),
    "steady": ("steady", steady_row),
}
"""Names of tables: what of all records only theirs hold, and how those become rows."""


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
    of = {name: type(default) for name, default in Case("")._asdict().items()}
    values: dict[str, Any] = {name: kinds[kind](cells[name]) for name, kind in of.items()}
    return Case(**values)


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Rows as CSV."""
    lines = list(rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def main() -> None:
    """Records of any number of runs, each kind as a table of its own."""
    parser = argparse.ArgumentParser(
        prog="python -m calibration.torch_step.kinds", description=main.__doc__
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args()
    try:
        records = [record for path in a.files for record in _records(path)]
        _tables(records, a.out)
    except (OSError, InputError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _records(path: Path) -> list[dict[str, Any]]:
    """Lines of a file that `python -m calibration.torch_step` wrote.

    Raises:
      InputError: a line is none of these.
    """
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            found.append(json.loads(line))
        except ValueError:
            raise InputError(
                f"{path}:{number}: expected one JSON object a line, as `python -m "
                "calibration.torch_step` writes"
            ) from None
    return found


def _tables(records: list[dict[str, Any]], out: Path) -> None:
    """Each kind of measurement in its table; what failed is in none."""
    for name, (found, as_row) in TABLES.items():
        if rows := [as_row(r) for r in records if found in r and "failed" not in r]:
            write(out / f"{name}.csv", rows)


if __name__ == "__main__":
    main()
