"""What each mechanism of the step model buys on rows unseen.

Question: what does each mechanism of the step model buy on rows that no fit has seen?

Each line takes one mechanism away, by holding its coefficients at the value where it does nothing,
fits again, and judges the same
held-out groups. A mechanism that buys nothing shows a change near 0; a few rows of one stack may
need one that the middle of all does not. `python -m experiments.ablation [--seeds N] [--only
MECHANISM…] [--traces FILE…] [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from calibration.fit import fit
from calibration.predict import predict
from calibration.traces import Cases, split
from dmodel.report.style import GREY, INK, VERMILLION, new_figure
from experiments.study import arguments, containing, deliver, rows, run, say

NONE, ALL = 1e-9, 1.0 - 1e-9
"""Nothing, and all, of a share or a factor."""

MECHANISMS: dict[str, dict[str, float]] = {
    "the model as it is": {},
    "matmuls slower with few rows": {"matmul_half_rows": NONE},
    "matmuls slower with few columns": {"matmul_half_columns": NONE},
    "matmuls slower when their inner size is small": {"matmul_half_inner": NONE},
    "own efficiency below 16 bits": {"low_precision_efficiency": ALL},
    "casts below 16 bits": {"cast_traffic": NONE},
    "grouped matmuls of experts": {"grouped_efficiency": ALL},
    "exponentials of attention": {"attention_exponentials": NONE},
    "backward passes of attention at a rate of their own": {"attention_backward": 1.0},
    "elementwise kernels": {"elementwise_traffic": NONE},
    "unfused attention through memory": {"softmax_traffic": NONE},
    "optimizer step": {"optimizer_traffic": NONE},
    "logits and loss through memory": {"loss_traffic": NONE},
    "waiting for kernel launches": {"launch": NONE},
    "meetings of tensor-parallel ranks beside a pipeline over several nodes": {"rendezvous": NONE},
    "filling and draining kernels": {"kernel_fill": NONE},
    "a clock below the full one": {"power_demand": NONE},
    "start of collectives": {"collective_start": 1e-12},
    "waiting for each other in tensor parallelism": {"collective_skew": 1e-12},
    "gradients sent in buckets": {"bucket": 1e15},
    "own efficiency of tensor parallelism across nodes": {"net_efficiency_tp_outer": ALL},
    "bandwidth falling with the members": {"net_contention": NONE},
    "overlap of communication and compute": dict.fromkeys(
        (
            "overlap_tp",
            "overlap_cp",
            "overlap_ep",
            "overlap_dp",
            "overlap_gather",
            "overlap_fsdp",
            "overlap_pp",
        ),
        NONE,
    ),
    "updated parameters gathered behind compute": {"overlap_gather": NONE},
    "compute slowed by communication": {"contention": NONE},
    "bubble other than the ideal": {"bubble": 1.0},
    "head spread over the stages": {"head_balance": NONE},
    "stragglers": {"straggler": NONE},
    "fixed time of a step": {"overhead": NONE},
}
"""What to leave out → its coefficients, and their values where it does nothing."""

QUICK = ("the model as it is", "elementwise kernels")


def typical(error: np.ndarray, source: np.ndarray) -> tuple[float, float]:
    """Median and mean error of each source, and of these the geometric means [%]: no source counts
    for its number of rows."""
    by = [error[source == s] for s in np.unique(source)]
    floor = 1e-4
    return tuple(
        100.0 * float(np.exp(np.mean([np.log(of(e) + floor) for e in by])))
        for of in (np.median, np.mean)
    )  # type: ignore[return-value]


def judged(cases: Cases, held: dict[str, float], seeds: int, quick: bool) -> np.ndarray:
    """Median and mean error of held-out groups under fits with coefficients held, `[seed, 2]`
    [%]."""
    found = []
    for seed in range(seeds):
        out = split(cases, 0.2, seed) & np.isfinite(cases.labels.step_time_s)
        profile = fit(cases, held_out=out, held=held, seed=seed, starts=1, rounds=1 if quick else 2)
        rest = cases.take(out)
        error = np.abs(predict(rest, profile).step_time_s / rest.labels.step_time_s - 1.0)
        found.append(typical(error, rest.labels.source))
    return np.array(found)


def line_of(name: str, error: np.ndarray, whole: np.ndarray) -> dict[str, Any]:
    """One line: errors without a mechanism, and their changes [%]."""
    change = 100.0 * (error / whole - 1.0)
    return {
        "without": name,
        "coefficients": " ".join(MECHANISMS[name]),
        "median": float(np.median(error[:, 0])),
        "mean": float(np.median(error[:, 1])),
        "change_of_median": float(np.median(change[:, 0])),
        "change_of_mean": float(np.median(change[:, 1])),
        "least_change_of_mean": float(change[:, 1].min()),
        "most_change_of_mean": float(change[:, 1].max()),
        "seeds": len(error),
    }


def main() -> None:
    """Every mechanism asked for, on the same divisions."""
    options = _options()
    cases, seeds = rows(options.traces), options.seeds
    if options.quick:
        few = np.isin(cases.labels.source, ("llm-foundry", "megatron-sc21-t1"))
        cases, seeds = cases.take(few), 1
    asked = options.only or (QUICK if options.quick else None)
    names = containing(MECHANISMS, asked, "mechanism")
    whole = judged(cases, {}, seeds, options.quick)
    lines: list[dict[str, Any]] = []
    for name in names:
        held = MECHANISMS[name]
        error = judged(cases, held, seeds, options.quick) if held else whole
        lines.append(line_of(name, error, whole))
        say(
            f"without {name}: {lines[-1]['median']:.2f} / {lines[-1]['mean']:.2f} %, mean "
            f"{lines[-1]['change_of_mean']:+.1f} %"
        )
    lines.sort(key=lambda line: -line["change_of_mean"])
    deliver("ablation", lines, draw(lines), options)


def draw(lines: list[dict[str, Any]]) -> Any:
    """Change of the mean error without each mechanism, with the range over the seeds."""
    shown = [line for line in lines if line["coefficients"]][::-1]
    figure = new_figure(8.0, 0.9 + 0.28 * len(shown))
    axes = figure.subplots()
    at = np.arange(len(shown))
    change = np.array([line["change_of_mean"] for line in shown])
    axes.barh(at, change, color=[VERMILLION if c > 0 else GREY for c in change])
    axes.hlines(
        at,
        [x["least_change_of_mean"] for x in shown],
        [x["most_change_of_mean"] for x in shown],
        color=INK,
        lw=0.8,
    )
    axes.set_yticks(at, [line["without"] for line in shown])
    axes.axvline(0.0, color=INK, lw=0.8)
    axes.set_xlabel("change of the mean error of held-out rows without it [%]")
    return figure


def _options() -> argparse.Namespace:
    parser = arguments(__doc__ or "")
    parser.set_defaults(seeds=3)
    parser.add_argument(
        "--only",
        nargs="*",
        metavar="MECHANISM",
        help="mechanisms whose names contain one of these texts",
    )
    return parser.parse_args()


if __name__ == "__main__":
    run(main)
