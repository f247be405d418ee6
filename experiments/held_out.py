"""Claim: fitted to four fifths of the published rows, the model predicts the other dense 16-bit GPU
rows to 5 % (median), 8 % (mean).

`--by group` (default) holds out whole groups (model, accelerator, devices), with another draw for
every seed; the shipped `held-out` profile is seed 0. `--by scale` fits rows of at most 128 devices
and judges those of at least 512. `--by source` leaves one source out at a time and judges it
without any row of its own: what knowing the software is worth.
`python -m experiments.held_out [--by group|scale|source] [--seeds N] [--traces FILE …]`
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from calibration.evaluate import dense_gpu_rows
from calibration.fit import fit
from calibration.predict import predict
from calibration.traces import Cases, split
from dmodel.report.scatter import Point, scatter
from dmodel.report.style import save_png
from experiments.study import arguments, deliver, rows, run, say, summary

SMALL, LARGE = 128, 512
"""Devices up to which rows are fitted, and from which they are judged, by scale."""


class Part(NamedTuple):
    """One way to divide the rows: fitted, and judged, `[row]` bool each."""

    name: str
    fitted: np.ndarray
    judged: np.ndarray


def parts(cases: Cases, by: str, seeds: int) -> Iterator[Part]:
    """The divisions of a study."""
    labels = cases.labels
    if by == "group":
        for seed in range(seeds):
            held_out = split(cases, 0.2, seed)
            yield Part(f"seed {seed}", ~held_out, held_out)
    elif by == "scale":
        yield Part(f"≤ {SMALL} devices", labels.n_accel <= SMALL, labels.n_accel >= LARGE)
    else:
        for source in dict.fromkeys(labels.source.tolist()):
            # a source's other rows of the same software go too
            alike = np.isin(labels.stack, np.unique(labels.stack[labels.source == source]))
            yield Part(f"without {source}", ~alike, labels.source == source)


def main() -> None:
    """Fit and judge every division, then the middle of the held-out errors."""
    parser = arguments(__doc__ or "")
    parser.add_argument(
        "--by", choices=("group", "scale", "source"), default="group", help="what is held out"
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="judge all rows, not only dense 16-bit GPU rows without flags",
    )
    options = parser.parse_args()
    cases = rows(options.traces)
    if options.quick:
        cases = cases.take(np.isin(cases.labels.source, ("llm-foundry", "megatron-sc21-t1")))
    wanted = np.ones(len(cases), bool) if options.all else dense_gpu_rows(cases)
    lines, points = [], []
    for seed, part in enumerate(parts(cases, options.by, 1 if options.quick else options.seeds)):
        if not (part.judged & wanted).any():
            continue
        profile = fit(
            cases,
            held_out=~part.fitted,
            seed=seed,
            starts=1 if options.quick else 2,
            rounds=1 if options.quick else 2,
            name=part.name,
        )
        predicted, measured = predict(cases, profile).step_time_s, cases.labels.step_time_s
        error = np.abs(predicted / measured - 1.0)
        # the figure shows the first fit's rows, and of the others those held out
        shown = (part.judged if lines else part.judged | part.fitted) & wanted
        points += [
            Point(*row)
            for row in zip(
                measured[shown], predicted[shown], part.judged[shown].tolist(), strict=True
            )
        ]
        for name, mask in (("fitted", part.fitted & wanted), ("held out", part.judged & wanted)):
            lines.append(
                {
                    "fit": part.name,
                    "rows": name,
                    "count": int(mask.sum()),
                    **(summary(error[mask]) if mask.any() else {}),
                }
            )
        say(
            f"{part.name}: held out {lines[-1]['count']} rows, median "
            f"{lines[-1]['median']:.2f} "
            f"%, mean {lines[-1]['mean']:.2f} %"
        )
    held = [line for line in lines if line["rows"] == "held out"]
    middle = {
        key: float(np.median([line[key] for line in held])) for key in ("median", "mean", "p90")
    }
    lines.append(
        {
            "fit": "middle",
            "rows": "held out",
            "count": int(np.median([line["count"] for line in held])),
            **middle,
        }
    )
    options.out.mkdir(parents=True, exist_ok=True)
    save_png(scatter(points), options.out / f"held_out_by_{options.by}.png")
    deliver(f"held_out_by_{options.by}", lines, options)


if __name__ == "__main__":
    run(main)
