"""The bytes of a file, unpacked, and as lines of text; what cannot be decoded is shown as such,
never an exception."""

from __future__ import annotations

import json
import re
import zlib
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from dmodel.errors import InputError

MAGIC, PIECE = b"\x1f\x8b", 1024
"""How a gzip stream begins, and the bytes unpacked at a time, so that what comes before a damage is
kept."""

LARGEST = 2**31
"""Bytes of a file, unpacked; more is refused, since all of it is held in memory."""

CODED = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
"""Colours and titles of a terminal."""

BEFORE = re.compile(
    r"^(?:\[\d+,\d+\](?:\[[^\]]*\])?<std\w+>:\s?"  # mpirun --tag-output
    r"|\[(?:rank|default)\d+\]:\s?"  # torchrun --log-prefix-template, torch.distributed.run
    r"|\[[\w.\-]+/[\w.\-/]+\]\s"  # kubectl logs --prefix
    r"|[\w.\-]{1,60}[\-_]\d{1,5}\s{1,8}\|(?:\s|$)"  # docker compose logs
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+\-]\d\d:?\d\d)\s"  # --timestamps
    r"|(?:stdout|stderr) [FP] "  # files of a container runtime
    r"|\s{0,5}\d{1,5}:(?: |$)"  # srun --label
    r"|>(?:\s|$)"  # a quotation in Markdown
    r")"
)
"""What launchers, containers and quotations put before each line."""

_CLOCK = re.compile(r"(?<!\d)(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?!\d)")

FENCE = re.compile(r"^\s*(?:```|~~~)[\w\-]*\s*$")
"""Begin and end of a block of text in Markdown."""

NESTED = 4
"""Such marks that may stand before one line."""


LOGGED = '{"log":'
"""How a line of docker's own files begins."""


def logged(text: str) -> str:
    """What a line of docker's own files holds; the line itself where it is no JSON.

    >>> logged('{"log":"step: 1","stream":"stdout"}')
    'step: 1'
    """
    try:
        inside = json.loads(text)["log"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return text
    return inside.rstrip("\n").replace("\n", " ") if isinstance(inside, str) else text


def bare(text: str) -> str:
    """A line without colours and what stands before it.

    >>> bare("[1,0]<stdout>:# nThread 1"), bare("  0: step: 1"), bare("[rank0]: step: 1")
    ('# nThread 1', 'step: 1', 'step: 1')
    """
    text = CODED.sub("", text).rstrip()
    for _ in range(NESTED):
        shorter = BEFORE.sub("", text, count=1)
        if shorter == text:
            break
        text = shorter
    return text


def clock(text: str) -> float | None:
    """When a line was written [s], by the date in it; None without one.

    >>> clock("2025-03-04 00:44:44,5 - INFO") - clock("2025-03-04T00:44:40Z")
    4.5
    """
    found = _CLOCK.search(text)
    if not found:
        return None
    try:
        day = datetime(*map(int, found.groups()[:6]), tzinfo=UTC).timestamp()
    except ValueError:
        return None
    return day + float(f"0.{found[7] or 0}")


class Line(NamedTuple):
    """One line. number: in the file, from 1. text: without what a launcher put before it, colours
    and line end."""

    number: int
    text: str


class Source:
    """A file to import.

    Attributes:
      name: for messages. data: its bytes, unpacked. damage: (place, reason) when not all of it
        could be unpacked, else None.
    """

    def __init__(self, name: str, data: bytes):
        self.name = name
        self.damage: tuple[str, str] | None = None
        self.data = self._unpacked(data) if data[:2] == MAGIC else data

    @classmethod
    def of(cls, path: Path) -> Source:
        """Read a file.

        Raises:
          InputError: it does not exist, is a folder, cannot be read, is empty or too large.
        """
        if path.is_dir():
            raise InputError(f"{path}: is a folder; name the files in it")
        try:
            if path.stat().st_size > LARGEST:
                raise InputError(
                    f"{path}: larger than {LARGEST >> 30} GiB; cut out the part with the steps"
                )
            data = path.read_bytes()
        except FileNotFoundError:
            raise InputError(
                f"{path}: no such file; expected a log or a profile to import"
            ) from None
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from None
        return cls(str(path), data)

    def _unpacked(self, packed: bytes) -> bytes:
        """All members of a gzip file, or as much of it as is whole."""
        out, at = bytearray(), 0
        while packed[at : at + 2] == MAGIC:
            begin, member = at, zlib.decompressobj(wbits=31)
            at = self._member(member, packed, at, out)
            if self.damage:
                return bytes(out)
            if len(out) > LARGEST:
                raise InputError(
                    f"{self.name}: unpacks to more than {LARGEST >> 30} GiB; cut out the part "
                    "with the steps"
                )
            if not member.eof:
                what = "the file is cut short: the gzip stream does not end"
                self.damage = (
                    f"byte {len(packed)}",
                    f"{what} (it began at byte {begin}); {len(out)} bytes could be unpacked",
                )
                return bytes(out)
            at = min(at, len(packed)) - len(member.unused_data)
        if packed[at:].strip(b"\0"):
            self.damage = (f"byte {at}", "something that is no gzip stream follows here; not read")
        return bytes(out)

    def _member(self, member: Any, packed: bytes, at: int, out: bytearray) -> int:
        """Unpack one member of a gzip file from an offset, and give the offset behind; a damage is
        noted."""
        while not member.eof and at < len(packed) and len(out) <= LARGEST:
            try:
                out += member.decompress(packed[at : at + PIECE])
            except zlib.error as error:
                self.damage = (
                    f"byte {at}",
                    f"the gzip stream is damaged here ({str(error)[:80]}); {len(out)} bytes "
                    "could be unpacked",
                )
                return at
            at += PIECE
        return at

    @property
    def is_text(self) -> bool:
        """Whether the beginning looks like text in some encoding."""
        return self.data[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" not in self.data[:4096]

    @cached_property
    def text(self) -> str:
        """The text; bytes that are not of its encoding become U+FFFD."""
        if self.data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            return self.data.decode("utf-16", errors="replace")
        return self.data.decode("utf-8-sig", errors="replace")

    @cached_property
    def lines(self) -> list[Line]:
        """Lines; a progress bar, which overwrites itself, counts as one line for each state, all
        with the same number."""
        found = []
        for i, whole in enumerate(self.text.split("\n"), 1):
            whole = logged(whole) if whole.startswith(LOGGED) else whole
            states = whole.split("\r") if "\r" in whole else [whole]
            found.extend(
                Line(i, text) for state in states if state and not FENCE.match(text := bare(state))
            )
        return found

    @cached_property
    def plain(self) -> str:
        """All lines, without colours and what a launcher put before them."""
        return "\n".join(line.text for line in self.lines)
