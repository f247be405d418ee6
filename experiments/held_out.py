"""Claim: fitted to four fifths of the published rows, the model predicts the other dense 16-bit GPU rows to 5 % (median), 8 % (mean).

Whole groups (model, accelerator, devices) are held out, with another draw for every seed; the shipped `held-out` profile is seed 0.
`python -m experiments.held_out [--seeds N] [--traces FILE …]`
"""

from __future__ import annotations

import numpy as np

from calibration.evaluate import dense_gpu_rows
from calibration.fit import fit
from calibration.predict import predict
from calibration.traces import split
from experiments.study import arguments, deliver, rows, run, say, summary


def main() -> None:
    """Fit and judge once for every seed, then the middle of the seeds."""
    options = arguments(__doc__ or "").parse_args()
    cases = rows(options.traces)
    if options.quick:
        cases = cases.take(np.isin(cases.labels.source, ("llm-foundry", "megatron-sc21-t1")))
    dense, lines = dense_gpu_rows(cases), []
    for seed in range(1 if options.quick else options.seeds):
        held_out = split(cases, 0.2, seed)
        profile = fit(cases, held_out=held_out, seed=seed, starts=1 if options.quick else 2, rounds=1 if options.quick else 2)
        error = np.abs(predict(cases, profile).step_time_s / cases.labels.step_time_s - 1.0)
        for name, part in (("fitted", dense & ~held_out), ("held out", dense & held_out)):
            lines.append({"seed": seed, "rows": name, "count": int(part.sum()), **summary(error[part])})
        say(f"seed {seed}: held out {lines[-1]['count']} rows, median {lines[-1]['median']:.2f} %, mean {lines[-1]['mean']:.2f} %")
    held = [line for line in lines if line["rows"] == "held out"]
    middle = {key: float(np.median([line[key] for line in held])) for key in ("median", "mean", "p90")}
    lines.append({"seed": "middle", "rows": "held out", "count": int(np.median([line["count"] for line in held])), **middle})
    deliver("held_out", lines, options)


if __name__ == "__main__":
    run(main)
