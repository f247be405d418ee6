"""Make what the package ships of the micro-benchmarks: tables, with `python -m
calibration.micro.ship TABLE…`, and the fits to them.

Only figures of sources under a permissive licence, and of papers, go into the tables; every row
keeps its source and gets its licence, and its rate where the time does not say it.
"""

from __future__ import annotations

import csv
import io
import lzma
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from calibration.collect.convert import BUS_FACTOR
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


SAID = 2e-4
"""A rate this close to what the time gives, or as close as its digits are, is left out: it repeats
the time."""


def license_of(source: str) -> str:
    """Licence under which a source's figures may be shipped, or ""."""
    return next((text for start, text in LICENSES.items() if source.startswith(start)), "")


def shipped(kind: str, row: Row) -> dict[str, str]:
    """Cells of a row as shipped, or nothing where it may not be; rates that only repeat the time
    are left out."""
    text = license_of(row.text("source"))
    if not text:
        return {}
    cells = {c.name: row.text(c.name) for c in KINDS[kind].columns} | {"license": text}
    if kind == MATMUL.name and "grouped G=" in cells["source"]:
        cells["groups"] = cells["source"].partition("grouped G=")[2].split()[0]
    if kind == "collective":
        cells["system"] = by_link(cells["link"]) or cells["system"]
    return cells | {name: "" for name, rate in rates(kind, row) if _says(cells[name], rate)}


def rates(name: str, row: Row) -> Iterator[tuple[str, float]]:
    """Columns of a kind that are rates, and what the time of a row makes them; none without."""
    kind = KINDS[name]
    if not row.text("time_us"):
        return
    rate = reader.work(kind, row) / reader.seconds(kind, row)
    yield kind.rate, rate
    if name == "collective":
        ranks = int(reader.number(kind, row, "n_accel"))
        yield "busbw_GBs", rate * BUS_FACTOR[row.text("collective")](ranks)


def _says(cell: str, rate: float) -> bool:
    """Whether a cell is such a rate, or blank."""
    plain = cell.replace(".", "").isdigit()
    last = 10.0 ** -len(cell.partition(".")[2]) if plain else 0.0
    return not cell or abs(float(cell) - rate) <= max(SAID * rate, 0.5 * last)


def write(path: Path, kind: str, rows: Sequence[dict[str, str]]) -> None:
    """Write a table, packed by xz, the same bytes for the same rows."""
    columns = [c.name for c in KINDS[kind].columns]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    preset = 9 | lzma.PRESET_EXTREME
    path.write_bytes(lzma.compress(text.getvalue().encode(), preset=preset))


def main(files: Sequence[str]) -> None:
    """Write the tables of the files given into the package; say what stays out, and why."""
    kept: dict[str, list[dict[str, str]]] = {}
    for file in files:
        table = reader.read(file)
        kept.setdefault(table.kind, []).extend(_kept(file, table))
    for kind, rows in kept.items():
        path = reader.DATA / f"{kind}{reader.SHIPPED}"
        write(path, kind, rows)
        print(f"{path}: {len(rows)} rows, {path.stat().st_size} bytes")
    reader.published.cache_clear()
    write_fits()
    print(f"{FILE}: {FILE.stat().st_size} bytes")


def _kept(file: str, table: reader.MicroTable) -> list[dict[str, str]]:
    """Rows of a file that may be shipped; says what stays out."""
    for problem in table.problems:
        print(f"set aside: {problem}", file=sys.stderr)
    cells = [shipped(table.kind, row) for row in table.rows]
    kept = [c for c in cells if c]
    print(
        f"{file}: {len(table.rows)} usable rows, {len(cells) - len(kept)} of them under a licence "
        "that keeps them out",
        file=sys.stderr,
    )
    return kept


if __name__ == "__main__":
    main(sys.argv[1:])
