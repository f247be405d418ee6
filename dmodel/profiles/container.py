"""Words and arrays in one file: a zip archive of `words.json` and arrays as NumPy writes them."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmodel.errors import InputError

if TYPE_CHECKING:
    import numpy as np

FORMAT, VERSION = "dmodel-packed-profile", 1

MAGIC = b"PK"
"""How such a file begins."""

WORDS = "words.json"

MOST = 2**26
"""No such file unpacks to more bytes."""


def write(path: str | Path, words: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write such a file, the same bytes for the same content.

    Raises:
      OSError: it cannot be written.
    """
    import numpy as np

    told = {"format": FORMAT, "version": VERSION, **words}
    parts = {WORDS: json.dumps(told, allow_nan=False, ensure_ascii=False).encode()}
    for name, array in sorted(arrays.items()):
        stream = io.BytesIO()
        np.lib.format.write_array(stream, array, allow_pickle=False)
        parts[f"{name}.npy"] = stream.getvalue()
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, part in parts.items():
            # without a date of its own every member is from 1980
            archive.writestr(zipfile.ZipInfo(name), part, zipfile.ZIP_DEFLATED, 9)
    Path(path).write_bytes(whole.getvalue())


def words_of(path: str, content: bytes) -> dict[str, Any]:
    """The words of such a file alone; no array is unpacked.

    Raises:
      InputError: damaged, no such file, or of another version.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            _checked_size(archive)
            words = json.loads(archive.read(WORDS))
    except DAMAGES as e:
        raise damaged(path, e) from e
    if not isinstance(words, dict) or words.get("format") != FORMAT:
        raise InputError(
            f'{path}: not a packed dmodel profile (expected "format": "{FORMAT}" in its {WORDS}); '
            "make one with `dmodel fit … --out PROFILE.npz`"
        )
    if words.get("version") != VERSION:
        raise InputError(
            f"{path}: packed profile version {words.get('version')!r}, this dmodel reads version "
            f"{VERSION}; use the dmodel that wrote it, or fit the profile again"
        )
    return words


def arrays_of(path: str, content: bytes) -> dict[str, np.ndarray]:
    """The arrays of such a file.

    Raises:
      InputError: damaged.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            _checked_size(archive)
            return {
                name.removesuffix(".npy"): _array(archive.read(name))
                for name in archive.namelist()
                if name.endswith(".npy")
            }
    except DAMAGES as e:
        raise damaged(path, e) from e


def _array(part: bytes) -> np.ndarray:
    import numpy as np

    return np.lib.format.read_array(io.BytesIO(part), allow_pickle=False)


def _checked_size(archive: zipfile.ZipFile) -> None:
    size = sum(member.file_size for member in archive.infolist())
    if size > MOST:
        raise ValueError(f"it unpacks to {size} bytes, more than any profile has")


DAMAGES = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    NotImplementedError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What reading a damaged archive, or damaged words and arrays, may raise."""


def damaged(path: str, error: Exception) -> InputError:
    """What to say of it."""
    return InputError(
        f"{path}: a packed profile that is damaged or cut off ({error!r}); fit or copy it again"
    )
