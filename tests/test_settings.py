"""Settings: one name space for files, the shell, Python and facts; values are checked, and text
reads back as it was."""

from pathlib import Path

import pytest

from calibration.traces import published
from dmodel.catalog.loader import table
from dmodel.columns import BY_NAME
from dmodel.errors import InputError
from dmodel.known import entries
from dmodel.question import Question
from dmodel.records import LEAVES
from dmodel.settings import (
    ADAPTED,
    KNOWN,
    SETTINGS,
    by_column,
    changed,
    described,
    kind_of,
    markdown,
    overrides,
    parse,
    shown,
    text_of,
    typed,
    unknown,
    value_of,
)
from dmodel.shape import OF_MODEL, OF_PARTS


def test_every_leaf_of_model_and_plan_has_a_name_and_no_column_two():
    names = {*BY_NAME, *KNOWN}
    assert not set(BY_NAME) & set(KNOWN)
    assert {*OF_MODEL, *OF_PARTS} <= names
    # `attention` and `zero_stage` are columns
    assert set(LEAVES) - {"flash", "zero"} <= names


@pytest.mark.parametrize("name", KNOWN)
def test_every_setting_says_what_it_means(name):
    found = described(name)
    assert found["meaning"] and found["kind_of_value"] == kind_of(name)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("graphed=1", {"graphed": 1.0}),
        (" graphed = 0.5 ; n_mtp=1;", {"graphed": 0.5, "n_mtp": 1.0}),
        ("adapters=q_proj + v_proj", {"adapters": ("q_proj", "v_proj")}),
        ("adapters=nothing", {"adapters": ()}),
        ("adapters=all-linear", {"adapters": ADAPTED[:7]}),
        ("recompute_keeps=qkv+out", {"recompute_keeps": ("qkv", "out")}),
        ("dispatcher=deepep", {"dispatcher": "deepep"}),
        ("reduce_bytes=2e0", {"reduce_bytes": 2.0}),
    ],
)
def test_cells_of_settings(text, found):
    assert parse(text) == found
    assert parse(text_of(found)) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("graphed", "expected name=value, `;` between several; got 'graphed'"),
        ("graphed=", "expected name=value"),
        ("=1", "expected name=value"),
        ("graphed=1; graphed=1", "expected graphed once"),
        ("graphed=yes", "graphed: expected a finite number, got 'yes'"),
        ("graphed=nan", "expected a finite number"),
        ("graphed=-1", "graphed: expected a number from 0 on, got -1"),
        ("dispatcher=pigeon", "dispatcher: expected one of alltoall, deepep, hybridep; got"),
        ("recompute_keeps=qkv+all", "recompute_keeps: expected one of qkv, core, out, up, down"),
        ("adapters=q_proj,v_proj", r"adapters: expected names with \+ between them"),
        ("graphd=1", "unknown name 'graphd'; nearest: graphed"),
        ("qqqq=1", "unknown name 'qqqq'; "),
        ("tp=4", "tp is a column of its own; write 4 into tp"),
        ("zero=3", "zero is a column of its own; write 3 into zero_stage"),
    ],
)
def test_cells_that_make_no_sense(text, message):
    with pytest.raises(InputError, match=f"{message}"):
        parse(text)


def test_settings_of_the_published_table_read_back_as_they_were():
    rows = [row for row in published().rows if row.text("set")]
    assert len(rows) > 200
    for row in rows:
        assert parse(text_of(row.settings)) == row.settings


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1"), (0.1, "0.1"), (1.0 / 3.0, repr(1.0 / 3.0)), ("deepep", "deepep")]
    + [((), "nothing"), (("a", "b"), "a+b"), (64, "64")],
)
def test_values_as_they_are_typed(value, text):
    assert shown(value) == text


def test_columns_and_settings_are_told_apart_and_checked():
    found = overrides({"tp": 4, "zero": "3", "graphed": 1, "precision": "FP8-Rowwise"})
    assert found.columns == {"tp": 4.0, "zero_stage": 3.0, "precision": "fp8-rowwise"}
    assert found.settings == {"graphed": 1.0}
    for name, value, message in (
        ("tp", 0, "tp: expected 1 or more, got 0"),
        ("tp", "2.5", "tp: expected an integer"),
        ("recompute", "some", "recompute: expected one of none, selective, full; got 'some'"),
        ("precision", "fp7", "precision: expected one of bf16"),
        ("graphed", "on", "graphed: expected a finite number"),
        ("graphd", 1, "nearest: graphed"),
    ):
        with pytest.raises(InputError, match=message):
            overrides({name: value})


def test_two_values_for_one_column_are_refused():
    assert by_column({"zero": 3, "zero_stage": 3}) == {"zero_stage": 3}
    with pytest.raises(InputError, match="zero_stage: given as 3 and as 1; give it once"):
        by_column({"zero": 3, "zero_stage": 1})


def test_pairs_as_typed_in_the_shell():
    assert typed(["tp=4", "--micro-batch=2", "zero=3", "tp=4"]) == {
        "tp": "4",
        "micro_batch": "2",
        "zero_stage": "3",
    }
    for pairs, message in (
        (["tp"], "--set 'tp': expected NAME=VALUE"),
        (["tp="], "expected NAME=VALUE"),
        (["tp=4", "tp=8"], "--set tp: given as 4 and as 8; give it once"),
        (["zero=3", "zero_stage=1"], "--set zero_stage: given as 3 and as 1"),
    ):
        with pytest.raises(InputError, match=message):
            typed(pairs)


def test_a_question_is_changed_and_the_first_stays():
    first = Question({"tp": 2.0}, {"graphed": 1.0})
    second = changed(first, {"tp": 4, "n_mtp": 1})
    assert second.columns == {"tp": 4.0} and second.settings == {"graphed": 1.0, "n_mtp": 1.0}
    assert first.columns == {"tp": 2.0}


def test_an_unknown_name_gets_those_alike_and_where_all_are():
    assert "nearest: overlap_" in unknown("overlap_dpp")
    assert unknown("graphd").endswith("`dmodel catalog settings` lists all with their meaning")


def test_words_take_words():
    for name, word in SETTINGS.items():
        for each in word.allowed:
            assert value_of(name, each) == ((each,) if word.kind == "words" else each)


def test_the_table_of_settings_is_what_records_and_rules_have():
    """`python -m dmodel.known` writes it anew."""
    assert table("settings") == entries()
    assert list(table("settings")) == list(entries())


DATA = Path(__file__).parents[1] / "docs" / "data.md"


def test_the_documentation_has_the_table_of_all_settings():
    assert markdown() in DATA.read_text(encoding="utf-8")
    assert all(f"| {name} | {kind_of(name)} | " in markdown() for name in KNOWN)
