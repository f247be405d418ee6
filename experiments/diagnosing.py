"""Planted causes of slow runs are found, and stated probabilities are right.

Claim: where compute, exposed communication and memory are measured beside the step, `dmodel
diagnose` puts the planted kind of cause first in 60 % of runs and among the first three in 90 %;
from the step time alone as often as Bayes can that does not know the truth's coefficients; and
its probabilities are right within 10 points.

The sources of the published table are halved. The truth of a run comes from a fit to the half that
has its source, the diagnosis from a fit to the other half, which has never seen the source. Each
run gets one of six kinds of cause, of a size that lengthens its step by 10 to 100 %, and the noise
of a measurement. Exact Bayes knows the fit that the truth comes from, its noise, and how sizes are
drawn; beside it stands the diagnosis that knows how sizes are drawn, and not the fit.
`--traces FILE` also diagnoses the rows of a file, apart by whether `flag` says `slow-unexplained`:
those by a fit of all the others, the others in five parts, each by a fit of the other four.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from calibration.traces import Cases
from dmodel import uncertainty
from dmodel.diagnose.causes import Beliefs, Effect, beliefs
from dmodel.diagnose.posterior import Scaled, Table, posterior, table
from dmodel.diagnose.responses import responses
from dmodel.diagnose.subject import Records, Subject, of_profile
from dmodel.diagnose.variants import variants
from dmodel.profiles import Profile
from experiments.bases import Bases
from experiments.flagged import FLAG, verdicts
from experiments.study import arguments, keep, parse, print_lines, print_paths, run, say, tell
from experiments.study import rows as published_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAMILIES: dict[str, tuple[str, ...]] = {
    "network": ("slow-network-inside", "slow-network-between"),
    "overlap": ("no-overlap-data", "no-overlap-tensor", "no-overlap-pipeline"),
    "recomputation": ("full-recomputation",),
    "host": ("slow-host",),
    "straggler": ("straggler",),
    "attention": ("unfused-attention",),
}
"""Kinds of cause that are planted, and the causes of each."""

LONGER = (0.1, 1.0)
"""By what a planted cause lengthens a step [1]."""

DRAWN = Effect(*LONGER, tail=300.0)
"""What sizes do to a step, as they are drawn."""

OBSERVED, RUNS, RUNS_OF_A_CASE = 4, 3000, 5
TINY = 1e-9
"""Probability of what is never planted."""


class Planted(NamedTuple):
    """Runs of one case with planted causes.

    Attributes:
      family: of each run's cause, `[run]`. measured: ln of the observables, `[run, 4]`.
      possible: families that can lengthen the case so.
    """

    family: list[str]
    measured: np.ndarray
    possible: tuple[str, ...]


class Judged(NamedTuple):
    """Probabilities of families after the measurement, `[run, family]`, and the true ones `[run]`;
    by the diagnosis, by the diagnosis that is told how sizes are drawn, and by exact Bayes."""

    truth: list[str]
    by_time: np.ndarray
    by_parts: np.ndarray
    told: np.ndarray
    exact: np.ndarray


def planted_beliefs(families: Sequence[str]) -> Beliefs:
    """Uniform over families, and over the causes of each; nothing else happens."""
    share = {
        name: 1.0 / (len(families) * len(FAMILIES[family]))
        for family in families
        for name in FAMILIES[family]
    }
    return beliefs().only(share, TINY, TINY)


def records_of(cases: Cases, row: int) -> Records:
    """One row as numbers."""
    found = (cases.system, cases.model, cases.plan)
    return Records(*jax.tree.map(lambda x: np.asarray(x)[..., row], found))


def subject_of(cases: Cases, row: int, profile: Profile) -> Subject:
    """One row as a profile knows it."""
    labels = cases.labels
    return of_profile(
        records_of(cases, row), profile, str(labels.accelerator[row]), str(labels.stack[row])
    )


class Truth(NamedTuple):
    """A case as the truth has it: the run, and every cause on its sizes."""

    subject: Subject
    table: Table


def truth_of(subject: Subject, noise: float, held: Beliefs) -> Truth:
    """A case under the very coefficients of a fit, with no doubt but the noise of a measurement;
    sizes that lengthen it by `LONGER`."""
    sure = subject._replace(points=subject.points[:, :1], misfit=noise)
    cases = variants(sure, held.causes)
    found = responses(sure, cases)
    whole = table(sure, cases, found, held)
    stated = whole.scaled[0].mean[0, 0]
    low, high = np.log1p(LONGER)
    kept, names, prior = [], [], []
    for name, share, one in zip(whole.names, whole.prior, whole.scaled, strict=True):
        more = one.mean[:, 0] - stated
        weight = ((more >= low) & (more <= high)).astype(float)
        if weight.any():
            kept.append(one._replace(weight=weight / weight.sum()))
            names.append(name)
            prior.append(share)
    share = np.array(prior) / max(sum(prior), 1e-300)
    return Truth(sure, Table(tuple(names), share, tuple(kept), {}))


def _families(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f for f, own in FAMILIES.items() if set(own) & set(names))


def plant(truth: Truth, count: int, rng: np.random.Generator, held: Beliefs) -> Planted:
    """Runs of a case with causes at random: the family uniform, the cause of it, and its size."""
    possible = _families(truth.table.names)
    by_name = dict(zip(truth.table.names, truth.table.scaled, strict=True))
    families, shown = [], []
    for _ in range(count):
        family = str(rng.choice(possible))
        name = str(rng.choice([n for n in FAMILIES[family] if n in by_name]))
        one: Scaled = by_name[name]
        shown.append(one.mean[rng.choice(len(one.size), p=one.weight), :OBSERVED])
        families.append(family)
    # of the step its stack's, of the rest a profiler's and a counter's
    reading = [held.reading["compute"], held.reading["exposed"], truth.subject.memory_spread]
    noise = rng.standard_t(uncertainty.FREEDOM, (count, 4)) * [truth.subject.misfit, *reading]
    return Planted(families, np.array(shown) + noise, possible)


def summed(names: Sequence[str], probability: np.ndarray) -> np.ndarray:
    """Probabilities of families, `[run, family]`."""
    index = {name: i for i, name in enumerate(names)}
    sums = [
        sum((probability[:, index[n]] for n in own if n in index), np.zeros(len(probability)))
        for own in FAMILIES.values()
    ]
    return np.stack(sums, 1)


def judged(subject: Subject, truth: Truth, planted: Planted, noise: float) -> Judged:
    """The diagnosis of planted runs, and exact Bayes."""
    held = planted_beliefs(planted.possible)
    cases = variants(subject, held.causes)
    found = responses(subject, cases)
    of = table(subject, cases, found, held)
    by_time = posterior(of, planted.measured[:, :1], [0]).probability
    by_parts = posterior(of, planted.measured, range(OBSERVED)).probability
    drawn = table(subject, cases, found, held._replace(effect=DRAWN))
    told = posterior(drawn, planted.measured[:, :1], [0]).probability
    alike = _alike(truth.table)
    scale = np.full((1, 1, 1), noise**2)
    sharp = alike._replace(
        scaled=tuple(
            one._replace(mean=one.mean[:, :1], scale=np.repeat(scale, len(one.size), 0))
            for one in alike.scaled
        )
    )
    exact = posterior(sharp, planted.measured[:, :1], [0]).probability
    return Judged(
        planted.family,
        summed(of.names, by_time),
        summed(of.names, by_parts),
        summed(drawn.names, told),
        summed(alike.names, exact),
    )


def _alike(of: Table) -> Table:
    """Families that are possible alike probable, and the causes of each."""
    possible = _families(of.names)
    count = {f: len([n for n in FAMILIES[f] if n in of.names]) for f in possible}
    home = {n: f for f, own in FAMILIES.items() for n in own}
    return of._replace(prior=np.array([1.0 / (len(possible) * count[home[n]]) for n in of.names]))


def halves(cases: Cases) -> np.ndarray:
    """0 or 1 for each row: sources by size, every second one into either half."""
    sources, counts = np.unique(cases.labels.source.astype(str), return_counts=True)
    order = [str(sources[i]) for i in np.lexsort((sources, -counts))]
    half = {source: i % 2 for i, source in enumerate(order)}
    return np.array([half[s] for s in cases.labels.source.tolist()])


class Study:
    """The rows, the fits of both halves, and the runs."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.cases = options, published_rows([])
        self.half = halves(self.cases)
        self.runs = 60 if options.quick else options.runs
        self.fits = self._fits()
        self.rng = np.random.default_rng(0)

    def _fits(self) -> list[Profile]:
        """Of the rows of the first half, and of the second; in a quick run two shipped ones."""
        if self.options.quick:
            from dmodel import profiles

            return [profiles.load("generic"), profiles.load("held-out")]
        bases = Bases(self.options.out / "bases", starts=1, rounds=1)
        return [bases.without(self.cases, self.half != k, f"half {1 - k}") for k in (0, 1)]

    def usable(self) -> np.ndarray:
        """Rows that are runs: no sums of parts that were measured apart, nothing unexplained."""
        flags = self.cases.labels.flag.astype(str)
        bad = [("composed" in f) or (FLAG in f) for f in flags.tolist()]
        return np.flatnonzero(~np.array(bad))

    def judged(self) -> Iterator[Judged]:
        """Case after case at random until there are enough runs."""
        rows, done = self.usable(), 0
        while done < self.runs:
            row = int(self.rng.choice(rows))
            found = self._case(row)
            if found is not None:
                done += len(found.truth)
                if done % 500 < RUNS_OF_A_CASE:
                    say(f"{done} runs")
                yield found

    def _case(self, row: int) -> Judged | None:
        own = int(self.half[row])
        stack = str(self.cases.labels.stack[row])
        noise = uncertainty.scatter_of(self.fits[own], stack).noise
        held = planted_beliefs(tuple(FAMILIES))
        true = truth_of(subject_of(self.cases, row, self.fits[own]), noise, held)
        if len(_families(true.table.names)) < 2:
            return None
        planted = plant(true, RUNS_OF_A_CASE, self.rng, held)
        stranger = subject_of(self.cases, row, self.fits[1 - own])
        return judged(stranger, true, planted, noise)


def _first(truth: np.ndarray, probability: np.ndarray, among: int = 1) -> float:
    """Share of runs whose true family is among the most likely [%]."""
    order = np.argsort(-probability, 1)[:, :among]
    return 100.0 * float((order == truth[:, None]).any(1).mean())


def shares(truth: np.ndarray, found: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """True cause first, and among the first three, by the first half of the runs for the step time
    and by the second half for its parts; all kinds, and each."""
    half = len(truth) // 2
    time, parts = slice(0, half), slice(half, len(truth))
    names = ["all", *FAMILIES]
    lines = []
    for i, name in enumerate(names):
        a, b = (np.flatnonzero((truth[s] == i - 1) | (i == 0)) + s.start for s in (time, parts))
        lines.append(
            {
                "cause": name,
                "runs": len(a),
                "first by time": _first(truth[a], found["time"][a]),
                "told how sizes are drawn": _first(truth[a], found["told"][a]),
                "first by exact Bayes": _first(truth[a], found["exact"][a]),
                "runs with parts": len(b),
                "first by parts": _first(truth[b], found["parts"][b]),
                "among three by parts": _first(truth[b], found["parts"][b], 3),
            }
        )
    return lines


def calibration(
    truth: np.ndarray, found: Mapping[str, np.ndarray], least: int = 200
) -> list[dict[str, Any]]:
    """Stated probabilities against frequencies [%], in bins of at least so many statements."""
    half = len(truth) // 2
    lines = []
    for name, part in (("time", slice(0, half)), ("parts", slice(half, len(truth)))):
        p = found[name][part].ravel()
        hit = (truth[part, None] == np.arange(len(FAMILIES))).ravel()
        order = np.argsort(p, kind="stable")
        bins = max(min(12, len(p) // least), 1)
        for chosen in np.array_split(order, bins):
            stated, true = 100.0 * float(p[chosen].mean()), 100.0 * float(hit[chosen].mean())
            lines.append(
                {
                    "measured": name,
                    "statements": len(chosen),
                    "stated": stated,
                    "true": true,
                    "apart": abs(stated - true),
                }
            )
    return lines


def _figure(lines: Sequence[Mapping[str, Any]]) -> Figure:
    """Stated probabilities against frequencies."""
    from dmodel.report import style

    figure = style.new_figure(4.6, 4.2)
    axes = figure.add_subplot()
    axes.plot([0, 100], [0, 100], color=style.PALE)
    for name, colour in (("time", style.BLUE), ("parts", style.ORANGE)):
        own = [line for line in lines if line["measured"] == name]
        axes.plot(
            [line["stated"] for line in own],
            [line["true"] for line in own],
            "o-",
            color=colour,
            label={"time": "step time alone", "parts": "and its parts, and memory"}[name],
        )
    axes.set(xlabel="probability stated [%]", ylabel="share of true ones [%]")
    axes.set_title("Probabilities of planted causes")
    axes.legend(frameon=False)
    return figure


def main() -> None:
    """Plant, diagnose, compare."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--runs", type=int, default=RUNS, help="runs with a planted cause")
    options = parse(parser)
    found = list(Study(options).judged())
    truth = np.array([list(FAMILIES).index(f) for each in found for f in each.truth])
    by = {
        "time": np.concatenate([each.by_time for each in found]),
        "parts": np.concatenate([each.by_parts for each in found]),
        "told": np.concatenate([each.told for each in found]),
        "exact": np.concatenate([each.exact for each in found]),
    }
    lines, bins = shares(truth, by), calibration(truth, by)
    told = verdicts(options.traces) if options.traces else []
    tables = {"": lines, "_probabilities": bins, **({"_rows": told} if told else {})}
    written = keep("diagnosing", _figure(bins), tables, options.out)

    def show() -> None:
        for part in tables.values():
            print_lines(part, ".1f")
        print_paths(written)

    document = {"study": "diagnosing", **written, "rows": lines, "bins": bins, "verdicts": told}
    tell(document, options.json, show)


if __name__ == "__main__":
    run(main)
