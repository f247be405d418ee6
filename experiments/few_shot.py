"""A dozen rows of a stack never seen predict the others.

Claim: a profile that has never seen a stack, and a dozen of its rows, predict the rest of that
stack.

For every target the base is fitted to the published table without the target's family of stacks (so
no row of its software is known), then `--rows` random rows of the target are fitted from that base,
and the others are judged; the middle of the seeds counts. Any source of the table may be a target:
sources that share a stack with it are hidden too.
`python -m experiments.few_shot [--targets …] [--traces FILE …]` adds the sources of further files
as targets.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from calibration.fit import fit
from calibration.predict import predict
from calibration.traces import Cases
from dmodel.errors import InputError
from dmodel.profiles import Profile, family
from dmodel.report import style
from experiments.study import arguments, deliver, middle, rows, run, say, summary


class Target(NamedTuple):
    """Sources that are judged, and sources that the base must not have seen."""

    judged: tuple[str, ...]
    hidden: tuple[str, ...]


NEMO = ("megatron-bridge", "nemo-launcher", "megatron-lm-llama")
TARGETS = {
    "megatron-bridge": Target(("megatron-bridge",), NEMO),
    "nemo-launcher": Target(("nemo-launcher",), NEMO),
    "maxtext-readme": Target(
        ("maxtext-readme",), ("maxtext-readme", "maxtext-a3", "maxtext-custom")
    ),
    "megatron-sc21": Target(
        ("megatron-sc21-t1", "megatron-sc21-t2"),
        ("megatron-sc21-t1", "megatron-sc21-t2", "mt-nlg-530b"),
    ),
}
"""Targets of the published table that more is hidden for than what shares a stack with them."""

LEAST_JUDGED = 4
"""Rows that are left to judge, at least; a size that leaves fewer is passed over."""


def draw(count: int, size: int, seed: int) -> np.ndarray:
    """A random choice of `size` of `count` rows, as a mask."""
    mask = np.zeros(count, bool)
    mask[np.random.default_rng(seed).permutation(count)[:size]] = True
    return mask


def judge(
    target: Cases, base: Profile, size: int, seed: int, starts: int | None = None
) -> np.ndarray:
    """Errors of the rows that were not drawn, `[row]`; 0 rows = the base alone."""
    used = draw(len(target), size, seed)
    profile = fit(target.take(used), base, seed=seed, starts=starts) if size else base
    rest = target.take(~used)
    return np.abs(predict(rest, profile).step_time_s / rest.labels.step_time_s - 1.0)


def _figure(lines: list[dict]) -> Any:
    """Median error against the rows used, one line for each target, named at its end."""
    figure = style.new_figure(7.5, 5.0)
    axes = figure.subplots()
    for name in dict.fromkeys(line["target"] for line in lines):
        points = sorted(
            (line["rows_used"], line["median"]) for line in lines if line["target"] == name
        )
        axes.plot(*zip(*points, strict=True), marker="o", label=name)
    axes.set(
        xlabel="rows of the new stack used",
        ylabel="median error on its other rows [%]",
        ylim=(0, None),
        xlim=(0, None),
    )
    axes.set_title("A dozen rows of a stack never seen")
    axes.legend(frameon=False)
    return figure


def kin(cases: Cases) -> dict[str, tuple[str, ...]]:
    """Every source, and the sources that share a family of stacks with it."""
    families: dict[str, set[str]] = {}
    for source, stack in zip(cases.labels.source, cases.labels.stack, strict=True):
        families.setdefault(str(source), set()).add(family(str(stack)))
    return {
        source: tuple(other for other in families if families[other] & mine)
        for source, mine in sorted(families.items())
    }


def _targets(options: argparse.Namespace, cases: Cases) -> dict[str, Target]:
    """The named targets: those above, any other source of the table, and the sources of further
    files."""
    further = np.isin(cases.labels.file, options.traces)
    known = {source: Target((source,), hidden) for source, hidden in kin(cases).items()} | TARGETS
    brought = np.unique(cases.labels.source[further].astype(str)).tolist()
    wanted = options.targets or ["vtrain-single", "vtrain-multi", *brought]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise InputError(
            f"--targets: no source {', '.join(unknown)}; choose from {', '.join(known)}"
        )
    return {name: known[name] for name in wanted}


def _options() -> argparse.Namespace:
    parser = arguments(__doc__ or "")
    parser.add_argument(
        "--targets", nargs="*", help="sources; default: the two of vTrain and what --traces brings"
    )
    parser.add_argument(
        "--rows", nargs="*", type=int, default=[0, 6, 12, 24], help="how many rows to fit"
    )
    return parser.parse_args()


class Study:
    """The rows, and the bases that do not know some sources, each fitted once."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.cases = options, rows(options.traces)
        self.rounds = 1 if options.quick else 2
        self.bases: dict[tuple[str, ...], Profile] = {}

    def base(self, name: str, hidden: tuple[str, ...]) -> Profile:
        """The fit of the published rows of other sources."""
        if hidden not in self.bases:
            labels = self.cases.labels
            known = ~np.isin(labels.source, hidden) & ~np.isin(labels.file, self.options.traces)
            if self.options.quick:
                known &= np.isin(labels.source, ("megatron-sc21-t1",))
            say(f"{name}: fitting the base without {', '.join(hidden)}")
            self.bases[hidden] = fit(self.cases.take(known), starts=self.rounds, rounds=self.rounds)
        return self.bases[hidden]

    def lines(self, name: str, target: Target) -> Iterator[dict[str, Any]]:
        """A line for each number of rows that leaves enough to judge."""
        base, labels = self.base(name, tuple(sorted(target.hidden))), self.cases.labels
        plain = np.char.find(labels.flag.astype(str), "slow-unexplained") < 0
        judged = self.cases.take(np.isin(labels.source, target.judged) & plain)
        for size in (12,) if self.options.quick else self.options.rows:
            rest = len(judged) - size
            if rest < LEAST_JUDGED:
                say(f"{name}, {size} rows: passed over, {len(judged)} rows are all there are")
                continue
            found = self.draws(judged, base, size)
            errors = middle(found)
            say(
                f"{name}, {size} rows: median {errors['median']:.2f} %, mean "
                f"{errors['mean']:.2f} % (middle of {len(found)} seeds)"
            )
            yield {"target": name, "rows_used": size, "rows_judged": rest, **errors}

    def draws(self, judged: Cases, base: Profile, size: int) -> list[dict[str, float]]:
        """Errors of every seed; without rows there is no chance."""
        quick = self.options.quick
        seeds = range(1 if quick or not size else self.options.seeds)
        return [summary(judge(judged, base, size, s, 1 if quick else None)) for s in seeds]


def main() -> None:
    """Every target: the base without it, then a fit of a few rows for every seed."""
    options = _options()
    study = Study(options)
    targets = _targets(options, study.cases)
    lines = [line for name, target in targets.items() for line in study.lines(name, target)]
    deliver("few_shot", lines, _figure(lines), options)


if __name__ == "__main__":
    run(main)
