"""The largest values of published runs: `python -m calibration.seen` writes them from the shipped
rows, for `dmodel.sense`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from calibration.traces import Cases, published, to_cases
from dmodel import counts
from dmodel.catalog import loader
from dmodel.codesign.laws import laws
from dmodel.run import CONVENTION
from dmodel.sense import over_critical

TABLE = Path(loader.__file__).parent / "data" / "seen.json"


def utilization(cases: Cases) -> np.ndarray:
    """Measured model FLOP utilization of rows [1], by `run.CONVENTION`. NaN of flagged rows, and of
    those that train adapters alone, whose model FLOPs are no FLOPs."""
    peak = np.asarray(cases.plan.devices) * np.asarray(cases.system.chip.flops_per_s)
    flops = np.asarray(counts.model_flops_per_token(cases.model, CONVENTION)) * tokens(cases)
    plain = (np.asarray(cases.model.trainable) >= 1.0) & (cases.labels.flag == "")
    return np.where(plain, flops / (peak * np.asarray(cases.labels.step_time_s)), np.nan)


def tokens(cases: Cases) -> np.ndarray:
    """Tokens of a step [token]."""
    return np.asarray(cases.plan.global_batch) * np.asarray(cases.model.seq_len)


def batches(cases: Cases) -> np.ndarray:
    """Batches over the critical ones, of runs with the tokens of the data law [1]."""
    law: Any = laws().data
    parameters = np.asarray(counts.active_parameters(cases.model), float)
    usual = float(law.ratio) * parameters ** float(law.exponent)
    rows = zip(parameters, usual, tokens(cases), strict=True)
    return np.array([over_critical(*map(float, row)) for row in rows])


def entries(cases: Cases) -> dict[str, dict[str, Any]]:
    """The largest of each, with the source of its row."""
    found = {}
    for name, values in {"mfu": utilization(cases), "batch_over_critical": batches(cases)}.items():
        at = int(np.nanargmax(values))
        source = f"{cases.labels.source[at]}, {cases.labels.model[at]}"
        found[name] = {"value": float(f"{values[at]:.4g}"), "source": source}
    return found


def main() -> None:
    """Write the table."""
    table = {"version": loader.VERSION, "entries": entries(to_cases(published()))}
    TABLE.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
