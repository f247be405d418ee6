"""Blocks that tests and studies of parts compute, and a driver of them that may be killed."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path

import numpy as np

from dmodel.errors import InputError
from dmodel.parts import Block, Folder, opened, parts


def waiting(*, number: int, seconds: float, log: str) -> dict[str, np.ndarray]:
    """Random numbers of a block, after a wait; every call leaves a line in a log."""
    if log:
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{number}\n")
    time.sleep(seconds)
    draw = np.random.default_rng(number)
    return {"x": draw.normal(size=100), "n": draw.integers(0, 9, size=(2, 3))}


def failing(*, number: int) -> dict[str, np.ndarray]:
    """A block with a defect."""
    raise ArithmeticError(f"block {number}")


def dying(*, number: int) -> dict[str, np.ndarray]:
    """A block that ends whoever computes it."""
    os._exit(number)


def blocks(count: int, seconds: float = 0.0, log: str = "") -> list[Block]:
    """So many blocks."""
    return [Block(waiting, {"number": i, "seconds": seconds, "log": log}) for i in range(count)]


def sum_of(found: list) -> str:
    """A sum over all bits of parts, in order."""
    whole = hashlib.sha256()
    for part in found:
        for name, x in part.arrays.items():
            whole.update(f"{name} {x.dtype} {x.shape}".encode() + x.tobytes())
    return whole.hexdigest()


def kept(place: Path, said: list[str] | None = None) -> Folder:
    """A folder of parts, whose words stand in a list."""
    return Folder(Path(place), (said if said is not None else []).append)


def numbers(log: Path) -> list[int]:
    """Blocks that were begun, by a log."""
    return [int(line) for line in Path(log).read_text(encoding="utf-8").split()]


def main() -> None:
    """Compute blocks by processes, or by a cluster: FOLDER LOG COUNT SECONDS WORKERS|ADDRESS; print
    their sum."""
    folder, log, count, seconds, workers = sys.argv[1:]
    say = lambda words: print(words, file=sys.stderr)  # noqa: E731
    how = {"workers": int(workers)} if workers.isdecimal() else {"cluster": workers}
    try:
        with opened(**how) as executor:
            every = blocks(int(count), float(seconds), log)
            print(sum_of(list(parts(every, executor, Folder(Path(folder), say)))))
    except InputError as error:
        say(error)
        sys.exit(2)


if __name__ == "__main__":
    main()
