"""The report: one HTML page and three figures from the demo's document, which is plain data
(`demo.json` beside it)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dmodel.report import html, sections, style
from dmodel.report.drawn import figures
from dmodel.report.sections import Document

TITLE = "dmodel: step time of distributed training, predicted, designed, explained"


def write(d: Document, out: Path) -> list[Path]:
    """Write `report.html` and the figures as PNG into a folder; returns the paths, the report
    first."""
    drawn = figures(d)
    written = [style.save_png(figure, out / name) for name, figure in drawn.items()]
    for figure in drawn.values():
        figure.set_layout_engine("none")  # laid out already
    uris = [style.data_uri(figure) for figure in drawn.values()]
    report = out / "report.html"
    report.write_text(render(d, uris), encoding="utf-8")
    return [report, *written]


def render(d: Document, uris: Sequence[str]) -> str:
    """The page, with its three figures as `data:` addresses."""
    parts = [
        sections.opening(d),
        sections.errors(d, uris[0]),
        sections.data(d),
        sections.design(d, uris[1]),
        sections.sensitivity(d, uris[2]),
        sections.closing(d),
    ]
    return html.page(TITLE, *parts)
