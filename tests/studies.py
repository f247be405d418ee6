"""Studies in this process, so that all share what is compiled; the shell's way to them is tested on
one."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path

import jax
import pytest


def quick_study(name: str, out: Path, *more: str) -> dict:
    """The document that `python -m experiments.NAME --quick --json` prints; it leaves a table of
    some lines and a figure."""
    arguments = [name, "--quick", "--json", "--out", str(out), *more]
    with (
        pytest.MonkeyPatch.context() as patch,
        jax.numpy_dtype_promotion("standard"),
        redirect_stdout(io.StringIO()) as printed,
    ):
        patch.setattr(sys, "argv", arguments)
        import_module(f"experiments.{name}").main()
    tables, figures = list(out.glob("*.csv")), list(out.glob("*.png"))
    assert tables and all(len(table.read_text().splitlines()) > 1 for table in tables)
    assert figures and all(figure.stat().st_size > 10_000 for figure in figures)
    return json.loads(printed.getvalue())
