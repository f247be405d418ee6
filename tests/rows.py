"""Rows of a table for tests: one good row, and files of it with fields changed."""

import csv
from pathlib import Path

from calibration.traces import read, to_cases
from calibration.traces.questions import completed
from calibration.traces.table import Row
from dmodel.left_blank import never_recompute
from dmodel.question import Question
from dmodel.resolve import Resolved, resolve
from dmodel.settings import changed

GOOD = {
    "source": "test",
    "stack": "megatron-lm",
    "model": "llama-2-7b",
    "n_layers": "32",
    "d_model": "4096",
    "d_ff": "11008",
    "gated_mlp": "1",
    "n_heads": "32",
    "n_kv_heads": "32",
    "vocab": "32000",
    "seq_len": "4096",
    "accelerator": "H100-80GB",
    "n_accel": "64",
    "domain_size": "8",
    "precision": "bf16",
    "attention": "flash",
    "recompute": "none",
    "dp": "8",
    "zero_stage": "1",
    "tp": "4",
    "sp": "1",
    "pp": "2",
    "interleave": "1",
    "cp": "1",
    "ep": "1",
    "micro_batch": "2",
    "global_batch": "128",
    "step_time_s": "3.5",
    "tokens_per_s_per_accel": "",
    "flag": "",
    "note": "",
}


def table_file(
    folder: Path, *rows: dict[str, str], drop: str = "", name: str = "traces.csv"
) -> Path:
    """A CSV of the good row, changed by each dict."""
    columns = [c for c in dict.fromkeys([*GOOD, *(k for row in rows for k in row)]) if c != drop]
    path = folder / name
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, columns, extrasaction="ignore")
        out.writeheader()
        out.writerows({**GOOD, **row} for row in rows)
    return path


def one_case(folder: Path, **changes: str):
    """The record of the good row, changed."""
    return to_cases(read(table_file(folder, changes), require_time=False), never_recompute)


def asked(**changes: str) -> Question:
    """The question of the good row, changed."""
    return completed(Row("test", 2, {**GOOD, **changes})).question


def answered(**changes: str) -> Resolved:
    """Its records; recomputed is what it says, or its stack."""
    return resolve(asked(**changes), never_recompute)


def job(stack: str, model: str, accelerator: str, precision: str = "bf16", **said) -> Resolved:
    """A job on 64 devices as somebody states it who leaves all else open.

    Args:
      said: columns and settings.
    """
    start = {"stack": stack, "model": model, "accelerator": accelerator, "precision": precision}
    words = {**start, "n_accel": 64, "global_batch": 128, **said}
    return resolve(changed(Question({}), words), never_recompute)


def told(found: Resolved) -> str:
    """All that is assumed, a line each."""
    return "\n".join(map(str, found.assumptions))
