"""Parts of a sensitivity answer that are asked for by name: interactions, the regime map, global
indices, and what checks the elasticities."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from dmodel.cli.output import Document, say, stop
from dmodel.types import InputError

if TYPE_CHECKING:
    from dmodel.asked import Asked
    from dmodel.cli.sensitivity_parts import Wanted
    from dmodel.sensitivity import Point

FIXED_TOLERANCE, SOLVED_TOLERANCE = 1e-6, 1e-2
"""Largest differences of elasticities from central differences, and from solving again."""


def interactions(asked: Asked, case: Point, output: str, most: int) -> Document:
    from dmodel.sensitivity import interactions

    found = interactions(case, output, most=most, level_names=asked.level_names)
    return {
        "names": list(found.names),
        "elasticities": found.elasticities,
        "hessian": found.hessian,
        "kinks": list(found.kinks),
        "asymmetry": found.asymmetry,
    }


def regime_map(asked: Asked, case: Point, axes: str) -> Any:
    from dmodel.sensitivity import regime_map

    return regime_map(case, *named_axes(axes), level_names=asked.level_names)


def named_axes(text: str) -> tuple[str, str]:
    names = [name.strip() for name in text.split(",")]
    if len(names) != 2:
        raise InputError(
            "--map: expected two axes with a comma between, such as devices,bandwidth; got "
            f"{text!r}"
        )
    return names[0], names[1]


def regime_document(found: Any) -> Document:
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


def global_indices(asked: Asked, case: Point, output: str, w: Wanted) -> Document:
    from dmodel.sensitivity.case import inputs
    from dmodel.sensitivity.sobol import BASE, sobol, stated_range

    known = inputs(case, asked.level_names)
    ranges = [stated_range(known, *stated_ends(text)) for text in w.ranges] if w.ranges else None
    begun = time.perf_counter(), time.process_time()
    found = sobol(case, output, ranges, base=w.base or BASE, level_names=asked.level_names)
    seconds = time.perf_counter() - begun[0], time.process_time() - begun[1]
    say(
        f"{found.evaluations:,} evaluations and their indices: {seconds[0]:.1f} s, "
        f"{seconds[1]:.1f} s of processors, compiling included"
    )
    columns = zip(
        found.ranges, found.first, found.first_error, found.total, found.total_error, strict=True
    )
    indices = [
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
    numbers = {
        name: getattr(found, name) for name in ("evaluations", "median", "low", "high", "deviation")
    }
    return {"indices": indices, **numbers}


def stated_ends(text: str) -> tuple[str, float, float]:
    name, _, ends = text.partition("=")
    low, _, high = ends.partition(":")
    try:
        return name, float(low), float(high)
    except ValueError:
        raise InputError(
            f"--range {text!r}: expected INPUT=LOW:HIGH, such as chip.flops_per_s=5e14:2e15"
        ) from None


def checked(asked: Asked, case: Point, d: Document) -> Document:
    """The largest differences from what the elasticities are checked against."""
    from dmodel.sensitivity import differences, resolved

    by_difference = differences(case, d["output"], level_names=asked.level_names)
    off = {e["name"]: abs(e["elasticity"] - by_difference[e["name"]]) for e in d["elasticities"]}
    found: Document = {
        "fixed": {
            "inputs": len(off),
            "worst": max(off, key=lambda n: off[n]),
            "difference": max(off.values()),
        }
    }
    if "reoptimized" in d:
        own = d["reoptimized"]["elasticities"]
        names = sorted(
            (n for n in own if not n.startswith("network.size")), key=lambda n: -abs(own[n])
        )[:20]
        again = resolved(case, names, d["output"], level_names=asked.level_names)
        solved = {n: abs(own[n] - again[n]) for n in names if again[n] == again[n]}
        worst = max(solved, key=lambda n: solved[n], default=None)
        lost = [n for n in names if n not in solved]
        found["reoptimized"] = {
            "inputs": len(solved),
            "worst": worst,
            "difference": solved.get(worst or "", 0.0),
            "not_solved": lost,
        }
    return found


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
