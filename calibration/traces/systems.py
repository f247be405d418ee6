"""Machines that the catalog does not have: described in files beside the traces that ran on
them."""

from __future__ import annotations

from pathlib import Path

from dmodel.catalog.own import add

ENDING = "-host.toml"
"""How names of the files end; `dmodel collect` writes them from what it measured."""


def extend_beside(path: Path) -> None:
    """Take in the machines described beside a file of traces, if any.

    Raises:
      InputError: a description is damaged, or calls a machine by a name that the catalog has.
    """
    for beside in sorted(path.parent.glob(f"*{ENDING}")):
        add(beside)
