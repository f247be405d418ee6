"""Elasticities of a plan as a document: what `dmodel sensitivity` and the report show of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dmodel.cli.output import Document

if TYPE_CHECKING:
    from dmodel.asked import Asked
    from dmodel.records import Plan
    from dmodel.sensitivity import Point


def elasticities_document(job: Asked, plan: Plan, output: str = "step_time") -> Document:
    """All elasticities of a plan, the largest first, and the inputs that have none."""
    from dmodel.sensitivity import make_case

    return case_document(job, make_case(job.cluster, job.model, plan, job.coefficients), output)


def case_document(job: Asked, case: Point, output: str) -> Document:
    """The same of a case."""
    from dmodel.sensitivity import of_case

    found = of_case(case, output, level_names=job.level_names, sort=True)
    return {
        "output": found.output,
        "value": found.at,
        "elasticities": [
            {"name": e.name, "group": e.group, "kind": e.kind, "at": e.at, "elasticity": e.value}
            for e in found.entries
        ],
        "left_out": [{"name": e.name, "reason": e.reason} for e in found.left_out],
        "sum_rates_minus_sum_times": found.total("rate") - found.total("time"),
    }
