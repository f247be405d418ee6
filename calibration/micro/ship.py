"""Make what the package ships of the micro-benchmarks: tables, with `python -m
calibration.micro.ship TABLE…`, and the fits to them.

Only figures of sources under a permissive licence, and of papers, go into the tables; every row
keeps its source and gets its licence.
"""

from __future__ import annotations

import csv
import gzip
import io
import sys
from collections.abc import Sequence
from pathlib import Path

from calibration.micro import reader
from calibration.micro.priors import FILE
from calibration.micro.priors import write as write_fits
from calibration.micro.schema import KINDS, MATMUL
from calibration.traces.table import Row
from dmodel.catalog.systems import by_link

LICENSES = {
    "github:ai-dynamo/aiconfigurator@": "Apache-2.0",
    "github:AI-Hypercomputer/tpu-recipes@": "Apache-2.0",
    "github:NVIDIA/dgxc-benchmarking@": "Apache-2.0",
    "github:mlcommons/training_results_": "Apache-2.0",
    "github:deepseek-ai/DeepGEMM": "MIT",
    "github:aws-samples/awsome-distributed-training@": "MIT-0",
    "arXiv:2411.13055": "paper facts",
}
"""Licence of the rows of a source, by the beginning of its name."""


def license_of(source: str) -> str:
    """Licence under which a source's figures may be shipped, or ""."""
    return next((text for start, text in LICENSES.items() if source.startswith(start)), "")


def shipped(kind: str, row: Row) -> dict[str, str]:
    """Cells of a row as shipped, or nothing where it may not be."""
    text = license_of(row.text("source"))
    if not text:
        return {}
    cells = {c.name: row.text(c.name) for c in KINDS[kind].columns} | {"license": text}
    if kind == MATMUL.name and "grouped G=" in cells["source"]:
        cells["groups"] = cells["source"].partition("grouped G=")[2].split()[0]
    if kind == "collective":
        cells["system"] = by_link(cells["link"]) or cells["system"]
    return cells


def write(path: Path, kind: str, rows: Sequence[dict[str, str]]) -> None:
    """Write a table, compressed, the same bytes for the same rows."""
    columns = [c.name for c in KINDS[kind].columns]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        file.write(text.getvalue().encode())


def main(files: Sequence[str]) -> None:
    """Write the tables of the files given into the package; say what stays out, and why."""
    kept: dict[str, list[dict[str, str]]] = {}
    for file in files:
        table = reader.read(file)
        for problem in table.problems:
            print(f"set aside: {problem}", file=sys.stderr)
        cells = [shipped(table.kind, row) for row in table.rows]
        kept.setdefault(table.kind, []).extend(c for c in cells if c)
        out = sum(not c for c in cells)
        print(
            (
                f"{file}: {len(table.rows)} usable rows, {out} of them under a licence that keeps "
                "them out"
            ),
            file=sys.stderr,
        )
    for kind, rows in kept.items():
        path = reader.DATA / f"{kind}.csv.gz"
        write(path, kind, rows)
        print(f"{path}: {len(rows)} rows, {path.stat().st_size} bytes")
    reader.published.cache_clear()
    write_fits()
    print(f"{FILE}: {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
