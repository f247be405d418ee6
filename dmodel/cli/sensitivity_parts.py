"""The parts of a sensitivity answer beyond elasticities: the plan that follows, interactions,
global indices, the regime map, checks."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from dmodel.cli.output import Document, say, stop
from dmodel.cli.sensitivity_wanted import Wanted, axes_of, range_of
from dmodel.cli.spread import computing
from dmodel.records import leaf

if TYPE_CHECKING:
    from dmodel.asked import Asked
    from dmodel.sensitivity import Point

FOLLOWED = 6
"""Inputs that are followed through the best plans, where nothing else is asked."""

LEAST_FOLLOWED = 2e-3
"""Elasticities below this are not followed."""

FIXED_TOLERANCE, SOLVED_TOLERANCE = 1e-6, 1e-2
"""Largest differences of elasticities from central differences, and from solving again."""


def reoptimized_document(asked: Asked, case: Point, output: str, memory: float) -> Document:
    """The optimum with real-valued degrees that needs that share of a device's memory at most, and
    its elasticities."""
    from dmodel.sensitivity import reoptimized

    how = {"memory": memory, "level_names": asked.level_names}
    found = reoptimized(case, (output,), **how)[output]
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


def design_document(asked: Asked, case: Point, plans: Any, w: Wanted, d: Document) -> Document:
    """The best whole-numbered plans along the inputs that are followed."""
    from dmodel.cli.question import plan_document, short
    from dmodel.sensitivity.flips import LIMIT, landscape

    names = w.follow if w.follow else _worth_following(d)
    found = landscape(case, names, known=plans, level_names=asked.level_names)

    effects = [
        {**e._asdict(), "limit": LIMIT, "up": _flip(e.up), "down": _flip(e.down)}
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


def _flip(f: Any) -> Document | None:
    """Where another plan becomes the best."""
    from dmodel.cli.question import plan_document, short

    if f is None:
        return None
    label = short(plan_document(f.plan))
    return {"factor": f.factor, "value": f.value, "label": label, "gain": f.gain}


def _worth_following(d: Document) -> list[str]:
    """Inputs of the hardware that matter most, the memory, and the coefficient that matters
    most."""
    ranked = [e for e in d["elasticities"] if abs(e["elasticity"]) >= LEAST_FOLLOWED]
    hardware = [n for n in _of_group(ranked, "hardware") if not n.startswith("network.size")]
    memory = ["chip.hbm_bytes"] if "chip.hbm_bytes" not in hardware else []
    return [*hardware[: FOLLOWED - 2], *memory, *_of_group(ranked, "coefficient")[:1]]


def _of_group(entries: list[Document], group: str) -> list[str]:
    return [e["name"] for e in entries if e["group"] == group]


def interactions_document(asked: Asked, case: Point, output: str, most: int) -> Document:
    """Second derivatives of the inputs that matter most."""
    from dmodel.sensitivity import interactions

    found = interactions(case, output, most=most, level_names=asked.level_names)
    return {
        "names": list(found.names),
        "elasticities": found.elasticities,
        "hessian": found.hessian,
        "kinks": list(found.kinks),
        "asymmetry": found.asymmetry,
    }


def map_of(asked: Asked, case: Point, axes: str) -> Any:
    """What bounds the step over two axes."""
    from dmodel.sensitivity import regime_map

    return regime_map(case, *axes_of(axes), level_names=asked.level_names)


def regime_document(found: Any) -> Document:
    """A map as plain data."""
    from dmodel.sensitivity.regimes import REGIMES

    return {
        "x": {"name": found.x.name, "input": found.x.shown, "values": found.x.values},
        "y": {"name": found.y.name, "input": found.y.shown, "values": found.y.values},
        "at": list(found.at),
        "shares": dict(zip(REGIMES, found.shares, strict=True)),
        "step_time_s": found.step_time_s,
        "headroom_bytes": found.headroom_bytes,
        "boundaries": [
            {"between": list(pair), "x": points[0], "y": points[1]}
            for pair, points in found.boundaries.items()
        ],
    }


def global_document(asked: Asked, case: Point, output: str, w: Wanted) -> Document:
    """Indices of the variance over the stated ranges."""
    from dmodel.sensitivity.case import inputs
    from dmodel.sensitivity.sobol import BASE, sobol, stated_range

    known = inputs(case, asked.level_names)
    ranges = [stated_range(known, *range_of(text)) for text in w.ranges] if w.ranges else None
    begun = time.perf_counter(), time.process_time()
    how = {"base": w.base or BASE, "level_names": asked.level_names}
    with computing(w.spread) as executor:
        found = sobol(case, output, ranges, **how, executor=executor)
    seconds = time.perf_counter() - begun[0], time.process_time() - begun[1]
    say(
        f"{found.evaluations:,} evaluations and their indices: {seconds[0]:.1f} s, "
        f"{seconds[1]:.1f} s of processors, compiling included"
    )
    numbers = ("evaluations", "median", "low", "high", "deviation")
    return {"indices": _indices(found), **{name: getattr(found, name) for name in numbers}}


def _indices(found: Any) -> list[Document]:
    """Shares of the variance that each input has alone, and in all."""
    columns = zip(
        found.ranges, found.first, found.first_error, found.total, found.total_error, strict=True
    )
    return [
        {
            "name": r.name,
            "low": r.low,
            "high": r.high,
            "first": a,
            "first_error": b,
            "total": c,
            "total_error": e,
        }
        for r, a, b, c, e in columns
    ]


def check_document(asked: Asked, case: Point, d: Document, memory: float) -> Document:
    """The largest differences from what the elasticities are checked against; memory: share of a
    device's that the plan may need."""
    found = {"fixed": _checked_by_differences(asked, case, d)}
    if "reoptimized" in d:
        own = d["reoptimized"]["elasticities"]
        found["reoptimized"] = _checked_by_solving(
            case, d["output"], own, {"memory": memory, "level_names": asked.level_names}
        )
    return found


def _checked_by_differences(asked: Asked, case: Point, d: Document) -> Document:
    """Elasticities beside central differences."""
    from dmodel.sensitivity import differences

    by_difference = differences(case, d["output"], level_names=asked.level_names)
    off = {e["name"]: abs(e["elasticity"] - by_difference[e["name"]]) for e in d["elasticities"]}
    worst = max(off, key=lambda n: off[n])
    return {"inputs": len(off), "worst": worst, "difference": off[worst]}


SOLVED = 20
"""Inputs for which the best plan is solved again to check its elasticities."""


def _largest(own: dict[str, float]) -> list[str]:
    """Inputs of the largest elasticities, but for sizes of networks."""
    followed = [name for name in own if not name.startswith("network.size")]
    return sorted(followed, key=lambda n: -abs(own[n]))[:SOLVED]


def _checked_by_solving(
    case: Point, output: str, own: dict[str, float], how: dict[str, Any]
) -> Document:
    """Elasticities of the plan that follows beside those of solving again."""
    from dmodel.sensitivity import resolved

    names = _largest(own)
    again = resolved(case, names, output, **how)
    solved = {n: abs(own[n] - again[n]) for n in names if not math.isnan(again[n])}
    worst = max(solved, key=solved.__getitem__, default=None)
    return {
        "inputs": len(solved),
        "worst": worst,
        "difference": solved.get(worst or "", 0.0),
        "not_solved": [n for n in names if n not in solved],
    }


def stop_where_wrong(d: Document) -> None:
    """Exit 1 where a check failed, or could not be made of any input."""
    checks = d.get("check")
    if checks is None:
        return
    solved = checks.get("reoptimized", {"difference": 0.0, "inputs": 1})
    if not (
        checks["fixed"]["difference"] <= FIXED_TOLERANCE
        and solved["difference"] <= SOLVED_TOLERANCE
        and solved["inputs"]
    ):
        stop(1)
