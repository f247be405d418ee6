"""What the studies of sensitivity share: a published run, elasticities at its plan and at the best
one, flips, a figure and a table."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from dmodel import catalog, profiles
from dmodel.catalog.loader import resolve, table
from dmodel.records import Plan, leaf
from dmodel.report import style
from dmodel.sensitivity import (
    Landscape,
    Point,
    interactions,
    landscape,
    make_case,
    of_case,
    regime_map,
    reoptimized,
)
from dmodel.sensitivity.reoptimized import DEVICES
from dmodel.stages import layout
from experiments.study import deliver, say

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DEGREES = ("dp", "tp", "cp", "ep", "pp")


class Published(NamedTuple):
    """A run as its report describes it.

    Attributes:
      study: name of the files. title: for the figure. system, model, precision, stack: as the
        catalog and profiles name them.
      seq_len: [token]. plan: degrees, batch and the rest. follow: inputs to follow to their flips.
    """

    study: str
    title: str
    system: str
    model: str
    precision: str
    stack: str
    seq_len: int
    plan: Plan
    follow: tuple[str, ...]


class Stated(NamedTuple):
    """The case of a published run, what all its plans share, and the names of its network's
    levels."""

    case: Point
    base: Plan
    level_names: tuple[str, ...]
    profile: str


def state(run: Published) -> Stated:
    """The records of a published run, with the coefficients of the nearest profile."""
    entry = table("systems")[resolve("systems", run.system)]
    profile, _ = profiles.nearest(entry["chip"], run.stack)
    model = catalog.transformer(run.model, run.seq_len)
    coefficients = profile.coefficients_for(entry["chip"], run.stack or None)
    laid = layout(
        float(model.n_layers),
        float(run.plan.layout.pp),
        float(run.plan.layout.interleave),
        float(model.layers - model.n_layers),
    )
    case = make_case(
        catalog.system(run.system, run.precision), model, run.plan.having(**laid), coefficients
    )
    base = (
        run.plan.having(schedule="1f1b") if run.plan.layout.schedule == "interleaved" else run.plan
    )
    return Stated(case, base, tuple(level["name"] for level in entry["levels"]), profile.name)


def degrees(plan: Plan) -> str:
    """A plan in a few words."""
    named = {**{name: name for name in DEGREES}, "interleave": "v", "micro_batch": "b"}
    found = [(short, float(leaf(plan, name))) for name, short in named.items()]
    return " · ".join(f"{short} {value:.3g}" for short, value in found if value != 1.0)


def study(run: Published, args: argparse.Namespace) -> None:
    """Differentiate, re-optimise, follow, draw and write."""
    begun = time.process_time()
    stated = state(run)
    case, names = stated.case, stated.level_names
    fixed = of_case(case, level_names=names, sort=True)
    say(f"{run.title}: {degrees(case.plan)}; step {fixed.at:.2f} s by profile {stated.profile}")
    follows = reoptimized(case, level_names=names)["step_time"]
    say(
        f"real-valued: {degrees(follows.plan)}; step {follows.step_time_s:.2f} s; held by "
        f"{', '.join(a.name for a in follows.active)}"
    )
    pairs = interactions(case, most=10, level_names=names)
    regimes = regime_map(
        case, "devices", "bandwidth", level_names=names, points=17 if args.quick else 33
    )
    say(f"interactions and regimes ({time.process_time() - begun:.0f} s of work)")
    found = None if args.quick else _followed(run, stated)
    figure = _draw(run, fixed, follows, pairs, regimes, found)
    deliver(run.study, _lines(fixed, follows.elasticities, found), figure, args)
    say(f"done ({time.process_time() - begun:.0f} s of work)")


def _followed(run: Published, stated: Stated) -> Landscape:
    """The best whole-numbered plan, followed to where it flips; a quick run goes without."""
    found = landscape(stated.case, run.follow, base=stated.base, level_names=stated.level_names)
    say(
        f"best of {found.considered:,} whole-numbered plans: {degrees(found.best)}; step "
        f"{found.step_time_s:.2f} s"
    )
    return found


def _lines(fixed: Any, follows: dict[str, float], found: Landscape | None) -> list[dict[str, Any]]:
    """The table: what is not nothing, and the devices, which only a plan that follows answers
    to."""
    followed = {} if found is None else {f.name: f for f in found.effects}
    lines = [_line(e, follows, followed) for e in fixed.entries if abs(e.value) >= 5e-4]
    return [*lines, {"input": DEVICES, "re-optimised": follows.get(DEVICES)}]


def _line(e: Any, follows: dict[str, float], followed: dict[str, Any]) -> dict[str, Any]:
    """A row of the table: the elasticity of an input at the plan and re-optimised, and where the
    best whole-numbered plan flips."""
    line = {
        "input": e.name,
        "at": f"{e.at:.4g}",
        "elasticity": e.value,
        "re-optimised": follows.get(e.name),
    }
    effect = followed.get(e.name)
    if effect is None:
        return line
    more = None if effect.more is None else 100.0 * effect.more
    return line | {
        "+10 %, searched again [%]": more,
        "flips up at [%]": _flip(effect.up),
        "flips down at [%]": _flip(effect.down),
    }


def _flip(flip: Any) -> str:
    return "none" if flip is None else f"{100.0 * (flip.factor - 1.0):+.1f} ({degrees(flip.plan)})"


def _draw(run: Published, fixed: Any, follows: Any, pairs: Any, regimes: Any, found: Any) -> Figure:
    from dmodel.report import heatmap, tornado
    from dmodel.report import regimes as maps

    figure = style.new_figure(13.6, 9.6)
    (a, b), (c, d) = figure.subplots(2, 2)
    items = [
        tornado.Elasticity(e.name, e.group, e.value)
        for e in fixed.entries
        if not e.name.endswith("_share")
    ]
    tornado.draw(a, items, most=15, marks=follows.elasticities)
    heatmap.draw(b, pairs.names, pairs.hessian)
    maps.draw(c, regimes, "What bounds the step")
    _draw_flips(d, found)
    figure.suptitle(
        f"{run.title}: {degrees(run.plan)}; step {fixed.at:.2f} s", weight="bold", x=0.01, ha="left"
    )
    return figure


def _draw_flips(axes: Axes, found: Any) -> None:
    """A bar for each input over the factors at which the best plan stays; the plans that take over
    stand below its ends."""
    axes.set_title("Where the best plan changes")
    if found is None:
        axes.text(
            0.5,
            0.5,
            "not followed in a quick run",
            ha="center",
            color=style.GREY,
            transform=axes.transAxes,
        )
        axes.set_axis_off()
        return
    axes.set_title(f"Where the best plan changes: {degrees(found.best)}")
    for row, e in enumerate(found.effects):
        low = e.down.factor if e.down else 0.5
        high = e.up.factor if e.up else 2.0
        axes.plot([low, high], [row, row], color=style.BLUE, linewidth=7, solid_capstyle="butt")
        _mark(axes, row, e.down, -18, ("left", "right"), "below")
        _mark(axes, row, e.up, -30, ("right", "left"), "from here")
    axes.axvline(1.0, color=style.GREY, linewidth=0.8)
    axes.set(
        xscale="log",
        xlim=(0.45, 2.2),
        ylim=(len(found.effects) - 0.4, -0.6),
        xlabel="input over its value",
    )
    axes.set_xticks([0.5, 0.7, 1.0, 1.4, 2.0], ["0.5", "0.7", "1", "1.4", "2"])
    axes.minorticks_off()
    axes.set_yticks(range(len(found.effects)), [e.name for e in found.effects])


def _mark(axes: Axes, row: int, flip: Any, below: int, sides: tuple[str, str], words: str) -> None:
    """The end of a bar: by how much the input changes there, and the plan that takes over, below
    it."""
    if flip is None:
        return
    at = (flip.factor, row)
    axes.plot(*at, "|", color=style.INK, markersize=14)
    change = f"{100.0 * (flip.factor - 1.0):+.0f} %".replace("-", "−")
    plan = f"{words} {degrees(flip.plan)}"
    look = {"textcoords": "offset points"}
    axes.annotate(change, at, (0, 11), ha=sides[1], fontsize=8, **look)
    axes.annotate(plan, at, (0, below), ha=sides[0], fontsize=7, **look)
