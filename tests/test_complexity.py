"""Functions stay small enough to be read at once, and lines fit on a screen."""

from pathlib import Path

import numpy as np
import pytest
from radon.complexity import cc_visit
from radon.visitors import Function

ROOT = Path(__file__).parents[1]
PACKAGES = ("dmodel", "calibration", "experiments")

LARGEST = 12
"""Cyclomatic complexity that no function exceeds."""

COMMON = 6
"""What nine of ten functions do not exceed."""

COLUMNS = 100
"""Characters of a line."""


def complexities() -> dict[str, int]:
    """Of every function and method, by its place."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for block in cc_visit(path.read_text(encoding="utf-8")):
                if isinstance(block, Function):
                    place = f"{path.relative_to(ROOT)}:{block.lineno} {block.fullname}"
                    found[place] = block.complexity
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, int]:
    return complexities()


def test_no_function_is_too_complex(found):
    """The worst are named."""
    worse = {place: n for place, n in found.items() if n > LARGEST}
    listed = [f"{place}: {n}" for place, n in sorted(worse.items(), key=lambda item: -item[1])]
    assert not worse, f"above {LARGEST}:\n" + "\n".join(listed)


def test_nine_of_ten_functions_are_simple(found):
    """Over all functions and methods."""
    reached = float(np.percentile(list(found.values()), 90))
    assert reached <= COMMON, f"the 90th percentile of {len(found)} functions is {reached:g}"


def test_lines_fit_on_a_screen():
    """In every Python file, comments that steer tools included."""
    long = [
        f"{path.relative_to(ROOT)}:{number}: {len(line)} columns"
        for package in (*PACKAGES, "tests")
        for path in sorted((ROOT / package).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > COLUMNS
    ]
    assert not long, "\n".join(long)
