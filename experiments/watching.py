"""Planted slow-downs in step times are found soon, and hardly anything else is.

Claim: with a scatter of 3 % a step, a slow-down of 5, 10 and 20 % is found within 50, 20 and 5
steps; there is less than one false alarm in 10,000 steps.

A log is drawn for each run: independent normal scatter, as asked; scatter with long tails
(Student-t of 4 degrees of freedom); correlated steps (correlation 0.4); a checkpoint every 100
steps, three times as long as a step. `python -m experiments.watching [--runs N] [--seed N]
[--quick] [--json] [--out DIR]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from calibration.watching.changes import SLOWER, Detector
from experiments.study import deliver, parse, plain_arguments, run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPREAD = 0.03
"""Standard deviation of ln(seconds) of a step."""

WITHIN = {0.05: 50, 0.1: 20, 0.2: 5}
"""Slow-down → steps in which it should be found."""

BEFORE, AFTER = (60, 400), 400
"""Steps before a planted slow-down, from and to, and those after it."""

CLEAN = 10_000
"""Steps of a log without a change."""

Noise = Callable[[np.random.Generator, int], np.ndarray]


def _normal(rng: np.random.Generator, n: int) -> np.ndarray:
    return SPREAD * rng.standard_normal(n)


def _tailed(rng: np.random.Generator, n: int) -> np.ndarray:
    return SPREAD / np.sqrt(2.0) * rng.standard_t(4, n)


ALIKE = 0.4
"""Correlation of neighbours."""


def _alike(rng: np.random.Generator, n: int) -> np.ndarray:
    from scipy.signal import lfilter

    own = SPREAD * np.sqrt(1.0 - ALIKE**2) * rng.standard_normal(n)
    return np.asarray(lfilter([1.0], [1.0, -ALIKE], own))


def _saves(rng: np.random.Generator, n: int) -> np.ndarray:
    found = _normal(rng, n)
    found[::100] += np.log(3.0)
    return found


NOISES: dict[str, Noise] = {
    "normal": _normal,
    "long tails": _tailed,
    "correlated steps": _alike,
    "checkpoints": _saves,
}


def found_after(logs: np.ndarray, at: int) -> tuple[int | None, int]:
    """Steps from a planted slow-down until it is told, None = never; and alarms before it."""
    detector, early = Detector(), 0
    for i, x in enumerate(logs):
        change = detector.take(i, float(np.exp(x)))
        if change is None:
            continue
        if i >= at and change.kind == SLOWER:
            return i - at + 1, early
        early += i < at
    return None, early


def false_alarms(noise: Noise, steps: int, rng: np.random.Generator) -> float:
    """Changes told in 10,000 steps without one."""
    told = 0
    for _ in range(max(steps // CLEAN, 1)):
        detector = Detector()
        told += sum(
            detector.take(i, float(np.exp(x))) is not None for i, x in enumerate(noise(rng, CLEAN))
        )
    return 1e4 * told / (max(steps // CLEAN, 1) * CLEAN)


def line(
    name: str, noise: Noise, slower: float, runs: int, rng: np.random.Generator
) -> dict[str, Any]:
    """One kind of scatter and one slow-down."""
    waits, early = [], 0
    for _ in range(runs):
        at = int(rng.integers(*BEFORE))
        logs = noise(rng, at + AFTER)
        logs[at:] += np.log1p(slower)
        wait, told = found_after(logs, at)
        waits.append(np.inf if wait is None else wait)
        early += told
    within = WITHIN[slower]
    return {
        "scatter": name,
        "slower by [%]": 100.0 * slower,
        "runs": runs,
        "median [steps]": float(np.median(waits)),
        "95 % [steps]": min(float(np.quantile(waits, 0.95, method="lower")), float(AFTER)),
        "wanted [steps]": within,
        "found within [%]": 100.0 * float(np.mean(np.array(waits) <= within)),
        "alarms before": early,
    }


def figure_of(rng: np.random.Generator) -> Figure:
    """One log of each slow-down, and where it was told."""
    from dmodel.report import style

    figure = style.new_figure(6.6, 4.2)
    axes = figure.subplots()
    for i, slower in enumerate(WITHIN):
        logs = _normal(rng, 200)
        logs[120:] += np.log1p(slower)
        wait, _ = found_after(logs, 120)
        seconds = np.exp(logs + 0.3 * i)
        axes.plot(seconds, lw=0.8, color=style.BLUE)
        if wait is not None:
            axes.plot(120 + wait - 1, seconds[120 + wait - 1], "o", color=style.VERMILLION)
        axes.annotate(f"+{100 * slower:.0f} % from step 120", (2, seconds[:100].max() * 1.03))
    axes.set(xlabel="step", ylabel="seconds of a step, moved apart")
    axes.set_title("Where a slow-down is told (dots)")
    return figure


def main() -> None:
    """Plant, watch, count."""
    parser = plain_arguments(__doc__ or "")
    parser.add_argument("--runs", type=int, default=1000, help="logs of each line")
    parser.add_argument("--seed", type=int, default=0, help="of all draws")
    options = parse(parser)
    rng = np.random.default_rng(options.seed)
    runs, clean = (5, CLEAN) if options.quick else (options.runs, 100 * CLEAN)
    lines: list[dict[str, Any]] = []
    for name, noise in NOISES.items():
        alarms = false_alarms(noise, clean, rng)
        for slower in WITHIN:
            found = line(name, noise, slower, runs, rng)
            lines.append(found | {"false alarms in 10,000 steps": alarms})
    deliver("watching", lines, figure_of(rng), options)


if __name__ == "__main__":
    run(main)
