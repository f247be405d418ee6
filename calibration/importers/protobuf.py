"""The wire format of protocol buffers: as much as reading a profile needs. Every place is a byte
offset in the file."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
SIZES = {FIXED64: 8, FIXED32: 4}
_MOST = 1 << 64


class Field(NamedTuple):
    """One field of a message. number, kind: of the tag. value: of numbers (unsigned). start, end:
    of its contents."""

    number: int
    kind: int
    value: int
    start: int
    end: int


class Damaged(Exception):
    """The bytes are no message.

    Attributes:
      at: offset in the file. reason: what is wrong there. end: of the message. rest: what there is
        of a field that is cut short.
    """

    def __init__(self, at: int, reason: str, end: int, rest: Field | None = None):
        super().__init__(f"byte {at}: {reason}")
        self.at = at
        self.reason = reason
        self.end = end
        self.rest = rest


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """An unsigned integer, seven bits a byte, and the offset behind it."""
    value, shift = 0, 0
    for i in range(at, min(at + 10, end)):
        byte = data[i]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= _MOST:
                raise Damaged(at, "a number of more than 64 bits", end)
            return value, i + 1
        shift += 7
    raise Damaged(
        at,
        "a number that does not end" if end - at >= 10 else "ends within a number: cut short",
        end,
    )


def fields(data: bytes, start: int, end: int) -> Iterator[Field]:
    """Fields of the message between two offsets, in order.

    Raises:
      Damaged: a field that reaches beyond the end, or of a kind that is none.
    """
    at = start
    while at < end:
        field = _field(data, at, end)
        yield field
        at = field.end


def _field(data: bytes, begin: int, end: int) -> Field:
    """The field that begins at an offset."""
    tag, at = varint(data, begin, end)
    number, kind = tag >> 3, tag & 7
    if number == 0:
        raise Damaged(begin, "a field of number 0", end)
    if kind == VARINT:
        value, at = varint(data, at, end)
        return Field(number, kind, value, begin, at)
    if kind == BYTES:
        size, at = varint(data, at, end)
    elif kind in SIZES:
        size = SIZES[kind]
    else:
        raise Damaged(begin, f"a field of kind {kind}, which profiles do not have", end)
    if size > end - at:
        rest = Field(number, kind, 0, at, end) if kind == BYTES else None
        raise Damaged(
            begin,
            f"a field of {size} bytes where {end - at} are left: cut short, or damaged",
            end,
            rest,
        )
    value = int.from_bytes(data[at : at + size], "little") if kind != BYTES else 0
    return Field(number, kind, value, at, at + size)


def signed(value: int) -> int:
    """An unsigned 64-bit number as a signed one."""
    return value - _MOST if value >= _MOST >> 1 else value


def real(value: int) -> float:
    """64 bits as a float."""
    return struct.unpack("<d", value.to_bytes(8, "little"))[0]


def text(data: bytes, field: Field) -> str:
    """A string field."""
    return data[field.start : field.end].decode("utf-8", errors="replace")
