"""A profile out of a JSON document, checked on the way in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dmodel.coefficients import NAMES
from dmodel.errors import InputError
from dmodel.footprint import SPECS as FOOTPRINT
from dmodel.footprint import Footprint
from dmodel.profiles.groupings import GROUPINGS
from dmodel.profiles.record import Fitted, Profile, Scatter
from dmodel.profiles.writing import FORMAT, VERSION

LATER = ("port",)
"""Groupings that files of this version may lack, as those that were fitted before them do: no
member is known, and with learned widths none moves."""

FURTHEST = 50.0
"""No unconstrained coefficient lies further from 0: e⁵⁰ times its unit would be no machine."""

LARGEST = 1e15
"""No number of a footprint is larger."""


def document_of(path: str, text: str) -> dict[str, Any]:
    """The document of a profile file, its outside checked.

    Raises:
      InputError: no JSON, no profile, or of another version.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise InputError(
            f"{path}: not a complete JSON document ({e}); the file is damaged or cut off: fit or "
            "copy it again"
        ) from e
    return outside_checked(path, document)


def outside_checked(path: str, document: Any) -> dict[str, Any]:
    """A document, if it is a profile of this version.

    Raises:
      InputError: it is not.
    """
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(
            f'{path}: not a dmodel profile (expected "format": "{FORMAT}"); make one with '
            "`dmodel fit … --out PROFILE.json`"
        )
    if document.get("version") != VERSION:
        raise InputError(
            f"{path}: profile version {document.get('version')!r}, this dmodel reads version "
            f"{VERSION}; fit the profile again, or use the dmodel that wrote it "
            f"({document.get('versions', {})})"
        )
    return document


def from_json(document: Mapping[str, Any], path: str = "profile") -> Profile:
    """The profile of a JSON document.

    Raises:
      InputError: a field is missing, of the wrong type, or names unknown coefficients.
    """
    try:
        return _profile(path, document)
    except InputError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        raise InputError(
            f"{path}: a field of the profile is missing or of the wrong kind ({e!r}); fit or copy "
            "it again"
        ) from e


def _profile(path: str, document: Mapping[str, Any]) -> Profile:
    return Profile(
        name=str(document["name"]),
        description=str(document["description"]),
        accelerators=_texts(path, document, "accelerators"),
        stacks=_texts(path, document, "stacks"),
        own=_texts(path, {"own": [], **document}, "own"),
        center=_numbers(path, document, "center"),
        offsets=_offsets(path, document["offsets"]),
        widths=_widths(path, document["widths"]),
        standard_errors=_numbers(path, document, "standard_errors", least=0.0),
        stack_covariances=_symmetric(path, document["stack_covariances"]),
        pair_covariances=_symmetric(path, document.get("pair_covariances", {}), 1e-3),
        covariance=_covariance(path, document["covariance"]),
        data=_data(path, document["data"]),
        fitted_rows=_texts(path, document, "fitted_rows"),
        noise=_noise(path, document["noise"]),
        footprints=_footprints(path, document.get("footprints", {})),
        scatter=_scatter(path, document.get("scatter", {})),
        seen=_seen(path, document.get("seen", {})),
        versions=dict(document["versions"]),
    )


def _wrong(path: str, where: str, expected: str) -> InputError:
    return InputError(
        f"{path}: {where!r} is missing or of the wrong kind (expected {expected}); fit or copy the "
        "profile again"
    )


def _is_within(x: Any, least: float, most: float) -> bool:
    return isinstance(x, int | float) and least <= x <= most


def _is_positive(x: Any) -> bool:
    return _is_within(x, 0.0, FURTHEST) and 0.0 < x < FURTHEST


def _has(value: Any, fields: Any) -> bool:
    """Whether it is an object of exactly these fields."""
    return isinstance(value, Mapping) and set(value) == set(fields)


def _texts(path: str, document: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """A list of texts out of a JSON object, checked."""
    value = document[where]
    if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
        raise _wrong(path, where, "a list of texts")
    return tuple(value)


def _numbers(
    path: str, document: Mapping[str, Any], where: str, least: float = -FURTHEST
) -> np.ndarray:
    """A vector of all coefficients out of a JSON object, each from `least` to `FURTHEST`."""
    value = document.get(where)
    if not isinstance(value, Mapping) or set(value) != set(NAMES):
        raise _other_names(path, where, value if isinstance(value, Mapping) else {})
    try:
        vector = np.array([float(value[name]) for name in NAMES])
    except (TypeError, ValueError) as e:
        raise InputError(f"{path}: {where!r} holds something that is not a number ({e})") from e
    if not np.isfinite(vector).all():
        raise InputError(f"{path}: {where!r} holds a number that is not finite")
    if not ((least <= vector) & (vector <= FURTHEST)).all():
        raise InputError(
            f"{path}: {where!r} holds a number outside {least:g} … {FURTHEST:g}, where no fit "
            "goes: was the file edited by hand? Fit or copy it again"
        )
    return vector


def _other_names(path: str, where: str, value: Mapping[str, Any]) -> InputError:
    missing, extra = sorted(set(NAMES) - set(value)), sorted(set(value) - set(NAMES))
    return InputError(
        f"{path}: {where!r} must hold exactly the {len(NAMES)} coefficients of this version; "
        f"missing {missing[:4]}, unknown {extra[:4]}. Fit the profile again with this version of "
        "dmodel"
    )


def _offsets(path: str, value: Any) -> dict[str, dict[str, np.ndarray]]:
    """Offsets by grouping and member, checked."""
    given = {g: {} for g in LATER} | value
    return {
        g: {k: _numbers(path, {"offsets": v}, "offsets") for k, v in given[g].items()}
        for g in GROUPINGS
    }


def _widths(path: str, value: Any) -> dict[str, np.ndarray]:
    """Widths of all groupings, or of none, checked; 0 where a grouping does not move a coefficient,
    and of those that came later."""
    if value == {}:
        return {}
    if isinstance(value, Mapping):
        value = dict.fromkeys(LATER, dict.fromkeys(NAMES, 0.0)) | dict(value)
    if not _has(value, GROUPINGS):
        raise _wrong(path, "widths", f"those of {', '.join(GROUPINGS)}, or none")
    return {g: _numbers(path, {"widths": value[g]}, "widths", least=0.0) for g in GROUPINGS}


def _symmetric(path: str, where: Any, rounding: float = 1e-6) -> dict[str, np.ndarray]:
    """Covariances by name from their lower triangles, checked; rounding: of eigenvalues, over their
    mean."""
    n = len(NAMES)
    found = {name: _triangle(path, name, value) for name, value in where.items()}
    if not found:
        return {}
    numbers = np.array(list(found.values()))
    rows, columns = np.tril_indices(n)
    matrices = np.zeros((len(found), n, n))
    matrices[:, rows, columns] = matrices[:, columns, rows] = numbers
    least = rounding * np.trace(matrices, axis1=1, axis2=2) / n
    try:
        # takes a tenth of the time of eigenvalues
        np.linalg.cholesky(matrices + least[:, None, None] * np.eye(n))
    except np.linalg.LinAlgError:
        _check_eigenvalues(path, list(found), matrices, least)
    return dict(zip(found, matrices, strict=True))


def _check_eigenvalues(
    path: str, names: Sequence[str], matrices: np.ndarray, least: np.ndarray
) -> None:
    negative = np.linalg.eigvalsh(matrices)[:, 0] < -least
    if negative.any():
        raise InputError(
            f"{path}: the covariance of {names[int(negative.argmax())]!r} is none (it has a "
            "negative eigenvalue); fit or copy the profile again"
        )


def _triangle(path: str, name: str, value: Any) -> np.ndarray:
    """Numbers of a lower triangle, checked."""
    count = len(NAMES) * (len(NAMES) + 1) // 2
    # one text among numbers would make texts of all
    numbers = isinstance(value, list) and set(map(type, value)) <= {int, float, bool}
    if not numbers or len(value) != count or not (np.abs(value) < FURTHEST**2).all():
        raise InputError(
            f"{path}: the covariance of {name!r} must be {count} finite numbers; fit or copy the "
            "profile again"
        )
    return np.array(value, float)


def _covariance(path: str, value: Any) -> np.ndarray | None:
    """The covariance of the center, or none, checked."""
    if value is None:
        return None
    matrix = np.array(value, float).reshape(len(NAMES), len(NAMES))
    if not np.isfinite(matrix).all():
        raise InputError(
            f"{path}: 'covariance' holds a number that is not finite; fit or copy the profile again"
        )
    return matrix


def _noise(path: str, value: Any) -> dict[str, float]:
    """Scales by stack, checked."""
    if not isinstance(value, Mapping) or not all(map(_is_positive, value.values())):
        raise _wrong(path, "noise", "a positive number by stack")
    return dict(value)


def _footprints(path: str, value: Any) -> dict[str, Fitted]:
    """Footprints by stack, checked: every number positive or 0, shares at most 1."""
    if not isinstance(value, Mapping) or not all(map(_is_footprint, value.values())):
        expected = (
            f"the numbers {', '.join(FOOTPRINT)} and spread by stack, positive, shares at most 1"
        )
        raise _wrong(path, "footprints", expected)
    return {
        str(stack): Fitted(
            Footprint(**{name: float(numbers[name]) for name in FOOTPRINT}),
            float(numbers["spread"]),
        )
        for stack, numbers in value.items()
    }


def _is_footprint(value: Any) -> bool:
    if not _has(value, {*FOOTPRINT, "spread"}) or not _is_positive(value["spread"]):
        return False
    most = {name: 1.0 if spec.bound == "share" else LARGEST for name, spec in FOOTPRINT.items()}
    return all(_is_within(value[name], 0.0, most[name]) for name in FOOTPRINT)


def _scatter(path: str, value: Any) -> dict[str, Scatter]:
    """Scatter by stack, checked: positive numbers."""
    if not isinstance(value, Mapping) or not all(map(_is_scatter, value.values())):
        raise _wrong(path, "scatter", "positive noise and discrepancy by stack")
    return {str(k): Scatter(**v) for k, v in value.items()}


def _is_scatter(value: Any) -> bool:
    return _has(value, Scatter._fields) and all(map(_is_positive, value.values()))


def _seen(path: str, value: Any) -> dict[str, np.ndarray]:
    """Places of fitted rows by stack, checked: rows of finite numbers, all as long."""
    if not isinstance(value, Mapping) or not _are_as_long([r for v in value.values() for r in v]):
        raise _wrong(path, "seen", "rows of numbers, all as long, by stack")
    found = {str(k): np.array(v, float) for k, v in value.items()}
    if not all((np.abs(v) < FURTHEST**2).all() for v in found.values()):
        raise InputError(
            f"{path}: 'seen' holds a number outside ±{FURTHEST**2:g}; fit or copy the profile again"
        )
    return found


def _are_as_long(rows: list[Any]) -> bool:
    return all(isinstance(row, list) for row in rows) and len(set(map(len, rows))) <= 1


def _data(path: str, value: Any) -> tuple[dict[str, Any], ...]:
    """What is said of the fitted data, source by source, checked."""
    if not isinstance(value, list) or not all(
        isinstance(x, Mapping) and isinstance(x.get("rows", 0), int | float) for x in value
    ):
        raise _wrong(path, "data", "an object by source")
    return tuple(dict(x) for x in value)
