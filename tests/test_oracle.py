"""The frozen answers: none has changed beside those that are listed; and a change would be seen."""

import json

import numpy as np
import pytest

from tests import oracle
from tests.answers import Answers, answers, load, save


@pytest.fixture(scope="module")
def frozen() -> Answers:
    return load()


@pytest.fixture
def nothing_known(monkeypatch):
    """No difference is meant."""
    for kind in list(oracle.KNOWN):
        monkeypatch.delitem(oracle.KNOWN, kind)


def changed(of: Answers, **values: np.ndarray) -> Answers:
    """The answers with some values replaced."""
    return of._replace(values={**of.values, **values})


def scaled(of: Answers, name: str, row: int, by: float) -> Answers:
    """The answers with one number multiplied."""
    values = of.values[name].copy()
    values[row] *= by
    return changed(of, **{name: values})


def test_no_answer_has_changed(frozen):
    found = oracle.differences(frozen, answers(frozen))
    rest, _ = oracle.sorted_out(found)
    most = sorted(rest, key=lambda d: -d.relative)[:5]
    assert oracle.complaints(found) == [], f"{most}; python -m tests.oracle lists all"


def test_all_that_is_asked_for_is_frozen(frozen):
    assert len(frozen.line) == 1793 and all(len(v) == 1793 for v in frozen.values.values())
    begins = {name.rpartition(".")[0] for name in frozen.values}
    assert {"chip", "network", "model", "plan", "term", "memory", "fullest", "row"} <= begins
    assert {"profile", "plan.schedule", "plan.placement", "network.size[1]"} <= set(frozen.values)
    assert {"step_time_s", "memory.total", "model_flops", "mfu"} <= set(frozen.values)
    moved = frozen.values["perturbed.step_time_s"] / frozen.values["step_time_s"]
    assert np.all(moved != 1.0) and 0.5 < np.median(moved) < 2.0


@pytest.mark.parametrize(
    "name",
    ["chip.flops_per_s", "plan.dp", "step_time_s", "mfu", "memory.total", "model_flops"],
)
def test_a_change_is_seen(frozen, nothing_known, name):
    (only,) = oracle.differences(frozen, scaled(frozen, name, 7, 1.0 + 1e-6))
    assert (only.quantity, only.line) == (name, frozen.line[7])
    assert only.relative == pytest.approx(1e-6, rel=1e-3)
    assert oracle.complaints([only]) != []
    assert oracle.differences(frozen, scaled(frozen, name, 7, 1.0 + 1e-12)) == []


def test_parts_are_compared_with_their_sum(frozen):
    for name, whole in (("term.overhead", "step_time_s"), ("fullest.logits", "fullest.total")):
        shares = frozen.values[name] / frozen.values[whole]
        row, most = int(np.argmin(shares)), int(np.argmax(shares))
        less = scaled(frozen, name, most, 0.5)
        (only,) = oracle.differences(frozen, less)
        assert only.relative == pytest.approx(0.5 * shares[most])
        tiny = frozen.values[name].copy()
        tiny[row] += 1e-18 * frozen.values[whole][row]
        assert oracle.differences(frozen, changed(frozen, **{name: tiny})) == []


def test_a_text_and_a_lost_leaf_are_seen(frozen):
    other = frozen.values["profile"].astype("U40")
    other[3] = "another"
    (only,) = oracle.differences(frozen, changed(frozen, profile=other))
    assert (only.quantity, only.now, only.relative) == ("profile", "another", 1.0)
    less = {name: v for name, v in frozen.values.items() if name != "plan.tp"}
    lost = oracle.differences(frozen, frozen._replace(values=less))
    assert len(lost) == len(frozen.line) and {d.quantity for d in lost} == {"plan.tp"}


def test_what_is_no_number_is_seen():
    was = np.array([np.nan, np.inf, np.inf, 1.0, 0.0])
    now = np.array([np.nan, np.inf, 1.0, np.nan, -0.0])
    found = oracle.relative(was, now, np.fmax(abs(was), abs(now)))
    assert found.tolist() == [0.0, 0.0, 1.0, 1.0, 0.0]


def test_rows_are_found_again(frozen):
    assert oracle.differences(frozen, frozen._replace(line=frozen.line + 1)) == []
    stack = frozen.values["row.stack"].astype("U60")
    stack[9] = "renamed"
    (only,) = oracle.differences(frozen, changed(frozen, **{"row.stack": stack}))
    assert (only.quantity, only.now) == ("row.stack", "renamed")
    keep = np.arange(len(frozen.line)) != 20
    values = {name: v[keep] for name, v in frozen.values.items()}
    fewer = Answers(frozen.line[keep], frozen.occurrence[keep], values, frozen.noise)
    (gone,), (come,) = oracle.differences(frozen, fewer), oracle.differences(fewer, frozen)
    assert (gone.quantity, gone.now, come.now) == ("row", "not used", "used")
    assert gone.line == come.line == frozen.line[20]


def test_known_differences_count_exactly(frozen):
    found = oracle.differences(frozen, scaled(frozen, "plan.dp", 7, 2.0))
    found += oracle.differences(frozen, scaled(frozen, "plan.dp", 8, 1.25))
    kind = oracle.Known("a test", 2, 0.5, lambda d: d.quantity == "plan.dp")
    assert oracle.complaints(found, {"doubled": kind}) == []
    assert oracle.complaints(found, {"doubled": kind._replace(count=1)}) != []
    assert oracle.complaints(found, {"doubled": kind._replace(largest=0.52)}) != []
    assert oracle.complaints([], {"doubled": kind}) != []
    assert oracle.complaints(found, {"doubled": kind._replace(belongs=lambda d: False)}) != []


def test_the_file_keeps_every_bit(frozen, tmp_path):
    numbers = np.array([np.inf, -0.0, np.nan, 0.1, 5e-324])
    texts = np.array(["", "a", "ä b", "a", ""])
    line = np.arange(5)
    values = {"x": numbers, "row.model": texts, "y": numbers[::-1].copy()}
    given = Answers(line, line % 2, values, {"c": 0.1})
    save(given, tmp_path / "o.npz")
    back = load(tmp_path / "o.npz")
    assert back.noise == given.noise and back.line.tolist() == line.tolist()
    assert back.occurrence.tolist() == given.occurrence.tolist()
    assert all(back.values[n].tobytes() == given.values[n].tobytes() for n in ("x", "y"))
    assert back.values["row.model"].tolist() == texts.tolist()


def test_the_command_says_what_differs(frozen, nothing_known, monkeypatch, capsys):
    monkeypatch.setattr(oracle, "answers", lambda _: scaled(frozen, "plan.dp", 7, 2.0))
    assert oracle.main([]) == 1
    assert f"line {frozen.line[7]}, " in capsys.readouterr().out
    assert oracle.main(["--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert [d["source"] for d in said["differences"]] == ["(all)", frozen.values["row.source"][7]]
    example = said["differences"][0]["example"]
    assert example["now"] == 2.0 * example["was"]
    monkeypatch.setattr(oracle, "answers", lambda _: frozen)
    assert oracle.main([]) == 0
    assert "nothing differs" in capsys.readouterr().out
