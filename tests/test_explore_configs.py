"""The page reads a pasted config.json as the shell does."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from dmodel.catalog.configs.reading import read
from dmodel.catalog.shapes import model_of, shape_of
from dmodel.errors import InputError
from dmodel.explore.data import document
from tests.explored import BUNDLE
from tests.javascript import needs_node, run
from tests.test_configs import EXACT, LLAMA, REFUSED, SAID

READ = """
const fs = require('fs');
const { configs, infinite } = require(process.argv[2]);
const given = JSON.parse(fs.readFileSync(process.argv[3], 'utf8'), infinite);
process.stdout.write(JSON.stringify(configs(given.data, given.texts)));
"""

KNOWN = [content for _, content in EXACT.values()]
OTHERS = [content for content, _ in (*REFUSED, *SAID)]


def by_page(contents: list[Any], folder: Path) -> list[dict[str, Any]]:
    texts = [x if isinstance(x, str) else json.dumps(x) for x in contents]
    (folder / "given.json").write_text(json.dumps({"data": document(), "texts": texts}))
    (folder / "read.cjs").write_text(READ)
    return json.loads(run([str(folder / "read.cjs"), str(BUNDLE), str(folder / "given.json")]))


def by_python(content: Any, folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    try:
        found = read(path)
    except InputError as error:
        return {"error": str(error).removeprefix(f"{path}: ")}
    return {"shape": shape_of(found.model), "notes": list(found.notes)}


def same(text: str) -> str:
    """Without the names that the page does not look for."""
    return re.sub(r" \(nearest: [^)]*\)|; max_position_embeddings is not needed.*", "", text)


def check(content: Any, found: dict[str, Any], folder: Path) -> None:
    want = by_python(content, folder)
    assert ("error" in found) == ("error" in want), (content, found, want)
    if "error" in want:
        assert same(found["error"]) == same(want["error"]), content
        return
    assert shape_of(model_of(found["shape"])) == want["shape"]
    assert list(map(same, found["notes"])) == list(map(same, want["notes"]))


@needs_node
def test_configurations_are_read_alike(tmp_path):
    contents = [*KNOWN, *OTHERS]
    for content, found in zip(contents, by_page(contents, tmp_path), strict=True):
        check(content, found, tmp_path)


WORDS = ["true", "none", "", 0, 1, 2, 7, -1, 2.5, None, [1, 2], [], {"a": 1}, True, "full", 10**12]
"""Values that a key may have by mistake."""


def spoiled(rng: random.Random) -> dict[str, Any]:
    """A configuration of which some keys have other values, or are gone."""
    content = dict(rng.choice(KNOWN))
    for key in rng.sample(list(content), min(2, len(content))):
        content[key] = rng.choice(WORDS)
        if rng.random() < 0.3:
            del content[key]
    return content


def check_spoiled(seed: int, many: int, folder: Path) -> None:
    """Both read what they read alike, and refuse the same."""
    rng = random.Random(seed)
    contents = [spoiled(rng) for _ in range(many)]
    for content, found in zip(contents, by_page(contents, folder), strict=True):
        want = by_python(content, folder)
        assert ("error" in found) == ("error" in want), (content, found, want)
        if "error" not in want:
            assert shape_of(model_of(found["shape"])) == want["shape"], content


@needs_node
def test_mistakes_are_refused_alike(tmp_path):
    check_spoiled(1, 100, tmp_path)


@needs_node
@pytest.mark.slow
def test_many_mistakes_are_refused_alike(tmp_path):
    check_spoiled(2, 3000, tmp_path)


@needs_node
@pytest.mark.parametrize("text", ["", "[1]", "{", '{"model_type": 7}', "null", "<b>"])
def test_what_is_no_configuration_is_refused(text, tmp_path):
    assert "expected" in by_page([text], tmp_path)[0]["error"]


@needs_node
def test_a_name_of_every_object_is_no_key(tmp_path):
    found = by_page([json.dumps(LLAMA | {"constructor": 7, "toString": 3})], tmp_path)[0]
    assert "shape" in found
