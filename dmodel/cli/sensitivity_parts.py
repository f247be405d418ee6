"""The parts of a sensitivity answer beyond elasticities: the plan that follows, interactions,
global indices, the regime map, checks."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dmodel.cli import sensitivity_more as more
from dmodel.cli.elasticities import case_document
from dmodel.cli.options import Degrees
from dmodel.cli.output import Document, gib, say
from dmodel.cli.sensitivity_shown import (
    Figures,
    draw_interactions,
    draw_regimes,
    draw_tornado,
    make_folder,
)
from dmodel.records import leaf
from dmodel.types import InputError

if TYPE_CHECKING:
    from dmodel.asked import Asked
    from dmodel.records import Plan
    from dmodel.sensitivity import Point, Searched
    from dmodel.sensitivity.case import Inputs

FOLLOWED, INTERACTING = 6, 12
"""Inputs that are followed through the best plans, and of the heat map, where nothing else is
asked."""


class Wanted(NamedTuple):
    """What of the answer is wanted: the options of the command."""

    output: str
    reoptimize: bool = False
    follow: list[str] | None = None
    base: int = 0
    ranges: list[str] | None = None
    interact: int = 0
    axes: str = ""
    loss: float | None = None
    deadline_days: float = 90.0
    check: bool = False
    report: Path | None = None


def check_options(w: Wanted, degrees: Degrees) -> None:
    """Refuse what can be seen to be wrong before anything is searched, and options that would be
    ignored."""
    from dmodel.sensitivity.outputs import output_name

    output_name(w.output)
    if w.follow and not w.reoptimize:
        raise InputError(
            "--follow searches the best plan again along an input: expected --reoptimize with it"
        )
    if w.reoptimize:
        _check_nothing_given(degrees)
    if w.base & (w.base - 1) or w.base == 1:
        raise InputError(
            f"--global: expected a power of two from 2 on, or 0 for none; got {w.base}"
        )
    for text in w.ranges or ():
        more.stated_ends(text)
    if w.axes:
        more.named_axes(w.axes)
    if w.report is not None:
        make_folder(w.report)


def _check_nothing_given(degrees: Degrees) -> None:
    """Refuse options of a plan where the best of all is taken."""
    default = degrees._field_defaults
    given = [n for n, value in degrees._asdict().items() if value != default[n]]
    names = ", ".join(f"--{n.replace('_', '-')}" for n in given if n != "attention")
    if names:
        raise InputError(
            f"{names}: --reoptimize takes the best of all plans, whatever is given; leave the "
            "option out, or --reoptimize"
        )


def _check_names(known: Inputs, w: Wanted) -> None:
    """Refuse unknown inputs, and those that cannot be followed."""
    from dmodel.sensitivity.case import base_name
    from dmodel.sensitivity.flips import place_followed
    from dmodel.sensitivity.regimes import AXES

    for name in w.follow or ():
        place_followed(known, name)
    axes = [
        name
        for name in (more.named_axes(w.axes) if w.axes else ())
        if name not in AXES and name not in map(base_name, known.names)
    ]
    for name in (*(more.stated_ends(text)[0] for text in w.ranges or ()), *axes):
        known.index(name)


def answer(asked: Asked, degrees: Degrees, w: Wanted) -> tuple[Document, Figures]:
    """The document, and the figures that belong to it."""
    from dmodel.cli.question import plan, plan_document
    from dmodel.report.words import summary
    from dmodel.sensitivity.case import inputs
    from dmodel.sensitivity.outputs import WORDS

    plans: Searched | None = None
    if w.reoptimize:
        chosen, assumed, plans = _best(asked, degrees, w)
    else:
        chosen, assumed = plan(asked, degrees)
        _say_if_too_large(asked, chosen)
    case = case_of(asked, chosen, w)
    _check_names(inputs(case, asked.level_names), w)
    d: Document = {
        **asked.document(),
        "plan": plan_document(chosen),
        **case_document(asked, case, w.output),
        "assumptions": assumed,
    }
    d["output_words"] = WORDS[d["output"]]
    d["shares"] = _shares(d) if d["output"] == "step_time" else None
    _add_effects(d, asked, case)
    figures = _add_parts(d, asked, case, plans, w)
    d["summary"] = summary(d)
    return d, figures


def _best(asked: Asked, degrees: Degrees, w: Wanted) -> tuple[Plan, list[str], Searched]:
    """The best plan, what is assumed for all, and what is known of the others."""
    from dmodel.searching import space_of
    from dmodel.sensitivity import searched
    from dmodel.sensitivity.case import inputs

    found = space_of(asked, degrees.attention)
    # one program for stages of one chunk and of several, compiled while the plans are searched
    shared = found.base
    if shared.layout.schedule == "1f1b":
        shared = shared.having(schedule="interleaved")
    whole = shared.having(dp=float(asked.devices), global_batch=float(asked.global_batch))
    opening = case_of(asked, whole, w)
    known = inputs(opening, asked.level_names)
    _check_names(known, w)
    ready = _compile_ahead(known, w)
    how = {"base": found.base, "choices": found.choices, "level_names": asked.level_names}
    plans = searched(opening, **how)
    say(f"best of {plans.considered:,} valid plans")
    chosen = plans.best.plans[0].having(schedule=shared.layout.schedule)
    _while_compiling(plans, w)
    ready.result()
    return chosen, [str(each) for each in found.assumptions], plans


def _add_parts(
    d: Document, asked: Asked, case: Point, plans: Searched | None, w: Wanted
) -> Figures:
    """Add the parts of the answer that are wanted; the figures that belong to it."""
    figures: Figures = {"tornado": lambda: draw_tornado(d)}
    if w.reoptimize:
        d["reoptimized"] = _reoptimized(asked, case, d["output"])
        d["design"] = _design(asked, case, plans, w, d)
    if w.interact or w.report:
        d["interactions"] = more.interactions(asked, case, d["output"], w.interact or INTERACTING)
        figures["interactions"] = lambda: draw_interactions(d)
    if w.axes or w.report:
        found = more.regime_map(asked, case, w.axes or "devices,bandwidth")
        d["regimes"] = more.regime_document(found)
        figures["regimes"] = lambda: draw_regimes(found, d)
    if w.base or w.ranges:
        d["global"] = more.global_indices(asked, case, d["output"], w)
    if w.check:
        d["check"] = more.checked(asked, case, d)
    return figures


def _say_if_too_large(asked: Asked, chosen: Plan) -> None:
    """A plan may be asked about that does not fit, as its answer may be what would change that; but
    not without a word."""
    from dmodel.step import memory_use

    short = float(
        memory_use(asked.model, chosen, footprint=asked.footprint).total
        - asked.cluster.chip.hbm_bytes
    )
    if short > 0.0:
        say(
            f"the plan does not fit: a device has {gib(short)} too little; sensitivities are "
            "of "
            "what it would be if it did"
        )


def _compile_ahead(known: Inputs, w: Wanted) -> Future[Any]:
    """Compile the gradient in a thread of its own; compilers hold no lock."""
    from dmodel.sensitivity.gradient import evaluate
    from dmodel.sensitivity.outputs import output_name

    def compile_all() -> None:
        for output in dict.fromkeys(("step_time", output_name(w.output))):
            evaluate(known, known.values[:, None], output)

    pool = ThreadPoolExecutor(1)
    ready = pool.submit(compile_all)
    pool.shutdown(wait=False)
    return ready


def _while_compiling(plans: Searched, w: Wanted) -> None:
    """What comes later anyway, while the gradient compiles."""
    from dmodel.sensitivity.flips import prepare

    prepare(plans)
    for name in (
        "scipy.optimize",
        *(["matplotlib.figure", "matplotlib.backends.backend_agg"] if w.report else []),
    ):
        import_module(name)


def case_of(asked: Asked, chosen: Plan, w: Wanted) -> Point:
    """The case of a job and plan, with the goal of the options."""
    from dmodel.goodput import DAY_S
    from dmodel.sensitivity import make_case
    from dmodel.sensitivity.goal import usual

    for name, value in (("loss", w.loss), ("deadline-days", w.deadline_days)):
        if value is not None and not 0.0 < value < float("inf"):
            raise InputError(f"--{name}: expected a positive number; got {value:g}")
    goal = usual(asked.model).replace(deadline_s=w.deadline_days * DAY_S)
    goal = goal if w.loss is None else goal.replace(loss=w.loss)
    return make_case(asked.cluster, asked.model, chosen, asked.coefficients, asked.footprint, goal)


def _shares(d: Document) -> dict[str, float]:
    """Shares of the step by what bounds it, from the elasticities."""
    from dmodel.sensitivity.regimes import MEMBERS, REGIMES

    found: dict[str, float] = dict.fromkeys(REGIMES, 0.0)
    for e in d["elasticities"]:
        if (base := e["name"].split("[")[0]) in MEMBERS:
            regime, sign = MEMBERS[base]
            found[regime] += sign * e["elasticity"]
    return found


def _add_effects(d: Document, asked: Asked, case: Point) -> None:
    """Give every elasticity the effect of 10 % more, and half the width of its 90 % interval where
    the profile has a covariance."""
    import numpy as np

    from dmodel import uncertainty
    from dmodel.sensitivity.case import inputs
    from dmodel.sensitivity.gradient import evaluate
    from dmodel.sensitivity.local import scaled
    from dmodel.sensitivity.spread import deviations

    known = inputs(case, asked.level_names)
    places = [known.index(e["name"]) for e in d["elasticities"]]
    values, _ = evaluate(known, scaled(known, places, np.array([1.1])), d["output"])
    sigma = uncertainty.covariance(asked.profile, asked.accelerator, asked.stack or None)
    sd: dict[str, float] = {}
    if sigma is not None:
        points = uncertainty.points(
            asked.profile.unconstrained(asked.accelerator, asked.stack or None), sigma
        )
        sd = deviations(case, points, d["output"], level_names=asked.level_names)
    for e, value in zip(d["elasticities"], values, strict=True):
        e["more"] = float(value / d["value"] - 1.0)
        if sd and not e["name"].startswith("plan."):
            e["error"] = uncertainty.quantile(0.9) * sd[e["name"]]


def _reoptimized(asked: Asked, case: Point, output: str) -> Document:
    from dmodel.sensitivity import reoptimized

    found = reoptimized(case, (output,), level_names=asked.level_names)[output]
    names = ("dp", "tp", "cp", "pp", "ep", "micro_batch", "interleave", "recompute_layers")
    return {
        "value": found.value,
        "step_time_s": found.step_time_s,
        "plan": {name: float(leaf(found.plan, name)) for name in names},
        "active": [{"name": a.name, "price": a.price} for a in found.active],
        "residual": found.residual,
        "unique": found.unique,
        "elasticities": found.elasticities,
        "moves": found.moves,
    }


def _design(asked: Asked, case: Point, plans: Any, w: Wanted, d: Document) -> Document:
    from dmodel.cli.question import plan_document, short
    from dmodel.sensitivity.flips import LIMIT, landscape

    names = w.follow if w.follow else _worth_following(d)
    found = landscape(case, names, known=plans, level_names=asked.level_names)

    def flip(f: Any) -> Document | None:
        return (
            None
            if f is None
            else {
                "factor": f.factor,
                "value": f.value,
                "label": short(plan_document(f.plan)),
                "gain": f.gain,
            }
        )

    effects = [
        {**e._asdict(), "limit": LIMIT, "up": flip(e.up), "down": flip(e.down)}
        for e in found.effects
    ]
    label = short(plan_document(found.best))
    return {
        "best": label,
        "step_time_s": found.step_time_s,
        "runner_up": found.runner_up,
        "considered": found.considered,
        "effects": effects,
    }


def _worth_following(d: Document) -> list[str]:
    """Inputs of the hardware that matter most, the memory, and the coefficient that matters
    most."""
    ranked = [e for e in d["elasticities"] if abs(e["elasticity"]) >= LEAST_FOLLOWED]
    hardware = [
        e["name"]
        for e in ranked
        if e["group"] == "hardware" and not e["name"].startswith("network.size")
    ]
    memory = [n for n in ("chip.hbm_bytes",) if n not in hardware]
    fitted = [e["name"] for e in ranked if e["group"] == "coefficient"][:1]
    return [*hardware[: FOLLOWED - 2], *memory, *fitted]


LEAST_FOLLOWED = 2e-3
"""Elasticities below this are not followed."""
