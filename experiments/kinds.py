"""Rows hidden by what they do: what a fit without them misses.

Claim: what rows of a kind do that no other row does shows in the sign of what a fit without them
misses.

Rows are hidden by what they do instead of by who published them: all with adapters, all in 8 bits,
all with pipelines. A fit of the
others is asked about them; a mechanism that is missing, or counted twice, leaves them all too fast
or too slow. One line for each kind, and one for each stack with several of its rows. A kind takes a
minute or two:
`python -m experiments.kinds [--kinds …] [--traces FILE …] [--quick] [--json] [--out DIR]`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from calibration.predict import predict
from calibration.traces import Cases
from dmodel.errors import InputError
from dmodel.profiles import family
from dmodel.records import value
from dmodel.report import style
from experiments.bases import Bases
from experiments.study import arguments, deliver, rows, run, summary

KINDS: dict[str, Callable[[Cases], np.ndarray]] = {
    "adapters": lambda c: np.asarray(c.model.trainable) == 0.0,
    "8 bits": lambda c: (
        (np.asarray(c.plan.precision.operand_bytes) == 1.0) & (np.asarray(c.model.trainable) == 1.0)
    ),
    "4 bits": lambda c: np.asarray(c.plan.precision.operand_bytes) < 1.0,
    "experts": lambda c: np.asarray(value(c.model, "n_experts", 1.0)) > 1.0,
    "tensor": lambda c: np.asarray(c.plan.layout.tp) > 1.0,
    "pipeline": lambda c: np.asarray(c.plan.layout.pp) > 1.0,
    "context": lambda c: np.asarray(c.plan.layout.cp) > 1.0,
    "zero 3": lambda c: np.asarray(c.plan.layout.zero) == 3.0,
    "recomputed": lambda c: np.asarray(c.plan.layout.recompute_layers) > 0.5,
    "unfused attention": lambda c: np.asarray(c.plan.software.flash) == 0.0,
    "long": lambda c: np.asarray(c.model.seq_len) >= 16384.0,
    "wide": lambda c: np.asarray(c.model.d_model) >= 12288.0,
    "narrow": lambda c: np.asarray(c.model.d_model) <= 2048.0,
    "large": lambda c: np.asarray(c.plan.devices) >= 512.0,
    "small": lambda c: np.asarray(c.plan.devices) <= 8.0,
}
"""By name, which rows are of a kind, `[row]` bool: long from 16,384 tokens on, wide from 12,288,
narrow to 2,048, large from 512 devices on, small to 8."""

LEAST = 4
"""Rows of a stack, at least, that a line of its own stands for."""


def line(kind: str, stack: str, ratio: np.ndarray) -> dict[str, Any]:
    """One line: rows, signed middle of predicted / measured − 1 [%] (+ = too slow), and what
    `summary` gives."""
    return {
        "kind": kind,
        "stack": stack,
        "rows": len(ratio),
        "bias": 100.0 * float(np.median(ratio - 1.0)),
        **summary(np.abs(ratio - 1.0)),
    }


def lines_of(kind: str, cases: Cases, ratio: np.ndarray) -> list[dict[str, Any]]:
    """All rows of a kind, then its stacks (of several variants one line), largest first."""
    stacks = np.array([family(str(s)) for s in cases.labels.stack])
    names, counts = np.unique(stacks, return_counts=True)
    several = [
        str(n)
        for n, k in sorted(zip(names, counts, strict=True), key=lambda x: (-x[1], x[0]))
        if k >= LEAST
    ]
    return [
        line(kind, "all", ratio),
        *(line(kind, name, ratio[stacks == name]) for name in several),
    ]


def draw(lines: list[dict[str, Any]]) -> Any:
    """The signed middle error of every kind, its stacks as dots, and how far nine of ten rows
    lie."""
    whole = [line for line in lines if line["stack"] == "all"][::-1]
    figure = style.new_figure(7.4, 1.3 + 0.34 * len(whole))
    axes = figure.subplots()
    for y, line in enumerate(whole):
        axes.plot([-line["p90"], line["p90"]], [y, y], color=style.PALE, lw=7, zorder=0)
        axes.plot(line["bias"], y, "D", color=style.BLUE, zorder=2)
        of = [x["bias"] for x in lines if x["kind"] == line["kind"] and x["stack"] != "all"]
        axes.plot(of, [y] * len(of), "o", color=style.GREY, ms=3.5, mfc="white", zorder=1)
    axes.axvline(0.0, color=style.INK, lw=0.8)
    axes.set_yticks(range(len(whole)), [f"{line['kind']} ({line['rows']})" for line in whole])
    axes.set_xlabel("predicted / measured − 1 [%]: middle (rings: stacks), 90 % of the rows (bar)")
    axes.set_title("Rows of a kind, by a fit without them")
    return figure


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
    bases = Bases.of(options, starts=2)
    lines: list[dict[str, Any]] = []
    for kind in options.kinds or (("4 bits",) if options.quick else KINDS):
        hidden = KINDS[kind](cases)
        judged, profile = cases.take(hidden), bases.without(cases, hidden, kind)
        lines += lines_of(
            kind, judged, predict(judged, profile).step_time_s / judged.labels.step_time_s
        )
    deliver("kinds", lines, draw(lines), options)


if __name__ == "__main__":
    run(main)
