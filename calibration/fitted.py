"""The parameters of a fit as a profile, with its data and versions."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import metadata

import numpy as np

from calibration import pooling
from calibration.pooling import Groups, Parameters, Prior
from calibration.traces import Cases
from calibration.uncertainty import Laplace
from dmodel.profiles import GROUPINGS, Profile
from dmodel.profiles.record import pair_key


def profile_of(
    name: str,
    p: Parameters,
    found: Laplace,
    prior: Prior,
    groups: Groups,
    base: Profile,
    widths: Mapping[str, np.ndarray],
    used: Cases,
    said: str,
) -> Profile:
    """The fitted parameters as a profile, with its data and versions."""
    center, moved = (np.asarray(f(p, prior)) for f in (pooling.center, pooling.offsets))
    offsets = {g: dict(base.offsets[g]) for g in GROUPINGS}
    for (grouping, member), offset in list(zip(groups.members, moved, strict=True))[1:]:
        offsets[grouping][member] = offset
    errors, covariance = _of_center(found, prior, base)
    sources, which = np.unique(used.labels.source, return_inverse=True)
    counts = np.bincount(which, used.labels.repeats)
    accelerators, stacks = (
        set(map(str, column)) for column in (used.labels.accelerator, used.labels.stack)
    )
    pairs = {pair_key(*pair): c for pair, c in found.pairs.items()}
    noise = np.asarray(pooling.noise_scale(p, prior)).tolist()
    return Profile(
        name=name,
        description=(
            f"fitted to {_counted(used)} of {len(sources)} sources, starting from {base.name}{said}"
        ),
        accelerators=tuple(sorted({*base.accelerators, *accelerators})),
        stacks=tuple(sorted({*base.stacks, *stacks})),
        own=() if prior.fresh else tuple(sorted(stacks)),
        center=center,
        offsets=offsets,
        widths=widths,
        standard_errors=errors,
        covariance=covariance,
        stack_covariances={**base.stack_covariances, **found.totals},
        pair_covariances={**base.pair_covariances, **pairs},
        data=(
            *base.data,
            *({"source": str(s), "rows": int(n)} for s, n in zip(sources, counts, strict=True)),
        ),
        fitted_rows=(*base.fitted_rows, *map(str, used.labels.fingerprint)),
        noise={**base.noise, **dict(zip(groups.stacks, noise, strict=True))},
        versions=_versions(),
    )


def _counted(used: Cases) -> str:
    """Rows of a fit in words; where configurations stand for their repeats, both."""
    rows = int(used.labels.repeats.sum())
    named = f"{len(used)} rows"
    return named if rows == len(used) else f"{len(used)} configurations ({rows:,} rows)"


def _of_center(found: Laplace, prior: Prior, base: Profile) -> tuple[np.ndarray, np.ndarray | None]:
    """Standard errors and covariance of the center; of a frozen one those of the base."""
    if not np.any(prior.center_width):
        return base.standard_errors, base.covariance
    width = np.asarray(prior.center_width)
    return found.center_errors * width, found.center_covariance * np.outer(width, width)


def _versions() -> dict[str, str]:
    """Of all that a fit comes from."""
    packages = ("jax", "flax", "optax")
    return {
        "python": sys.version.split()[0],
        **{name: metadata.version(name) for name in packages},
        "dmodel": metadata.version("dmodel-jax") if _installed("dmodel-jax") else "source",
    }


def _installed(package: str) -> bool:
    return any(d.metadata["Name"] == package for d in metadata.distributions(name=package))
