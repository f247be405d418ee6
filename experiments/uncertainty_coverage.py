"""How many unseen measurements lie in their intervals.

Claim: 90 % of the measurements that a fit has not seen lie in its 90 % intervals, source by
source.

Held out by group: the published rows in `--folds` parts of whole groups, each predicted by a fit of
the others. Few-shot: `--size` rows of a stack whose family the base has not seen, and the other
rows of that stack predicted. Noise of fits, what coefficients leave open and the model's
discrepancy are learned from each fit's own rows alone. What factor the intervals lack is chosen on
a random half of the sources and checked on the others. With `--only generation`: the rows of each
generation of chips predicted by a fit without it, and where that takes the last chip of a maker
the likelihood of each factor `uncertainty.NEW_MAKER`. `python -m experiments.uncertainty_coverage
[--only group|few-shot|generation] [--targets …]`
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from calibration.fit import fit, weights_of
from calibration.predict import Predictions, predict
from calibration.traces import Cases
from dmodel import uncertainty
from dmodel.catalog.chips import generation, maker
from dmodel.errors import InputError
from dmodel.profiles import Profile
from dmodel.uncertainty import FREEDOM, LEVEL, quantile, share_below
from experiments.bases import Bases
from experiments.divisions import folds, shipped
from experiments.study import arguments, deliver, rows, run, say
from experiments.targets import catalog, few_shot_targets

LEVELS = np.linspace(0.05, 0.95, 19)
"""Levels of the figure's curve."""

FEW = (
    "vtrain-single",
    "vtrain-multi",
    "llm-foundry",
    "nemo-launcher",
    "b200",
    "megatron-bridge",
    "maxtext",
    "ultrascale-flagged",
)
"""Few-shot targets; those without rows are left out."""


UNMET = "without its generation"
"""Name of the protocol that leaves a generation of chips out."""

FACTORS = (1.0, 2.0, 2.5, 3.0, 4.0, 6.0)
"""Of the widths of chips, for a maker that a profile lacks."""

HALVES = 200
"""Random halves of the sources."""


def misses(found: Predictions, measured: np.ndarray) -> np.ndarray:
    """How many scales each measurement lies from its prediction, `[row]`."""
    return np.abs(np.log(measured / found.step_time_s)) / found.scale


def levels_of(miss: np.ndarray) -> np.ndarray:
    """Level of the smallest interval that holds each measurement, `[row]`: uniform when intervals
    are right."""
    return 2.0 * share_below(miss) - 1.0


def lacking(miss: np.ndarray) -> float:
    """Factor by which scales fall short of a share `LEVEL` inside: 1 = nothing lacks, 1.2 =
    intervals 20 % too narrow."""
    return float(np.quantile(miss, LEVEL)) / quantile()


def across(miss: np.ndarray, source: np.ndarray) -> dict[str, float]:
    """The factor that random halves of the sources lack, and the share [%] of the other sources'
    rows inside intervals widened by it: what a factor chosen on some sources is worth on others.
    Empty with less than four sources."""
    names, rng = np.unique(source), np.random.default_rng(0)
    if len(names) < 4:
        return {}
    drawn = [np.isin(source, rng.permutation(names)[: len(names) // 2]) for _ in range(HALVES)]
    factor = np.array([lacking(miss[half]) for half in drawn])
    share = np.array(
        [(miss[~half] <= quantile() * x).mean() for half, x in zip(drawn, factor, strict=True)]
    )
    return {"scale": float(np.median(factor)), "coverage": 100.0 * float(share.mean())}


def line(
    protocol: str, source: str, miss: np.ndarray, found: tuple[np.ndarray, np.ndarray]
) -> dict[str, Any]:
    """One line of the table: how many rows lie inside, the interval's half width and the median
    error [%], the factor that scales lack."""
    (half, error), level = found, levels_of(miss)
    return {
        "protocol": protocol,
        "source": source,
        "rows": len(level),
        "coverage": 100.0 * float((level <= LEVEL).mean()),
        "half_width": 100.0 * float(np.median(half)),
        "median_error": 100.0 * float(np.median(error)),
        "coverage_50": 100.0 * float((level <= 0.5).mean()),
        "scale": lacking(miss),
    }


def judge(cases: Cases, profile: Profile) -> np.ndarray:
    """Distance in scales, half width of the interval and error of every row, `[3, row]`."""
    found, measured = predict(cases, profile), cases.labels.step_time_s
    half = found.interval()[1] / found.step_time_s - 1.0
    return np.stack([misses(found, measured), half, np.abs(found.step_time_s / measured - 1.0)])


def by_group(cases: Cases, count: int, bases: Bases) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows of every fold, and what a fit of the others says of them."""
    usable = weights_of(cases.labels.flag) > 0.0
    for fold in folds(count)(cases, shipped(cases) & usable, 0):
        started = time.perf_counter()
        profile = bases.without(cases, ~fold.fitted, "a fold of groups")
        judged = np.flatnonzero(fold.judged)
        yield judged, judge(cases.take(judged), profile)
        say(f"fold of {len(judged)} rows: {time.perf_counter() - started:.0f} s")


def few_shot(
    cases: Cases, name: str, seeds: int, bases: Bases
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows judged by every seed, and what a fit of a few others says of them."""
    protocol = catalog(cases)[name]
    base = bases.without(cases, protocol.hidden(cases) | ~shipped(cases), name)
    for seed in range(seeds):
        for part in protocol.divide(cases, protocol.target(cases), seed):
            judged = np.flatnonzero(part.judged)
            yield judged, judge(cases.take(judged), fit(cases.take(part.fitted), base, seed=seed))


def by_generation(cases: Cases, bases: Bases) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
    """A line for the rows of each generation, judged by a fit without it, and how far every row
    lies."""
    usable, known = weights_of(cases.labels.flag) > 0.0, shipped(cases)
    of = np.array([generation(name) for name in cases.labels.accelerator.tolist()])
    for name in np.unique(of[usable & known]).tolist():
        profile = bases.without(cases, (of == name) | ~known, f"the generation {name}")
        rows = cases.take(np.flatnonzero((of == name) & usable & known))
        values = judge(rows, profile)
        found = line(UNMET, name, values[0], (values[1], values[2]))
        yield found | _of_maker(rows, profile), values[0]


def _of_maker(rows: Cases, profile: Profile) -> dict[str, float]:
    """Mean log-likelihood of the rows at each of `FACTORS` of a maker that a profile lacks; empty
    where it knows other chips of the maker."""
    makers = {maker(name) for name in profile.offsets["accelerator"]}
    if maker(str(rows.labels.accelerator[0])) in makers:
        return {}
    before, said = uncertainty.NEW_MAKER, {}
    for factor in FACTORS:
        uncertainty.NEW_MAKER = factor
        found = predict(rows, profile)
        ratio = np.log(rows.labels.step_time_s / found.step_time_s) / found.scale
        density = -0.5 * (FREEDOM + 1.0) * np.log1p(ratio**2 / FREEDOM) - np.log(found.scale)
        said[f"likelihood_{factor:g}"] = float(density.mean())
    uncertainty.NEW_MAKER = before
    return said


def table(
    protocol: str, cases: Cases, found: list[tuple[np.ndarray, np.ndarray]], whole: str
) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Lines by source, of the whole and of random halves of the sources; and how far every row
    lies."""
    at, values = (
        np.concatenate([rows for rows, _ in found]),
        np.concatenate([v for _, v in found], 1),
    )
    source = cases.labels.source[at]
    parts = [
        *((str(s), source == s) for s in dict.fromkeys(source.tolist())),
        (whole, np.ones(len(at), bool)),
    ]
    parts = parts[-1:] if len(parts) == 2 else parts
    lines = [
        line(protocol, name, values[0, mask], (values[1, mask], values[2, mask]))
        for name, mask in parts
    ]
    return [*lines, *_halves(protocol, values[0], source)], values[0]


def _halves(protocol: str, miss: np.ndarray, source: np.ndarray) -> list[dict[str, Any]]:
    """The line of random halves of the sources, where there are enough."""
    more = across(miss, source)
    return (
        [{"protocol": protocol, "source": "half of them, scale of the others", "rows": 0, **more}]
        if more
        else []
    )


def main() -> None:
    """Both protocols, the table and the figure."""
    options = _options()
    cases = rows(options.traces)
    few = ("megatron-sc21-t1", "llm-foundry") if options.quick else None
    if few:
        cases = cases.take(np.isin(cases.labels.source, (*few, "vtrain-multi")))
    bases = Bases(options.out / "bases", starts=1, rounds=1 if options.quick else 2, only=few)
    lines: list[dict[str, Any]] = []
    missed: dict[str, np.ndarray] = {}
    if options.only == "generation":
        each = list(by_generation(cases, bases))
        lines, level = [one for one, _ in each], levels_of(np.concatenate([z for _, z in each]))
        deliver("uncertainty_generations", lines, _figure(lines, {UNMET: level}), options)
        return
    if options.only != "few-shot":
        found = list(by_group(cases, 2 if options.quick else options.folds, bases))
        more, missed["held out by group"] = table("held out by group", cases, found, "all")
        lines += more
    if options.only != "group":
        more, missed[f"few-shot {options.size}"] = _few_shots(cases, bases, options)
        lines += more
    figure = _figure(lines, {name: levels_of(miss) for name, miss in missed.items()})
    deliver("uncertainty_coverage", lines, figure, options)


def _few_shots(
    cases: Cases, bases: Bases, options: argparse.Namespace
) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Lines of every few-shot target, of all with the same weight and of random halves of them; and
    how far every row lies."""
    protocol, lines, missed = f"few-shot {options.size}", [], {}
    asked = options.targets or (["vtrain-multi"] if options.quick else None)
    for target in few_shot_targets(catalog(cases), asked, FEW, options.size):
        name = f"{protocol} {target}"
        found = list(few_shot(cases, name, 1 if options.quick else options.seeds, bases))
        more, missed[target] = table(protocol, cases, found, target)
        lines += [each for each in more if each["source"] == target][-1:]
        say(f"{name}: {lines[-1]['coverage']:.0f} % of {len(missed[target])} inside")
    if not missed:
        raise InputError(
            f"no rows of any few-shot target ({', '.join(FEW)}); name files that have them "
            "with "
            "--traces"
        )
    even = float(np.mean([(miss <= quantile()).mean() for miss in missed.values()]))
    whole, target = (
        np.concatenate(list(missed.values())),
        np.repeat(list(missed), [len(miss) for miss in missed.values()]),
    )
    lines.append(
        {"protocol": protocol, "source": "all, targets even", "rows": 0, "coverage": 100.0 * even}
    )
    return lines + _halves(protocol, whole, target), whole


def _figure(lines: list[dict[str, Any]], levels: dict[str, np.ndarray]) -> Any:
    """Coverage by source with the range asked for, and the share inside against the level."""
    from dmodel.report.style import BLUE, GREY, INK, ORANGE, PALE, new_figure

    figure = new_figure(10.0, 1.6 + 0.2 * len(lines))
    left, right = figure.subplots(1, 2, width_ratios=(1.3, 1.0))
    colours = dict(zip(levels, (BLUE, ORANGE), strict=False))
    left.axvspan(75, 99, color=PALE, lw=0)
    left.axvline(90, color=GREY, lw=0.8)
    for y, each in enumerate(reversed(lines)):
        left.plot(each["coverage"], y, "o", ms=5, color=colours[each["protocol"]])
    names = [
        f"{each['source']} ({each['rows']})" if each["rows"] else each["source"]
        for each in reversed(lines)
    ]
    left.set_yticks(range(len(lines)), names, fontsize=8)
    left.set(
        xlim=(0, 102),
        xlabel="measurements inside the 90 % interval [%]",
        title="Coverage by source (rows); band: 75 to 99 %",
    )
    right.plot([0, 100], [0, 100], color=GREY, lw=0.8)
    for name, level in levels.items():
        share = [(level <= x).mean() * 100 for x in LEVELS]
        right.plot(100 * LEVELS, share, marker=".", color=colours[name], label=name)
    right.set(
        xlabel="level of the interval [%]",
        ylabel="measurements inside [%]",
        title="All levels",
        xlim=(0, 100),
        ylim=(0, 100),
    )
    right.legend(frameon=False, labelcolor=INK, loc="upper left")
    return figure


def _options() -> argparse.Namespace:
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", choices=("group", "few-shot", "generation"), help="one protocol")
    parser.add_argument(
        "--targets",
        nargs="*",
        help=f"few-shot targets; default: {', '.join(FEW)}, where there are rows",
    )
    parser.add_argument("--folds", type=int, default=5, help="parts of the published rows")
    parser.add_argument(
        "--size", type=int, default=12, help="rows of a few-shot fit", choices=(8, 12, 30)
    )
    return parser.parse_args()


if __name__ == "__main__":
    run(main)
