"""What the package ships is small."""

import tomllib
import zlib
from pathlib import Path

ROOT = Path(__file__).parents[1]

MOST = 2.0e6
"""Bytes of the wheel."""

BESIDE = 120
"""Bytes that a member of an archive, and its line among all names, take beside its content and
twice its name."""

METADATA = 40_000
"""Bytes of what describes the package: the README, and a checksum of every file."""


def shipped() -> list[Path]:
    """The files that the build puts into the wheel: all of its packages but caches."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    left_out = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["exclude"]
    files = (f for package in packages for f in (ROOT / package).rglob("*") if f.is_file())
    kept = (f for f in files if not any(_within(f, pattern) for pattern in left_out))
    return [f for f in kept if "__pycache__" not in f.parts and f.suffix not in (".pyc", ".pyo")]


def _within(file: Path, pattern: str) -> bool:
    """Whether a file, or a folder that holds it, is of a pattern of the build."""
    inside = file.relative_to(ROOT)
    return any(part.match(pattern.lstrip("/")) for part in (inside, *inside.parents))


def test_the_wheel_is_small():
    files = shipped()
    assert len(files) > 100
    sizes = {
        f: len(zlib.compress(f.read_bytes(), 6)) + BESIDE + 2 * len(str(f.relative_to(ROOT)))
        for f in files
    }
    largest = sorted(sizes, key=lambda f: -sizes[f])[:8]
    total = METADATA + sum(sizes.values())
    told = ", ".join(f"{f.relative_to(ROOT)} {sizes[f]}" for f in largest)
    assert total <= MOST, f"{total} bytes; the largest are {told}"
