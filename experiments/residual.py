"""Do corrections learned from residuals help?

Claim: a correction learned from residuals does not make the model better where it matters;
network and kriging against none.

Judged as in `experiments.accuracy`: few-shot fits of 12 rows and cross-validation by group (both
learn from the residuals of the fitted rows), and no rows of the stack (they learn from every other
family's residuals under the base that has not seen that family, though it
has seen the target's: this favours a correction). The rule, fixed before the first run: a
correction is worth shipping when it wins
without rows of the stack and with 12 of them, in the geometric means over targets of median and of
mean error.
`python -m experiments.residual [--only PROTOCOL…] [--traces FILE…] [--seeds N] [--quick] [--json]
[--out DIR]`. Bases and fits are kept under the output folder while the model stays the same.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from calibration.fit import fit, weights_of
from calibration.predict import predict
from calibration.traces import Cases
from dmodel.breakdown import TERMS
from dmodel.profiles import Profile
from experiments.bases import Bases
from experiments.divisions import FAMILIES, Protocol, shipped, sources
from experiments.residual_figure import draw
from experiments.residual_methods import METHODS, Known, Points, points
from experiments.study import arguments, containing, deliver, rows, say
from experiments.study import run as end_well
from experiments.targets import catalog

FEW, CROSS, NO_ROWS = "few-shot 12 ", "cross-validation ", "no rows, other stack: "
KINDS = (FEW, CROSS, NO_ROWS)
QUICK = (FEW + "vtrain-multi", NO_ROWS + "vtrain-multi")


class Answer(NamedTuple):
    """What one fit says of every row of the study: ln of its time [s] `[row]`, and the shares of
    the terms in it `[row, term]`."""

    log_time: np.ndarray
    shares: np.ndarray


class Question(NamedTuple):
    """Rows with a known residual, rows asked for, and what the correction of these should be:
    ln(measured / predicted) `[row]`."""

    known: Known
    asked: Points
    truth: np.ndarray


class Score(NamedTuple):
    """Median and mean error [%] of each method on a target, the middle of the seeds `[method, 2]`;
    rows known (at most) and asked."""

    protocol: str
    known: int
    asked: int
    errors: np.ndarray

    @property
    def winner(self) -> str:
        """The method of the least geometric mean of median and mean."""
        return list(METHODS)[int(np.argmin(self.errors.prod(1)))]


class Study:
    """Fits of the protocols, each made once and kept in a folder under its rows, its base and its
    seed."""

    def __init__(self, cases: Cases, bases: Bases, folder: Path):
        self.cases, self.bases, self.folder = cases, bases, folder
        self.weight = weights_of(cases.labels.flag)
        self.rows = hashlib.sha256("".join(cases.labels.fingerprint.tolist()).encode()).hexdigest()
        self.others: Answer | None = None

    def base(self, hidden: np.ndarray, why: str) -> Profile:
        """The base that has not seen some rows, nor any of further files."""
        return self.bases.without(self.cases, hidden | ~shipped(self.cases), why)

    def answer(self, base: Profile, fitted: np.ndarray, seed: int) -> Answer:
        """What the fit of some rows from a base says of all rows."""
        text = f"{self.rows} {base.name} {seed} {np.packbits(fitted).tobytes().hex()}"
        path = self.folder / f"answer-{hashlib.sha256(text.encode()).hexdigest()[:16]}.npz"
        if path.exists():
            with np.load(path) as kept:
                return Answer(kept["log_time"], kept["shares"])
        found = said(
            self.cases, fit(self.cases.take(fitted), base, seed=seed) if fitted.any() else base
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, log_time=found.log_time, shares=found.shares)
        return found

    def out_of_family(self) -> Answer:
        """Every row by the base that has not seen its family of software."""
        if self.others is None:
            nobody = np.zeros(len(self.cases), bool)
            log_time, shares = (
                x.copy() for x in self.answer(self.base(nobody, "nothing"), nobody, 0)
            )
            # a source of two families counts to the first
            for family in reversed(FAMILIES):
                if self.bases.only and set(self.bases.only) <= set(family):
                    continue  # without it the quick base has no rows
                where = sources(*family)(self.cases)
                found = self.answer(self.base(where, family[0]), nobody, 0)
                log_time[where], shares[where] = found.log_time[where], found.shares[where]
            self.others = Answer(log_time, shares)
        return self.others

    def questions(self, protocol: Protocol, name: str, seed: int) -> list[Question]:
        """What one seed of a protocol asks of a method."""
        target, hidden, labels = (
            protocol.target(self.cases),
            protocol.hidden(self.cases),
            self.cases.labels,
        )
        if name.startswith(NO_ROWS):
            return [
                self._question(
                    self.out_of_family(),
                    shipped(self.cases) & ~hidden & ~target,
                    target,
                    families(labels.source),
                )
            ]
        base = self.base(hidden, name)
        divided = protocol.divide(self.cases, target, seed)
        return [
            self._question(self.answer(base, d.fitted, seed), d.fitted, d.judged, labels.group)
            for d in divided
        ]

    def _question(
        self, answer: Answer, known: np.ndarray, asked: np.ndarray, group: np.ndarray
    ) -> Question:
        truth = np.log(self.cases.labels.step_time_s) - answer.log_time

        def of(mask: np.ndarray) -> Points:
            return points(self.cases.take(mask), answer.shares[mask], group[mask])

        return Question(Known(of(known), truth[known], self.weight[known]), of(asked), truth[asked])


def said(cases: Cases, profile: Profile) -> Answer:
    """What a profile says of all rows, without their intervals."""
    bare = replace(profile, covariance=None, stack_covariances={}, pair_covariances={})
    found = predict(cases, bare)
    shares = (
        np.stack([np.asarray(getattr(found.breakdown, term)) for term in TERMS], 1)
        / found.step_time_s[:, None]
    )
    return Answer(np.log(found.step_time_s), shares)


def families(source: np.ndarray) -> np.ndarray:
    """Family of the software of each source, by its number `[row]`; a source of none is one of its
    own."""
    number = {name: str(i) for i, family in reversed(list(enumerate(FAMILIES))) for name in family}
    return np.array([number.get(name, name) for name in source.tolist()])


def score(study: Study, protocol: Protocol, name: str, seeds: int) -> Score:
    """Errors of every method on one target, the middle of the seeds; a protocol without chance has
    one."""
    errors, known, asked = [], 0, 0
    for seed in range(seeds if protocol.random else 1):
        asking = study.questions(protocol, name, seed)
        known = max(known, *(len(q.known.residual) for q in asking))
        asked = sum(len(q.truth) for q in asking)
        errors.append(
            [
                judged(np.concatenate([method(q.known, q.asked, seed) - q.truth for q in asking]))
                for method in METHODS.values()
            ]
        )
    return Score(name, known, asked, np.median(np.array(errors), 0))


def judged(log_ratio: np.ndarray) -> tuple[float, float]:
    """Median and mean of |predicted / measured − 1| [%]."""
    error = 100.0 * np.abs(np.expm1(log_ratio))
    return float(np.median(error)), float(error.mean())


def overall(scores: Sequence[Score], kind: str) -> Score | None:
    """Geometric means over the targets of a kind."""
    those = [s for s in scores if s.protocol.startswith(kind)]
    if not those:
        return None
    mean = np.exp(np.log([s.errors for s in those]).mean(0))
    return Score(
        f"{kind.rstrip(': ')}: geometric mean of {len(those)}",
        max(s.known for s in those),
        sum(s.asked for s in those),
        mean,
    )


def verdicts(scores: Sequence[Score]) -> dict[str, bool]:
    """Of each correction: does it win, by median and by mean, both with 12 rows and without rows?
    Empty where one of them was not run."""
    means = [m for m in (overall(scores, kind) for kind in (FEW, NO_ROWS)) if m is not None]
    if len(means) < 2:
        return {}
    wins = np.all([m.errors < m.errors[0] for m in means], (0, 2))
    return {name: bool(w) for name, w in zip(METHODS, wins, strict=True) if name != "none"}


def line(s: Score) -> dict[str, Any]:
    """One line of the table; errors in %."""
    errors = {
        f"{name}_{what}": float(s.errors[i, k])
        for i, name in enumerate(METHODS)
        for k, what in enumerate(("median", "mean"))
    }
    return {
        "protocol": s.protocol,
        "known": s.known,
        "judged": s.asked,
        **errors,
        "winner": s.winner,
    }


def wanted(cases: Cases, only: Sequence[str]) -> dict[str, Protocol]:
    """The protocols asked for: all of the three kinds, or those whose names contain one of the
    texts."""
    found = {name: p for name, p in catalog(cases).items() if name.startswith(KINDS)}
    return {name: found[name] for name in containing(found, only, "protocol")}


def sentence(s: Score) -> str:
    """A score in a line, for the progress on standard error."""
    errors = zip(METHODS, s.errors, strict=True)
    return f"{'; '.join(f'{m} {e[0]:.2f} / {e[1]:.2f} %' for m, e in errors)}  {s.protocol}"


def main() -> None:
    """Every protocol, the geometric means, the verdict, the figure."""
    options = _options()
    cases = rows(options.traces)
    study = Study(cases, Bases.of(options, starts=2), options.out / "answers")
    scores = []
    for name, protocol in wanted(cases, options.only or (QUICK if options.quick else ())).items():
        scores.append(score(study, protocol, name, 1 if options.quick else options.seeds))
        say(sentence(scores[-1]))
    means = [mean for kind in KINDS if (mean := overall(scores, kind))]
    for name, wins in verdicts(scores).items():
        say(f"{name}: {'worth shipping' if wins else 'not worth shipping'}, by the rule")
    deliver("residual", [line(s) for s in (*scores, *means)], draw(scores), options)


def _options() -> argparse.Namespace:
    parser = arguments(__doc__ or "")
    parser.set_defaults(seeds=3)
    parser.add_argument(
        "--only",
        nargs="*",
        metavar="PROTOCOL",
        help="protocols whose names contain one of these texts",
    )
    return parser.parse_args()


if __name__ == "__main__":
    end_well(main)
