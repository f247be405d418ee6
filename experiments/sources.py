"""Sources that no fit has seen: how far off, to which side, and inside the intervals?

Claim: the model is right about tables that nobody tuned on, and its intervals hold nine of ten.

Rows of the files given are predicted by the shipped profile nearest to each; none of their sources
may be in its fit. Without a file, the published rows that the profile `held-out` was fitted without
stand for them. A line for each kind (dense, experts, adapters), for each source and kind, and for
each share of the step that the model gives to launches and fixed time; the worst rows behind them.
`python -m experiments.sources [--traces FILE …] [--worst N] [--json] [--out DIR]`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from calibration.evaluate import fitted_rows
from calibration.predict import Predictions, predict
from calibration.traces import Cases, published, read, to_cases
from dmodel.errors import InputError
from dmodel.profiles import EVIDENCE, load
from dmodel.profiles.choosing import WIDEST
from dmodel.records import value
from dmodel.report import style
from dmodel.types import enable_float64
from experiments.study import arguments, deliver, run, summary

SLOW = "slow-unexplained"
"""Flag of rows that something slows which they do not say; they are not judged."""

SHARES = (0.0, 0.02, 0.1, 0.25, 0.5, 1.0)
"""Bounds of the shares of a step that launches and fixed time take, by the model [1]."""

ADAPTERS, EXPERTS, DENSE = "adapters", "experts", "dense"
"""Kinds of rows, each of one alone."""


class Judged(NamedTuple):
    """Rows that no fit has seen, and what is said of them."""

    cases: Cases
    found: Predictions

    @property
    def ratio(self) -> np.ndarray:
        """Predicted over measured step time [1], `[row]`."""
        return self.found.step_time_s / self.cases.labels.step_time_s

    @property
    def inside(self) -> np.ndarray:
        """Whether the interval of 90 % holds what was measured, `[row]`."""
        low, high = self.found.interval()
        measured = self.cases.labels.step_time_s
        return (low <= measured) & (measured <= high)

    @property
    def host(self) -> np.ndarray:
        """Share of the step that launches and fixed time take, by the model [1], `[row]`."""
        terms = self.found.breakdown
        return np.asarray(terms.launch + terms.overhead) / self.found.step_time_s

    @property
    def kind(self) -> np.ndarray:
        """Kind of each row, `[row]`."""
        adapters = np.asarray(self.cases.model.trainable) == 0.0
        experts = np.asarray(value(self.cases.model, "n_experts", 1.0)) > 1.0
        return np.where(adapters, ADAPTERS, np.where(experts, EXPERTS, DENSE))


def judged(files: list[str]) -> Judged:
    """Rows of files by the nearest profiles, or published ones by the fit that did not have them.

    Raises:
      InputError: a file cannot be used, or the shipped fit has rows of one of its sources.
    """
    enable_float64()
    if files:
        cases = to_cases(read(files))
        _check_unseen(cases)
        profile = None
    else:
        profile = load(EVIDENCE)
        cases = to_cases(published())
        cases = cases.take(~fitted_rows(cases, profile.fitted_rows))
    slow = np.array([SLOW in str(flag) for flag in cases.labels.flag])
    cases = cases.take(~slow & np.isfinite(cases.labels.step_time_s))
    return Judged(cases, predict(cases, profile))


def _check_unseen(cases: Cases) -> None:
    """Refuse sources of which the shipped fit has rows."""
    fitted = {str(each["source"]) for each in load(WIDEST).data}
    if known := sorted(fitted & set(map(str, cases.labels.source))):
        raise InputError(
            f"--traces: the shipped fit has rows of {', '.join(known)}; expected sources that it "
            "has not seen. Leave these rows out, or see `dmodel experiment accuracy`"
        )


def line(name: str, kind: str, rows: Judged, mask: np.ndarray) -> dict[str, Any]:
    """One line: rows, median, mean and 90th percentile of the error, signed middle (+ = too slow),
    and the share inside the intervals [%]."""
    ratio = rows.ratio[mask]
    return {
        "rows of": name,
        "kind": kind,
        "rows": len(ratio),
        **summary(np.abs(ratio - 1.0)),
        "bias": 100.0 * float(np.median(ratio - 1.0)),
        "inside": 100.0 * float(rows.inside[mask].mean()),
    }


def lines_of(rows: Judged) -> Iterator[dict[str, Any]]:
    """Lines of kinds, of sources and kinds, and of shares of the host."""
    sources, kinds = np.array(list(map(str, rows.cases.labels.source))), rows.kind
    for kind in (DENSE, EXPERTS, ADAPTERS):
        if (mask := kinds == kind).any():
            yield line("all sources", kind, rows, mask)
    for source in sorted(set(sources.tolist())):
        for kind in (DENSE, EXPERTS, ADAPTERS):
            if (mask := (sources == source) & (kinds == kind)).any():
                yield line(source, kind, rows, mask)
    for low, high in zip(SHARES, SHARES[1:], strict=False):
        mask = (rows.host >= low) & (rows.host < high)
        if mask.any():
            yield line(f"host {100 * low:g} to {100 * high:g} %", "all", rows, mask)


def worst_of(rows: Judged, count: int) -> list[dict[str, Any]]:
    """The rows that are furthest off, each source's first."""
    labels, off = rows.cases.labels, np.abs(np.log(rows.ratio))
    found: list[int] = []
    for source in dict.fromkeys(map(str, labels.source)):
        of = np.flatnonzero(np.array(list(map(str, labels.source))) == source)
        found += of[np.argsort(-off[of])][:count].tolist()
    return [
        {
            "rows of": str(labels.source[i]),
            "kind": str(rows.kind[i]),
            "line": int(labels.line[i]),
            "case": f"{labels.model[i]}, {labels.n_accel[i]:g} {labels.accelerator[i]}, "
            f"{labels.precision[i]}, {labels.stack[i]}",
            "measured": float(labels.step_time_s[i]),
            "predicted": float(rows.found.step_time_s[i]),
            "bias": 100.0 * float(rows.ratio[i] - 1.0),
            "host": 100.0 * float(rows.host[i]),
        }
        for i in found
    ]


def draw(rows: Judged) -> Any:
    """Predicted over measured time of every row against the share of its host."""
    figure = style.new_figure(7.0, 4.0)
    axes = figure.subplots()
    for kind, color in zip(
        (DENSE, EXPERTS, ADAPTERS), (style.BLUE, style.ORANGE, style.GREEN), strict=True
    ):
        mask = rows.kind == kind
        axes.plot(100.0 * rows.host[mask], rows.ratio[mask], "o", ms=3.5, color=color, label=kind)
    axes.axhline(1.0, color=style.INK, lw=0.8)
    axes.set_yscale("log")
    axes.set_xlabel("share of launches and fixed time in the predicted step [%]")
    axes.set_ylabel("predicted / measured")
    axes.set_title("Rows of sources that no fit has seen")
    axes.legend()
    return figure


def _options() -> argparse.Namespace:
    parser = arguments(__doc__ or "")
    parser.add_argument("--worst", type=int, default=5, help="rows of each source to name")
    return parser.parse_args()


def main() -> None:
    """Predict, compare, name the worst."""
    options = _options()
    rows = judged(options.traces)
    lines = [*lines_of(rows), *worst_of(rows, options.worst)]
    deliver("sources", lines, draw(rows), options, digits=".1f")


if __name__ == "__main__":
    run(main)
