"""Measurements on disk: append-only JSON lines with a checksum each, on the disk before anyone is
told; a torn end costs nothing finished.

A folder holds one file for each process that ever measured into it; readers merge them. A line is

    {"schema":1,"checksum":"<16 hex digits>","record":{…}}

with the checksum that of the record's bytes. A writer locks its file, so two never share one, and
repairs its end when it opens it: a kill can only have torn the last line, which was of a
measurement not finished. What is cut off is kept beside, in `<file>.torn`.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from dmodel.errors import InputError

SCHEMA = 1
"""Version of the records. A reader refuses newer ones, line by line."""

SUFFIX = ".jsonl"
LINE = re.compile(
    rb'\{"schema":(\d{1,9}),"checksum":"([0-9a-f]{16})","record":(\{.*\})\}', re.DOTALL
)

Record = dict[str, Any]


class Damage(NamedTuple):
    """A line that cannot be used: where it starts and why. torn: it is an unfinished end, which a
    writer will cut off."""

    file: str
    line: int
    offset: int
    reason: str
    torn: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason} (byte {self.offset})"


class Scan(NamedTuple):
    """A file's good records, what is damaged, and how many bytes from its start are whole lines."""

    records: list[Record]
    damage: list[Damage]
    whole: int


def checksum(body: bytes) -> str:
    """16 hexadecimal digits of the SHA-256 of a record's bytes."""
    return hashlib.sha256(body).hexdigest()[:16]


def encode(record: Mapping[str, Any]) -> bytes:
    """A record as one line.

    Raises:
      ValueError: it holds a number that is not finite, or something that JSON has no word for.
    """
    body = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    return b'{"schema":%d,"checksum":"%s","record":%s}\n' % (SCHEMA, checksum(body).encode(), body)


def decode(line: bytes) -> Record:
    """The record of a line without its end.

    Raises:
      ValueError: the reason why it is none.
    """
    found = LINE.fullmatch(line)
    if not found:
        raise ValueError("not a record: cut short, or not written by dmodel collect")
    version, expected, body = found.groups()
    if int(version) > SCHEMA:
        raise ValueError(
            f"written by a newer dmodel (schema {int(version)}, this one reads up to "
            f"{SCHEMA}); "
            "upgrade to read it"
        )
    if checksum(body) != expected.decode():
        raise ValueError("the checksum does not match: the line was damaged or edited")
    return json.loads(body)


def scan(path: Path) -> Scan:
    """Read one file; damaged lines are reported and the others kept.

    A last line without its end is whole when its checksum says so (the kill came between the record
    and its newline).
    """
    content = path.read_bytes()
    records, damage, whole = [], [], 0
    for number, (offset, line, ended) in enumerate(_lines(content), 1):
        try:
            records.append(decode(line))
            whole = offset + len(line) + ended
        except ValueError as error:
            damage.append(Damage(str(path), number, offset, str(error), not ended))
            whole = offset + len(line) + 1 if ended else whole
    return Scan(records, damage, whole)


def _lines(content: bytes) -> Iterator[tuple[int, bytes, bool]]:
    """(offset, line without its end, whether it has one) of each line."""
    offset = 0
    for line in content.split(b"\n"):
        end = offset + len(line)
        if line or end < len(content):
            yield offset, line, end < len(content)
        offset = end + 1


class Writer:
    """Appends records to a file of its own; `append` returns when the record is on the disk.

    Args:
      folder: made when missing. name: of the file, without its suffix; when another process holds
        it, `name-2`, `name-3`, … are tried.

    Raises:
      InputError: the folder cannot be made or written.
    """

    def __init__(self, folder: Path, name: str):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.path, self._file = _claim(folder, name)
        except OSError as error:
            reason = (error.strerror or "unknown error").lower()
            raise InputError(
                f"{folder}: measurements cannot be written there ({reason}); name a folder "
                "that "
                "can be"
            ) from None
        self.cut = _repair(self.path, self._file)
        self._size = os.lseek(self._file, 0, os.SEEK_END)

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record and wait until it is on the disk; when that fails, the file stays as it
        was.

        Raises:
          OSError: the disk is full or gone. ValueError: the record cannot be written as JSON.
        """
        line = encode(record)
        try:
            _write(self._file, line)
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(line)

    def close(self) -> None:
        """Give up the file and its lock."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _claim(folder: Path, name: str) -> tuple[Path, int]:
    """Open and lock the first file of that name that no living process holds. A kill frees its
    lock."""
    number = 1
    while True:
        path = folder / f"{name}{f'-{number}' if number > 1 else ''}{SUFFIX}"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            number += 1
            continue
        _sync_folder(folder)
        return path, file


def _sync_folder(folder: Path) -> None:
    """A new file's name must be on the disk, too."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _repair(path: Path, file: int) -> int:
    """Make the file end with a whole line, keeping what is cut off in `<file>.torn`; returns the
    bytes cut.

    Killed in between, the next writer does it again; the torn part may then stand there twice.
    """
    found = scan(path)
    size = os.fstat(file).st_size
    torn = size - found.whole
    if torn:
        with path.open("rb") as source, path.with_name(path.name + ".torn").open("ab") as beside:
            source.seek(found.whole)
            beside.write(source.read() + b"\n")
            beside.flush()
            os.fsync(beside.fileno())
        os.ftruncate(file, found.whole)
        os.fsync(file)
    elif size and os.pread(file, 1, size - 1) != b"\n":
        _write(file, b"\n")
        os.fsync(file)
    return torn


class Collection(NamedTuple):
    """Everything in a folder: environments by id, measurements by key, and what is damaged.

    Attributes:
      environments: id → record. measurements: key → record, duplicates resolved.
      duplicates: records beyond the first of a key. damage: lines that cannot be used.
    """

    environments: dict[str, Record]
    measurements: dict[str, Record]
    duplicates: int
    damage: list[Damage]


def read(folder: Path) -> Collection:
    """Merge the files of a folder.

    Raises:
      InputError: no such folder.
    """
    if not folder.is_dir():
        raise InputError(
            f"{folder}: no such folder; expected one that `dmodel collect --out` wrote"
        )
    environments: dict[str, Record] = {}
    measurements: dict[str, Record] = {}
    damage: list[Damage] = []
    duplicates = 0
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        found = scan(path)
        damage.extend(found.damage)
        for record in found.records:
            if record.get("type") == "environment":
                environments.setdefault(record["id"], record)
            elif record.get("type") == "measurement":
                duplicates += record["key"] in measurements
                measurements[record["key"]] = better(measurements.get(record["key"]), record)
    return Collection(environments, measurements, duplicates, damage)


def better(one: Record | None, other: Record) -> Record:
    """Which of two records of the same key counts.

    A time counts before a failure; of times in one run of several processes the longest, because a
    step lasts as long as its slowest process; of separate runs the one that started first.
    """
    if one is None:
        return other
    ok = (one["status"] == "ok", other["status"] == "ok")
    if ok[0] != ok[1]:
        return one if ok[0] else other
    if all(ok) and _of_one_run(one, other):
        return max(one, other, key=lambda r: (r["time"]["median_s"], -r["process"]))
    return min(one, other, key=lambda r: (r.get("started", ""), r.get("process", 0)))


def _of_one_run(one: Record, other: Record) -> bool:
    """Whether two processes of one run measured them."""
    return one.get("run") == other.get("run") and one.get("process") != other.get("process")
