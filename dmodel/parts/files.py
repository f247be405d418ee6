"""Parts on disk: one Parquet file for each block, whole or not there at all.

A row is an array: its name, its shape, and its numbers in the column of their type. The metadata
say of which block the file is, and have a sum over the numbers.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dmodel.errors import InputError
from dmodel.parts.block import Arrays, Part

ENDING = ".parquet"
BEGUN = ".begun-"
"""How the name of a file begins that is still being written."""

COLUMN = {"f": "reals", "i": "counts"}
"""Column of a kind of numbers."""

KIND = {"reals": np.float64, "counts": np.int64}


class Folder:
    """A folder of parts.

    Args:
      place: made where there is none.
      say: takes a word about damaged files.

    Raises:
      InputError: pyarrow is missing. OSError: the folder cannot be made.
    """

    def __init__(self, place: Path, say: Callable[[str], None]) -> None:
        _pyarrow()
        self.place, self.say = place, say
        place.mkdir(parents=True, exist_ok=True)

    def path(self, name: str) -> Path:
        """Where the part of a block lies."""
        return self.place / f"{name}{ENDING}"

    def read(self, name: str) -> Part | None:
        """The part of a block; None where there is none, or, with a word, a damaged one."""
        path = self.path(name)
        if not path.exists():
            return None
        try:
            return _opened(path, name)
        except Exception as e:  # of a damaged file Arrow raises errors of many kinds
            self.say(f"{path} is damaged ({type(e).__name__}) and is computed again")
            return None

    def write(self, name: str, part: Part) -> None:
        """Keep the part of a block: another process sees all of it or nothing."""
        pa, pq = _pyarrow()
        handle, begun = tempfile.mkstemp(prefix=BEGUN, dir=self.place)
        try:
            with os.fdopen(handle, "wb") as file:
                pq.write_table(_table(pa, name, part), file, compression="zstd")
                file.flush()
                os.fsync(file.fileno())
            os.replace(begun, self.path(name))
        except BaseException:
            Path(begun).unlink(missing_ok=True)
            raise


def _pyarrow() -> tuple[Any, Any]:
    """pyarrow and its Parquet.

    Raises:
      InputError: it is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise InputError(
            "parts are kept as Parquet, which needs pyarrow: pip install 'dmodel-jax[cluster]'"
        ) from error
    return pa, pq


def _table(pa: Any, name: str, part: Part) -> Any:
    """A part as a table."""
    columns: dict[str, list[Any]] = {"name": [], "shape": [], "reals": [], "counts": []}
    for key, array in part.arrays.items():
        own = COLUMN[array.dtype.kind]
        columns["name"].append(key)
        columns["shape"].append(list(array.shape))
        for column, kind in KIND.items():
            columns[column].append(array.astype(kind).ravel() if column == own else None)
    types = {"name": pa.string(), "shape": pa.list_(pa.int64())}
    types |= {"reals": pa.list_(pa.float64()), "counts": pa.list_(pa.int64())}
    said = {
        "dmodel.block": name,
        "dmodel.sum": _sum(part.arrays),
        "dmodel.seconds": repr(part.seconds),
        "dmodel.processor": part.processor,
    }
    return pa.table(columns, schema=pa.schema(types.items(), metadata=said))


def _opened(path: Path, name: str) -> Part:
    """A part, checked.

    Raises:
      Exception: it is damaged, or of another block.
    """
    pa, pq = _pyarrow()
    table = pq.read_table(pa.BufferReader(path.read_bytes()))
    said = {k.decode(): v.decode() for k, v in table.schema.metadata.items()}
    if said["dmodel.block"] != name:
        raise ValueError("it is of another block")
    arrays: Arrays = {}
    for key, shape, *values in zip(*(table.column(c) for c in table.column_names), strict=True):
        column, found = next((c, v) for c, v in zip(KIND, values, strict=True) if v.is_valid)
        numbers = found.values.to_numpy(zero_copy_only=False).astype(KIND[column])
        arrays[key.as_py()] = numbers.reshape(shape.as_py())
    if _sum(arrays) != said["dmodel.sum"]:
        raise ValueError("its sum is wrong")
    return Part(arrays, float(said["dmodel.seconds"]), said["dmodel.processor"])


def _sum(arrays: Arrays) -> str:
    """A sum over all numbers, their names and shapes."""
    whole = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        kind = KIND[COLUMN[array.dtype.kind]]
        whole.update(f"{name} {array.dtype.kind} {array.shape}\n".encode())
        whole.update(array.astype(kind).tobytes())
    return whole.hexdigest()
