"""Machines that the catalog does not have: described in a file beside the traces that ran on
them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from calibration.traces.table import Row
from dmodel.catalog import extend
from dmodel.records import Network
from dmodel.types import InputError

FILE = "systems.json"
"""Name of the file; `dmodel collect` writes it from what it measured."""

LARGEST_HOST = 16.0
"""Devices of the largest servers (DGX-2). A domain of more, a rack of NVL72 or a pod of TPUs, joins
hosts."""

PER_PROCESS = "dmodel-collect"
"""Stack whose rows have the devices of one process as those of a host: 1 where a launcher starts a
process for each device."""


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


def host_size(row: Row, network: Network) -> float | None:
    """Devices of a row's host where they are its fast domain: the catalog's domain is within one
    host, and that host is smaller [count].

    A domain that joins hosts (`LARGEST_HOST`; a torus) does not depend on how many devices each
    has. None where the catalog's holds.

    Args:
      network: of the catalog, for the row's accelerator and stack.
    """
    given, size, axes = (
        row.number("accel_per_node"),
        np.asarray(network.size),
        np.asarray(network.torus_axes),
    )
    joins = size[0] > LARGEST_HOST or axes[0] > 1.0
    if (
        given is None
        or joins
        or given >= size[0]
        or (given == 1.0 and row.stack.startswith(PER_PROCESS))
    ):
        return None
    return given
