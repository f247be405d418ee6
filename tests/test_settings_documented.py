"""Settings: one name space of text and values, and its table in the documentation."""

from pathlib import Path

import pytest

from dmodel.settings import KNOWN, described, kind_of, markdown, parse, text_of
from dmodel.types import InputError

DATA = Path(__file__).parents[1] / "docs" / "data.md"


def test_the_documentation_has_the_table_of_all_settings():
    assert markdown() in DATA.read_text(encoding="utf-8")
    assert all(f"| {name} | {kind_of(name)} | " in markdown() for name in KNOWN)


def test_every_setting_has_a_meaning_of_its_own():
    assert [name for name in KNOWN if not described(name)["meaning"]] == []


@pytest.mark.parametrize(
    "text",
    [
        "graphed=1; recompute_keeps=qkv+out",
        "recompute_keeps=nothing",
        "offload=0.6349206349206349; adapters=linear_qkv+linear_proj",
        "recompute_policy=save_qkv_proj; n_mtp=0",
    ],
)
def test_a_cell_is_written_as_it_is_read(text):
    assert text_of(parse(text)) == text


@pytest.mark.parametrize("text", ["graphed", "graphd=1", "graphed=1; graphed=0", "tp=8"])
def test_a_cell_that_is_no_list_of_settings_is_refused(text):
    with pytest.raises(InputError, match="^set: "):
        parse(text)
