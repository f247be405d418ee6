"""`dmodel design` of a job whose sizes are given: the search over plans, its document and its
tables."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dmodel.cli.design_doubt import add_intervals, doubt_lines, robust
from dmodel.cli.design_options import DesignJob
from dmodel.cli.output import Document, digits, percent, progress, seconds, show_lines, show_table
from dmodel.report.text import plan_cells

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dmodel.cli.question import Setting
    from dmodel.design import Candidate, Design, Limits, Problem
    from dmodel.records import Plan

DAY_S = 86400.0

RIVALS = 64
"""Plans that compete under doubt, the best ones [count]."""

MORE_MEMORY = 0.1
"""Share by which the device's memory grows to say what it is worth."""


def answered(job: DesignJob, asked: Setting, ways: Any) -> tuple[Document, Plan | None]:
    """The document of a search, and the best plan."""
    how: dict[str, Any] = {"objective": job.objective, "pareto": ways.pareto}
    how |= {"n_starts": ways.starts} if ways.starts is not None else {}
    limits, more = limits_of(job, asked)
    doubt = not ways.brief and ways.method != "gradient"
    with bar() as shown:
        found, assumed = search(
            asked,
            ways.method,
            max(ways.top, RIVALS) if doubt and ways.top > 0 else ways.top,
            ways.attention,
            space=ways.space,
            limits=limits,
            progress=shown,
            **how,
        )
    document = {
        "objective": job.objective,
        **found_document(asked, found, assumed + more, ways.top),
    }
    if doubt and found.exact:
        stated = stated_of(asked, ways.attention, ways.space, limits, job.objective)
        add_intervals(asked, stated, found, document)
        document["robust"] = robust(asked, stated, found)
        document["worth"] = worth(stated, found) if found.binding is not None else None
    return document, None if found.best is None else found.best.plan


def found_document(
    asked: Setting, found: Design, assumed: list[str], top: int | None = None
) -> Document:
    """The question, what a search found and what it assumed; of every plan the probability that its
    device has too little memory, as `predict` says it (`oom_probability`)."""
    from dmodel.cost.memory import out_of_memory_probability

    document = {**asked.document(), **design_document(found, top), "assumptions": assumed}
    spread = asked.profile.footprint_for(asked.stack).spread
    plans = [*document["exact"], *document["front"], document["gradient"], document["closest"]]
    for plan in filter(None, plans):
        needed, room = plan["memory_bytes_per_device"], plan["headroom_bytes"]
        plan["oom_probability"] = float(out_of_memory_probability(needed, needed + room, spread))
    return document


@contextmanager
def bar() -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on stderr where that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with progress() as shown:
        task = shown.add_task("plans", total=None, note="")

        def update(decided: int, total: int) -> None:
            shown.update(task, completed=decided, total=total, note=f"{decided:,} of {total:,}")

        yield update


def limits_of(job: DesignJob, asked: Setting) -> tuple[Limits, list[str]]:
    """Budgets as limits of plans, for the tokens of the run; and what was assumed for them."""
    from dmodel.design import Limits

    budgets = {
        "deadline_s": job.budget_days and job.budget_days * DAY_S,
        "dollars": job.budget_dollars,
        "joules": job.budget_joules,
    }
    given = {name: float(value) for name, value in budgets.items() if value is not None}
    if not given:
        return Limits(), []
    if job.tokens is not None:
        return Limits(tokens=job.tokens, **given), [f"{job.tokens:.4g} tokens"]
    from dmodel import counts
    from dmodel.codesign import DEFAULT, KINDS

    law = KINDS["data"][DEFAULT["data"]].law
    tokens = float(law.ratio) * float(counts.active_parameters(asked.model)) ** float(law.exponent)  # type: ignore
    return Limits(tokens=tokens, **given), [
        f"{tokens:.4g} tokens, by the data law (--tokens says otherwise)"
    ]


def worth(stated: Problem, found: Design) -> Document:
    """What more memory on each device would save, by solving again: the one limit of every plan
    that is no rule of divisibility."""
    from dmodel.design import exact

    chip = stated.system.chip
    more = stated.system.replace(chip=chip.replace(hbm_bytes=(1.0 + MORE_MEMORY) * chip.hbm_bytes))
    again = exact(stated.replace(system=more), 1)
    before = merit_of(stated, found.exact[0])
    saved = max(before - float(again.merits[0]), 0.0) if len(again.merits) else 0.0
    grown = MORE_MEMORY * float(chip.hbm_bytes) / 1e9
    return {
        "of": "device memory",
        "unit": "GB",
        "change": grown,
        "saved": saved,
        "share": saved / before,
        "per_unit": saved / grown,
    }


def merit_of(stated: Problem, c: Candidate) -> float:
    """What the objective counts of a candidate: seconds, dollars or joules of a step."""
    tokens = float(c.tokens_per_s) * float(c.step_time_s)
    each = {
        "time": float(c.step_time_s),
        "cost": float(c.dollars_per_token) * tokens,
        "energy": float(c.joules_per_token) * tokens,
    }
    return each[stated.objective]


def stated_of(
    asked: Setting, attention: str, space: str, limits: Limits, objective: str
) -> Problem:
    """The problem behind a search, as its parts ask for it."""
    from dmodel.cli.question import choices_of, settings
    from dmodel.design import problem

    (base, _), (choices, _) = settings(asked, attention), choices_of(asked, space == "everything")
    return problem(
        asked.system,
        asked.model,
        asked.devices,
        asked.global_batch,
        asked.coefficients,
        base=base,
        choices=choices,
        limits=limits,
        objective=objective,
        footprint=asked.footprint,
    )


def search(
    asked: Setting,
    method: str,
    top: int,
    attention: str = "flash",
    *,
    space: str = "usual",
    **how: Any,
) -> tuple[Design, list[str]]:
    """Run the search of a job; also the assumptions that all its plans share."""
    from dmodel.cli.question import choice, choices_of, settings
    from dmodel.design import design
    from dmodel.design.optimum import METHODS

    chosen = choice("method", method, METHODS)
    how["choices"], said = choices_of(asked, space == "everything")
    base, assumed = settings(asked, attention, staged=bool(how["choices"].kept))
    how["footprint"] = asked.footprint
    found = design(
        asked.system,
        asked.model,
        asked.devices,
        asked.global_batch,
        asked.coefficients,
        method=chosen,
        top=top,
        base=base,
        **how,
    )
    return found, [*assumed, *said]


def design_document(found: Design, top: int | None = None) -> Document:
    """A design as plain data, at most `top` plans of the exact search; `binding` is the limit that
    decides, `closest` the plan that came nearest when none fits."""
    limit = found.binding
    return {
        "exact": [candidate_document(c) for c in found.exact[:top]],
        "gradient": candidate_document(found.gradient) if found.gradient is not None else None,
        "front": [candidate_document(c) for c in found.front],
        "gap": found.gap,
        "certificate": found.certificate.statement,
        "certificate_kind": found.certificate.kind,
        "lower_bound": found.certificate.bound if found.certificate.distance is not None else None,
        "lower_bound_s": found.certificate.floor_s,
        "distance_to_lower_bound": found.certificate.distance,
        "considered": found.considered,
        "checked": found.checked,
        "feasible": found.feasible,
        "evaluated_by_gradient_search": found.evaluated,
        "relaxed_merit": found.relaxed,
        "relaxed_step_time_s": found.relaxed if found.objective == "time" else None,
        "binding": None
        if limit is None
        else {
            "name": limit.name,
            "amount": limit.amount,
            "unit": limit.unit,
            "message": limit.message,
        },
        "closest": candidate_document(found.closest) if found.closest is not None else None,
        "remedies": [
            {"name": r.name, "was": r.was, "becomes": r.becomes, "message": r.message}
            for r in found.remedies
        ],
    }


def candidate_document(c: Candidate) -> Document:
    """One plan of a search as plain data."""
    from dmodel.breakdown import TERMS
    from dmodel.cli.question import plan_document, short

    plan = plan_document(c.plan)
    return {
        "label": short(plan),
        "plan": plan,
        "step_time_s": float(c.step_time_s),
        "breakdown": {f"{term}_s": float(getattr(c.breakdown, term)) for term in TERMS},
        "memory": {f"{name}_bytes": float(x) for name, x in vars(c.memory).items()},
        "memory_bytes_per_device": float(c.memory.total),
        "headroom_bytes": float(c.headroom_bytes),
        "mfu": float(c.mfu),
        "tokens_per_s": float(c.tokens_per_s),
        "joules_per_token": float(c.joules_per_token),
        "dollars_per_million_tokens": 1e6 * float(c.dollars_per_token),
        "margins": [
            {"name": m.name, "unit": m.unit, "margin": float(m.value), "limit": float(m.limit)}
            for m in c.margins
            if float(m.limit) < 1e300
        ],
    }


def show_design(d: Document) -> None:
    """Table of the plans, the gap and the limit that decides."""
    from dmodel.cli.question import title

    named = [(f"exact {i + 1}", p) for i, p in enumerate(d["exact"])] + (
        [("gradient", d["gradient"])] if d["gradient"] else []
    )
    named += [("closest", d["closest"])] if d["closest"] else []
    named += [(f"front {i + 1}", p) for i, p in enumerate(d.get("front", []))]
    named += [(p["name"], p) for p in d.get("compared", [])]
    rows = [list(plan_cells(name, p)) for name, p in named]
    header = ["search", "plan", "step", "MFU", "tokens/s", "memory", "headroom"]
    if any("step_time_s_low" in p for _, p in named):
        header.insert(3, "90 %")
        for row, (_, p) in zip(rows, named, strict=True):
            row.insert(
                3,
                f"{seconds(p['step_time_s_low'])} – {seconds(p['step_time_s_high'])}"
                if "step_time_s_low" in p
                else "",
            )
    if any("oom_probability" in p for _, p in named):
        header.append("risk")
        for row, (_, p) in zip(rows, named, strict=True):
            row.append(percent(p["oom_probability"]) if "oom_probability" in p else "")
    if rows:
        show_table(title(d), header, rows, right="step|90 %|MFU|tokens/s|memory|headroom|risk")
    else:
        show_lines(title(d), "No plan to show.")
    if d["considered"]:
        fit = (
            f"{d['feasible']:,} fit"
            if d["feasible"] is not None
            else "the others are proven to be worse or not to fit"
        )
        show_lines(f"{d['considered']:,} valid plans, {d['checked']:,} checked one by one, {fit}.")
    show_lines(
        f"Certificate: {d['certificate']}. No plan is faster than "
        f"{seconds(d['lower_bound_s'])} "
        "(pure arithmetic)."
    )
    if d["gap"] is not None:
        show_lines(f"Gap of the gradient's plan to the exact optimum: {percent(d['gap'], 2)}")
    if any("oom_probability" in p for _, p in named):
        show_lines(
            "Risk: that a device has too little memory after all, by how far memory of such "
            "software is off."
        )
    show_lines(*doubt_lines(d))
    if d.get("worth"):
        w = d["worth"]
        show_lines(
            f"Worth: {digits(w['change'])} GB more on each device would save "
            f"{percent(w['share'], 2)} of a step (solved again)"
        )
    if d["binding"] and (d["exact"] or d["gradient"]):
        show_lines(f"Limit: {d['binding']['message']}.")
    for change in d["remedies"]:
        show_lines(f"What would fit: {change['message']}.")
    show_lines(f"Assumed: {'; '.join(d['assumptions'])}")
