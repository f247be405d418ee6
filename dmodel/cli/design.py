"""`dmodel design`: the best plan for a job, or sizes and plan of a whole run; with a certificate, prices of limits, launch settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dmodel.cli.design_options import DesignJob, check, fixed_job
from dmodel.cli.emitted import EmitFile, EmitTo, check_target, emit_document, show_emitted, write_emitted
from dmodel.cli.options import Json, takes
from dmodel.cli.output import Document, deliver, percent, say, seconds, show_lines, show_table, stop
from dmodel.report.text import plan_cells

if TYPE_CHECKING:
    from dmodel.cli.question import Setting
    from dmodel.design import Candidate, Design

Method = Annotated[str, typer.Option(help="exact (all valid plans), gradient, or both.")]
Top = Annotated[int, typer.Option(help="Plans to show of the exact search.")]
Attention = Annotated[str, typer.Option(help="Kernels: flash, none.")]
Law = Annotated[list[str] | None, typer.Option("--law", metavar="KIND=NAME", help="Another law of loss, batch, shape or data.")]
Failures = Annotated[bool, typer.Option("--failures", help="Count failures, checkpoints and restarts, as often as Llama 3's.")]
Starts = Annotated[int, typer.Option(min=1, max=4096, help="Starts of the gradient search, for each ZeRO stage.")]


@takes(job=DesignJob)
def command(
    *,
    method: Method = "both",
    top: Top = 5,
    attention: Attention = "flash",
    law: Law = None,
    failures: Failures = False,
    starts: Starts = 16,
    emit: EmitTo = None,
    emit_out: EmitFile = None,
    json: Json = False,
    job: DesignJob,
) -> None:
    """Find the best plan that fits, or the best run: sizes, hardware and plan together."""
    check(job)
    check_target(emit, emit_out)
    if job.is_run:
        _run(job, attention, law or [], failures, starts, emit, emit_out, json)
    else:
        _plan(job, method, top, attention, emit, emit_out, json)


def _plan(job: DesignJob, method: str, top: int, attention: str, emit: str | None, emit_out: Any, json: bool) -> None:
    """The best plan of a job whose sizes are given."""
    from dmodel.cli.question import setting

    asked = setting(fixed_job(job))
    say(f"profile {asked.profile.name}: {asked.reason}")
    found, assumed = search(asked, method, top, attention)
    document = {**asked.document(), **design_document(found), "assumptions": assumed}
    if emit is not None and found.best is not None:
        document["emit"] = emit_document(asked, asked.model, found.best.plan, emit)
    _deliver(document, json, show_design, emit_out)
    if found.best is None:
        say(f"dmodel: {document['binding']['message'] if document['binding'] else 'no plan found that fits'}")
        stop(1)


def _run(job: DesignJob, attention: str, law: list[str], failures: bool, starts: int, emit: str | None, emit_out: Any, json: bool) -> None:
    """The best run: sizes and plan together."""
    from dmodel.cli import design_run

    asked = design_run.run_setting(job)
    say(f"profile {asked.profile.name}: {asked.reason}")
    laws, chosen = design_run.laws_of(law)
    stated, assumed = design_run.question_of(job, asked, laws, failures, attention)
    document = design_run.solved(job, asked, stated, chosen, assumed, starts)
    if emit is not None and document["best"] is not None:
        document["emit"] = design_run.emitted(asked, stated, document, emit)
    document.pop("_found")
    _deliver(document, json, design_run.show_run, emit_out)
    if document["best"] is None:
        design_run.say_infeasible(document)
        stop(1)


def _deliver(document: Document, json: bool, show: Any, emit_out: Any) -> None:
    """Print the answer, write the launch settings."""

    def whole(d: Document) -> None:
        show(d)
        if "emit" in d and emit_out is None:
            show_emitted(d["emit"])

    deliver(document, json, whole)
    if "emit" in document:
        write_emitted(document["emit"], emit_out)


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
        "certificate_kind": found.certificate.kind,
        "lower_bound": found.certificate.bound if found.certificate.distance is not None else None,
        "lower_bound_s": found.certificate.floor_s,
        "distance_to_lower_bound": found.certificate.distance,
        "considered": found.considered,
        "checked": found.checked,
        "feasible": found.feasible,
        "evaluated_by_gradient_search": found.evaluated,
        "relaxed_merit": found.relaxed,
        "binding": None if limit is None else {"name": limit.name, "amount": limit.amount, "unit": limit.unit, "message": limit.message},
        "closest": candidate_document(found.closest) if found.closest is not None else None,
        "remedies": [{"name": r.name, "was": r.was, "becomes": r.becomes, "message": r.message} for r in found.remedies],
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
        fit = f"{d['feasible']:,} fit" if d["feasible"] is not None else "the others are proven to be worse or not to fit"
        show_lines(f"{d['considered']:,} valid plans, {d['checked']:,} checked one by one, {fit}.")
    show_lines(f"Certificate: {d['certificate']}. No plan is faster than {seconds(d['lower_bound_s'])} (pure arithmetic).")
    if d["gap"] is not None:
        show_lines(f"Gap of the gradient's plan to the exact optimum: {percent(d['gap'], 2)}")
    if d["binding"] and (d["exact"] or d["gradient"]):
        show_lines(f"Limit: {d['binding']['message']}.")
    for change in d["remedies"]:
        show_lines(f"What would fit: {change['message']}.")
    show_lines(f"Assumed: {'; '.join(d['assumptions'])}")
