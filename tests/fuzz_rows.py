"""Damage files of rows in every way that people and programs do, and see that predicting them ends
well.

    python -m tests.fuzz_rows --count 10000

Ends well: one clear message and no number, or an answer that accounts for every row and has no
number beyond physics without a flag. All else is a defect; each is printed, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import random
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
from typer.testing import CliRunner

from calibration.importers.fuzz import FIGURES, MUTATIONS
from calibration.traces import read
from calibration.traces.published import PUBLISHED
from calibration.traces.schema import BY_NAME, COLUMNS, NUMBERS
from dmodel.cli import app

Table = list[list[str]]
"""A header and rows of cells."""

UNITS = (1e-9, 1e-6, 1e-3, 1 / 1024, 1 / 8, 8.0, 100.0, 1e3, 1024.0, 2048.0, 1e6, 1e9, 1e12)
"""Factors of mistaken units."""

WORDS = ("int8", "fp8", "bf16", "TPU-v5e", "H100-80GB", "full", "none", "1e3", "8", "4", "lora")
"""Cells that belong to some column."""

MOST_MFU = 2.0
"""Measured MFU that no convention of published figures excuses [1]: full attention counts twice
what causal kernels do."""


def base(rng: random.Random) -> Table:
    """A header and some rows of one source of the published table."""
    header, *rows = _published()
    source = rng.choice(rows)[0]
    of_source = [row for row in rows if row[0] == source]
    return [list(header), *(list(row) for row in rng.choices(of_source, k=rng.randint(2, 6)))]


def _published(cache: list[Table] = []) -> Table:  # noqa: B006
    if not cache:
        with PUBLISHED.open(encoding="utf-8", newline="") as file:
            cache.append(list(csv.reader(file)))
    return cache[0]


# --- mutations of cells and columns


def _cell(rng: random.Random, table: Table, kinds: tuple[str, ...] = ()) -> tuple[int, int]:
    """Row and column of a cell that is filled, of some columns."""
    places = [
        (i, j)
        for i, row in enumerate(table[1:], 1)
        for j, text in enumerate(row)
        if text and (not kinds or (j < len(table[0]) and table[0][j] in kinds))
    ]
    return rng.choice(places or [(len(table) - 1, 0)])


def figure(rng: random.Random, table: Table) -> None:
    """A number that is none, or an impossible one."""
    i, j = _cell(rng, table, NUMBERS)
    table[i][j] = rng.choice(FIGURES)


def digit(rng: random.Random, table: Table) -> None:
    """One character more, less or another."""
    i, j = _cell(rng, table, NUMBERS)
    text, new = table[i][j], rng.choice("0123456789.-+eE, ")
    at = rng.randrange(len(text) + 1)
    table[i][j] = text[:at] + new + text[at + rng.randint(0, 1) :]


def unit(rng: random.Random, table: Table) -> None:
    """Another unit."""
    i, j = _cell(rng, table, NUMBERS)
    try:
        table[i][j] = repr(float(table[i][j]) * rng.choice(UNITS))
    except ValueError:
        table[i][j] += "ms"


def unit_of_a_column(rng: random.Random, table: Table) -> None:
    """Another unit in all rows of what was measured, or of the batch."""
    names = ("step_time_s", "tokens_per_s_per_accel", "global_batch", "seq_len", "n_accel")
    name, factor = rng.choice((*names, "peak_memory_gib")), rng.choice(UNITS)
    if name not in table[0]:
        return
    for row in table[1:]:
        j = table[0].index(name)
        if j < len(row) and row[j]:
            try:
                row[j] = f"{float(row[j]) * factor:.10g}"
            except ValueError:
                continue


def exponent(rng: random.Random, table: Table) -> None:
    """A power of ten."""
    i, j = _cell(rng, table, NUMBERS)
    table[i][j] += f"e{rng.randint(-400, 400)}"


def blank(rng: random.Random, table: Table) -> None:
    """Cells that are missing."""
    for _ in range(rng.randint(1, 8)):
        i, j = _cell(rng, table)
        table[i][j] = ""


def word(rng: random.Random, table: Table) -> None:
    """A cell that belongs elsewhere."""
    i, j = _cell(rng, table)
    table[i][j] = rng.choice(WORDS)


def swap_cells(rng: random.Random, table: Table) -> None:
    """Two cells of a row in each other's place."""
    i, j = _cell(rng, table)
    k = rng.randrange(len(table[i]))
    table[i][j], table[i][k] = table[i][k], table[i][j]


def swap_columns(rng: random.Random, table: Table) -> None:
    """Two names of the header in each other's place."""
    j, k = (rng.randrange(len(table[0])) for _ in range(2))
    table[0][j], table[0][k] = table[0][k], table[0][j]


def repeat_column(rng: random.Random, table: Table) -> None:
    """A column twice."""
    j = rng.randrange(len(table[0]))
    for row in table:
        row.append(row[j] if j < len(row) else "")


def drop_column(rng: random.Random, table: Table) -> None:
    """A column less."""
    j = rng.randrange(len(table[0]))
    for row in table:
        if j < len(row):
            del row[j]


def rename(rng: random.Random, table: Table) -> None:
    """A column by another name."""
    j = rng.randrange(len(table[0]))
    table[0][j] = rng.choice((table[0][j].upper(), "", "x", rng.choice(COLUMNS).name))


def settings(rng: random.Random, table: Table) -> None:
    """A setting, right or wrong."""
    from dmodel.settings import KNOWN

    if "set" in table[0]:
        j = table[0].index("set")
        for row in table[1:]:
            if j < len(row):
                value = rng.choice((*FIGURES, "0", "1", "0.5", "2", "1e6", "core+out", "lora"))
                row[j] = f"{rng.choice(KNOWN)}={value}"


OF_TABLES: tuple[Callable[[random.Random, Table], None], ...] = (
    figure,
    digit,
    unit,
    unit_of_a_column,
    exponent,
    blank,
    word,
    swap_cells,
    swap_columns,
    repeat_column,
    drop_column,
    rename,
    settings,
)


# --- files


def as_csv(table: Table) -> bytes:
    """The table as text."""
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(table)
    return out.getvalue().encode("utf-8", errors="replace")


def as_parquet(rng: random.Random, table: Table) -> bytes:
    """The table as Parquet, a column of numbers as numbers, text, lists or truth values."""
    header, *rows = table
    arrays = []
    for j, name in enumerate(header):
        cells = [row[j] if j < len(row) else "" for row in rows]
        arrays.append(_array(rng, name, cells))
    sink = io.BytesIO()
    made = pyarrow.Table.from_arrays(arrays, names=header)
    pyarrow.parquet.write_table(made, sink)
    return sink.getvalue()


def _array(rng: random.Random, name: str, cells: list[str]) -> pyarrow.Array:
    if rng.random() < 0.02:
        return pyarrow.array([[cell] for cell in cells])
    if rng.random() < 0.02:
        return pyarrow.array([bool(cell) for cell in cells])
    if name in BY_NAME and BY_NAME[name].kind != "text" and rng.random() < 0.9:
        try:
            kind = rng.choice((pyarrow.float64(), pyarrow.float32()))
            return pyarrow.array([float(c) if c else None for c in cells], kind)
        except (ValueError, OverflowError):
            pass
    return pyarrow.array([cell or None for cell in cells], pyarrow.string())


def mutant(rng: random.Random) -> tuple[str, str, bytes]:
    """How it was made, the suffix, and the bytes of a damaged file."""
    table, names = base(rng), []
    for mutate in rng.choices(OF_TABLES, k=rng.choice((1, 1, 1, 2, 3))):
        mutate(rng, table)
        names.append(mutate.__name__)
    parquet = rng.random() < 0.2
    data = as_parquet(rng, table) if parquet else as_csv(table)
    if rng.random() < 0.15:
        mutate = rng.choice(MUTATIONS)
        data = mutate(rng, data)
        names.append(mutate.__name__)
    return "+".join(names), ".parquet" if parquet else ".csv", data


# --- what became of it


def outcome(path: Path, command: str = "predict", *options: str) -> str:
    """ "error", "aside" (some row was), "flagged" (some row is) or "full".

    Raises:
      ValueError: it ended badly.
    """
    result = CliRunner().invoke(app, [command, str(path), "--json", *options])
    if not (result.exception is None or isinstance(result.exception, SystemExit)):
        raise result.exception
    if result.exit_code == 2:
        _check_message(result.stdout, result.stderr, path)
        return "error"
    if result.exit_code != 0:
        raise ValueError(f"exit code {result.exit_code}")
    document = json.loads(result.stdout, parse_constant=_refuse)
    if document["rows_used"] + len(document["set_aside"]) != document["rows_read"]:
        raise ValueError("rows are neither used nor set aside")
    for row in document.get("rows", ()):
        _check_row(row)
    flagged = "flagged" if document["implausible"] else "full"
    return "aside" if document["set_aside"] else flagged


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} in the document")


def _check_message(stdout: str, stderr: str, path: Path) -> None:
    last = stderr.strip().splitlines()[-1:]
    if stdout or not last or "dmodel: " not in stderr or len(stderr) > 30_000:
        raise ValueError(f"a message that does not help: {stderr[-300:]!r}")
    if path.name not in stderr:
        raise ValueError(f"a message that names no file: {stderr[-300:]!r}")


def _check_row(row: dict) -> None:
    """Numbers of one row: finite, positive, and no more than the chip does, or flagged."""
    numbers = {n: x for n, x in row.items() if isinstance(x, int | float)}
    bad = [n for n, x in numbers.items() if not math.isfinite(x)]
    time, memory = row["predicted_step_time_s"], row["memory_bytes_per_device"]
    bad += ["time"] * (time <= 0.0) + ["memory"] * (memory <= 0.0)
    bad += [n for n, x in numbers.items() if n.endswith("_s") and x < 0.0]
    if bad:
        raise ValueError(f"beyond physics: {bad} of {row}")
    if "implausible" in row["flag"]:
        if not row["flag_reason"]:
            raise ValueError(f"a flag without a reason: {row}")
        return
    if row["mfu"] > 1.0:
        raise ValueError(f"predicted MFU {row['mfu']} without a flag: {row}")
    measured = row["measured_step_time_s"]
    if measured is not None and row["mfu"] * time / measured > MOST_MFU:
        raise ValueError(f"measured MFU {row['mfu'] * time / measured} without a flag: {row}")


def fuzz(
    count: int, seed: int = 0, every: int = 10, told: Callable[[str], None] | None = None
) -> tuple[Counter[str], list[str]]:
    """What became of so many mutants, and the defects; one of `every` is evaluated too, one has
    intervals, and one is written to a file.

    Args:
      told: of each defect, and of every 200th mutant.
    """
    tally: Counter[str] = Counter()
    defects: list[str] = []
    told = told or (lambda text: None)
    with tempfile.TemporaryDirectory() as folder:
        for i in range(count):
            rng = random.Random(f"{seed} {i}")
            how, suffix, data = mutant(rng)
            path = Path(folder) / f"rows{suffix}"
            path.write_bytes(data)
            # intervals take most of the time, and what fits does not depend on them
            options = () if i % every == 1 else ("--profile", "prior")
            out = path.with_name(f"out{suffix}")
            if i % every == 2:
                options += ("--out", str(out))
            for command in ("predict", "evaluate")[: 2 if i % every == 0 else 1]:
                try:
                    tally[f"{command} {(ended := outcome(path, command, *options))}"] += 1
                    if "--out" in options and ended != "error":
                        read(out, require_time=False)
                except Exception:  # a fuzzer is to see every exception; each is reported
                    tally[f"{command} DEFECT"] += 1
                    what = traceback.format_exc(limit=-4)
                    defects.append(f"mutant {i} ({how}), {command}:\n{what}")
                    told(defects[-1])
            if (i + 1) % 200 == 0:
                told(f"{i + 1} mutants: {dict(tally)}")
    return tally, defects


def main() -> int:
    """Fuzz and print what became of the mutants; 1 when some ended badly."""
    parser = argparse.ArgumentParser(description="Predict damaged files of rows.")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    tally, defects = fuzz(
        chosen.count, chosen.seed, told=lambda text: print(text, file=sys.stderr, flush=True)
    )
    for name, n in sorted(tally.items()):
        print(f"{name:20} {n:6}")
    return int(bool(defects))


if __name__ == "__main__":
    sys.exit(main())
