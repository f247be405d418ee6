"""Knowledge about a chip, a model or a stack is data of the catalog: code compares with no name.

What counts: a string that is an id, alias, pattern or beginning of a name of the catalog, or a
release, where code compares with it, looks it up, or lists it in a table of a module.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from dmodel.catalog.loader import fold, table
from dmodel.catalog.stack import files

ROOT = Path(__file__).parents[1]
OUTSIDE = (
    "dmodel/catalog/",
    "dmodel/emit/",
    "dmodel/layouts.py",
    "calibration/importers/",
)
"""Where names may stand: the catalog, and formats that others decide."""

RELEASE = re.compile(r"\d{2}\.\d{2}([.-]\w+)?")
METHODS = {"startswith", "endswith", "removeprefix", "removesuffix", "get", "pop", "count", "index"}
PATTERNS = {"compile", "match", "search", "fullmatch", "findall", "finditer", "sub", "split"}


class Use(NamedTuple):
    """A string of code that is a name."""

    place: str
    text: str


def _beginnings() -> set[str]:
    """First parts of chips' names, and their letters: "h100", "gb200", "gb"."""
    first = {fold(name.split("-")[0]) for name in table("chips")}
    letters = {re.sub(r"\d.*", "", part) for part in first}
    return first | {part for part in letters if len(part) > 1}


@functools.cache
def names() -> frozenset[str]:
    """All names of the catalog, folded."""
    found = set(_beginnings())
    for kind in ("chips", "models", "systems"):
        for name, entry in table(kind).items():
            found |= {fold(spelling) for spelling in (name, *entry["aliases"])}
    for file in files().values():
        spelled = (file.id, *file.members, *file.aliases)
        found |= {fold(name.removesuffix("*")) for name in spelled if not name.startswith("_")}
    return frozenset(found)


def is_name(text: str) -> bool:
    """Whether a string is a name of the catalog, or a release of a stack."""
    return fold(text).strip("/*") in names() or RELEASE.fullmatch(text) is not None


def _texts(node: ast.AST | None) -> Iterator[ast.Constant]:
    """Strings that a literal is or holds."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        for each in node.elts:
            yield from _texts(each)
    elif isinstance(node, ast.Dict):
        for each in (*node.keys, *node.values):
            yield from _texts(each)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in ("frozenset", "set", "tuple", "dict"):
            for each in node.args:
                yield from _texts(each)


def _of_call(node: ast.Call) -> Iterator[ast.Constant]:
    if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS and node.args:
        yield from _texts(node.args[0])


def _asked(node: ast.AST) -> Iterator[ast.Constant]:
    """Strings that one node compares with, looks up or keeps by key."""
    if isinstance(node, ast.Compare):
        for each in (node.left, *node.comparators):
            yield from _texts(each)
    elif isinstance(node, ast.Dict):
        for key in node.keys:
            yield from _texts(key)
    elif isinstance(node, ast.Subscript):
        yield from _texts(node.slice)
    elif isinstance(node, ast.MatchValue):
        yield from _texts(node.value)
    elif isinstance(node, ast.Call):
        yield from _of_call(node)


def _patterns(node: ast.AST) -> Iterator[ast.Constant]:
    """Regular expressions of calls of `re`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    if node.func.attr in PATTERNS and ast.unparse(node.func.value) == "re":
        for argument in node.args[:1]:
            yield from (n for n in ast.walk(argument) if isinstance(n, ast.Constant))


def _words(pattern: str) -> list[str]:
    """Words that a regular expression spells out."""
    plain = re.sub(r"\\[a-zA-Z]|\[[^\]]*\]", " ", pattern.replace(r"\.", "."))
    return re.findall(r"[A-Za-z][\w.-]*\w|\d{2}\.\d{2}", plain)


def _tables(tree: ast.Module) -> Iterator[ast.Constant]:
    """Strings in tables of a module: tuples, lists, sets and dicts that it names."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and not isinstance(
            node.value, ast.Constant
        ):
            yield from _texts(node.value)


def uses(path: Path, where: str) -> list[Use]:
    """Names that a file asks for, in order."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = {id(n): n for n in _tables(tree)}
    nodes |= {id(n): n for each in ast.walk(tree) for n in _asked(each)}
    found = {(n.lineno, n.value) for n in nodes.values() if is_name(str(n.value))}
    for each in ast.walk(tree):
        for n in _patterns(each):
            found |= {(n.lineno, w) for w in _words(str(n.value)) if is_name(w)}
    return [Use(f"{where}:{line}", text) for line, text in sorted(found)]


def counted() -> list[Use]:
    """Names in all files that should have none."""
    paths = sorted(p for part in ("dmodel", "calibration") for p in (ROOT / part).rglob("*.py"))
    places = [(path, str(path.relative_to(ROOT))) for path in paths]
    return [
        use for path, where in places if not where.startswith(OUTSIDE) for use in uses(path, where)
    ]


if __name__ == "__main__":
    for use in counted():
        print(*use)
