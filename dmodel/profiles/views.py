"""Views: a fit seen from some accelerators and stacks, computed from its profile.

The center of a view lies at the mean of its accelerators and stacks, and all offsets move with it:
what the fit knows predicts the same, what it does not know starts from the view. Beside its words a
view stores how its numbers are rounded, which a profile that is rounded itself does not tell.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from dmodel.profiles import integers
from dmodel.profiles.groupings import GROUPINGS, family, members
from dmodel.profiles.integers import Packed
from dmodel.profiles.record import Profile
from dmodel.profiles.shipped import of_view
from dmodel.profiles.writing import COEFFICIENT_DECIMALS as DECIMALS
from dmodel.profiles.writing import rounded

OFF_HALVES = 0.2137
"""Means of a few whole numbers often are halves: this far from there no machine rounds another
way."""

CARRIED = ("generation", "accelerator", "lineage", "stack")
"""Groupings whose offsets move with the center."""


class View(NamedTuple):
    """A named profile: where it stands, and what it is; a stack stands for all its variants."""

    name: str
    accelerators: tuple[str, ...]
    stacks: tuple[str, ...]
    about: str


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
    shift = _shift(profile, view)
    return dataclasses.replace(
        profile,
        name=view.name,
        description=of_view(view.about, profile.description),
        accelerators=accelerators,
        stacks=stacks,
        center=profile.center + sum(shift.values()),
        offsets=_offsets(profile, shift),
        # only of its own stacks: to a view, the others are as good as new
        stack_covariances=_of(families, profile.stack_covariances, lambda stack: stack),
        pair_covariances=_of(families, profile.pair_covariances, lambda k: k.partition(" ")[2]),
        seen=_of(families, profile.seen, lambda stack: stack),
    )


def _shift(profile: Profile, view: View) -> dict[str, np.ndarray]:
    """What the center gains, by grouping."""
    rows = [members(a, s) for a in view.accelerators for s in view.stacks]
    return {g: _mean(profile, g, {row[g] for row in rows}) for g in GROUPINGS if g != "variant"}


def _mean(profile: Profile, grouping: str, names: set[str]) -> np.ndarray:
    """Mean offset of the members that the profile knows; 0 without any."""
    offsets = profile.offsets[grouping]
    known = [np.asarray(offsets[m]) for m in sorted(names) if m in offsets]
    return np.mean(known, 0) if known else np.zeros_like(profile.center)


def _offsets(profile: Profile, shift: Mapping[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """Offsets of all members, less what the center gained."""
    carried = {g: shift[g] for g in CARRIED}
    # not every chip and stack that are known are known together
    carried["stack"] = carried["stack"] + shift["port"] + shift["pair"]
    moved = {
        g: {name: offset - carried.get(g, 0.0) for name, offset in profile.offsets[g].items()}
        for g in GROUPINGS
    }
    of_no_generation = [m for m in moved["accelerator"] if not members(m, None)["generation"]]
    for name in of_no_generation:
        moved["accelerator"][name] = moved["accelerator"][name] - shift["generation"]
    return moved


def _of(
    families: set[str], found: Mapping[str, np.ndarray], stack: Callable[[str], str]
) -> dict[str, np.ndarray]:
    """Those whose stack is of some families."""
    return {name: x for name, x in found.items() if family(stack(name)) in families}


def _moved(profile: Profile) -> np.ndarray:
    """What a view moves, in a fixed order, `[vector, coefficient]`."""
    rows = (profile.offsets[g][m] for g in CARRIED for m in sorted(profile.offsets[g]))
    return np.array([profile.center, *rows])


def _told(profile: Profile) -> np.ndarray:
    """What a view moves as a profile on disk tells it, in whole steps."""
    return np.rint(_moved(profile) * 10.0**DECIMALS + OFF_HALVES).astype(np.int64)


def pack(exact: Profile, base: Profile, view: View) -> tuple[dict[str, Any], dict[str, Packed]]:
    """Words and tables of a view.

    Args:
      exact: the fit seen from the view. base: the profile of the fit as it is on disk.
    """
    words = {
        "document": {
            "name": exact.name,
            "accelerators": list(exact.accelerators),
            "stacks": list(exact.stacks),
        },
        "view": {"of": base.name, **view._asdict()},
    }
    steps = integers.steps(np.array(rounded(_moved(exact), DECIMALS)), DECIMALS)
    apart = steps - _told(rebase(base, view))
    return words, {"rounding": integers.pack(apart)}


def unpack(words: Mapping[str, Any], rounding: Packed, base: Profile) -> Profile:
    """The view again.

    Raises:
      ValueError, KeyError, TypeError: damaged, or not of this base.
    """
    told = words["view"]
    chips, stacks = tuple(told["accelerators"]), tuple(told["stacks"])
    view = View(told["name"], chips, stacks, told["about"])
    found = rebase(base, view)
    steps, apart = _told(found), integers.unpack(rounding)
    if apart.shape != steps.shape:
        raise ValueError(f"the rounding of a view of {base.name} has another shape")
    rows = iter((steps + apart) / 10.0**DECIMALS)
    center = next(rows)
    moved = {g: {m: next(rows) for m in sorted(found.offsets[g])} for g in CARRIED}
    return dataclasses.replace(found, center=center, offsets={**found.offsets, **moved})
