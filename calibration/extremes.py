"""Coefficients of a profile that lie far from what is expected before any data: `python -m
calibration.extremes [PROFILE]`.

`docs/notes/coefficients.md` says of each what it stands for.
"""

from __future__ import annotations

import argparse
import sys
from typing import NamedTuple

from dmodel.coefficients import NAMES, SPECS
from dmodel.errors import InputError
from dmodel.profiles import Profile, default_profile, load
from dmodel.profiles.record import prior_widths

FAR = 3.5
"""Prior widths from the default, in the unconstrained space, from which on a coefficient is far."""

LEAST, MOST = 0.01, 0.98
"""Shares below and above are near their bound."""


class Extreme(NamedTuple):
    """A coefficient far from its default. value: in its unit. widths: how far, in prior widths.
    accelerator, stack: of what."""

    name: str
    value: float
    widths: float
    accelerator: str
    stack: str

    @property
    def is_odd_share(self) -> bool:
        """Whether it is a share that is nearly nothing or nearly all."""
        return SPECS[self.name].bound == "share" and not LEAST < self.value < MOST


def extremes(profile: Profile) -> list[Extreme]:
    """All of them, over every chip and stack that the profile knows together; the farthest of a
    name first."""
    before, width = default_profile().center, prior_widths()
    found = []
    for accelerator, _, stack in (pair.partition(" ") for pair in profile.pair_covariances):
        values = profile.coefficients_for(accelerator, stack)
        away = (profile.unconstrained(accelerator, stack) - before) / width
        for name, distance in zip(NAMES, away.tolist(), strict=True):
            extreme = Extreme(name, float(getattr(values, name)), distance, accelerator, stack)
            if abs(distance) > FAR or extreme.is_odd_share:
                found.append(extreme)
    return sorted(found, key=lambda e: (e.name, -abs(e.widths)))


def main(words: list[str]) -> int:
    """Print them by name: how many, and the farthest. Returns the exit code."""
    what = "Coefficients of a profile that lie far from what is expected."
    parser = argparse.ArgumentParser(prog="python -m calibration.extremes", description=what)
    parser.add_argument(
        "profile",
        nargs="?",
        default="generic",
        metavar="PROFILE",
        help="a shipped profile or a file",
    )
    try:
        found = extremes(load(parser.parse_args(words).profile))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    by_name: dict[str, list[Extreme]] = {}
    for extreme in found:
        by_name.setdefault(extreme.name, []).append(extreme)
    for name, mine in by_name.items():
        worst, spec = mine[0], SPECS[name]
        print(
            f"{name}: {len(mine)} of chip and stack; farthest {worst.value:.3g} {spec.unit} "
            f"(default {spec.default:g}, "
            f"{worst.widths:+.1f} widths) on {worst.accelerator} with {worst.stack}"
        )
    print(f"shares outside {LEAST:g} to {MOST:g}: {sum(e.is_odd_share for e in found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
