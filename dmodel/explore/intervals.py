"""What a profile knows of how far it may be off, in few bytes: covariances, and places of fitted
rows.

A covariance is its standard deviations, their logarithms to 0.005, and its correlations to 1/127:
ends of intervals then lie within 3 % of their distance from the middle where they would be.
"""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import numpy as np

from dmodel import uncertainty
from dmodel.catalog.chips import maker
from dmodel.coefficients import NAMES
from dmodel.profiles import Profile, members

Document = dict[str, Any]

OF_CORRELATIONS, OF_DEVIATIONS, OF_PLACES = 127.0, 200.0, 100.0
"""Steps of a correlation, of the logarithm of a standard deviation, and of a place, in one."""


def intervals(profile: Profile) -> Document | None:
    """Everything that intervals of a profile follow from; None where it has no covariance."""
    if profile.covariance is None:
        return None
    covariances = {
        **{f"pair {name}": c for name, c in profile.pair_covariances.items()},
        **{f"stack {name}": c for name, c in profile.stack_covariances.items()},
        "": profile.covariance,
    }
    table = np.array([np.asarray(c, float) for c in covariances.values()])
    return {
        "names": list(covariances),
        "correlations": packed(_correlations(table).astype(np.int8).tobytes()),
        "deviations": packed(_text(_deviations(table))),
        "places": packed(_text(_places(profile))),
        "steps": {"correlation": OF_CORRELATIONS, "deviation": OF_DEVIATIONS, "place": OF_PLACES},
        "widths": {name: list(map(float, x)) for name, x in profile.widths.items()},
        "scatter": {name: list(map(float, x)) for name, x in profile.scatter.items()},
        "stranger": list(map(float, uncertainty.STRANGER)),
        "strangers": uncertainty.STRANGERS,
        "newMaker": uncertainty.NEW_MAKER,
        "makers": _makers(profile),
        "oneCodeBase": len({members(None, s)["lineage"] for s in profile.stacks}) == 1,
        "reach": uncertainty.REACH,
        "otherVariant": uncertainty.OTHER_VARIANT,
        "quantile": uncertainty.quantile(),
        "level": uncertainty.LEVEL,
        "side": uncertainty.SIDE,
    }


def packed(content: bytes) -> str:
    """Bytes compressed, as text."""
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


def _text(rows: Any) -> bytes:
    return json.dumps(rows, separators=(",", ":")).encode()


def _scales(table: np.ndarray) -> np.ndarray:
    return np.sqrt(np.diagonal(table, axis1=1, axis2=2))


def _correlations(table: np.ndarray) -> np.ndarray:
    """Correlations below the diagonal, `[correlation, covariance]`: alike ones lie together."""
    scales = _scales(table)
    whole = table / (scales[:, :, None] * scales[:, None, :])
    rows, columns = np.tril_indices(len(NAMES), -1)
    return np.rint(OF_CORRELATIONS * np.clip(whole[:, rows, columns], -1.0, 1.0)).T


def _deviations(table: np.ndarray) -> list[list[int]]:
    """Logarithms of standard deviations, `[coefficient, covariance]`."""
    return np.rint(OF_DEVIATIONS * np.log(_scales(table))).astype(int).T.tolist()


def _places(profile: Profile) -> Document:
    """Places of fitted rows by stack, feature by feature."""
    return {
        name: np.rint(OF_PLACES * np.asarray(rows)).astype(int).T.tolist()
        for name, rows in profile.seen.items()
        if len(rows)
    }


def _makers(profile: Profile) -> dict[str, str]:
    """Makers of the chips that the profile knows, and of those that its software ran on."""
    ports = [name.rpartition(" ")[0] for name in profile.offsets["port"]]
    return {name: maker(name) for name in (*profile.offsets["accelerator"], *ports)}
