"""Do shallower models or larger batches pass the wall?

Claim: "shorter and fatter" models and larger batches are the ways past the wall: both give each
layer more tokens at once.

H100, dense: the study's depth divided, and its critical batch multiplied, by 2 to 16; where linear
scaling ends and the largest run in three months, against the closed forms, in which both go with
(batch / depth)^(2 / (1 − 2α)). What such models lose in quality is not modelled. `python -m
experiments.data_movement_limits_ways_out [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dmodel.report import style
from dmodel.theory import laws
from dmodel.theory.closed_form import t_limit
from dmodel.theory.laws import Laws
from experiments import data_movement as shared
from experiments.data_movement import Curve, compared, curve
from experiments.data_movement_limits_walls import LAWS, wall
from experiments.study import COLORS, options
from experiments.study import run as run_study

FACTORS = (1, 2, 4, 8, 16)
WAYS = {"shallower": "layers divided by {}", "larger batch": "batch times {}", "both": "both, {}"}


def changed(way: str, factor: float) -> Laws:
    """The study's laws with the depth divided, the batch multiplied, or both, each by the root of
    the factor."""
    deep, wide = {
        "shallower": (factor, 1.0),
        "larger batch": (1.0, factor),
        "both": (factor**0.5, factor**0.5),
    }[way]
    batch = laws.STUDY.batch
    return laws.STUDY.replace(
        depth=laws.STUDY.depth / deep, batch=batch.replace(tokens=batch.tokens * wide)
    )


def expected(factor: float) -> float:
    """By how much the closed forms grow when every layer gets `factor` times the tokens."""
    batch, depth = LAWS["batch C^(1/6)"]
    at = wall("H100 SXM", batch - depth)
    return float(t_limit(at.replace(batch_tokens=factor * at.batch_tokens)) / t_limit(at))


def gains(curves: dict[tuple[str, int], Curve]) -> list[dict[str, Any]]:
    """Growth of both ends over the study's models, beside that of the closed forms."""
    return [
        compared(
            f"{c.label}: {what.replace('_', ' ')} grows by",
            expected(factor),
            times,
            "against the closed form",
        )
        for (way, factor), c in curves.items()
        if factor > 1
        for what, times in shared.growth(c, curves[way, 1]).items()
    ]


def draw(curves: dict[tuple[str, int], Curve], ways: list[str], factors: Sequence[int]) -> Any:
    """A panel for each way."""
    figure = style.new_figure(3.9 * len(ways) + 0.4, 3.8)
    grid = figure.subplots(1, len(ways), squeeze=False, sharey=True, sharex=True)[0]
    for axes, way in zip(grid, ways, strict=True):
        some = [curves[way, f] for f in factors]
        colors = {c.label: color for c, color in zip(some, COLORS, strict=False)}
        shared.draw_curves(axes, some, colors)
        axes.set_title(way)
        axes.set_xlim(1e25, None)
        shared.legend(axes, loc="lower left")
    for axes in grid[1:]:
        axes.set_ylabel("")
    return figure


def main() -> None:
    """Sweep every way and factor, compare with the closed form, draw."""
    args = options(__doc__ or "")
    ways, factors = (list(WAYS)[:2], (1, 4)) if args.quick else (list(WAYS), FACTORS)
    plain = curve("H100 SXM", "as in the study")
    curves = {
        (way, f): plain
        if f == 1
        else curve("H100 SXM", WAYS[way].format(f), law=changed(way, float(f)))
        for way in ways
        for f in factors
    }
    comparison = [*shared.headlines(plain), *gains(curves)]
    lines = [p for c in dict.fromkeys(id(c) for c in curves.values()) for p in _points(curves, c)]
    figure = draw(curves, ways, factors)
    shared.deliver("data_movement_limits_ways_out", comparison, lines, figure, args)


def _points(curves: dict[tuple[str, int], Curve], which: int) -> list[dict[str, Any]]:
    """Points of a curve, once however many factors share it."""
    found = next(c for c in curves.values() if id(c) == which)
    return [
        {**p, "layers": int(b.run.layers), "batch_tokens": float(b.run.batch_tokens)}
        for p, b in zip(shared.points(found), found.known, strict=True)
    ]


if __name__ == "__main__":
    run_study(main)
