"""Tables of the shell: nothing is lost, whatever the width of the terminal."""

import pytest

from dmodel.cli.table import folded, laid_out

HEADER = ("name", "size", "about")
ROWS = [("one", "12", "a few words about it"), ("another", "3", "none")]


def lines(width: int) -> list[str]:
    head, body = laid_out(HEADER, ROWS, (False, True, False), width)
    return [*head, *body]


def test_columns_are_as_wide_as_their_cells():
    assert lines(80) == [
        " name      size   about",
        " " + "─" * 37,
        " one         12   a few words about it",
        " another      3   none",
    ]


def test_cells_are_folded_where_the_terminal_is_narrow():
    assert lines(30) == [
        " name      size   about",
        " " + "─" * 28,
        " one         12   a few words",
        "                  about it",
        " another      3   none",
    ]


@pytest.mark.parametrize("width", range(1, 60))
def test_no_word_is_lost_and_every_line_fits_as_far_as_one_can(width):
    found = lines(width)
    letters = "".join("".join(found).replace("─", "").split())
    said = "".join(" ".join((*HEADER, *(c for row in ROWS for c in row))).split())
    assert sorted(letters) == sorted(said)
    assert max(map(len, found)) <= max(width, 11)


@pytest.mark.parametrize(
    ("text", "width", "parts"),
    [
        ("", 5, [""]),
        ("a b", 5, ["a b"]),
        ("  indented", 20, ["  indented"]),
        ("one two", 5, ["one", "two"]),
        ("one\n\ntwo", 5, ["one", "", "two"]),
        ("tp-8 dp-4", 6, ["tp-8", "dp-4"]),
        ("abcdefgh", 3, ["abc", "def", "gh"]),
        ("       ", 3, [""]),
    ],
)
def test_texts_are_folded_between_words(text, width, parts):
    assert folded(text, width) == parts
