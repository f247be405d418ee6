"""The risk on memory of plans recommended for 64 jobs, without and with its limit.

Claim: the plan that `dmodel design` recommends runs out of memory with a probability of at most a
tenth, and this costs little time.

The 64 jobs of `experiments.search_cases`, asked as `dmodel design` asks them without a stack; on
each all valid plans are decided. `python -m experiments.design_risk [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dmodel.api import Job, cluster, design, question
from dmodel.asked import Asked, ask
from dmodel.cost.memory import out_of_memory_probability
from dmodel.design import Candidate
from dmodel.footprint import RISK
from dmodel.report import style
from experiments import design_common as shared
from experiments.search_cases import CASES, Case
from experiments.study import run as run_study
from experiments.study import say

ROUNDING = 1e-9
"""What the risk of a plan that is just at the limit may be above it [1]."""


def line_of(case: Case, profile: str | None) -> dict[str, Any]:
    """The best plan of a case with all memory and at the usual risk: its step time, and the risk
    that a device has too little memory; None where no plan fits."""
    job, site = Job(case.model, case.seq_len, case.batch), cluster(case.system, case.devices)
    asked = ask(question(job, site), profile)
    found = {**case._asdict()}
    for name, risk in (("whole", 0.5), ("kept", RISK)):
        space = {"everything": case.everything, "max_risk": risk, "profile": profile}
        best = design(job, site, method="exact", top=1, **space).best
        found |= {f"{name}_step_time_s": None, f"{name}_risk": None}
        if best is not None:
            found |= {
                f"{name}_step_time_s": float(best.step_time_s),
                f"{name}_risk": risk_of(asked, best),
            }
    return found


def risk_of(asked: Asked, plan: Candidate) -> float:
    """Probability that a device has too little memory for a plan, as `predict` says it [1]."""
    needed, has = float(plan.memory.total), float(asked.cluster.chip.hbm_bytes)
    spread = asked.profile.footprint_for(asked.stack).spread
    return float(out_of_memory_probability(needed, has, spread))


def summary(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Largest and middle risks with and without the limit, and what the limit costs."""
    whole, kept = ([x for x in lines if x[f"{n}_risk"] is not None] for n in ("whole", "kept"))
    costs = [100.0 * (x["kept_step_time_s"] / x["whole_step_time_s"] - 1.0) for x in kept]
    before, after = (
        [x[f"{n}_risk"] for x in part] for n, part in (("whole", whole), ("kept", kept))
    )
    return [
        {"what": "jobs with a plan, all memory", "value": float(len(whole))},
        {"what": "jobs with a plan at the limit", "value": float(len(kept))},
        {"what": "largest risk, all memory [%]", "value": 100.0 * max(before)},
        {"what": "median risk, all memory [%]", "value": 100.0 * float(np.median(before))},
        {
            "what": "jobs above a tenth, all memory",
            "value": float(sum(x > RISK + ROUNDING for x in before)),
        },
        {"what": "largest risk at the limit [%]", "value": 100.0 * max(after), "aim": "10"},
        {
            "what": "jobs above a tenth at the limit",
            "value": float(sum(x > RISK + ROUNDING for x in after)),
            "aim": "0",
        },
        {"what": "step longer by, median [%]", "value": float(np.median(costs))},
        {"what": "step longer by, most [%]", "value": max(costs)},
    ]


def draw(lines: list[dict[str, Any]]) -> Any:
    """Risk with the limit against the risk without it."""
    figure = style.new_figure(5.6, 4.0)
    axes = figure.subplots()
    both = [x for x in lines if x["kept_risk"] is not None]
    axes.plot(
        [100.0 * x["whole_risk"] for x in both],
        [100.0 * x["kept_risk"] for x in both],
        "o",
        color=shared.COLORS[0],
        markersize=4,
        alpha=0.7,
    )
    axes.axhline(100.0 * RISK, color=style.GREY, linewidth=0.8, linestyle=":")
    axes.set_xlabel("risk of the best plan if plans may need all memory [%]")
    axes.set_ylabel("risk of the recommended plan [%]")
    axes.set_title(f"Risk of running out of memory, {len(both)} jobs")
    shared.quiet_grid(axes)
    return figure


def main() -> None:
    """Search all jobs twice."""
    args = shared.options(__doc__ or "")
    cases = [case for case in CASES if case.model == "llama-3-8b"][:4] if args.quick else CASES
    lines = []
    for case in cases:
        lines.append(line := line_of(case, args.profile))
        told = (f"{n} {line[n]:.3g}" for n in line if n.endswith(("_s", "_risk")) and line[n])
        say(f"{case.name}: {', '.join(told) or 'no plan fits'}")
    shared.deliver("design_risk", lines, draw(lines), args, summary=summary(lines))


if __name__ == "__main__":
    run_study(main)
