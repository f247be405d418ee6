"""Are the widths of the priors right?

Question: are the widths of the priors right, or would rows that no fit has seen be predicted
better with others?

Fits a dozen rows of stacks that the base has not seen, as `experiments.accuracy` does, and
differentiates the error on the stack's other rows by the logarithm of every prior width
(`calibration.shrinkage`). 0.1 says that the error grows by 1 % when a width grows by 10 %. `python
-m experiments.shrinkage [--only PROTOCOL…] [--traces FILE…] [--seeds N] [--quick] [--json] [--out
DIR]`
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from calibration.shrinkage import WidthSlopes, width_slopes
from dmodel.coefficients import NAMES
from dmodel.report.style import GREY, INK, new_figure
from experiments.bases import Bases
from experiments.study import arguments, deliver, rows, run, say
from experiments.targets import catalog

FEW = "few-shot 12 "
STACKS = (
    "vtrain-single",
    "vtrain-multi",
    "llm-foundry",
    "nemo-launcher",
    "megatron-bridge",
    "maxtext",
)
QUICK = ("vtrain-multi",)
SHOWN = 12
"""Coefficients in the figure: those with the steepest slopes."""


def lines(name: str, found: list[WidthSlopes]) -> list[dict[str, Any]]:
    """Of a protocol: by grouping the slope of all widths together, and the coefficient with the
    steepest one; means over the draws."""
    mean = {g: np.mean([f.by_grouping[g] for f in found], axis=0) for g in found[0].by_grouping}
    error = 100.0 * float(np.mean([f.error for f in found]))
    return [
        {
            "protocol": name,
            "error": error,
            "widths among": grouping,
            "slope": float(slope.sum()),
            "draws below 0": float(np.mean([f.by_grouping[grouping].sum() < 0.0 for f in found])),
            "steepest": NAMES[int(np.abs(slope).argmax())],
            "its slope": float(slope[np.abs(slope).argmax()]),
        }
        for grouping, slope in mean.items()
        if slope.any()
    ]


def draw(found: dict[str, list[WidthSlopes]]) -> Any:
    """Slopes of the steepest coefficients, every protocol a dot, and their mean."""
    by_protocol = np.array(
        [
            np.mean([np.sum(list(f.by_grouping.values()), axis=0) for f in each], axis=0)
            for each in found.values()
        ]
    )
    steep = np.argsort(-np.abs(by_protocol).max(0))[:SHOWN][::-1]
    figure = new_figure(6.4, 0.3 * SHOWN + 1.2)
    axes = figure.subplots()
    for row, c in enumerate(steep):
        axes.plot(by_protocol[:, c], np.full(len(by_protocol), row), "o", color=GREY, markersize=4)
        axes.plot(by_protocol[:, c].mean(), row, "|", color=INK, markersize=14, markeredgewidth=2)
    axes.axvline(0.0, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(steep)), [NAMES[c] for c in steep])
    axes.set_xlabel("d ln(held-out error) / d ln(prior width); dots: stacks, bars: mean")
    return figure


def slopes(options: argparse.Namespace) -> dict[str, list[WidthSlopes]]:
    """Slopes of every draw, by stack."""
    cases, bases = rows(options.traces), Bases.of(options, starts=2)
    protocols = catalog(cases)
    found: dict[str, list[WidthSlopes]] = {}
    for stack in QUICK if options.quick else options.only or STACKS:
        protocol = protocols[FEW + stack]
        base = bases.without(cases, protocol.hidden(cases), stack)
        for seed in range(2 if options.quick else options.seeds):
            part = protocol.divide(cases, protocol.target(cases), seed)[0]
            found.setdefault(stack, []).append(
                width_slopes(cases, part.fitted, part.judged, base, seed=seed)
            )
        total = np.array([sum(s.sum() for s in f.by_grouping.values()) for f in found[stack]])
        say(
            f"{stack}: all widths together {total.mean():+.3f} (draws {total.min():+.3f} to "
            f"{total.max():+.3f})"
        )
    return found


def main() -> None:
    """Print the slopes, draw them, and write both."""
    parser = arguments(__doc__ or "")
    parser.add_argument(
        "--only",
        nargs="*",
        default=None,
        metavar="STACK",
        choices=STACKS,
        help="stacks to ask about; default: all",
    )
    options = parser.parse_args()
    found = slopes(options)
    table = [line for stack, each in found.items() for line in lines(stack, each)]
    deliver("shrinkage", table, draw(found), options)


if __name__ == "__main__":
    run(main)
