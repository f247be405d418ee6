"""`dmodel design`: the best plan for a job, over all valid plans and by gradient, side by side with the gap between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dmodel.cli.options import Job, Json, takes
from dmodel.cli.output import Document, deliver, percent, say, seconds, show_lines, show_table, stop
from dmodel.report.text import plan_cells

if TYPE_CHECKING:
    from dmodel.cli.question import Setting
    from dmodel.design import Candidate, Design

Method = Annotated[str, typer.Option(help="exact (all valid plans), gradient, or both.")]
Top = Annotated[int, typer.Option(help="Plans to show of the exact search.")]
Attention = Annotated[str, typer.Option(help="Kernels: flash, none.")]


@takes(job=Job)
def command(*, method: Method = "both", top: Top = 5, attention: Attention = "flash", json: Json = False, job: Job) -> None:
    """Find the fastest plan that fits the memory."""
    from dmodel.cli.question import setting

    asked = setting(job)
    say(f"profile {asked.profile.name}: {asked.reason}")
    found, assumed = search(asked, method, top, attention)
    document = {**asked.document(), **design_document(found), "assumptions": assumed}
    deliver(document, json, show_design)
    if found.best is None:
        say(f"dmodel: {document['binding']['message'] if document['binding'] else 'no plan found that fits'}")
        stop(1)


def search(asked: Setting, method: str, top: int, attention: str = "flash", **how: Any) -> tuple[Design, list[str]]:
    """Run the search of a job; also the assumptions that all its plans share."""
    from dmodel.cli.question import choice, settings
    from dmodel.design import design
    from dmodel.design.optimum import METHODS
    from dmodel.footprint import whole

    base, assumed = settings(asked, attention)
    chosen = choice("method", method, METHODS)
    known = asked.stack in asked.profile.footprints
    how["footprint"] = whole(asked.profile.footprint_for(asked.stack).footprint) if known else None
    found = design(
        asked.system, asked.model, asked.devices, asked.global_batch, asked.coefficients, method=chosen, top=top, base=base, **how
    )
    return found, assumed


def design_document(found: Design) -> Document:
    """A design as plain data; `binding` is the limit that decides, `closest` the plan that came nearest when none fits."""
    limit = found.binding
    return {
        "exact": [candidate_document(c) for c in found.exact],
        "gradient": candidate_document(found.gradient) if found.gradient is not None else None,
        "gap": found.gap,
        "certificate": found.certificate.statement,
        "lower_bound_s": found.certificate.bound_s,
        "distance_to_lower_bound": found.certificate.distance,
        "considered": found.considered,
        "feasible": found.feasible,
        "evaluated_by_gradient_search": found.evaluated,
        "relaxed_step_time_s": found.relaxed_s,
        "binding": None if limit is None else {"name": limit.name, "amount": limit.amount, "unit": limit.unit, "message": limit.message},
        "closest": candidate_document(found.closest) if found.closest is not None else None,
    }


def candidate_document(c: Candidate) -> Document:
    """One plan of a search as plain data."""
    from dmodel.cli.question import plan_document, short
    from dmodel.step import TERMS

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
    }


def show_design(d: Document) -> None:
    """Table of the plans, the gap and the limit that decides."""
    from dmodel.cli.question import title

    named = [(f"exact {i + 1}", p) for i, p in enumerate(d["exact"])] + ([("gradient", d["gradient"])] if d["gradient"] else [])
    named += [("closest", d["closest"])] if d["closest"] else []
    named += [(p["name"], p) for p in d.get("compared", [])]
    rows = [plan_cells(name, p) for name, p in named]
    header = ("search", "plan", "step", "MFU", "tokens/s", "memory", "headroom")
    if rows:
        show_table(title(d), header, rows, right="step|MFU|tokens/s|memory|headroom")
    else:
        show_lines(title(d), "No plan to show.")
    if d["considered"]:
        show_lines(f"{d['considered']:,} valid plans checked, {d['feasible']:,} fit.")
    show_lines(f"Certificate: {d['certificate']}. No plan is faster than {seconds(d['lower_bound_s'])} (pure arithmetic).")
    if d["gap"] is not None:
        show_lines(f"Gap of the gradient's plan to the exact optimum: {percent(d['gap'], 2)}")
    if d["binding"] and (d["exact"] or d["gradient"]):
        show_lines(f"Limit: {d['binding']['message']}.")
    show_lines(f"Assumed: {'; '.join(d['assumptions'])}")
