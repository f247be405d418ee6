"""What one process worked out and the next one need not: files in a folder of the user's own.

Every file says of what it is and carries a sum over all that it holds; one that is damaged, or of
something else, is as good as none. What cannot be kept is made every time.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import struct
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

MAGIC = b"dmodel entry 1\n"
"""How a file begins."""

ENDING = ".entry"
"""How the name of a file ends."""

MOST_FILES, MOST_BYTES = 512, 2**27
"""What the folder holds at most; the files that were used longest ago go first."""

LEFT_OVER = 3600.0
"""A file that was begun so long ago will not be finished [s]."""

BORN = time.time()
"""When this process read its sources, or before."""

ROOT = Path(__file__).parents[1]
"""Where the packages lie."""


def _warn(words: str) -> None:
    warnings.warn(words, RuntimeWarning, stacklevel=2)


_SPEAK: list[Callable[[str], None]] = [_warn]
_SAID: set[str] = set()


def speak_by(say: Callable[[str], None]) -> None:
    """What takes words about files that cannot be used; without it they are warnings."""
    _SPEAK[0] = say


def tell(words: str) -> None:
    """Say something once in a process."""
    if words not in _SAID:
        _SAID.add(words)
        _SPEAK[0](words)


def base() -> Path:
    """The folder of all that is kept: `$DMODEL_CACHE`, else `dmodel` in the user's cache folder.

    Raises:
      RuntimeError: there is no home.
    """
    named = os.environ.get("DMODEL_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "dmodel"


def folder(name: str) -> Path | None:
    """A folder of what this kind of processor can use, made where there is none; None, with a
    word, where it cannot be written, or others could.

    One for each kind of processor: compiled code uses what its processor can do, and machines may
    share a home.
    """
    try:
        top = base()
        found = top / name / processor()
        top.parent.mkdir(parents=True, exist_ok=True)
        places = (top, top / name, found)
        for place in places:
            place.mkdir(mode=0o700, exist_ok=True)
        strange = [str(x) for x in places if not _is_own(x)]
        writable = os.access(found, os.W_OK)
    except (OSError, RuntimeError) as e:
        tell(f"nothing is kept for the next time: {getattr(e, 'strerror', None) or e}")
        return None
    if strange:
        tell(
            f"nothing is kept for the next time: others may write to {strange[0]}; make it your "
            "own (chmod go-w), or name another folder by DMODEL_CACHE"
        )
    elif not writable:
        tell(f"nothing is kept for the next time: {found} cannot be written")
    return found if writable and not strange else None


def _is_own(place: Path) -> bool:
    """Whether nobody but this user decides what lies in a folder."""
    if not hasattr(os, "getuid"):
        return True
    found = place.stat()
    return found.st_uid == os.getuid() and not found.st_mode & 0o022


@cache
def processor() -> str:
    """Eight digits that stand for what the processor can do."""
    can: set[str] = set()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith(("model name", "flags", "Features")):
                    can.add(line)
                elif can and not line.strip():
                    break  # the others are alike
    except OSError:
        pass  # where there is no such file, Python's own words of the processor have to do
    told = "\n".join([platform.machine(), platform.processor(), *sorted(can)])
    return hashlib.sha256(told.encode()).hexdigest()[:8]


@cache
def sources(*packages: str) -> str:
    """A sum over all Python files of packages; "" where one changed after this process began, so
    that what it runs is not what is written there."""
    whole = hashlib.sha256()
    for path in sorted(p for package in packages for p in (ROOT / package).rglob("*.py")):
        found = path.stat()
        if max(found.st_mtime, found.st_ctime) > BORN:
            return ""
        content = path.read_bytes()
        whole.update(f"{path.relative_to(ROOT)} {len(content)}\n".encode() + content)
    return whole.hexdigest()


def key_of(parts: Iterable[str]) -> str:
    """The name of what depends on these words and on nothing else."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(f"{len(part)} {part}\n".encode())
    return whole.hexdigest()


class Entry(NamedTuple):
    """What a file holds: words as JSON has them, and bytes."""

    words: dict[str, Any]
    content: bytes


def read(place: Path, key: str) -> Entry | None:
    """What is kept under a key; None where there is none, or, with a word, a damaged one."""
    path = place / f"{key}{ENDING}"
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    try:
        found = _opened(raw, key)
        os.utime(path)
        return found
    except OSError:
        return None
    except (ValueError, LookupError, struct.error, zlib.error) as e:
        tell(f"{path} is damaged or foreign ({e}) and is made anew")
        return None


def _opened(raw: bytes, key: str) -> Entry:
    """The parts of a file, checked.

    Raises:
      ValueError, LookupError, struct.error, zlib.error: it is damaged, or of something else.
    """
    start = len(MAGIC) + 32
    if raw[: len(MAGIC)] != MAGIC:
        raise ValueError("it begins another way")
    if hashlib.sha256(raw[start:]).digest() != raw[len(MAGIC) : start]:
        raise ValueError("its sum is wrong")
    (size,) = struct.unpack_from("<I", raw, start)
    words = json.loads(raw[start + 4 : start + 4 + size])
    if words["key"] != key:
        raise ValueError("it is of something else")
    return Entry(words, zlib.decompress(raw[start + 4 + size :]))


def write(place: Path, key: str, entry: Entry) -> None:
    """Keep something under a key: whole or not at all, whoever else writes it; with a word where it
    cannot be."""
    words = json.dumps({**entry.words, "key": key}).encode()
    rest = struct.pack("<I", len(words)) + words + zlib.compress(entry.content, 1)
    try:
        handle, name = tempfile.mkstemp(dir=place)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(MAGIC + hashlib.sha256(rest).digest() + rest)
            os.replace(name, place / f"{key}{ENDING}")
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
        _tidy(place)
    except OSError as e:
        tell(f"nothing is kept for the next time: {place}: {e.strerror}")


def _tidy(place: Path) -> None:
    """Drop what nobody finished, and of the rest what was used longest ago."""
    now = time.time()
    for path in place.iterdir():
        if path.suffix != ENDING and path.is_file() and now - path.stat().st_mtime > LEFT_OVER:
            path.unlink(missing_ok=True)
    bound(place, f"*{ENDING}", MOST_FILES, MOST_BYTES)


def bound(place: Path, pattern: str, most_files: int, most_bytes: int) -> None:
    """Drop files that were used longest ago until no more are left than allowed; the last one used
    stays whatever its size.

    Args:
      pattern: of the names of the files that count.
    """
    files, total = [], 0
    for path in place.glob(pattern):
        try:
            found = path.stat()
        except OSError:
            continue  # somebody else dropped it
        files.append((max(found.st_atime, found.st_mtime), found.st_size, path))
    for n, (_, size, path) in enumerate(sorted(files, reverse=True)):
        total += size
        if n >= most_files or (n and total > most_bytes):
            path.unlink(missing_ok=True)
