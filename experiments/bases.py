"""Profiles that have not seen some rows, kept on disk under what they were fitted to and with which
code: a rerun is quick, a change of the model never goes unnoticed."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

import numpy as np

import calibration
import dmodel
from calibration.fit import LBFGS_STEPS, fit
from calibration.ship import POLISH
from calibration.traces import Cases
from dmodel.profiles import Profile, load, save
from experiments.study import say

OUTSIDE = ("cli/", "report/", "design/", "diagnose/", "theory/", "collect/", "profiles/data/")
"""Parts of the packages that no fit depends on."""

QUICK = ("megatron-sc21-t1",)
"""Sources of the bases of quick runs."""


def code_hash() -> str:
    """Eight digits that stand for all code and data a fit depends on."""
    digest = hashlib.sha256()
    for package in (dmodel, calibration):
        root = Path(str(package.__file__)).parent
        for path in sorted(
            p for p in root.rglob("*") if p.is_file() and "__pycache__" not in p.parts
        ):
            name = path.relative_to(root).as_posix()
            if not name.startswith(OUTSIDE):
                digest.update(f"{root.name}/{name}".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


CODE = code_hash()
"""Taken at the start: the code that this process runs."""


class Bases:
    """Fits of some rows (of some sources `only`), polished like shipped profiles unless a single
    round makes quick ones; each is made
    once, and kept in a folder when there is one."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        starts: int = 2,
        rounds: int = 2,
        only: Sequence[str] | None = None,
    ):
        self.folder, self.starts, self.rounds, self.only = folder, starts, rounds, only
        self.polish = POLISH if rounds > 1 else LBFGS_STEPS
        self.found: dict[str, Profile] = {}

    @classmethod
    def of(cls, options: argparse.Namespace, starts: int = 1) -> Bases:
        """Those of a study, under its output folder; in its quick mode of few rows, begun once."""
        if options.quick:
            return cls(options.out / "bases", starts=1, rounds=1, only=QUICK)
        return cls(options.out / "bases", starts=starts)

    def key(self, cases: Cases) -> str:
        """Name of the fit of all these rows."""
        rows = hashlib.sha256(
            "".join(sorted(cases.labels.fingerprint.tolist())).encode()
        ).hexdigest()[:8]
        return f"base-{rows}-{CODE}-{self.starts}-{self.rounds}-{self.polish}"

    def without(
        self,
        cases: Cases,
        hidden: np.ndarray,
        why: str = "",
        executor: Executor | None = None,
    ) -> Profile:
        """The fit of all rows but the hidden ones, `[row]` bool, by this process or an executor's
        workers."""
        wanted = ~hidden if self.only is None else ~hidden & np.isin(cases.labels.source, self.only)
        known = cases.take(wanted)
        key = self.key(known)
        if key not in self.found:
            self.found[key] = self._made(known, key, why, executor)
        return self.found[key]

    def _made(self, known: Cases, key: str, why: str, executor: Executor | None) -> Profile:
        path = self.folder / f"{key}.json" if self.folder else None
        if path and path.exists():
            return load(path)
        say(f"fitting the base of {len(known)} rows{f', without {why}' if why else ''}")
        how = {"starts": self.starts, "rounds": self.rounds, "polish": self.polish}
        profile = fit(known, **how, name=key, executor=executor)
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            save(profile, path)
        return profile
