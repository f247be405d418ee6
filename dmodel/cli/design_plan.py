"""`dmodel design` of a job whose sizes are given: the search over plans, its document and its
tables."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from itertools import compress
from typing import TYPE_CHECKING, Any

from dmodel.cli.design_doubt import add_intervals, doubt_lines, robust
from dmodel.cli.design_options import METHOD, DesignJob
from dmodel.cli.design_risk import memory_limit, merit_of, risk_lines, risk_of
from dmodel.cli.near import columns_of, far_line, published_of
from dmodel.cli.output import (
    Document,
    digits,
    percent,
    progress,
    seconds,
    show_lines,
    show_table,
)
from dmodel.cli.run_options import (
    Amount,
    Terms,
    add_sense,
    flat,
    run_lines,
    sense_lines,
    wanted_of,
)
from dmodel.report.text import plan_cells

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dmodel.asked import Asked
    from dmodel.design import Candidate, Design, Limits, Problem
    from dmodel.records import Plan
    from dmodel.training_run import Wanted

DAY_S = 86400.0

RIVALS = 64
"""Plans that compete under doubt, the best ones [count]."""


def answered(job: DesignJob, asked: Asked, ways: Any, terms: Terms) -> tuple[Document, Plan | None]:
    """The document of a search, and the best plan."""
    run = wanted_of(asked, Amount(job.tokens), terms)
    limits, more = limits_of(job, asked, run)
    method = ways.method or METHOD
    doubt = not ways.brief and method != "gradient"
    with bar() as shown:
        found, assumed = search(
            asked,
            method,
            max(ways.top, RIVALS) if doubt else ways.top,
            ways.attention,
            space=ways.space,
            limits=limits,
            progress=shown,
            objective=job.objective,
            pareto=ways.pareto,
            executor=ways.executor,
            **({} if ways.starts is None else {"n_starts": ways.starts}),
        )
    document = {
        "objective": job.objective,
        **found_document(asked, found, assumed + more, ways.top),
        "memory_limit": memory_limit(risk_of(job.max_risk), asked, found),
    }
    if doubt and found.exact:
        document |= _doubted(job, asked, ways, (found, limits), document)
    _add_runs(run, asked, document)
    document["published"] = near_published(asked, document)
    if found.best is not None:
        add_sense(document, asked, float(found.best.mfu), None if run is None else run.tokens)
    return document, None if found.best is None else found.best.plan


def near_published(asked: Asked, document: Document) -> Document | None:
    """The published run nearest to the best plans."""
    plans = document["exact"] or [p for p in [document.get("gradient")] if p]
    said = (asked.question.columns, asked.model)
    runs = [columns_of(*said, p["plan"], asked.devices, asked.accelerator) for p in plans]
    return published_of(runs)


def _add_runs(run: Wanted | None, asked: Asked, document: Document) -> None:
    """Give every listed plan what the whole run takes with it, and the answer that of the first."""
    from dmodel.training_run import of_run

    if run is None:
        return
    for _, plan in named_plans(document):
        plan |= flat(of_run(run, plan, asked))
    if first := next(iter(document["exact"]), document.get("gradient")):
        document |= {name: first[name] for name in ("days", "device_hours", "dollars", "run")}


def _doubted(
    job: DesignJob,
    asked: Asked,
    ways: Any,
    answer: tuple[Design, Limits],
    document: Document,
) -> Document:
    """What is not known of the plans of an exact search. Intervals, the best under doubt, and what
    memory is worth."""
    found, limits = answer
    stated = stated_of(asked, ways.attention, ways.space, limits, job.objective)
    add_intervals(asked, stated, found, document)
    return {
        "robust": robust(asked, stated, found),
        "worth": worth(stated, found) if found.binding is not None else None,
    }


def found_document(
    asked: Asked, found: Design, assumed: list[str], top: int | None = None
) -> Document:
    """The question, what a search found and what it assumed. Of every plan the probability that its
    device has too little memory, as `predict` says it (`oom_probability`)."""
    from dmodel.cost.memory import out_of_memory_probability

    document = {**asked.document(), **design_document(found, top), "assumptions": assumed}
    spread = asked.profile.footprint_for(asked.stack).spread
    plans = [*document["exact"], *document["front"], document.get("gradient"), document["closest"]]
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


def limits_of(job: DesignJob, asked: Asked, run: Wanted | None) -> tuple[Limits, list[str]]:
    """Memory at the risk that may be taken and budgets as limits of plans, for the tokens of the
    run; and what was assumed for them."""
    from dmodel.design import Limits
    from dmodel.searching import usable

    memory = usable(asked, risk_of(job.max_risk))

    budgets = {
        "deadline_s": job.budget_days and job.budget_days * DAY_S,
        "dollars": job.budget_dollars,
        "joules": job.budget_joules,
    }
    given = {name: float(value) for name, value in budgets.items() if value is not None}
    if not given:
        return Limits(memory=memory), []
    if run is not None:
        return Limits(memory=memory, tokens=run.tokens, **given), [run.said]
    from dmodel.tokens import by_data_law

    tokens, said = by_data_law(asked.model)
    return Limits(memory=memory, tokens=tokens, **given), [f"{said}; --tokens says otherwise"]


def worth(stated: Problem, found: Design) -> Document:
    """What more memory on each device would save: the best of all plans then, known where all were
    checked, else solved again. The one limit of every plan that is no rule of divisibility."""
    from dmodel.design import exact
    from dmodel.design.search import MORE_MEMORY, with_more_memory

    before, after = merit_of(stated.objective, found.exact[0]), found.eased
    if after is None:
        again = exact(with_more_memory(stated), 1)
        after = float(again.merits[0]) if len(again.merits) else before
    saved = max(before - after, 0.0)
    grown = MORE_MEMORY * float(stated.system.chip.hbm_bytes) / 1e9
    return {
        "of": "device memory",
        "unit": "GB",
        "change": grown,
        "saved": saved,
        "share": saved / before,
        "per_unit": saved / grown,
    }


def stated_of(asked: Asked, attention: str, space: str, limits: Limits, objective: str) -> Problem:
    """The problem behind a search, as its parts ask for it."""
    from dmodel.searching import space_of, stated

    found = space_of(asked, attention, space == "everything")
    return stated(asked, found, limits=limits, objective=objective)


def search(
    asked: Asked,
    method: str,
    top: int,
    attention: str = "",
    *,
    space: str = "usual",
    **how: Any,
) -> tuple[Design, list[str]]:
    """Run the search of a job; also the assumptions that all its plans share."""
    from dmodel.cli.question import choice
    from dmodel.design.optimum import METHODS
    from dmodel.searching import search as searched
    from dmodel.searching import space_of

    chosen = choice("method", method, METHODS)
    found = space_of(asked, attention, space == "everything")
    design = searched(asked, found, method=chosen, top=top, **how)
    return design, [str(each) for each in found.assumptions]


def design_document(found: Design, top: int | None = None) -> Document:
    """A design as plain data, at most `top` plans of the exact search. `binding` is the limit that
    decides, `closest` the plan that came nearest when none fits. What the gradient found is there
    where it was asked for."""
    return {
        "exact": [candidate_document(c) for c in found.exact[:top]],
        "front": [candidate_document(c) for c in found.front],
        "certificate": found.certificate.statement,
        "certificate_kind": found.certificate.kind,
        "lower_bound": found.certificate.bound if found.certificate.distance is not None else None,
        "lower_bound_s": found.certificate.floor_s,
        "distance_to_lower_bound": found.certificate.distance,
        "considered": found.considered,
        "checked": found.checked,
        "feasible": found.feasible,
        "binding": _fields(found.binding, ("name", "amount", "unit", "message")),
        "closest": _candidate_or_none(found.closest),
        "remedies": [_fields(r, ("name", "was", "becomes", "message")) for r in found.remedies],
        **({} if found.method == "exact" else gradient_document(found)),
    }


def gradient_document(found: Design) -> Document:
    """What the search by gradient found, and how far that is from the best of all plans."""
    return {
        "gradient": _candidate_or_none(found.gradient),
        "gap": found.gap,
        "evaluated_by_gradient_search": found.evaluated,
        "relaxed_merit": found.relaxed,
        "relaxed_step_time_s": found.relaxed if found.objective == "time" else None,
    }


def _fields(record: Any, names: tuple[str, ...]) -> Document | None:
    """Fields of a record, None of none."""
    return None if record is None else {name: getattr(record, name) for name in names}


def _candidate_or_none(c: Candidate | None) -> Document | None:
    return None if c is None else candidate_document(c)


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

    named = named_plans(d)
    far = far_line(d["published"]) if d["exact"] or d.get("gradient") else []
    _show_plans("\n".join([title(d), *sense_lines(d), *far]), _rows(named))
    show_lines(*_lines_of_search(d))
    if any("oom_probability" in p for _, p in named):
        show_lines(
            "Risk: that a device has too little memory after all, by how far memory of such "
            "software is off."
        )
    show_lines(*risk_lines(d))
    if "run" in d:
        show_lines(*run_lines(d["run"]))
    show_lines(*doubt_lines(d), *_lines_of_limits(d))
    show_lines(f"Assumed: {'; '.join(d['assumptions'])}")


HEADER = ("search", "plan", "step", "90 %", "MFU", "tokens/s", "memory", "headroom", "risk")
MAY_BE_EMPTY = ("90 %", "risk")
"""Columns that are left out where no plan has them."""


def _show_plans(title: str, rows: list[list[str]]) -> None:
    """Table of plans."""
    if not rows:
        show_lines(title, "No plan to show.")
        return
    filled = [
        name not in MAY_BE_EMPTY or any(column)
        for name, column in zip(HEADER, zip(*rows, strict=True), strict=True)
    ]
    header, *table = (list(compress(row, filled)) for row in (HEADER, *rows))
    right = "step|90 %|MFU|tokens/s|memory|headroom|risk"
    show_table(title, header, table, right=right)


def named_plans(d: Document) -> list[tuple[str, Document]]:
    """Plans of a document by what found them."""
    found = [(f"exact {i + 1}", p) for i, p in enumerate(d["exact"])]
    found += [(name, d[name]) for name in ("gradient", "closest") if d.get(name)]
    found += [(f"front {i + 1}", p) for i, p in enumerate(d.get("front", []))]
    return [*found, *((p["name"], p) for p in d.get("compared", []))]


def _rows(named: list[tuple[str, Document]]) -> list[list[str]]:
    """Cells of plans, with interval and risk; "" where a plan has none."""
    rows = []
    for name, p in named:
        row, ends = list(plan_cells(name, p)), ""
        if "step_time_s_low" in p:
            ends = f"{seconds(p['step_time_s_low'])} – {seconds(p['step_time_s_high'])}"
        row.insert(3, ends)
        row.append(percent(p["oom_probability"]) if "oom_probability" in p else "")
        rows.append(row)
    return rows


def _lines_of_search(d: Document) -> list[str]:
    """How many plans there are, and how good the best one is."""
    lines = []
    if d["considered"]:
        fit = "the others are proven to be worse or not to fit"
        fit = fit if d["feasible"] is None else f"{d['feasible']:,} fit"
        checked = f"{d['checked']:,} checked one by one"
        lines.append(f"{d['considered']:,} valid plans, {checked}, {fit}.")
    floor = f"No plan is faster than {seconds(d['lower_bound_s'])} (pure arithmetic)."
    lines.append(f"Certificate: {d['certificate']}. {floor}")
    if d.get("gap") is not None:
        gap = percent(d["gap"], 2)
        lines.append(f"Gap of the gradient's plan to the exact optimum: {gap}")
    return lines


def _lines_of_limits(d: Document) -> list[str]:
    """What memory is worth, the limit that decides, and what would fit."""
    lines = []
    if d.get("worth"):
        w = d["worth"]
        saved = f"{percent(w['share'], 2)} of a step"
        lines.append(f"Worth: {digits(w['change'])} GB more on each device would save {saved}")
    if d["binding"] and (d["exact"] or d.get("gradient")):
        lines.append(f"Limit: {d['binding']['message']}.")
    return [*lines, *(f"What would fit: {change['message']}." for change in d["remedies"])]
