"""Laws of single operations, judged on shapes not fitted.

Claim: laws with few coefficients time single operations of shapes not seen: matmuls and
attention to 8 %, collectives to 12 %.

Half of the shapes of a group (chip and precision, chip and kernels, chip and network), drawn anew
for every seed, is fitted, the other half judged: median, mean and 90th percentile of |predicted /
measured − 1|, the middle over the seeds, and the worst seed's median.
`python -m experiments.micro [--kind matmul attention collective] [--chip NAME …] [--seeds N]
[--table FILE …] [--quick] [--json]`
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from calibration.micro import KINDS, published, read
from calibration.micro.fitting import fit, log_ratios, take
from calibration.micro.groups import Group, form_of, groups, half_of_shapes, problem_of
from calibration.micro.reader import MicroTable
from experiments.micro_figure import draw
from experiments.study import deliver, middle, parse, plain_arguments, run, say, summary

QUICK = ("A100-80GB", "H100-80GB")
"""Chips of a quick run, which judges one half of the shapes."""


class Judged(NamedTuple):
    """A group with its held-out rows: of seed 0 the rows and their ln(predicted / measured), and
    |error| by row of every seed."""

    group: Group
    held_out: np.ndarray
    log_ratio: np.ndarray
    errors: list[np.ndarray]


def tables(kind: str, files: list[str]) -> list[MicroTable]:
    """The shipped table of a kind and those given; says what was set aside."""
    found = [published(kind), *(t for t in map(read, files) if t.kind == kind)]
    for problem in (p for table in found for p in table.problems):
        say(f"set aside: {problem}")
    return found


def members(kind: str, files: list[str], chips: list[str], quick: bool) -> list[Group]:
    """Groups to fit, rows of all tables together."""
    found = tables(kind, files)
    table = found[0]._replace(rows=tuple(row for t in found for row in t.rows))
    wanted = chips or (list(QUICK) if quick else [])
    return [g for g in groups(table) if not wanted or g.chip in wanted]


def judge(kind: str, mine: list[Group], seeds: int) -> list[Judged]:
    """Fit half of every group for every seed, all fits at once, and judge the other halves."""
    draws = [(problem_of(g), half_of_shapes(g.table, seed)) for seed in range(seeds) for g in mine]
    fits = fit(form_of(kind), [take(p, half) for p, half in draws])
    ratios = log_ratios(fits, [take(p, ~half) for p, half in draws])
    n = len(mine)
    return [
        Judged(g, ~draws[i][1], ratios[i], [np.abs(np.expm1(r)) for r in ratios[i::n]])
        for i, g in enumerate(mine)
    ]


def lines(judged: Judged) -> list[dict[str, Any]]:
    """One line of a group, and of collectives one for each kind of them (seed 0)."""
    g = judged.group
    worst = 100 * max(float(np.median(e)) for e in judged.errors)
    found: list[dict[str, Any]] = [
        {
            "kind": g.kind,
            "chip": g.chip,
            "variant": g.variant,
            "rows": len(g.table.rows),
            **middle([summary(e) for e in judged.errors]),
            "worst seed": worst,
        }
    ]
    if g.kind == "collective":
        which = g.table.texts("collective")[judged.held_out]
        for name in sorted(set(which.tolist())):
            mine = which == name
            found.append(
                {
                    "kind": name,
                    "chip": g.chip,
                    "variant": g.variant,
                    "rows": int(mine.sum()),
                    **summary(judged.errors[0][mine]),
                }
            )
    return found


def main() -> None:
    """Judge every kind and print one table."""
    parser = plain_arguments(__doc__ or "")
    parser.add_argument(
        "--kind", nargs="*", choices=tuple(KINDS), default=list(KINDS), help="operations to judge"
    )
    parser.add_argument("--chip", nargs="*", default=[], help="only these accelerators")
    parser.add_argument(
        "--table",
        nargs="*",
        default=[],
        metavar="FILE",
        help="files of measurements to use beside the shipped ones",
    )
    parser.add_argument("--seeds", type=int, default=5, help="how many random halves")
    options = parse(parser)
    every: list[Judged] = []
    for kind in options.kind:
        mine = members(kind, options.table, options.chip, options.quick)
        say(f"{kind}: {len(mine)} groups, {sum(len(g.table.rows) for g in mine)} rows")
        every += judge(kind, mine, 1 if options.quick else options.seeds) if mine else []
    figure = draw([(j.group, j.held_out, j.log_ratio) for j in every])
    deliver("micro", [line for j in every for line in lines(j)], figure, options)


if __name__ == "__main__":
    run(main)
