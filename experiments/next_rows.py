"""A dozen rows chosen for what they tell, against random ones.

Claim: a dozen rows chosen for what they tell predict the other rows of a new stack better than a
dozen random ones.

A profile that has never seen a stack chooses, from a random half of its groups, those rows that
tell most about all of them (their times unknown to it). Both those and as many random rows are
fitted, and the rows of the other half are judged.
`python -m experiments.next_rows [--targets …] [--rows …] [--criterion prediction|everything]
[--traces FILE…]`
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import numpy as np

from calibration.fit import fit
from calibration.information import Problem, choose, problem, spread
from calibration.predict import predict
from calibration.traces import Cases
from dmodel.profiles import Profile
from dmodel.report.style import BLUE, GREY, new_figure
from experiments.bases import Bases
from experiments.divisions import shipped
from experiments.study import arguments, deliver, rows, run, say
from experiments.targets import catalog, few_shot_targets

TARGETS = ("vtrain-multi", "vtrain-single", "ultrascale")
"""Targets when none are named; those without rows are left out."""

GOAL = -25.0
"""Change of the median error to reach [%]."""


class Part(NamedTuple):
    """Rows of a target that can be chosen, and rows that are judged; indices."""

    pool: np.ndarray
    judged: np.ndarray


def divided(cases: Cases, seed: int) -> Part:
    """A random half of the groups to choose from and the rows of the others to judge; of sources
    with a group for every other row, of
    rows."""
    rng, group = np.random.default_rng(seed), cases.labels.group
    names = rng.permutation(np.unique(group))
    if 2 * len(names) > len(cases) or len(names) < 4:
        order = rng.permutation(len(cases))
        return Part(np.sort(order[: len(cases) // 2]), np.sort(order[len(cases) // 2 :]))
    open_to_choose = np.isin(group, names[: (len(names) + 1) // 2])
    return Part(np.flatnonzero(open_to_choose), np.flatnonzero(~open_to_choose))


def problem_of(cases: Cases, profile: Profile) -> Problem:
    """All rows as candidates and as targets, at a cost of one each."""
    everything = np.arange(len(cases))
    return problem(spread(cases, profile), np.ones(len(cases)), everything, everything)


def error(
    cases: Cases, fitted: np.ndarray, judged: np.ndarray, base: Profile, seed: int
) -> np.ndarray:
    """Median and mean error [%] of the judged rows under a fit of some others."""
    profile = fit(cases.take(fitted), base, seed=seed, starts=1)
    rest = cases.take(judged)
    gap = 100.0 * np.abs(predict(rest, profile).step_time_s / rest.labels.step_time_s - 1.0)
    return np.array([np.median(gap), gap.mean()])


def compared(
    cases: Cases, base: Profile, sizes: list[int], seeds: int, criterion: str
) -> dict[tuple[int, str], np.ndarray]:
    """Errors of every draw `[draw, 2]` by the number of rows and how they were taken."""
    found: dict[tuple[int, str], list[np.ndarray]] = {}
    asked = problem_of(cases, base)
    for seed in range(seeds):
        part = divided(cases, seed)
        order = np.random.default_rng(seed).permutation(part.pool)
        for size in sizes:
            chosen = choose(asked._replace(candidates=part.pool), np.inf, criterion, size).runs
            for name, taken in (("random", order[:size]), ("chosen", np.array(chosen))):
                found.setdefault((size, name), []).append(
                    error(cases, np.sort(taken), part.judged, base, seed)
                )
    return {key: np.array(values) for key, values in found.items()}


def lines_of(target: str, found: dict[tuple[int, str], np.ndarray]) -> list[dict[str, Any]]:
    """One line by number of rows: middle of the draws' median and mean errors, the change from
    random to chosen, and the
    share of the draws in which the chosen rows have the lower median [%]."""
    lines = []
    for size in dict.fromkeys(size for size, _ in found):
        random, chosen = (found[size, name] for name in ("random", "chosen"))
        change = 100.0 * (np.median(chosen, 0) / np.median(random, 0) - 1.0)
        lines.append(
            {
                "target": target,
                "rows": size,
                "draws": len(random),
                "random_median": float(np.median(random[:, 0])),
                "chosen_median": float(np.median(chosen[:, 0])),
                "change_median": float(change[0]),
                "random_mean": float(np.median(random[:, 1])),
                "chosen_mean": float(np.median(chosen[:, 1])),
                "change_mean": float(change[1]),
                "random_worst_mean": float(random[:, 1].max()),
                "chosen_worst_mean": float(chosen[:, 1].max()),
                "draws_better": 100.0 * float((chosen[:, 0] < random[:, 0]).mean()),
                "reached": bool(change[0] <= GOAL),
            }
        )
    return lines


def main() -> None:
    """Every target, number of rows and draw."""
    options = _options()
    cases = rows(options.traces)
    protocols, bases = catalog(cases), Bases.of(options)
    names = few_shot_targets(protocols, options.targets, TARGETS)
    sizes, seeds = ([12], 1) if options.quick else (options.rows, options.seeds)
    lines: list[dict[str, Any]] = []
    for name in names[: 1 if options.quick else None]:
        protocol = protocols[f"few-shot 12 {name}"]
        base = bases.without(cases, protocol.hidden(cases) | ~shipped(cases), name)
        target = cases.take(protocol.target(cases))
        lines += lines_of(name, compared(target, base, sizes, seeds, options.criterion))
        last = lines[-1]
        say(
            f"{name}, {last['rows']} rows: {last['random_median']:.2f} % random, "
            f"{last['chosen_median']:.2f} % chosen"
        )
    deliver("next_rows", lines, _figure(lines), options)


def _figure(lines: list[dict[str, Any]]) -> Any:
    """Error against the rows measured, random and chosen, a panel for each target."""
    names = list(dict.fromkeys(line["target"] for line in lines))
    figure = new_figure(1.0 + 3.2 * len(names), 3.4)
    for axes, name in zip(np.atleast_1d(figure.subplots(1, len(names))), names, strict=True):
        _panel(axes, name, [line for line in lines if line["target"] == name])
    figure.axes[0].set_ylabel("error of rows not measured [%]")
    figure.axes[0].legend(frameon=False, fontsize=8, loc="lower left")
    return figure


def _panel(axes: Any, name: str, mine: list[dict[str, Any]]) -> None:
    x = [line["rows"] for line in mine]
    for way, colour in (("random", GREY), ("chosen", BLUE)):
        for error, look in (("median", {}), ("mean", {"mfc": "white", "ls": ":"})):
            y = [line[f"{way}_{error}"] for line in mine]
            axes.plot(x, y, marker="o", color=colour, label=f"{way}, {error}", **look)
    axes.set(
        title=name, xlabel="rows measured", xlim=(0, 1.2 * max(x)), ylim=(0, None), xticks=[0, *x]
    )


def _options() -> argparse.Namespace:
    parser = arguments(__doc__ or "")
    parser.set_defaults(seeds=20)
    parser.add_argument(
        "--targets", nargs="*", help=f"default: {', '.join(TARGETS)}, where there are rows"
    )
    parser.add_argument(
        "--rows", nargs="*", type=int, default=[12], help="how many rows to measure"
    )
    parser.add_argument(
        "--criterion",
        choices=("prediction", "everything"),
        default="prediction",
        help="what the choice is to serve",
    )
    return parser.parse_args()


if __name__ == "__main__":
    run(main)
