"""Figures and the page: nothing of a step is lost in a bar, nothing is fetched, nothing is printed
unescaped."""

import base64
import re

import pytest

from dmodel.breakdown import TERMS
from dmodel.report import html, style
from dmodel.report.bars import GROUPS, Bar, breakdown, grouped
from dmodel.report.scatter import Point, scatter
from dmodel.report.text import digits, gib, seconds
from dmodel.report.tornado import Elasticity, tornado


def test_every_term_stands_in_one_segment_and_none_is_lost():
    named = [term for _, terms in GROUPS.values() for term in terms]
    assert sorted(named) == sorted(TERMS)
    parts = {term: 1.0 + i for i, term in enumerate(TERMS)} | {"a term of later": 5.0}
    assert sum(grouped(parts).values()) == pytest.approx(sum(parts.values()))


def test_bars_are_as_long_as_their_steps():
    bars = [
        Bar("a", {"matmul": 3.0, "bubble": 1.0, "overhead": 0.01}, ""),
        Bar("b", dict.fromkeys(TERMS, 0.5), ""),
    ]
    axes = breakdown(bars).axes[0]
    ends = {round(p.get_y() + p.get_height() / 2): 0.0 for p in axes.patches}
    for p in axes.patches:
        ends[round(p.get_y() + p.get_height() / 2)] = max(
            ends[round(p.get_y() + p.get_height() / 2)], p.get_x() + p.get_width()
        )
    assert ends == {0: pytest.approx(4.01), 1: pytest.approx(0.5 * len(TERMS))}


def test_scatter_shows_every_point_in_both_panels():
    points = [
        Point(1.0, 1.05, False),
        Point(2.0, 2.2, True),
        Point(10.0, 100.0, True),
        Point(10.0, 1.0, False),
    ]
    upper, lower = scatter(points).axes
    for axes in (upper, lower):
        assert sum(
            len(c.get_offsets())
            for c in axes.collections
            if hasattr(c, "get_offsets") and c.get_sizes().size
        ) == len(points)
    assert any("fitted: 2 rows" in t.get_text() for t in upper.texts) and any(
        "held out: 2 rows" in t.get_text() for t in upper.texts
    )


def test_scatter_without_held_out_rows():
    assert len(scatter([Point(1.0, 1.1, False)]).axes) == 2


def test_tornado_keeps_the_largest_first():
    items = [Elasticity(f"x{i}", "plan", (-1) ** i * i / 10) for i in range(30)]
    axes = tornado(items, most=5).axes[0]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["x29", "x28", "x27", "x26", "x25"]


def test_a_figure_in_a_page_is_the_same_every_time():
    one, two = (style.data_uri(tornado([Elasticity("x", "plan", 0.5)])) for _ in range(2))
    assert one == two and b"<svg" in base64.b64decode(one.partition(",")[2])


def test_a_page_fetches_nothing_and_escapes_everything():
    uri = style.data_uri(tornado([Elasticity("x", "plan", 0.5)]))
    cell = "<script>alert('x')</script>"
    text = html.page(
        "t",
        html.table(("a", cell), [(cell, 1)]),
        html.figure(uri, cell, cell),
        html.bullets([cell]),
        html.tiles([("1", cell)]),
    )
    assert "<script" not in text
    assert all(source.startswith("data:") for source in re.findall(r'(?:src|href)="([^"]*)', text))
    assert not re.search(r"url\(|@import|<link|https?://", text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12.345, "12.3 s"),
        (0.0456, "45.6 ms"),
        (7.8e-6, "7.80 µs"),
        (0.0, "0 s"),
        (-2.0, "-2.00 s"),
        (3e-9, "3 ns"),
    ],
)
def test_times_take_a_fitting_unit(value, text):
    assert seconds(value) == text


def test_few_digits():
    assert [digits(x) for x in (0.0, 1234567.0, 0.1234, 1e15)] == [
        "0",
        "1,234,567",
        "0.123",
        "1e+15",
    ]
    assert gib(2**31) == "2.0 GiB"
