"""Machines added to the catalog of this process: described by a file, and checked at once, not when
somebody asks for them."""

from __future__ import annotations

from typing import Any

from dmodel.catalog import chips, loader, systems
from dmodel.errors import InputError


def extend(found: Any, where: str) -> None:
    """Add the machines of a document to the catalog of this process; see `loader.extend`.

    Raises:
      InputError: the document is damaged: another version or shape, a name of the shipped catalog,
        a number without unit, source or date.
    """
    loader.extend(found, where)
    try:
        for name in found["chips"]:
            for precision in chips.precisions(name):
                chips.chip(name, precision)
        for name in found["accelerators"]:
            systems.system_for(name, precision=chips.precisions(name)[0])
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(
            f"{where}: a machine's description lacks something ({type(error).__name__}: "
            f"{error}); "
            "collect it again"
        ) from None
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
