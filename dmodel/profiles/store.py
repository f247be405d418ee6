"""Profiles on disk: strict JSON, checked on the way in; shipped ones by name."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from dmodel.coefficients import NAMES
from dmodel.footprint import SPECS as FOOTPRINT
from dmodel.footprint import Footprint
from dmodel.profiles.groupings import GROUPINGS
from dmodel.profiles.record import Fitted, Profile, Scatter, default_profile
from dmodel.types import InputError

FORMAT, VERSION = "dmodel-profile", 2

LATER = ("port",)
"""Groupings that files of this version may lack, as those that were fitted before them do: no
member is known, and with learned widths none moves."""

FURTHEST = 50.0
"""No unconstrained coefficient lies further from 0: e⁵⁰ times its unit would be no machine."""

EVIDENCE = "held-out"
"""Shipped to be judged, not to be used: fitted without the 20 % of the published rows that
`evaluate` then shows it on."""


@lru_cache
def _shipped() -> dict[str, Any]:
    folder = resources.files("dmodel.profiles") / "data"
    return {
        f.name.removesuffix(".json"): f
        for f in sorted(folder.iterdir(), key=lambda f: f.name)
        if f.name.endswith(".json")
    }


def names() -> list[str]:
    """Names of the shipped profiles, `prior` (fitted to nothing) among them."""
    return sorted([*_shipped(), "prior"])


def _vector(value: np.ndarray) -> dict[str, float]:
    return {name: round(float(x), 10) for name, x in zip(NAMES, value, strict=True)}


def _triangle(matrix: np.ndarray, digits: int = 6) -> list[float]:
    """The lower triangle of a symmetric matrix, row by row."""
    return [float(f"{x:.{digits}g}") for x in np.asarray(matrix)[np.tril_indices(len(matrix))]]


def _symmetric(path: str, stack: str, value: Any, rounding: float = 1e-6) -> np.ndarray:
    """The covariance of a stack from its lower triangle, checked; rounding: of its eigenvalues,
    over their mean."""
    n = len(NAMES)
    rows, columns = np.tril_indices(n)
    numbers = isinstance(value, list) and all(
        isinstance(x, int | float) and abs(x) < FURTHEST**2 for x in value
    )
    if not numbers or len(value) != len(rows):
        raise InputError(
            f"{path}: the covariance of {stack!r} must be {len(rows)} finite numbers; fit or "
            "copy "
            "the profile again"
        )
    matrix = np.zeros((n, n))
    matrix[rows, columns] = matrix[columns, rows] = value
    if np.linalg.eigvalsh(matrix)[0] < -rounding * np.trace(matrix) / n:
        raise InputError(
            f"{path}: the covariance of {stack!r} is none (it has a negative eigenvalue); fit "
            "or "
            "copy the profile again"
        )
    return matrix


def to_json(profile: Profile) -> dict[str, Any]:
    """A profile as a plain JSON document; `coefficients` repeats the center with units and
    meanings, for people."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": profile.name,
        "description": profile.description,
        "accelerators": list(profile.accelerators),
        "stacks": list(profile.stacks),
        **({"own": list(profile.own)} if profile.own else {}),
        "coefficients": profile.describe(),
        "center": _vector(profile.center),
        "offsets": {
            g: {k: _vector(v) for k, v in sorted(profile.offsets[g].items())} for g in GROUPINGS
        },
        "widths": {g: _vector(v) for g, v in profile.widths.items()},
        "standard_errors": _vector(profile.standard_errors),
        "stack_covariances": {
            k: _triangle(v) for k, v in sorted(profile.stack_covariances.items())
        },
        "pair_covariances": {
            k: _triangle(v, 4) for k, v in sorted(profile.pair_covariances.items())
        },
        "covariance": None
        if profile.covariance is None
        else [[round(float(x), 10) for x in row] for row in profile.covariance],
        "data": [dict(d) for d in profile.data],
        "fitted_rows": list(profile.fitted_rows),
        "noise": dict(profile.noise),
        "footprints": {
            k: {**vars(f.footprint), "spread": f.spread}
            for k, f in sorted(profile.footprints.items())
        },
        "scatter": {k: v._asdict() for k, v in sorted(profile.scatter.items())},
        "seen": {
            k: [[round(float(x), 3) for x in row] for row in rows]
            for k, rows in sorted(profile.seen.items())
        },
        "versions": dict(profile.versions),
    }


def save(profile: Profile, path: str | Path) -> None:
    """Write a profile as JSON.

    Raises:
      InputError: the path cannot be written.
    """
    text = json.dumps(to_json(profile), indent=1, allow_nan=False)
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as e:
        raise InputError(
            f"cannot write the profile to {path}: {e.strerror}; name a writable file"
        ) from e


def _numbers(
    path: str, document: Mapping[str, Any], where: str, least: float = -FURTHEST
) -> np.ndarray:
    """A vector of all coefficients out of a JSON object, each from `least` to `FURTHEST`."""
    value = document.get(where)
    if not isinstance(value, Mapping) or set(value) != set(NAMES):
        missing = sorted(set(NAMES) - set(value)) if isinstance(value, Mapping) else list(NAMES)
        extra = sorted(set(value) - set(NAMES)) if isinstance(value, Mapping) else []
        raise InputError(
            f"{path}: {where!r} must hold exactly the {len(NAMES)} coefficients of this version; "
            f"missing {missing[:4]}, "
            f"unknown {extra[:4]}. Fit the profile again with this version of dmodel"
        )
    try:
        vector = np.array([float(value[name]) for name in NAMES])
    except (TypeError, ValueError) as e:
        raise InputError(f"{path}: {where!r} holds something that is not a number ({e})") from e
    if not np.isfinite(vector).all():
        raise InputError(f"{path}: {where!r} holds a number that is not finite")
    if not ((least <= vector) & (vector <= FURTHEST)).all():
        raise InputError(
            f"{path}: {where!r} holds a number outside {least:g} … {FURTHEST:g}, where no fit "
            "goes: was the file edited by "
            "hand? Fit or copy it again"
        )
    return vector


def _widths(path: str, value: Any) -> dict[str, np.ndarray]:
    """Widths of all groupings, or of none, checked; 0 where a grouping does not move a coefficient,
    and of those that came later."""
    if isinstance(value, Mapping) and value:
        value = dict.fromkeys(LATER, dict.fromkeys(NAMES, 0.0)) | dict(value)
    if not isinstance(value, Mapping) or (value and set(value) != set(GROUPINGS)):
        raise InputError(
            f"{path}: 'widths' is of the wrong kind (expected those of "
            f"{', '.join(GROUPINGS)}, or "
            "none); fit or copy it again"
        )
    return {
        g: _numbers(path, {"widths": value[g]}, "widths", least=0.0)
        for g in GROUPINGS
        if g in value
    }


def _texts(path: str, document: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """A list of texts out of a JSON object, checked."""
    value = document[where]
    if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
        raise InputError(
            f"{path}: {where!r} is missing or of the wrong kind (expected a list of texts); "
            "fit "
            "or copy it again"
        )
    return tuple(value)


def _noise(path: str, document: Mapping[str, Any]) -> dict[str, float]:
    """Scales by stack, checked."""
    value = document["noise"]
    if not isinstance(value, Mapping) or not all(
        isinstance(x, int | float) and 0.0 < x < FURTHEST for x in value.values()
    ):
        raise InputError(
            f"{path}: 'noise' is missing or of the wrong kind (expected a positive number by "
            "stack); fit or copy it again"
        )
    return dict(value)


def _footprints(path: str, value: Any) -> dict[str, Fitted]:
    """Footprints by stack, checked: every number positive or 0, shares at most 1."""
    expected = f"the numbers {', '.join(FOOTPRINT)} and spread by stack, positive, shares at most 1"
    wrong = InputError(
        f"{path}: 'footprints' is of the wrong kind (expected {expected}); fit or copy the "
        "profile again"
    )
    if not isinstance(value, Mapping):
        raise wrong
    found = {}
    for stack, numbers in value.items():
        if not isinstance(numbers, Mapping) or set(numbers) != {*FOOTPRINT, "spread"}:
            raise wrong
        if not all(
            isinstance(x, int | float) and 0.0 <= x <= (1.0 if _is_share(name) else 1e15)
            for name, x in numbers.items()
        ):
            raise wrong
        values = {name: float(x) for name, x in numbers.items()}
        if not 0.0 < values["spread"] < FURTHEST:
            raise wrong
        found[str(stack)] = Fitted(
            Footprint(**{name: values[name] for name in FOOTPRINT}), values["spread"]
        )
    return found


def _scatter(path: str, value: Any) -> dict[str, Scatter]:
    """Scatter by stack, checked: positive numbers."""
    wrong = InputError(
        f"{path}: 'scatter' is of the wrong kind (expected positive noise and discrepancy by "
        "stack); fit or copy it again"
    )
    if not isinstance(value, Mapping) or not all(
        isinstance(v, Mapping) and set(v) == set(Scatter._fields) for v in value.values()
    ):
        raise wrong
    if not all(
        isinstance(x, int | float) and 0.0 < x < FURTHEST
        for v in value.values()
        for x in v.values()
    ):
        raise wrong
    return {str(k): Scatter(**v) for k, v in value.items()}


def _seen(path: str, value: Any) -> dict[str, np.ndarray]:
    """Places of fitted rows by stack, checked: rows of finite numbers, all as long."""
    rows = (
        [row for rows in value.values() for row in rows] if isinstance(value, Mapping) else [None]
    )
    if (
        not all(isinstance(row, list) for row in rows)
        or len({len(row) for row in rows if row is not None}) > 1
    ):
        raise InputError(
            f"{path}: 'seen' is of the wrong kind (expected rows of numbers, all as long, by "
            "stack); fit or copy it again"
        )
    found = {str(k): np.array(v, float) for k, v in value.items()}
    if not all((np.abs(v) < FURTHEST**2).all() for v in found.values()):
        raise InputError(
            f"{path}: 'seen' holds a number outside ±{FURTHEST**2:g}; fit or copy the profile again"
        )
    return found


def _is_share(name: str) -> bool:
    return name in FOOTPRINT and FOOTPRINT[name].bound == "share"


def _data(path: str, document: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """What is said of the fitted data, source by source, checked."""
    value = document["data"]
    if not isinstance(value, list) or not all(
        isinstance(x, Mapping) and isinstance(x.get("rows", 0), int | float) for x in value
    ):
        raise InputError(
            f"{path}: 'data' is missing or of the wrong kind (expected an object by source); "
            "fit "
            "or copy it again"
        )
    return tuple(dict(x) for x in value)


def _document(path: str, text: str) -> dict[str, Any]:
    """Parse and check the outside of a profile file."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise InputError(
            f"{path}: not a complete JSON document ({e}); the file is damaged or cut off: fit "
            "or "
            "copy it again"
        ) from e
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(
            f'{path}: not a dmodel profile (expected "format": "{FORMAT}"); make one with '
            "`dmodel "
            "fit … --out PROFILE.json`"
        )
    if document.get("version") != VERSION:
        raise InputError(
            f"{path}: profile version {document.get('version')!r}, this dmodel reads version "
            f"{VERSION}; fit the profile again, or use "
            f"the dmodel that wrote it ({document.get('versions', {})})"
        )
    return document


def from_json(document: Mapping[str, Any], path: str = "profile") -> Profile:
    """The profile of a JSON document.

    Raises:
      InputError: a field is missing, of the wrong type, or names unknown coefficients.
    """
    try:
        given = {g: {} for g in LATER} | document["offsets"]
        offsets = {
            g: {k: _numbers(path, {"offsets": v}, "offsets") for k, v in given[g].items()}
            for g in GROUPINGS
        }
        covariance = document["covariance"]
        matrix = (
            None
            if covariance is None
            else np.array(covariance, float).reshape(len(NAMES), len(NAMES))
        )
        if matrix is not None and not np.isfinite(matrix).all():
            raise InputError(
                f"{path}: 'covariance' holds a number that is not finite; fit or copy the "
                "profile "
                "again"
            )
        return Profile(
            name=str(document["name"]),
            description=str(document["description"]),
            accelerators=_texts(path, document, "accelerators"),
            stacks=_texts(path, document, "stacks"),
            own=_texts(path, {"own": [], **document}, "own"),
            center=_numbers(path, document, "center"),
            offsets=offsets,
            widths=_widths(path, document["widths"]),
            standard_errors=_numbers(path, document, "standard_errors", least=0.0),
            stack_covariances={
                k: _symmetric(path, k, v) for k, v in document["stack_covariances"].items()
            },
            pair_covariances={
                k: _symmetric(path, k, v, 1e-3)
                for k, v in document.get("pair_covariances", {}).items()
            },
            covariance=matrix,
            data=_data(path, document),
            fitted_rows=_texts(path, document, "fitted_rows"),
            noise=_noise(path, document),
            footprints=_footprints(path, document.get("footprints", {})),
            scatter=_scatter(path, document.get("scatter", {})),
            seen=_seen(path, document.get("seen", {})),
            versions=dict(document["versions"]),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        if isinstance(e, InputError):
            raise
        raise InputError(
            f"{path}: a field of the profile is missing or of the wrong kind ({e!r}); fit or "
            "copy "
            "it again"
        ) from e


@lru_cache
def _load_shipped(name: str) -> Profile:
    return from_json(_document(name, _shipped()[name].read_text(encoding="utf-8")), name)


def load(name_or_path: str | Path) -> Profile:
    """A shipped profile by name, or a profile file.

    Raises:
      InputError: neither a shipped name nor a readable, complete profile of this version.

    >>> load("h100-megatron").accelerators
    ('H100-80GB',)
    """
    name, shipped = str(name_or_path), _shipped()
    if name == "prior":
        return default_profile()
    if name in shipped:
        return _load_shipped(name)
    path = Path(name)
    if not path.is_file():
        near = difflib.get_close_matches(name.lower(), names(), n=3, cutoff=0.4)
        hint = f"; did you mean {', '.join(near)}?" if near else "."
        raise InputError(
            f"no profile named {name!r}, and no such file{hint} Shipped: {', '.join(names())}"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise InputError(
            f"{path}: cannot be read as text ({e}); expected a profile written by `dmodel fit`"
        ) from e
    return from_json(_document(str(path), text), str(path))


def _family(stack: str) -> str:
    """The part of a stack's name before "/" or "-"."""
    return stack.lower().replace("/", "-").split("-")[0]


def nearest(accelerator: str, stack: str = "") -> tuple[Profile, str]:
    """The shipped profile that fits an accelerator and stack best, and why.

    The one that was fitted on both; else on the accelerator and the stack's family (the name before
    "/" or "-"); else the generic one, which knows an offset for every accelerator it has seen.
    """
    if not _shipped():
        return default_profile(), "no profile is shipped with this build: the prior"
    views = [load(name) for name in _shipped() if name not in ("generic", EVIDENCE)]
    for profile in views:
        if accelerator in profile.accelerators and stack in profile.stacks:
            return profile, f"fitted on {accelerator} with {stack}"
    for profile in views:
        families = {_family(s) for s in profile.stacks}
        if stack and accelerator in profile.accelerators and _family(stack) in families:
            return profile, f"fitted on {accelerator} with the family of {stack}"
    generic = load("generic")
    known = [
        x
        for x in (
            accelerator if accelerator in generic.accelerators else "",
            stack if stack in generic.stacks else "",
        )
        if x
    ]
    if known:
        return generic, f"no closer one; generic knows {' and '.join(known)}"
    return generic, f"no shipped profile knows {accelerator}{' or ' + stack if stack else ''}"
