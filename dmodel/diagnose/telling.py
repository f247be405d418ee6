"""Which test tells causes apart for the least work: expected information over minutes.

The model says what each cause would show of each test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dmodel import uncertainty
from dmodel.diagnose.causes import Change, Test, tests
from dmodel.diagnose.measured import Result
from dmodel.diagnose.posterior import NOTHING, OTHERWISE, Posterior, Table
from dmodel.diagnose.responses import MEMORY, Responses, seconds_of
from dmodel.diagnose.subject import Records, Subject
from dmodel.diagnose.variants import Variants, moved
from dmodel.errors import InputError

LEAST = 0.005
"""Probability below which a hypothesis does not count for a choice of tests."""

DRAWS = 200
"""Outcomes that are drawn under each hypothesis [count]."""

ANY = 10.0
"""Minutes that any test takes of whoever does it, beside its own: to begin, and to think."""

ENOUGH = 0.5
"""Share of the most that a test could tell of a hypothesis that is enough."""

BROAD = 0.5
"""Standard deviation of ln(outcome) under what is no cause of the list."""

FIRST = 0.01
"""What is added to shares before their logarithm."""


class Shown(NamedTuple):
    """What a test would show of every variant.

    Attributes:
      logs: ln(what is seen), `[n, k]`; k is 1 but for tests that tell several numbers.
      looks: what each of these is, `[k]`. unit: "s", or "1" of ratios and shares.
      factor, offset: what is seen is `factor · exp(logs) − offset`.
    """

    logs: np.ndarray
    looks: tuple[str, ...]
    unit: str
    factor: float = 1.0
    offset: np.ndarray | float = 0.0


class Outcome(NamedTuple):
    """What a test would show under every hypothesis.

    Attributes:
      mean, variance: of ln(what is seen), `[hypothesis, k]`. of: each variant's.
    """

    mean: np.ndarray
    variance: np.ndarray
    of: Shown

    def shown(self, k: int) -> np.ndarray:
        """One of the numbers as people see it, `[hypothesis]`."""
        offset = np.broadcast_to(self.of.offset, self.mean.shape[1])
        seen = (np.exp(self.mean[:, k]) - offset[k]).round(12)
        return self.of.factor * np.maximum(seen, 0.0)

    def telling(self, p: np.ndarray, hypothesis: int | None = None) -> int:
        """Which of the numbers tells most of a hypothesis against the first one, or of all."""
        own = 0.0 if hypothesis is None else np.abs(self.mean[hypothesis] - self.mean[0])
        if np.max(own) > 0.0:
            return int(np.argmax(own))
        return int(np.argmax(p @ (self.mean - p @ self.mean) ** 2))


class Told(NamedTuple):
    """A test and what it is worth.

    Attributes:
      information: expected, about all hypotheses [bit]. of_each: about whether it is this one,
        `[hypothesis]` [bit].
    """

    test: Test
    outcome: Outcome
    information: float
    of_each: np.ndarray

    @property
    def worth(self) -> float:
        """Bits in a minute of work, `ANY` included."""
        return self.information / (self.test.minutes + ANY)


class Run(NamedTuple):
    """One run, what it would show under every cause, and its measured seconds of a step."""

    subject: Subject
    cases: Variants
    found: Responses
    seconds: float


class Seen(NamedTuple):
    """All that tests are judged by: a run, what its measurements say, and the names of what is
    known beside the step."""

    run: Run
    table: Table
    said: Posterior
    known: frozenset[str]


def told(seen: Seen) -> list[Told]:
    """All tests that can be done and tell something, the best first."""
    results = []
    for test in tests():
        shown = None if seen.known & {test.name, *test.parts} else _shown(seen.run, test)
        if shown is not None:
            outcome = _summed(seen, test, shown)
            results.append(_judged(test, outcome, seen.said.probability[0]))
    useful = [each for each in results if each.information > 1e-3]
    return sorted(useful, key=lambda each: -each.worth)


def densities(run: Run, of: Table, results: Mapping[str, Result]) -> list[np.ndarray]:
    """ln density of results of tests under every hypothesis at its sizes, `[size]` each: Student-t
    as measurements are, about what the test would show.

    Raises:
      InputError: a test that this run cannot have.
    """
    known = {test.name: test for test in tests()}
    total = [np.zeros(len(one.size)) for one in of.scaled]
    for name, result in results.items():
        test = known[name]
        shown = _shown(run, test)
        if shown is None:
            raise InputError(f"{name}: tells nothing of this plan; leave it out")
        x = np.log(_as_shown(run, test, result) / shown.factor + shown.offset)
        for more, density in zip(total, _densities(test, shown, of, x), strict=True):
            more += density
    return total


def _densities(test: Test, shown: Shown, of: Table, x: np.ndarray) -> Iterator[np.ndarray]:
    """ln density of what one test showed under every hypothesis, `[size]` each, up to a factor."""
    free = uncertainty.FREEDOM
    for name, one in zip(of.names, of.scaled, strict=True):
        scale = np.hypot(test.noise, BROAD if name == OTHERWISE else 0.0)
        gap = (x - one.at(shown.logs)[:, 0]) / scale
        yield -0.5 * (free + 1) * np.log1p(gap**2 / free) - np.log(scale)


def _as_shown(run: Run, test: Test, result: Result) -> float:
    """A result in the unit that the test shows: bandwidths over the catalog's, which for tests over
    whole nodes is that of all cards of a node, or of the links inside."""
    if result.unit != "byte/s":
        return result.value
    network = run.subject.records.cluster.network
    size, rates = np.asarray(network.size, float), np.asarray(network.bytes_per_s, float)
    is_inner = test.reads[0].leaf.endswith("[inner]")
    return result.value / float(rates[0] if is_inner else min(rates[0], size[0] * rates[1]))


def _shown(run: Run, test: Test) -> Shown | None:
    """None where the test cannot be done."""
    if test.changes:
        return _changed(run, test)
    if test.without:
        return _without(run, test)
    return _parts(run, test) if test.parts else _read(run, test)


def _read(run: Run, test: Test) -> Shown | None:
    """Numbers of the case as they are: shares, and else over the stated one's; None where no cause
    changes one."""
    logs, looks, offsets = [], [], []
    for leaf, words in test.reads:
        values = run.cases.number(leaf)
        if np.ptp(values) == 0.0:
            continue
        is_share = bool(values.min() < 0.01 and values.max() <= 1.0)
        offsets.append(FIRST if is_share else 0.0)
        logs.append(np.log(values + FIRST if is_share else values / values[0]))
        looks.append(words)
    return Shown(np.stack(logs, 1), tuple(looks), "1", 1.0, np.array(offsets)) if logs else None


def _changed(run: Run, test: Test) -> Shown | None:
    """Another run: its step over this one's."""
    records = moved(run.cases.records, test.changes, np.ones(run.cases.count))
    if not _is_possible(run.subject, records, test.changes):
        return None
    return _other(run, test, run.cases._replace(records=records))


def _other(run: Run, test: Test, cases: Variants) -> Shown:
    """The step of other cases over this run's."""
    other = seconds_of(cases, run.subject.points[:, :1])
    ratio = other[0, 0] / run.found.time
    return Shown(np.log(ratio)[:, None], (test.looks,), "s", run.seconds)


def _is_possible(subject: Subject, records: Records, changes: Sequence[Change]) -> bool:
    """Whether degrees stay whole numbers, and the plan fits the device."""
    plan = records.plan
    counts = [plan.layout.micro_batch, plan.layout.dp, plan.n_microbatches]
    if not all(_is_count(float(np.asarray(x)[0])) for x in counts):
        return False
    if any(change.leaf == "plan.dp" for change in changes) and _is_odd_shard(plan):
        return False
    import jax

    one = jax.tree.map(lambda x: np.asarray(x, float)[..., :1], (records.model, plan))
    footprint = jax.tree.map(lambda x: np.full(1, float(x)), subject.footprint)
    held = float(MEMORY(*one, footprint)["memory"][0])
    return held <= float(subject.records.cluster.chip.hbm_bytes)


def _is_count(x: float) -> bool:
    return x >= 1.0 and abs(x - round(x)) < 1e-9


def _is_odd_shard(plan: object) -> bool:
    layout = plan.layout  # type: ignore[attr-defined]
    shard, dp = float(np.asarray(layout.shard)[0]), float(np.asarray(layout.dp)[0])
    return not _is_count(shard) or dp % shard != 0.0


def _without(run: Run, test: Test) -> Shown:
    """The same run without what a cause adds: its step over this one's."""
    beside = {
        name: np.ones_like(x) if name in test.without else x for name, x in run.cases.beside.items()
    }
    return _other(run, test, run.cases._replace(beside=beside))


def _parts(run: Run, test: Test) -> Shown:
    """Shares of the step."""
    index = {"compute": 1, "exposed": 2}
    parts = [run.found.seconds[index[n], 0] / run.found.time + FIRST for n in test.parts]
    looks = tuple(f"{name} over the step" for name in test.parts)
    return Shown(np.log(np.stack(parts, 1)), looks, "1", 1.0, FIRST)


def _summed(seen: Seen, test: Test, shown: Shown) -> Outcome:
    """Mean and variance over the sizes of every hypothesis; what is no cause may show anything."""
    means, variances = [], []
    for name, one, weights in zip(
        seen.table.names, seen.table.scaled, seen.said.sizes, strict=True
    ):
        values, w = one.at(shown.logs), weights[0] / weights[0].sum()
        mean = w @ values
        means.append(mean)
        wide = BROAD**2 if name == OTHERWISE else 0.0
        variances.append(w @ (values - mean) ** 2 + test.noise**2 + wide)
    return Outcome(np.stack(means), np.stack(variances), shown)


def _judged(test: Test, outcome: Outcome, p: np.ndarray) -> Told:
    """Expected information, from draws of outcomes that are the same in every run."""
    counted = np.flatnonzero(p > LEAST)
    weights = p[counted] / p[counted].sum()
    mean, variance = outcome.mean[counted], outcome.variance[counted]
    noise = np.random.default_rng(0).standard_normal((DRAWS, mean.shape[1]))
    drawn = mean[:, None] + np.sqrt(variance)[:, None] * noise
    gap = drawn[:, :, None] - mean
    density = -0.5 * (gap**2 / variance + np.log(variance)).sum(-1)
    top = density.max(-1, keepdims=True)
    whole = top[..., 0] + np.log(np.exp(density - top) @ weights)
    own = np.stack([density[i, :, i] for i in range(len(counted))])
    information = float(weights @ (own - whole).mean(1)) / np.log(2.0)
    of_each = np.zeros(len(p))
    after = np.exp(density - whole[..., None]) * weights
    for k, at in enumerate(counted):
        of_each[at] = _binary(weights[k]) - float(weights @ _binary(after[..., k]).mean(1))
    return Told(test, outcome, max(information, 0.0), of_each)


def _binary(p: np.ndarray) -> np.ndarray:
    """Entropy of yes and no [bit]."""
    p = np.clip(p, 1e-12, 1.0 - 1e-12)
    return -(p * np.log2(p) + (1.0 - p) * np.log2(1.0 - p))


def best_for(found: Sequence[Told], hypothesis: int) -> Told | None:
    """The cheapest test that tells `ENOUGH` of whether it is this hypothesis; None where none tells
    anything."""
    most = max((each.of_each[hypothesis] for each in found), default=0.0)
    if most < 1e-3:
        return None
    enough = [each for each in found if each.of_each[hypothesis] >= ENOUGH * most]
    return min(enough, key=lambda each: (each.test.minutes, -each.of_each[hypothesis]))


def is_cause(name: str) -> bool:
    """Whether a hypothesis is a cause of the list."""
    return name not in (NOTHING, OTHERWISE)
