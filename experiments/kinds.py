"""Claim: what rows of a kind do that no other row does shows in the sign of what a fit without them misses.

Rows are hidden by what they do instead of by who published them: all with adapters, all in 8 bits, all with pipelines. A fit of the
others is asked about them; a mechanism that is missing, or counted twice, leaves them all too fast or too slow. One line for each kind, and
one for each stack with several of its rows. A kind takes a minute or two:
`python -m experiments.kinds [--kinds …] [--traces FILE …] [--quick] [--json] [--out DIR]`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from calibration.fit import fit
from calibration.predict import predict
from calibration.ship import POLISH
from calibration.traces import Cases
from dmodel.profiles import family
from dmodel.types import InputError
from experiments.study import arguments, deliver, rows, run, say, summary


def _of(cases: Cases, part: str, name: str) -> np.ndarray:
    """A number of the plan or of the model, `[row]`."""
    return np.broadcast_to(np.asarray(getattr(getattr(cases, part), name), float), len(cases))


def _devices(cases: Cases) -> np.ndarray:
    return _of(cases, "plan", "dp") * _of(cases, "plan", "tp") * _of(cases, "plan", "pp") * _of(cases, "plan", "cp")


KINDS: dict[str, Callable[[Cases], np.ndarray]] = {
    "adapters": lambda c: _of(c, "model", "trainable") == 0.0,
    "8 bits": lambda c: (_of(c, "plan", "operand_bytes") == 1.0) & (_of(c, "model", "trainable") == 1.0),
    "4 bits": lambda c: _of(c, "plan", "operand_bytes") < 1.0,
    "experts": lambda c: _of(c, "model", "n_experts") > 1.0,
    "tensor": lambda c: _of(c, "plan", "tp") > 1.0,
    "pipeline": lambda c: _of(c, "plan", "pp") > 1.0,
    "context": lambda c: _of(c, "plan", "cp") > 1.0,
    "zero 3": lambda c: _of(c, "plan", "zero") == 3.0,
    "recomputed": lambda c: _of(c, "plan", "recompute_layers") > 0.5,
    "unfused attention": lambda c: _of(c, "plan", "flash") == 0.0,
    "long": lambda c: _of(c, "model", "seq_len") >= 16384.0,
    "wide": lambda c: _of(c, "model", "d_model") >= 12288.0,
    "narrow": lambda c: _of(c, "model", "d_model") <= 2048.0,
    "large": lambda c: _devices(c) >= 512.0,
    "small": lambda c: _devices(c) <= 8.0,
}
"""By name, which rows are of a kind, `[row]` bool: long from 16,384 tokens on, wide from 12,288, narrow to 2,048, large from 512 devices
on, small to 8."""

LEAST = 4
"""Rows of a stack, at least, that a line of its own stands for."""


def line(kind: str, stack: str, ratio: np.ndarray) -> dict[str, Any]:
    """One line: rows, signed middle of predicted / measured − 1 [%] (+ = too slow), and what `summary` gives."""
    return {"kind": kind, "stack": stack, "rows": len(ratio), "bias": 100.0 * float(np.median(ratio - 1.0)), **summary(np.abs(ratio - 1.0))}


def lines_of(kind: str, cases: Cases, ratio: np.ndarray) -> list[dict[str, Any]]:
    """All rows of a kind, then its stacks (of several variants one line), largest first."""
    stacks = np.array([family(str(s)) for s in cases.labels.stack])
    names, counts = np.unique(stacks, return_counts=True)
    several = [str(n) for n, k in sorted(zip(names, counts, strict=True), key=lambda x: (-x[1], x[0])) if k >= LEAST]
    return [line(kind, "all", ratio), *(line(kind, name, ratio[stacks == name]) for name in several)]


def _options() -> argparse.Namespace:
    parser = arguments(__doc__ or "")
    parser.add_argument("--kinds", nargs="*", help=f"default: all of {', '.join(KINDS)}")
    options = parser.parse_args()
    unknown = [name for name in options.kinds or () if name not in KINDS]
    if unknown:
        raise InputError(f"--kinds: no kind {', '.join(unknown)}; choose from {', '.join(KINDS)}")
    return options


def main() -> None:
    """Fit what is not of a kind, judge what is."""
    options = _options()
    cases = rows(options.traces)
    lines: list[dict[str, Any]] = []
    for kind in options.kinds or (("4 bits",) if options.quick else KINDS):
        hidden = KINDS[kind](cases)
        known = cases.take(~hidden)
        if options.quick:
            known = known.take(np.isin(known.labels.source, ("megatron-sc21-t1",)))
        say(f"{kind}: fitting {len(known)} rows without {int(hidden.sum())}")
        profile = fit(known, starts=1, rounds=1) if options.quick else fit(known, starts=2, rounds=2, polish=POLISH)
        judged = cases.take(hidden)
        lines += lines_of(kind, judged, predict(judged, profile).step_time_s / judged.labels.step_time_s)
    deliver("kinds", lines, options)


if __name__ == "__main__":
    run(main)
