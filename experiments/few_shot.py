"""Claim: a profile that has never seen a stack, and a dozen of its rows, predict the rest of that
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
from pathlib import Path
from typing import NamedTuple

import numpy as np

from calibration.fit import fit
from calibration.predict import predict
from calibration.traces import Cases
from dmodel.profiles import Profile, family
from dmodel.types import InputError
from experiments.study import arguments, deliver, rows, run, say, summary


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


def _figure(lines: list[dict], path: Path) -> None:
    """Median error against the rows used, one line for each target, named at its end."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 5), layout="constrained")
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
    axes.set_title("A dozen rows of a stack never seen", loc="left", weight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _targets(options: argparse.Namespace, cases: Cases) -> dict[str, Target]:
    """The named targets: those above, any other source of the table, and the sources of further
    files."""
    files = {
        str(s)
        for s, f in zip(cases.labels.source, cases.labels.file, strict=True)
        if str(f) in options.traces
    }
    families: dict[str, set[str]] = {}
    for source, stack in zip(cases.labels.source, cases.labels.stack, strict=True):
        families.setdefault(str(source), set()).add(family(str(stack)))
    kin = {
        source: tuple(s for s in families if families[s] & mine)
        for source, mine in sorted(families.items())
    }
    known = {source: Target((source,), hidden) for source, hidden in kin.items()} | TARGETS
    wanted = options.targets or ["vtrain-single", "vtrain-multi", *sorted(files)]
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


def main() -> None:
    """Every target: the base without it, then a fit of a few rows for every seed."""
    options = _options()
    cases = rows(options.traces)
    plain = np.char.find(cases.labels.flag.astype(str), "slow-unexplained") < 0
    lines, bases = [], {}
    for name, target in _targets(options, cases).items():
        hidden = tuple(sorted(target.hidden))
        if hidden not in bases:
            known = ~np.isin(cases.labels.source, hidden) & ~np.isin(
                cases.labels.file, options.traces
            )
            known &= np.isin(cases.labels.source, ("megatron-sc21-t1",)) if options.quick else True
            say(f"{name}: fitting the base without {', '.join(hidden)}")
            bases[hidden] = fit(
                cases.take(known),
                starts=1 if options.quick else 2,
                rounds=1 if options.quick else 2,
            )
        judged = cases.take(np.isin(cases.labels.source, target.judged) & plain)
        for size in (12,) if options.quick else options.rows:
            if len(judged) - size < LEAST_JUDGED:
                say(f"{name}, {size} rows: passed over, {len(judged)} rows are all there are")
                continue
            seeds = range(1 if options.quick or not size else options.seeds)
            found = [
                summary(judge(judged, bases[hidden], size, seed, 1 if options.quick else None))
                for seed in seeds
            ]
            middle = {
                key: float(np.median([f[key] for f in found])) for key in ("median", "mean", "p90")
            }
            lines.append(
                {"target": name, "rows_used": size, "rows_judged": len(judged) - size, **middle}
            )
            say(
                f"{name}, {size} rows: median {middle['median']:.2f} %, mean "
                f"{middle['mean']:.2f} "
                f"% (middle of {len(found)} seeds)"
            )
    options.out.mkdir(parents=True, exist_ok=True)
    _figure(lines, options.out / "few_shot.png")
    deliver("few_shot", lines, options)


if __name__ == "__main__":
    run(main)
