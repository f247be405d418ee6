"""Columns of Arrow as numbers of their different values, and as text without blanks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa


def encoded(column: pa.ChunkedArray) -> tuple[list, np.ndarray]:
    """Different values of a column, and which of them each row has; null is none of them, -1."""
    import pyarrow as pa

    if not column.num_chunks:
        return [], np.zeros(0, np.int64)
    whole = pa.concat_arrays(column.unify_dictionaries().chunks)
    if pa.types.is_nested(whole.type):
        whole = pa.array([None if x is None else str(x) for x in whole.to_pylist()], pa.string())
    if not pa.types.is_dictionary(whole.type):
        whole = whole.dictionary_encode()
    index = whole.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return whole.dictionary.to_pylist(), index


def trimmed(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text without surrounding blanks; null where nothing is left."""
    import pyarrow as pa
    from pyarrow.compute import call_function

    text = call_function("utf8_trim_whitespace", [column])
    blank = call_function("equal", [text, pa.scalar("", column.type)])
    return call_function("if_else", [blank, pa.scalar(None, column.type), text])
