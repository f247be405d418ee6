"""Whole numbers in few bytes, and decimals as whole numbers: what packed profiles are made of."""

from __future__ import annotations

import zlib
from typing import NamedTuple

import numpy as np

WIDEST = 52
"""Most bits of a number that is packed: such numbers are exact in float64 too."""

LEAST, MOST = -307, 4
"""Powers of ten of the leading digit of a packed decimal."""

EXACT = 22
"""Largest power of ten that float64 holds exactly."""

_POWERS = np.array([float(f"1e{k}") for k in range(LEAST, MOST + 1)])


class Packed(NamedTuple):
    """A table of whole numbers, uint8 all: mean bit length of rows and of columns, in quarters of a
    bit; bit lengths, deflated; bits below the leading ones, lowest plane first."""

    rows: np.ndarray
    columns: np.ndarray
    lengths: np.ndarray
    bits: np.ndarray


def _order(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Cells by how long they are likely to be: neighbours share their codes."""
    likely = rows.astype(np.int64)[:, None] + columns.astype(np.int64)
    return np.argsort(likely, axis=None, kind="stable")


def _planes(length: np.ndarray) -> list[np.ndarray]:
    """Which numbers have a bit below the leading one, by plane."""
    return [np.flatnonzero(length > b + 1) for b in range(int(length.max(initial=1)) - 1)]


def pack(table: np.ndarray) -> Packed:
    """Whole numbers of both signs, `[row, column]`, packed.

    Raises:
      ValueError: a number is too large.

    >>> unpack(pack(np.array([[3, 0, -70000]]))).tolist()
    [[3, 0, -70000]]
    """
    x = np.asarray(table, np.int64)
    if np.abs(x).max(initial=0) >= 2 ** (WIDEST - 1):
        raise ValueError("a number is too large to be packed")
    z = np.where(x >= 0, 2 * x, -2 * x - 1)
    length = np.frexp(z.astype(float))[1]
    rows, columns = (
        np.rint(4.0 * length.sum(axis) / max(length.shape[axis], 1)).astype(np.uint8)
        for axis in (1, 0)
    )
    order = _order(rows, columns)
    z, length = z.ravel()[order], length.ravel()[order].astype(np.uint8)
    bits = [(z[among] >> b) & 1 for b, among in enumerate(_planes(length))]
    # single lengths repeat, strings of them do not: codes by frequency alone are the shortest
    deflate = zlib.compressobj(9, strategy=zlib.Z_HUFFMAN_ONLY)
    deflated = deflate.compress(length.tobytes()) + deflate.flush()
    stream = np.concatenate([*bits, np.zeros(0, np.int64)]).astype(np.uint8)
    return Packed(rows, columns, np.frombuffer(deflated, np.uint8), np.packbits(stream))


def unpack(packed: Packed) -> np.ndarray:
    """The table again.

    Raises:
      ValueError: the parts do not belong together.
    """
    if any(part.dtype != np.uint8 or part.ndim != 1 for part in packed):
        raise ValueError("packed numbers must be vectors of bytes")
    shape = len(packed.rows), len(packed.columns)
    length = _inflated(packed.lengths, shape[0] * shape[1])
    planes = _planes(length)
    total = sum(map(len, planes))
    if len(packed.bits) != (total + 7) // 8:
        raise ValueError(f"expected {total} bits of numbers")
    stream = np.unpackbits(packed.bits, count=total).astype(np.int64)
    z = np.where(length > 0, 1 << np.maximum(length - 1, 0), 0)
    start = 0
    for b, among in enumerate(planes):
        z[among] |= stream[start : start + len(among)] << b
        start += len(among)
    table = np.empty_like(z)
    table[_order(packed.rows, packed.columns)] = np.where(z % 2 == 0, z // 2, -((z + 1) // 2))
    return table.reshape(shape)


def _inflated(deflated: np.ndarray, count: int) -> np.ndarray:
    """So many bit lengths, checked."""
    inflate = zlib.decompressobj()
    try:
        raw = inflate.decompress(deflated.tobytes(), count + 1)
    except zlib.error as e:
        raise ValueError(f"lengths of numbers cannot be inflated: {e}") from e
    length = np.frombuffer(raw, np.uint8).astype(np.int64)
    if len(length) != count or length.max(initial=0) > WIDEST:
        raise ValueError(f"expected the lengths of {count} numbers")
    return length


def steps(values: np.ndarray, decimals: int) -> np.ndarray:
    """Numbers with so many decimals as whole numbers of their last place.

    Raises:
      ValueError: a number has more decimals.
    """
    x = np.asarray(values, float)
    found = np.rint(x * 10.0**decimals)
    if not np.array_equal(found / 10.0**decimals, x):
        raise ValueError(f"a number has more than {decimals} decimals")
    return found.astype(np.int64)


def ranks(values: np.ndarray, digits: int) -> np.ndarray:
    """Place of each number, rounded to so many digits, among all numbers of as many digits; 0 is
    the place of 0, and of what is nearer to 0 than the least of them.

    >>> np.diff(ranks(np.array([0.998, 0.999, 1.0, 1.01, 10.0]), 3))
    array([  1,   1,   1, 899])
    """
    size = np.abs(np.asarray(values, float))
    power = np.searchsorted(_POWERS, size, side="right") - 1
    mantissa = np.rint(size / _POWERS[np.maximum(power, 0)] * 10.0 ** (digits - 1))
    place = power * 9 * 10 ** (digits - 1) + mantissa - 10 ** (digits - 1) + 1
    return (np.sign(values) * np.where(power < 0, 0, place)).astype(np.int64)


def ranked(places: np.ndarray, digits: int) -> np.ndarray:
    """The numbers at such places, each the float64 nearest to its decimal.

    Raises:
      ValueError: a place beyond the largest number.
    """
    least = 10 ** (digits - 1)
    power, rest = np.divmod(np.abs(places) - 1, 9 * least)
    if power.max(initial=0) >= len(_POWERS):
        raise ValueError("a number is too large")
    whole, power = (rest + least).astype(float), np.maximum(power, 0) + LEAST - digits + 1
    size = np.where(power < 0, whole / _ten(-power), whole * _ten(power))
    small = np.nonzero((power < -EXACT) & (places != 0))
    size[small] = [float(f"{m:.0f}e{k}") for m, k in zip(whole[small], power[small], strict=True)]
    return np.where(places == 0, 0.0, np.sign(places) * size)


def _ten(power: np.ndarray) -> np.ndarray:
    """Powers of ten, of those that are exact."""
    return np.array([float(f"1e{k}") for k in range(EXACT + 1)])[np.clip(power, 0, EXACT)]
