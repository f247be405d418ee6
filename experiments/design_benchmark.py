"""Claim: the search by gradient finds the best of all valid plans, after rounding and polish, on nearly every case, and misses by little.

Six models on four systems at several sizes, another set than that of `experiments.search_cases`; on each all valid plans are decided
exactly and the plan by gradient is held against the best.
`python -m experiments.design_benchmark [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dmodel.design import by_gradient, exact, problem
from dmodel.report import style
from experiments import design_common as shared
from experiments.study import run as run_study
from experiments.study import say


class Case(NamedTuple):
    """One problem of the benchmark."""

    model: str
    seq_len: int
    system: str
    devices: int
    batch: int


FAMILIES = (
    ("llama-3-8b", 8192, 512, (8, 64, 256)),
    ("llama-3-70b", 8192, 1024, (64, 256, 1024)),
    ("gpt-3-13b", 2048, 512, (16, 64, 256)),
    ("gpt-3-175b", 2048, 1536, (128, 512, 1536)),
    ("mixtral-8x7b", 4096, 512, (64, 256)),
    ("deepseek-v3", 4096, 1024, (512,)),
)
"""Model, sequence length, global batch, device counts."""

SYSTEMS = ("A100-DGX", "H100-DGX", "B200-DGX", "TPU-v5p")

CASES = tuple(Case(m, s, system, n, b) for m, s, b, counts in FAMILIES for n in counts for system in SYSTEMS)

SAME, NEAR = 1e-9, 0.01


def line_of(case: Case, at: shared.Machine) -> dict[str, Any] | None:
    """Both searches of one case; None when no plan fits."""
    stated, clock = problem(at.system, shared.model(case.model, case.seq_len), case.devices, case.batch, at.coefficients), shared.Clock()
    all_plans = exact(stated, 1)
    exact_s = clock.lap()
    if not len(all_plans.merits):
        return None
    found = by_gradient(stated)
    best = float(all_plans.merits[0])
    return {
        **case._asdict(),
        "plans": all_plans.considered,
        "exact_s": exact_s,
        "gradient_s": clock.lap(),
        "step_time_s": best,
        "gap": found.merit / best - 1.0 if found.fits else None,
        "plans_polished": found.evaluated,
    }


def summary(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Shares of cases found and nearly found, and the largest gap."""
    gaps = np.array([np.inf if line["gap"] is None else line["gap"] for line in lines])
    worst = max(lines, key=lambda line: np.inf if line["gap"] is None else line["gap"])
    return [
        {"what": "cases with a plan that fits", "value": float(len(lines))},
        {"what": "optimum found, share", "value": float((gaps <= SAME).mean()), "aim": "0.95"},
        {"what": "within 1 %, share", "value": float((gaps <= NEAR).mean()), "aim": "1"},
        {
            "what": "largest gap [%]",
            "value": float(100.0 * gaps.max()),
            "aim": "",
            "where": f"{worst['model']}, {worst['devices']} × {worst['system']}",
        },
        {"what": "plans decided, all cases", "value": float(sum(line["plans"] for line in lines))},
        {"what": "exact search, median [s]", "value": float(np.median([line["exact_s"] for line in lines]))},
        {"what": "gradient search, median [s]", "value": float(np.median([line["gradient_s"] for line in lines]))},
    ]


def draw(lines: list[dict[str, Any]]) -> Any:
    """Gap of every case against the number of its plans."""
    figure = style.new_figure(7.4, 4.0)
    axes = figure.subplots()
    for name, color in zip(dict.fromkeys(line["model"] for line in lines), shared.COLORS, strict=False):
        mine = [line for line in lines if line["model"] == name and line["gap"] is not None]
        gaps = [max(100.0 * line["gap"], 1e-3) for line in mine]
        axes.plot([line["plans"] for line in mine], gaps, "o", color=color, markersize=5, alpha=0.8, label=name)
    axes.axhline(1.0, color=style.GREY, linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(6e-4, 30.0)
    axes.set_yticks([1e-3, 1e-2, 0.1, 1.0, 10.0], ["found", "0.01", "0.1", "1", "10"])
    axes.set_xticks([1e4, 3e4, 1e5, 3e5, 1e6], ["10,000", "30,000", "100,000", "300,000", "1,000,000"])
    axes.set_xticks([], minor=True)
    axes.set_xlim(8e3, 1.2e6)
    axes.set_xlabel("valid plans, all decided")
    axes.set_ylabel("above the best of all plans [%]")
    axes.set_title(f"Search by gradient on {len(lines)} cases")
    axes.legend(frameon=False, fontsize=7.5, ncols=2)
    shared.quiet_grid(axes)
    return figure


def main() -> None:
    """Solve all cases both ways."""
    args = shared.options(__doc__ or "")
    cases = [case for case in CASES if case.model == "llama-3-8b"][:4] if args.quick else CASES
    machines = {name: shared.machine(name, args.profile) for name in dict.fromkeys(case.system for case in cases)}
    lines = []
    for case in cases:
        line = line_of(case, machines[case.system])
        if line is None:
            say(f"{case.model}, {case.devices} × {case.system}: no plan fits")
            continue
        lines.append(line)
        gap = "no plan that fits" if line["gap"] is None else f"{100.0 * line['gap']:.3f} %"
        say(f"{case.model}, {case.devices} × {case.system}: {line['plans']:,} plans, gradient {gap}")
    shared.deliver("design_benchmark", lines, draw(lines), args, summary=summary(lines))


if __name__ == "__main__":
    run_study(main)
