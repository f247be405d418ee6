"""Is it right about software and plans unseen? Every protocol.

Claim: the model is right about software and configurations that it has not seen; every protocol,
with its goal beside it.

Few-shot fits (8, 12, 30 rows), cross-validation by group, no rows at all, extrapolation in scale,
model size and chip, and the choice among measured plans. `python -m experiments.accuracy [--only
PROTOCOL…] [--traces FILE…] [--seeds N] [--workers N | --cluster ADDRESS] [--quick] [--json]
[--out DIR]`; a text given to `--only` runs every protocol whose name contains it. Fitted bases are
kept under the output folder while the model stays the same. Peaks of memory take no workers, as
their fits take none of the time.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from dmodel.parts import opened
from experiments.accuracy_figure import draw
from experiments.bases import Bases
from experiments.protocols import Outcome, run
from experiments.study import arguments, containing, deliver, rows, say
from experiments.study import run as end_well
from experiments.targets import catalog

QUICK = ("few-shot 12 vtrain-multi", "scale vtrain-multi", "no rows, other stack: vtrain-multi")
"""Protocols of the quick mode, with two seeds, a base of few rows and one scattered start of each
fit."""


def line(outcome: Outcome) -> dict[str, Any]:
    """One line of the table; errors and regret in %."""
    goal, chosen = outcome.goal, outcome.choosing
    asked = (
        (outcome.median, goal.median),
        (outcome.mean, goal.mean),
        (outcome.worst_mean, goal.mean and 2.0 * goal.mean),
    )
    choice = (
        (chosen.regret, goal.regret and goal.regret / 100.0),
        (chosen.order and -chosen.order, goal.order and -goal.order),
    )
    judged = [
        found <= limit
        for found, limit in (*asked, *choice)
        if found is not None and limit is not None
    ]
    return {
        "protocol": title(outcome),
        "fitted": outcome.rows_fitted,
        "judged": outcome.rows_judged,
        "seeds": outcome.seeds,
        "median": outcome.median,
        "goal_median": goal.median,
        "mean": outcome.mean,
        "goal_mean": goal.mean,
        "worst_median": outcome.worst_median,
        "worst_mean": outcome.worst_mean,
        "bias": outcome.bias,
        "regret": None if chosen.regret is None else 100.0 * chosen.regret,
        "order": chosen.order,
        "choices": chosen.choices,
        "reached": None if not judged else all(judged),
    }


def sentence(o: Outcome) -> str:
    """An outcome in a line, for the progress on standard error."""
    goals = [f"{goal:g}" for goal in (o.goal.median, o.goal.mean) if goal is not None]
    goal = f" (goal {' / '.join(goals)})" if goals else ""
    return f"{title(o)}: {o.median:.2f} / {o.mean:.2f} %{goal}, worst seed {o.worst_mean:.1f}"


def title(o: Outcome) -> str:
    """Protocol, and the part of its rows."""
    return o.protocol + (f" [{o.part}]" if o.part else "")


def main() -> None:
    """Every protocol asked for, then the table and the figure."""
    options = _options()
    cases = rows(options.traces)
    asked = options.only or (QUICK if options.quick else None)
    names = containing(catalog(cases), asked, "protocol")
    outcomes: list[Outcome] = []
    with opened(options.workers, options.cluster) as executor:
        for name in names:
            started = time.perf_counter()
            found = run(
                name,
                cases,
                range(2 if options.quick else options.seeds),
                Bases.of(options, starts=2),
                1 if options.quick else None,
                executor,
            )
            outcomes += found
            for outcome in found:
                say(f"{sentence(outcome)}; {time.perf_counter() - started:.0f} s")
    deliver("accuracy", [line(o) for o in outcomes], draw(outcomes), options)


def _options() -> argparse.Namespace:
    parser = arguments(__doc__ or "")
    parser.set_defaults(seeds=10)
    parser.add_argument(
        "--only",
        nargs="*",
        metavar="PROTOCOL",
        help="protocols whose names contain one of these texts",
    )
    parser.add_argument("--workers", type=int, help="processes of this machine that fit")
    parser.add_argument("--cluster", metavar="ADDRESS", help="scheduler of Dask whose workers fit")
    return parser.parse_args()


if __name__ == "__main__":
    end_well(main)
