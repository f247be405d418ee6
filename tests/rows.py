"""Rows of a table for tests: one good row, and files of it with fields changed."""

import csv
from pathlib import Path

from calibration.traces import read, to_cases
from dmodel.resolve import never_recompute

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
