"""Stacks of the tests' own, as files of facts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dmodel.question import Question
from dmodel.varying import Job, job

Facts = Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]
"""What is set, and when."""


def _table(values: Mapping[str, Any]) -> str:
    shown = (f"{n} = {v!r}".replace("'", '"') for n, v in values.items())
    return "{ " + ", ".join(shown) + " }"


def stack_file(facts: Facts, runs: str = "") -> str:
    """The path of a file with these facts."""
    parts = [f"[runs]\n{runs}\n"] if runs else []
    for sets, when in facts:
        parts.append(f"[[fact]]\nset = {_table(sets)}\nwhen = {_table(when)}\n")
        parts.append('source = "the tests"\ndate = "2026"\n')
    path = Path(tempfile.mkdtemp()) / "own.toml"
    path.write_text("".join(parts), encoding="utf-8")
    return str(path)


def job_of(facts: Facts, devices: int = 64, model: str = "llama-3-8b") -> Job:
    """A job whose stack has these facts."""
    columns = {
        "n_accel": float(devices),
        "model": model,
        "n_layers": 32.0,
        "seq_len": 8192.0,
        "n_experts": 8.0,
    }
    words = {"accelerator": "H100-80GB", "stack": stack_file(facts)}
    return job(Question({**columns, **words}), "H100-80GB")


def by_stage(seed: int) -> Job:
    """What a stack might keep and send, unlike from ZeRO stage to ZeRO stage; kernels and overlap
    that depend on the degrees."""
    draw = np.random.default_rng(1000 + seed)
    facts: list[tuple[dict, dict]] = []
    for zero in range(4):
        sent = [float(x) for x in draw.choice([1.0, 2.0, 4.0], 3)]
        states, weights = float(draw.choice([6.0, 10.0, 12.0])), float(draw.choice([0.0, 2.0]))
        names = ("reduce_bytes", "gradient_bytes", "gather_bytes", "optimizer_bytes")
        widths = dict(zip(names, (*sent, states), strict=True)) | {"weight_bytes": weights}
        widths |= {"bucket_per_rank": float(draw.integers(0, 2))}
        facts.append((widths | {"overlap_dp": float(draw.integers(0, 2))}, {"zero": zero}))
    facts.append(({"overlap_replica": 0}, {"replicas": ">1"}))
    facts.append(({"graphed": 1, "merge_copies": 1}, {"ep": ">1"}))
    facts.append(({"overlap_tp": 0}, {"tp": ">2", "pp": ">1"}))
    return job_of(facts)
