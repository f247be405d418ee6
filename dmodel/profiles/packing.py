"""A profile's document as words and tables of whole numbers, without loss.

The document is that of `writing.to_json`: what it rounds to so many decimals is a whole number
here. A document may be packed beside another, of which it holds a part of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dmodel.coefficients import NAMES
from dmodel.profiles import covariances, integers, packed_rows
from dmodel.profiles.groupings import GROUPINGS
from dmodel.profiles.integers import Packed
from dmodel.profiles.writing import COEFFICIENT_DECIMALS as DECIMALS

TABLES = (
    "coefficients",  # repeats the center for people
    "center",
    "offsets",
    "widths",
    "standard_errors",
    "covariance",
    "stack_covariances",
    "pair_covariances",
    "seen",
    "fitted_rows",
)
"""Fields of a document that are no words of its packed form."""

Document = Mapping[str, Any]
Arrays = Mapping[str, np.ndarray]


def as_arrays(tables: Mapping[str, Packed]) -> dict[str, np.ndarray]:
    """Packed tables as arrays with names of their own."""
    return {f"{k}.{part}": x for k, table in tables.items() for part, x in table._asdict().items()}


def table_of(arrays: Arrays, name: str) -> Packed:
    """A packed table out of such arrays.

    Raises:
      KeyError: a part is missing.
    """
    return Packed(*(arrays[f"{name}.{part}"] for part in Packed._fields))


def _vectors(document: Document) -> np.ndarray:
    """All vectors of a document in a fixed order, `[vector, coefficient]`."""
    rows = [
        document["center"],
        document["standard_errors"],
        *document["widths"].values(),
        *(v for g in GROUPINGS for v in document["offsets"][g].values()),
    ]
    return np.array([[row[name] for name in NAMES] for row in rows])


def _named_vectors(words: Document, packed: Packed) -> dict[str, Any]:
    """The fields of a document that hold them."""
    values = (integers.unpack(packed) / 10.0**DECIMALS).tolist()
    expected = 2 + len(words["widths"]) + sum(map(len, words["offsets"].values()))
    if len(values) != expected:
        raise ValueError(f"expected {expected} vectors of coefficients")
    rows = (dict(zip(words["names"], row, strict=True)) for row in values)
    return {
        "center": next(rows),
        "standard_errors": next(rows),
        "widths": {g: next(rows) for g in words["widths"]},
        "offsets": {g: {k: next(rows) for k in members} for g, members in words["offsets"].items()},
    }


def _halves(matrix: list[list[float]]) -> np.ndarray:
    """A covariance below its diagonal, and what it differs by above: nothing but rounding."""
    steps = integers.steps(np.array(matrix), DECIMALS)
    return np.tril(steps) + np.triu(steps - steps.T, 1)


def _whole(halves: np.ndarray) -> list[list[float]]:
    lower = np.tril(halves)
    return ((lower + np.tril(lower, -1).T + np.triu(halves, 1)) / 10.0**DECIMALS).tolist()


def pack(
    document: Document, beside: Document | None = None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Words and arrays of a document.

    Args:
      beside: a document whose rows may stand for those of this one.

    Raises:
      ValueError: a number has more digits than those of a profile on disk.
    """
    n = len(NAMES)
    told, tables = covariances.pack(
        document["stack_covariances"], document["pair_covariances"], n * (n + 1) // 2
    )
    tables["vectors"] = integers.pack(integers.steps(_vectors(document), DECIMALS))
    if document["covariance"] is not None:
        tables["covariance"] = integers.pack(_halves(document["covariance"]))
    words = {
        "document": {k: v for k, v in document.items() if k not in TABLES},
        "names": list(NAMES),
        "widths": list(document["widths"]),
        "offsets": {g: list(document["offsets"][g]) for g in GROUPINGS},
        "covariances": told,
        "seen": {stack: len(rows) for stack, rows in document["seen"].items()},
        "beside": None,
    }
    rows = _beside(document, beside)
    if rows is not None and beside is not None:
        words["beside"] = beside["name"]
        return words, as_arrays(tables) | rows
    tables["seen"] = packed_rows.pack_places(document["seen"])
    fitted = {"fitted_rows": packed_rows.fingerprints(document["fitted_rows"])}
    return words, as_arrays(tables) | fitted


def _beside(document: Document, beside: Document | None) -> dict[str, np.ndarray] | None:
    """Which rows of another document are those of this one; None where some are not."""
    if beside is None:
        return None
    fitted = packed_rows.which(document["fitted_rows"], beside["fitted_rows"])
    seen = packed_rows.which_places(document["seen"], beside["seen"])
    return None if fitted is None or seen is None else {"fitted_rows": fitted, "seen": seen}


def unpack(words: Document, arrays: Arrays, beside: Document | None = None) -> dict[str, Any]:
    """The document again.

    Args:
      beside: the document that the words name so.

    Raises:
      ValueError, KeyError, TypeError, IndexError, AttributeError: words or arrays are damaged.
    """
    told = words["covariances"]
    stacks, pairs = covariances.unpack(told, {k: table_of(arrays, k) for k in ("stacks", "pairs")})
    if beside is not None:
        fitted = packed_rows.chosen(arrays["fitted_rows"], beside["fitted_rows"])
        seen = packed_rows.chosen_places(arrays["seen"], beside["seen"], list(words["seen"]))
    else:
        fitted = packed_rows.texts(arrays["fitted_rows"])
        seen = packed_rows.unpack_places(table_of(arrays, "seen"), words["seen"])
    centered = "covariance.rows" in arrays
    return {
        **words["document"],
        **_named_vectors(words, table_of(arrays, "vectors")),
        "covariance": _whole(integers.unpack(table_of(arrays, "covariance"))) if centered else None,
        "stack_covariances": stacks,
        "pair_covariances": pairs,
        "fitted_rows": fitted,
        "seen": seen,
    }
