"""Fit the shipped profiles from the published table: `python -m calibration.ship`.

One pooled fit of every usable row gives `generic`. The others are the same fit seen from one
accelerator and family of stacks: its center moves there, and all offsets with it, so known groups
predict the same and unknown ones start from the family, not from the mean of all. `held-out` is the
evidence: the same fit without a fifth of the rows, by whole groups, on which `dmodel evaluate`
shows it.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np

from calibration.fit import fit
from calibration.traces import Cases, published, split, to_cases
from dmodel.profiles import EVIDENCE, GROUPINGS, Profile, family, members, save

HELD_OUT_SHARE = 0.2

POLISH = 600
"""Steps of L-BFGS in each round: after 120, enough for a dozen rows, the loss of all rows is still
27 above where 500 take it."""


class View(NamedTuple):
    """A named profile: where it stands, and what it is; a stack stands for all its variants."""

    name: str
    accelerators: tuple[str, ...]
    stacks: tuple[str, ...]
    about: str


VIEWS = (
    View(
        "a100-megatron",
        ("A100-80GB",),
        ("megatron-sc21-t1", "megatron-sc21-t2", "mt-nlg-530b", "vtrain"),
        "Megatron-LM and DeepSpeed, 3D-parallel, on A100",
    ),
    View(
        "h100-megatron",
        ("H100-80GB",),
        ("nemo-launcher", "megatron-bridge", "megatron-lm-llama"),
        "NeMo and Megatron-LM, 3D-parallel, on H100",
    ),
    View("a100-fsdp", ("A100-80GB", "A100-40GB"), ("llm-foundry",), "FSDP (LLM Foundry) on A100"),
    View("h100-fsdp", ("H100-80GB",), ("llm-foundry",), "FSDP (LLM Foundry) on H100"),
    View(
        "blackwell-megatron",
        ("B200", "GB200", "B300", "GB300"),
        ("megatron-bridge",),
        "Megatron-Bridge on B200, B300, GB200 and GB300",
    ),
    View(
        "tpu-v5",
        ("TPU-v5e", "TPU-v5p", "TPU-v4"),
        ("maxtext-readme",),
        "MaxText on TPU v5e, v5p and v4",
    ),
)


def rebase(profile: Profile, view: View) -> Profile:
    """The same fit with its center moved to the mean of some accelerators and stacks and of the
    groups that they belong to.

    What the center gains, the members of that grouping lose, so that every accelerator and stack
    that the profile knows predict the same together. Variants stay: a stack may have none.

    Raises:
      ValueError: the profile knows none of the accelerators, or none of the stacks.
    """
    families = {family(s) for s in view.stacks}
    accelerators = tuple(a for a in view.accelerators if a in profile.accelerators)
    stacks = tuple(s for s in profile.stacks if family(s) in families)
    if not accelerators or not stacks:
        raise ValueError(
            f"{view.name}: the fit knows none of {view.accelerators}, or none of {view.stacks}"
        )
    view_of = [members(a, s) for a in view.accelerators for s in view.stacks]
    shift = {g: _mean(profile, g, {row[g] for row in view_of}) for g in GROUPINGS if g != "variant"}
    carried = {g: shift[g] for g in ("generation", "accelerator", "lineage", "stack")}
    # not every chip and stack that are known are known together
    carried["stack"] = carried["stack"] + shift["port"] + shift["pair"]
    moved = {
        g: {name: offset - carried.get(g, 0.0) for name, offset in profile.offsets[g].items()}
        for g in GROUPINGS
    }
    for name in moved["accelerator"]:
        if not members(name, None)["generation"]:
            moved["accelerator"][name] = moved["accelerator"][name] - shift["generation"]
    return dataclasses.replace(
        profile,
        name=view.name,
        description=f"{view.about}; a view of the pooled fit ({profile.description})",
        accelerators=accelerators,
        stacks=stacks,
        center=profile.center + sum(shift.values()),
        offsets=moved,
        # only of its own stacks: to a view, the others are as good as new
        stack_covariances={s: c for s, c in profile.stack_covariances.items() if s in families},
        pair_covariances={
            k: c
            for k, c in profile.pair_covariances.items()
            if family(k.partition(" ")[2]) in families
        },
        seen={s: rows for s, rows in profile.seen.items() if family(s) in families},
    )


def _mean(profile: Profile, grouping: str, names: set[str]) -> np.ndarray:
    """Mean offset of the members that the profile knows; 0 without any."""
    known = [
        np.asarray(profile.offsets[grouping][m])
        for m in sorted(names)
        if m in profile.offsets[grouping]
    ]
    return np.mean(known, 0) if known else np.zeros_like(profile.center)


def fit_with_report(cases: Cases, **how: object) -> Profile:
    """A fit that says on stderr how far it is."""
    started = time.perf_counter()

    def report(done: float, loss: float) -> None:
        print(
            f"\r{100 * done:3.0f} %  loss {loss:.2f}  {time.perf_counter() - started:.0f} s",
            end="",
            file=sys.stderr,
            flush=True,
        )

    fitted = fit(cases, progress=report, **how)  # type: ignore[arg-type]
    print(file=sys.stderr)
    return fitted


def build(cases: Cases, *, seed: int = 0, starts: int = 8) -> list[Profile]:
    """The pooled fit, its views, and the fit without the held-out groups. Descents end in many
    places, by which stack's hosts are slow: on 26 November 2026 the best of eight starts of the
    pooled fit lay 64 nats below the best of four."""
    pooled = fit_with_report(cases, seed=seed, starts=starts, polish=POLISH, name="generic")
    held_out = split(cases, HELD_OUT_SHARE, seed)
    evidence = fit_with_report(
        cases, seed=seed, starts=starts, polish=POLISH, name=EVIDENCE, held_out=held_out
    )
    return [pooled, *(rebase(pooled, view) for view in VIEWS), evidence]


def main(arguments: Sequence[str] = ()) -> None:
    """Write the profiles into the package, or into a folder given, which has to be there before
    minutes go by."""
    shipped = Path(str(resources.files("dmodel.profiles"))) / "data"
    parser = argparse.ArgumentParser(
        prog="python -m calibration.ship",
        description="Fit the shipped profiles anew, from embedded rows.",
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=shipped,
        help="where to write them (that of the package)",
    )
    target = parser.parse_args(arguments).folder
    if not target.is_dir():
        parser.error(f"{target} is no folder; make it first")
    for profile in build(to_cases(published())):
        save(profile, target / f"{profile.name}.json")
        print(f"{target / profile.name}.json: {profile.description}")


if __name__ == "__main__":
    main(sys.argv[1:])
