"""Machines that the catalog does not have: described in a file beside the traces that ran on
them."""

from __future__ import annotations

import json
from pathlib import Path

from dmodel.catalog import extend
from dmodel.errors import InputError

FILE = "systems.json"
"""Name of the file; `dmodel collect` writes it from what it measured."""


def extend_beside(path: Path) -> None:
    """Take in the machines described beside a file of traces, if any.

    Raises:
      InputError: the description is damaged, or calls a machine by a name that the catalog has.
    """
    beside = path.parent / FILE
    if beside.is_file():
        extend_from(beside)


def extend_from(path: Path) -> None:
    """Take in the machines that a file describes.

    Raises:
      InputError: as `extend_beside`; no such file.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: not a readable description of machines ({error}); collect it again, or "
            "remove it"
        ) from None
    extend(found, str(path))
