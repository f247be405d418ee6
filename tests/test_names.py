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


class Other(NamedTuple):
    """Words that are names of the catalog and mean something else at a place."""

    why: str
    where: tuple[str, ...]
    words: frozenset[str]


def _other(why: str, where: str, words: str) -> Other:
    return Other(why, tuple(where.split()), frozenset(words.split()))


OTHERS = (
    _other("axis of a mesh that shards weights", "calibration/collect/", "fsdp"),
    _other(
        "schedule of pipelines",
        "dmodel/cost/pipeline.py dmodel/records/schedule.py",
        "dualpipe",
    ),
    _other("term of a step", "dmodel/breakdown.py dmodel/terms.py dmodel/report/", "fsdp"),
    _other("platform of jax, launcher of its pods", "calibration/collect/", "tpu"),
    _other("package whose version is noted", "calibration/collect/ calibration/fitted.py", "jax"),
    _other("variables of an environment", "calibration/collect/machine.py", "jax megascale tpu"),
    _other("the stack that is measured here", "calibration/collect/driver.py", "dmodelcollect"),
    _other(
        "unit, 10^9 bytes",
        "dmodel/codesign/prices.py",
        "gb",
    ),
    _other("tokens by the law of Hoffmann et al.", "dmodel/cli/run_options.py", "chinchilla"),
    _other("stands for an unknown chip", "calibration/collect/assumed.py", "a10080gb"),
    _other(
        "names of cases that were measured, with shapes of their own",
        "calibration/torch_step/cases.py",
        "gpt2 llama38b llama370b qwen330ba3b",
    ),
    _other("gigabytes", "dmodel/units.py", "gb"),
    _other("what the demo asks", "dmodel/cli/demo.py", "h100dgx llama370b"),
    _other("what the demo fits", "dmodel/cli/demo.py", "a10080gb llmfoundry"),
    _other("label of a plan", "dmodel/cli/demo.py", "fsdp"),
    _other("what is asked where nothing is said", "dmodel/cli/design_run.py", "llama370b"),
    _other(
        "rows that a shipped profile is fitted on",
        "calibration/ship.py",
        "a10080gb a10040gb h10080gb b200 b300 gb200 gb300 tpuv4 tpuv5e tpuv5p llmfoundry "
        "maxtextreadme megatronbridge megatronlmllama megatronsc21t1 megatronsc21t2 mtnlg530b "
        "nemolauncher vtrain",
    ),
)
"""Words that are no knowledge about what they name, by place."""


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
    elif isinstance(node, ast.Call):
        for each in (*node.args, *(word.value for word in node.keywords)):
            yield from _texts(each)


def _of_call(node: ast.Call) -> Iterator[ast.Constant]:
    if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
        for each in node.args:
            yield from _texts(each)


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
    elif isinstance(node, ast.For | ast.comprehension):
        yield from _texts(node.iter)
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
    """Strings of a module's constants: alone, in tables, or given to what makes them."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
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


@functools.cache
def counted() -> tuple[Use, ...]:
    """Names in all files that should have none."""
    paths = sorted(p for part in ("dmodel", "calibration") for p in (ROOT / part).rglob("*.py"))
    places = [(path, str(path.relative_to(ROOT))) for path in paths]
    inside = [(path, where) for path, where in places if not where.startswith(OUTSIDE)]
    return tuple(use for path, where in inside for use in uses(path, where))


def _is_meant(use: Use, one: Other) -> bool:
    return use.place.startswith(one.where) and fold(use.text).strip("_") in one.words


def test_no_code_asks_for_a_name() -> None:
    found = [use for use in counted() if not any(_is_meant(use, one) for one in OTHERS)]
    assert not found, "\n".join(f"{use.place}: {use.text}" for use in found)


@pytest.mark.parametrize("one", OTHERS, ids=lambda one: one.why)
def test_words_that_mean_something_else_are_there(one: Other) -> None:
    assert any(_is_meant(use, one) for use in counted())


@pytest.mark.parametrize(
    "text",
    [
        'if chip == "H100": pass',
        'x = name in ("llama-3-70b", "other")',
        'x = {"Megatron Bridge": 1}[name]',
        'x = name.startswith(("gb", "x"))',
        'x = np.char.startswith(names, "TPU")',
        'x = re.match(r"^(h100|a100).*", name)',
        'x = release == "26.06"',
        'TABLE = ("torchtitan",)',
        'VIEWS = [View("x", ("B200",))]',
        'BASE = "h100-sxm"',
        'for name in ["nemo", "mine"]: pass',
        'match name:\n    case "maxtext": pass',
    ],
)
def test_a_name_is_seen(text: str, tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_text(text, encoding="utf-8")
    assert uses(path, "code.py")


@pytest.mark.parametrize(
    "text",
    [
        'def f():\n    return catalog.chip("H100-80GB")',
        'if kind == "matmul": pass',
        'def f(name="llama-3-70b"):\n    """Of "H100"."""',
        'x = re.match(r"\\d+", name)',
    ],
)
def test_no_name_is_seen_where_none_is_asked_for(text: str, tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_text(text, encoding="utf-8")
    assert uses(path, "code.py") == []
