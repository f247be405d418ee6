"""Damage recorded samples in every way that files get damaged, and see that importing them ends
well.

    python -m calibration.importers.fuzz --count 1000

Ends well: rows and nothing to complain of (full), rows and named places that were left out
(partial), or one clear message (error). Any other exception is a defect, and so is a cell that is
no number or out of range, or a row beyond physics without a flag; all are listed, and the exit code
is 1. One file in `COMPLETED` is imported with all that a row needs besides, so that its time can be
held against the chip's peak; a row without that has no peak to be held against.
"""

from __future__ import annotations

import argparse
import gzip
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from calibration.importers import formats, tables
from calibration.importers.found import TRACES, cell, number
from calibration.importers.source import MAGIC, Source
from dmodel.errors import InputError

SAMPLES = Path(__file__).parents[2] / "tests" / "data" / "importers"
"""Recorded samples; they stand beside the code in a checkout, and are no part of the package."""

FIGURES = (
    "nan",
    "NaN",
    "inf",
    "-inf",
    "-1",
    "0",
    "1e308",
    "1e-308",
    "1" + "0" * 400,
    "9" * 5000,
    "0x1F",
    "1,2,3",
    "",
    "None",
    "½",
    "−3",
)
"""What numbers are replaced by."""

COMPLETED = 4
"""Of so many files one is completed."""

FACTS = {
    "model": "llama-3-8b",
    "n_layers": "32",
    "d_model": "4096",
    "d_ff": "14336",
    "gated_mlp": "1",
    "n_heads": "32",
    "n_kv_heads": "8",
    "head_dim": "128",
    "vocab": "128256",
    "n_params": "8030000000",
    "seq_len": "8192",
    "accelerator": "H100-80GB",
    "precision": "bf16",
    "n_accel": "64",
    "dp": "64",
    "tp": "1",
    "pp": "1",
    "cp": "1",
    "ep": "1",
    "interleave": "1",
    "zero_stage": "1",
    "global_batch": "128",
    "micro_batch": "1",
}
"""What completes a row of a run; it takes the place of what the file says."""

FACTS_OF_COLLECTIVES = {
    "collective": "all_reduce",
    "accelerator": "H100-80GB",
    "n_accel": "16",
    "nodes": "2",
}

LEAST_TIME_S = 6.0 * 7.5e9 * 128 * 8192 / (64 * 989.4e12)
"""Seconds that the products of `FACTS` take at the peak: 6 FLOP for each token and parameter that
is no embedding, of 7.5e9 [NVIDIA, H100 datasheet: 989.4 TFLOP/s dense]."""

MOST_GIB = 1.1 * 80e9 / 2**30
"""Memory of the chip of `FACTS`, with room for how its size is rounded."""

Mutation = Callable[[random.Random, bytes], bytes]


def truncate(rng: random.Random, data: bytes) -> bytes:
    """Cut the end off."""
    return data[: rng.randrange(len(data) + 1)]


def flip(rng: random.Random, data: bytes) -> bytes:
    """Change some bytes."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 20)):
        if out:
            out[rng.randrange(len(out))] = rng.randrange(256)
    return bytes(out)


def drop_lines(rng: random.Random, data: bytes) -> bytes:
    """Delete lines."""
    lines = data.split(b"\n")
    for _ in range(rng.randint(1, max(len(lines) // 2, 1))):
        lines.pop(rng.randrange(len(lines))) if lines else None
    return b"\n".join(lines)


def repeat_lines(rng: random.Random, data: bytes) -> bytes:
    """Repeat lines, here or elsewhere."""
    lines = data.split(b"\n")
    for _ in range(rng.randint(1, 10)):
        lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
    return b"\n".join(lines)


def cut_lines(rng: random.Random, data: bytes) -> bytes:
    """Cut some lines short, or join them with the next."""
    lines = data.split(b"\n")
    for i in range(len(lines)):
        if rng.random() < 0.2:
            lines[i] = lines[i][: rng.randrange(len(lines[i]) + 1)]
    return b"\n".join(lines) if rng.random() < 0.7 else b"".join(lines)


def garbage(rng: random.Random, data: bytes) -> bytes:
    """Put something foreign in, or in place of all."""
    junk = (
        rng.randbytes(rng.randint(1, 500))
        if rng.random() < 0.5
        else bytes(rng.choices(b'{}[]",:=|<>#%\\ \n\r\t0e-.', k=300))
    )
    if rng.random() < 0.1:
        return junk
    at = rng.randrange(len(data) + 1)
    return data[:at] + junk + data[at:]


def figures(rng: random.Random, data: bytes) -> bytes:
    """Replace numbers by huge, negative or impossible ones."""
    out, digits = bytearray(), False
    share = rng.choice((0.02, 0.2, 1.0))
    for byte in data:
        was, digits = digits, chr(byte) in "0123456789."
        begins = digits and not was
        if begins and rng.random() < share:
            out += rng.choice(FIGURES).encode()
        elif begins or not digits or share < 1.0:
            out.append(byte)
    return bytes(out)


def encodings(rng: random.Random, data: bytes) -> bytes:
    """Write it in another encoding, or with one's mark in front."""
    text = data.decode("utf-8", errors="replace")
    choice = rng.randrange(6)
    if choice < 3:
        return text.encode(("utf-16", "utf-16-be", "utf-32")[choice], errors="replace")
    if choice == 3:
        return text.replace("e", "é").encode("latin-1", errors="replace")
    return (b"\xef\xbb\xbf" if choice == 4 else b"\xff\xfe") + data


def line_ends(rng: random.Random, data: bytes) -> bytes:
    """Windows' or old line ends, or NULs in between."""
    return data.replace(b"\n", rng.choice((b"\r\n", b"\r", b"\0\n", b"\n\n")))


def shuffle(rng: random.Random, data: bytes) -> bytes:
    """Mix up the order of lines, as writers without a lock do."""
    lines = data.split(b"\n")
    rng.shuffle(lines)
    return b"\n".join(lines)


MUTATIONS: tuple[Mutation, ...] = (
    truncate,
    flip,
    drop_lines,
    repeat_lines,
    cut_lines,
    garbage,
    figures,
    encodings,
    line_ends,
    shuffle,
)


class Tally(NamedTuple):
    """What became of the mutated files of one format. defects: (how it was made, what happened).
    slowest_s: processor time of one."""

    format: str
    counts: Counter[str]
    defects: list[tuple[str, str]]
    slowest_s: float


def samples(folder: Path = SAMPLES) -> dict[str, list[tuple[str, bytes]]]:
    """(file, bytes) of the recorded samples by format.

    Raises:
      InputError: no such folder, or a format without a sample.
    """
    if not folder.is_dir():
        raise InputError(
            f"{folder}: no such folder; run in a checkout of the project, or name a folder of "
            "samples with --samples"
        )
    found: dict[str, list[tuple[str, bytes]]] = {name: [] for name in formats.FORMATS}
    for path in sorted(folder.iterdir()):
        if path.suffix not in (".md", ".py"):
            found[formats.detect(Source.of(path))].append((path.name, path.read_bytes()))
    bare = ", ".join(name for name, files in found.items() if not files)
    if bare:
        raise InputError(f"{folder}: no sample of {bare}")
    return found


def mutated(rng: random.Random, data: bytes) -> tuple[str, bytes]:
    """One to three mutations; a packed file is damaged as it is, or inside."""
    names = []
    inside = data[:2] == MAGIC and rng.random() < 0.6
    out = gzip.decompress(data) if inside else data
    for mutate in rng.choices(MUTATIONS, k=rng.choice((1, 1, 2, 3))):
        out = mutate(rng, out)
        names.append(mutate.__name__)
    return "+".join(names), gzip.compress(out, 1) if inside else out


def outcome(name: str, data: bytes, format: str | None, completed: bool = False) -> str:
    """What became of one file: "full", "partial" or "error".

    Args:
      completed: what rows need besides is given.

    Raises:
      ValueError: a row that should not be. Any other exception is a defect of an importer.
    """
    try:
        found, result = formats.parse(Source(name, data), format)
        given = FACTS if result.table == TRACES else FACTS_OF_COLLECTIVES
        given = given if completed else {}
        imported = tables.together([(found, result)], [], list(result.troubles), given)
    except InputError as error:
        if name not in str(error) or len(str(error)) > 2000:
            raise ValueError(f"a message that does not help: {str(error)[:300]!r}") from None
        return "error"
    for row in imported.rows:
        _check(row, imported.table)
        if completed:
            _check_physics(row, imported.table)
    return "partial" if result.troubles else "full"


def _check(row: dict[str, str], table: str) -> None:
    for name, text in row.items():
        if why := cell(name, text, table)[1]:
            raise ValueError(f"cell {name} = {text[:60]!r}: {why}")
    for name in ("step_time_s", "time_us"):
        value = number(row.get(name, "1"))
        if value is None or value <= 0.0:
            raise ValueError(f"{name} = {row.get(name)!r}")


def _check_physics(row: dict[str, str], table: str) -> None:
    """Refuse a completed row beyond the chip that has no flag."""
    if table != TRACES:
        if number(row.get("busbw_GBs", "1")) == 0.0 or row.get("n_accel") == "1":
            raise ValueError(f"a collective of nothing: {row}")
        return
    rate = number(row.get("tokens_per_s_per_accel", "")) or float("inf")
    seconds = number(row.get("step_time_s", "")) or 128 * 8192 / (64 * rate) or float("inf")
    peak = number(row.get("peak_memory_gib", "0")) or 0.0
    beyond = 0.0 < seconds < LEAST_TIME_S or peak > MOST_GIB
    if beyond and "implausible" not in row.get("flag", ""):
        raise ValueError(f"beyond the chip without a flag: {seconds} s, {peak} GiB")


def fuzz(name: str, files: Sequence[tuple[str, bytes]], n: int, seed: int = 0) -> Tally:
    """Import `n` mutations of the samples of a format; every other one with the format named."""
    rng = random.Random(f"{seed} {name}")
    tally = Tally(name, Counter(), [], 0.0)
    slowest = 0.0
    for i in range(n):
        file, data = files[i % len(files)]
        how, bad = mutated(rng, data)
        begin = time.process_time()
        try:
            format = name if rng.random() < 0.5 else None
            tally.counts[outcome(file, bad, format, i % COMPLETED == 0)] += 1
        except Exception:  # a fuzzer is to see every exception; each is reported, and fails the run
            tally.counts["traceback"] += 1
            tally.defects.append((f"{file}, mutation {i}: {how}", traceback.format_exc(limit=-4)))
        slowest = max(slowest, time.process_time() - begin)
    return tally._replace(slowest_s=slowest)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz every format and print a table; 1 when an import ended badly."""
    parser = argparse.ArgumentParser(description="Import mutated samples of every format.")
    parser.add_argument("--count", type=int, default=1000, help="mutated files of each format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=Path, default=SAMPLES, help="folder of recorded samples")
    parser.add_argument("--only", nargs="*", help="some formats")
    chosen = parser.parse_args(arguments)
    print(
        f"{'format':15} {'samples':>8} {'mutated':>8} {'full':>6} {'partial':>8} {'error':>6} "
        f"{'traceback':>10} {'slowest':>8}"
    )
    bad = 0
    for name, files in samples(chosen.samples).items():
        if chosen.only and name not in chosen.only:
            continue
        tally = fuzz(name, files, chosen.count, chosen.seed)
        c = tally.counts
        numbers = (
            f"{c['full']:6} {c['partial']:8} {c['error']:6} {c['traceback']:10} "
            f"{tally.slowest_s:6.2f} s"
        )
        print(f"{name:15} {len(files):8} {chosen.count:8} {numbers}", flush=True)
        for how, what in tally.defects[:3]:
            print(f"  {how}\n{what}", file=sys.stderr)
        bad += len(tally.defects)
    return int(bad > 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        sys.exit(f"fuzz: {error}")
