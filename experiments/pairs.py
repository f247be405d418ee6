"""Pairs of rows that differ in one thing: is the change right, and its direction?

Claim: what one change does to a step, such as another precision, degree or batch, is known better
than the step itself.

Rows of one source, stack and chip that differ in one column are asked for their ratio: a line for
each column has the pairs, the error of the predicted ratio over the measured one, and of pairs
that were measured further apart than `CLEAR` the share that changes to the right side. The rows are
those of `experiments.sources`, which no fit has seen; each is compared with at most `MOST` others.
`python -m experiments.pairs [--traces FILE …] [--json] [--out DIR]`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from dmodel.records import ff_width, value
from dmodel.report import style
from experiments.sources import Judged, judged
from experiments.study import arguments, deliver, run, summary

CLEAR = 0.03
"""Relative difference of measured times from which a direction is asked for [1]."""

MOST = 4
"""Others, at most, that a row is compared with in one column, the nearest lines first."""


def columns(rows: Judged) -> dict[str, np.ndarray]:
    """What a row is asked for, by name, `[row]`; degrees go together with their devices."""
    model, plan, labels = rows.cases.model, rows.cases.plan, rows.cases.labels
    layout = plan.layout
    whole = lambda x: np.broadcast_to(np.asarray(x, float).round(6), len(rows.cases))  # noqa: E731
    kept = ("recompute_layers", "recompute_attention", "recompute_products")
    again = np.stack([whole(getattr(layout, name)) for name in kept])
    software = ("flash", "graphed", "fused_experts", "looped_experts")
    told = np.stack([whole(getattr(plan.software, name)) for name in software])
    shape = (model.n_layers, model.d_model, ff_width(model), value(model, "n_experts", 1.0))
    return {
        "same": _words(*(np.array(list(map(str, x))) for x in (labels.source, labels.accelerator))),
        "stack": np.array(list(map(str, labels.stack))),
        "kernels": _words(*told),
        "model": _words(*map(whole, (*shape, model.trainable))),
        "sequence": whole(model.seq_len),
        "precision": np.array(list(map(str, labels.precision))),
        "recomputation": _words(*again),
        "tensor": whole(layout.tp),
        "pipeline": _words(whole(layout.pp), whole(layout.interleave)),
        "context": whole(layout.cp),
        "expert": whole(layout.ep),
        "zero": _words(whole(layout.zero), whole(layout.shard)),
        "micro-batch": whole(layout.micro_batch),
        "batch": whole(plan.global_batch),
        "devices": whole(plan.devices),
    }


ASKED = (
    "precision",
    "recomputation",
    "tensor",
    "pipeline",
    "context",
    "expert",
    "zero",
    "micro-batch",
    "batch",
    "devices",
)
"""Columns of which one may differ."""

FOLLOWS = {"devices": ("batch", "zero")}
"""What may change with a column: as many sequences for each device, and shards of all of them."""


def _words(*columns: np.ndarray) -> np.ndarray:
    """Several columns as one, `[row]`."""
    return np.array(["|".join(map(str, row)) for row in zip(*columns, strict=True)])


def pairs_of(rows: Judged, asked: str, of: dict[str, np.ndarray]) -> list[tuple[int, int]]:
    """Places of rows that differ in one column, and in what follows it."""
    free = {asked, *FOLLOWS.get(asked, ())}
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for i in range(len(rows.cases)):
        groups[tuple(str(of[name][i]) for name in of if name not in free)].append(i)
    return [
        (i, j)
        for group in groups.values()
        for at, i in enumerate(group)
        for j in [j for j in group[at + 1 :] if of[asked][i] != of[asked][j]][:MOST]
    ]


def line(asked: str, pairs: list[tuple[int, int]], rows: Judged) -> dict[str, Any]:
    """One line: pairs, error of the predicted ratio [%], and the share to the right side [%]."""
    first, other = np.array(pairs).T
    measured = np.log(rows.cases.labels.step_time_s)
    predicted = np.log(rows.found.step_time_s)
    seen, said = measured[other] - measured[first], predicted[other] - predicted[first]
    clear = np.abs(seen) > CLEAR
    right = np.sign(seen[clear]) == np.sign(said[clear])
    return {
        "differ in": asked,
        "pairs": len(pairs),
        **summary(np.abs(np.expm1(said - seen))),
        "clear": int(clear.sum()),
        "right side": 100.0 * float(right.mean()) if clear.any() else None,
    }


def lines_of(rows: Judged) -> list[dict[str, Any]]:
    """A line for each column with pairs, and one for all of them."""
    of = columns(rows)
    found = {asked: pairs_of(rows, asked, of) for asked in ASKED}
    every = [pair for pairs in found.values() for pair in pairs]
    lines = [line(asked, pairs, rows) for asked, pairs in found.items() if pairs]
    return [*lines, line("any of them", every, rows)] if every else []


def draw(lines: list[dict[str, Any]]) -> Any:
    """Median error of ratios, column by column."""
    figure = style.new_figure(7.0, 1.3 + 0.34 * len(lines))
    axes = figure.subplots()
    names = [f"{x['differ in']} ({x['pairs']})" for x in lines[::-1]]
    axes.barh(range(len(lines)), [x["median"] for x in lines[::-1]], color=style.BLUE)
    axes.set_yticks(range(len(lines)), names)
    axes.set_xlabel("median error of the predicted ratio of two step times [%]")
    axes.set_title("Rows that differ in one thing")
    return figure


def main() -> None:
    """Pair, compare."""
    options = arguments(__doc__ or "").parse_args()
    lines = lines_of(judged(options.traces))
    deliver("pairs", lines, draw(lines), options, digits=".1f")


if __name__ == "__main__":
    run(main)
