"""Folded texts of programs give what the texts give."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from dmodel.explore import page
from dmodel.explore.folded import beside, closest, folded
from dmodel.explore.programs import program
from dmodel.explore.structures import Programs, offered
from tests.explored import BUNDLE, texts
from tests.javascript import needs_node, outputs, run

UNFOLD = """
const fs = require('fs');
const { joined, unfolded } = require(process.argv[2]);
const { text, base } = JSON.parse(fs.readFileSync(process.argv[3], 'utf8'));
process.stdout.write(unfolded(joined(text, base)));
"""

PAIRS = [
    ("attention|dense|0+0", ""),
    ("attention|experts|0+0", "attention|dense|0+0"),
    ("attention|dense|0+0 3", "attention|dense|0+0"),
]
"""Structures, and those beside which they are written."""


def unfolded(text: str, base: str, folder: Path) -> str:
    """What the page makes of a text."""
    (folder / "unfold.cjs").write_text(UNFOLD)
    (folder / "text.json").write_text(json.dumps({"text": text, "base": base}))
    return run([str(folder / "unfold.cjs"), str(BUNDLE), str(folder / "text.json")])


@needs_node
@pytest.mark.parametrize(("name", "other"), PAIRS)
def test_what_is_unfolded_gives_the_same(name, other, tmp_path):
    program = texts([name])[name]["evaluated"]
    base = folded(texts([other])[other]["evaluated"]["text"]) if other else ""
    text = beside(folded(program["text"]), base)
    assert len(text) < 0.8 * len(program["text"])
    again = unfolded(text, base, tmp_path)
    inputs = np.exp(np.random.default_rng(1).uniform(0.0, 3.0, (5, len(program["inputs"]))))
    count = len(program["outputs"])
    want = outputs(program["text"], inputs, count, tmp_path)
    np.testing.assert_array_equal(outputs(again, inputs, count, tmp_path), want)
    assert np.isfinite(want).any()


ONE = """(()=>{const t=new Float64Array(1);
function f0(x,y,t){const A=exp(x[0]);const B=A+A;y[0]=B;t[0]=+B;}
function f1(x,y,t){const A=t[0]*x[1];y[1]=A;}
return 0})()"""


@needs_node
def test_programs_of_one_script_have_arrays_of_their_own(tmp_path):
    text = f"{ONE},{ONE}"
    assert unfolded(folded(text), "", tmp_path) == text


def test_a_structure_is_written_beside_one_like_it():
    names = [*offered()]
    assert closest(names[0], []) == ""
    for name in names[1:]:
        if name.endswith(" 3"):
            assert closest(name, names[: names.index(name)]).split(" 3")[0] in name


def test_what_nothing_shares_stays_as_it_is():
    assert beside("y[0]=x[1];y[1]=x[0];", "const a=1,b=2;") == "y[0]=x[1];y[1]=x[0];"


def test_programs_are_written_by_an_executor_and_kept(monkeypatch, tmp_path):
    """Each missing structure once, in the order of the page; none the next time."""
    monkeypatch.setenv("DMODEL_CACHE", str(tmp_path))
    one = program(lambda x: {"y": x + 1.0}, np.float64(1.0), names={"x": 1.0})
    monkeypatch.setattr(page, "programs", lambda model, levels: Programs(one, one))
    names, told = [*offered()], []
    assert page.missing() == names
    with ThreadPoolExecutor(2) as executor:
        made = page._all_programs(told.append, executor)
    assert [*made] == names and made[names[0]]["evaluated"] == one._asdict()
    assert len(told) == len(names) and told[0].endswith(f"{names[0]} (1 of {len(names)})")
    told.clear()
    assert page.missing() == [] == told
    assert json.dumps(page._all_programs(told.append, None)) == json.dumps(made)
