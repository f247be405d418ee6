"""`dmodel sensitivity`: what a plan's time, memory or cost depends on, the largest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dmodel.cli.options import Degrees, Job, Json, takes
from dmodel.cli.output import Document, deliver, digits, say, show_lines, show_table

if TYPE_CHECKING:
    from dmodel.cli.question import Setting
    from dmodel.plan import Plan

Output = Annotated[str, typer.Option(help="step_time, tokens_per_s, mfu, memory, dollars_per_token or joules_per_token.")]
Top = Annotated[int, typer.Option(help="Rows to show; 0 = all. JSON always has all.")]

LEAST = 5e-4
"""Elasticities below this change nothing that is shown."""


@takes(job=Job, degrees=Degrees)
def command(*, output: Output = "step_time", top: Top = 25, json: Json = False, job: Job, degrees: Degrees) -> None:
    """Elasticities of one plan: the change of an output [%] when an input grows by 1 %."""
    from dmodel.cli.question import check_count, plan, plan_document, setting

    check_count("top", top, 0)
    asked = setting(job)
    chosen, assumed = plan(asked, degrees)
    say(f"profile {asked.profile.name}: {asked.reason}")
    document = {**asked.document(), "plan": plan_document(chosen), **elasticities_document(asked, chosen, output), "assumptions": assumed}
    deliver(document, json, lambda d: _show(d, top))


def elasticities_document(job: Setting, plan: Plan, output: str = "step_time") -> Document:
    """All elasticities, the largest first, and the inputs that have none."""
    from dmodel.sensitivity import elasticities

    found = elasticities(job.system, job.model, plan, job.coefficients, output, level_names=job.level_names, sort=True)
    return {
        "output": output,
        "value": found.at,
        "elasticities": [{"name": e.name, "group": e.group, "kind": e.kind, "at": e.at, "elasticity": e.value} for e in found.entries],
        "left_out": [{"name": e.name, "reason": e.reason} for e in found.left_out],
        "sum_rates_minus_sum_times": found.total("rate") - found.total("time"),
    }


def show_elasticities(d: Document, top: int) -> None:
    """Table of the largest elasticities."""
    large = [e for e in d["elasticities"] if abs(e["elasticity"]) >= LEAST]
    shown = large[: top or None]
    rows = [(e["name"], e["group"], f"{digits(e['at'], 4)}", f"{e['elasticity']:+.4f}") for e in shown]
    title = f"Change of {d['output']} [%] when the input grows by 1 %"
    show_table(title, ("input", "group", "at (SI)", "elasticity"), rows, right="at (SI)|elasticity")
    rest = len(large) - len(shown)
    more = f"{rest} smaller ones not shown (--top 0 shows all); " if rest else ""
    show_lines(
        f"{more}{len(d['elasticities']) - len(large)} below {LEAST:g}; {len(d['left_out'])} switches, zeros and infinities have none."
    )


def _show(d: Document, top: int) -> None:
    from dmodel.cli.question import short, title

    show_lines(f"{title(d)}: {short(d['plan'])}; {d['output']} = {digits(d['value'], 4)}")
    show_elasticities(d, top)
    if d["output"] == "step_time":
        show_lines(f"Σ rates − Σ times = {d['sum_rates_minus_sum_times']:.9f} (−1 by dimension).")
