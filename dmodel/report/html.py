"""Pieces of a self-contained HTML page: everything is escaped, figures sit inside the page, nothing
is fetched."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

STYLE = """
:root { --ink: #222; --soft: #5f5f5f; --line: #d9d9d9; --accent: #0072b2; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: #fff;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2.5rem 1.5rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; letter-spacing: -.01em; }
h2 { font-size: 1.3rem; margin: 3rem 0 .6rem; padding-top: 1rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.8rem 0 .3rem; }
p, ul { max-width: 46rem; margin: .5rem 0; }
.lead { color: var(--soft); font-size: 1.05rem; }
.tiles { display: flex; flex-wrap: wrap; gap: 1rem; margin: 1.6rem 0; }
.tile { flex: 1 1 11rem; border-left: 3px solid var(--accent); padding: .1rem 0 .1rem .8rem; }
.tile b { display: block; font-size: 1.45rem; line-height: 1.25;
  font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: .86rem; line-height: 1.35; display: block; }
figure { margin: 1.4rem 0; }
figure img { max-width: 100%; height: auto; display: block; }
figcaption { color: var(--soft); font-size: .88rem; max-width: 46rem; margin-top: .4rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .8rem 0; font-size: .86rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .7rem .28rem 0; text-align: right; vertical-align: top;
  border-bottom: 1px solid #eee; }
th { font-weight: 600; border-bottom: 1.5px solid var(--ink); vertical-align: bottom; }
th.text, td.text { text-align: left; }
tr.total td { font-weight: 600; border-top: 1.5px solid var(--ink); }
code { font: .88em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  background: #f4f4f4; padding: .1em .3em; border-radius: 3px; }
pre { background: #f4f4f4; padding: .8rem 1rem; border-radius: 4px; overflow-x: auto;
  font-size: .88rem; }
pre code { padding: 0; background: none; }
details summary { cursor: pointer; color: var(--accent); }
"""


def page(title: str, *parts: str) -> str:
    """A whole page."""
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, '
        f'initial-scale=1"><title>{escape(title)}</title>'
    )
    return (
        (
            "<!doctype html>\n<html "
            f'lang="en"><head>{head}<style>{STYLE}</style></head>\n<body><main>\n'
        )
        + "\n".join(parts)
        + "\n</main></body></html>\n"
    )


def heading(text: str, level: int = 2) -> str:
    """A heading of level 1–3."""
    return f"<h{level}>{escape(text)}</h{level}>"


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph; words between backquotes become code."""
    return f"<p{_class(kind)}>{inline(text)}</p>"


def inline(text: str) -> str:
    """Escaped text, with words between backquotes as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def bullets(items: Sequence[str]) -> str:
    """A list."""
    return "<ul>" + "".join(f"<li>{inline(item)}</li>" for item in items) + "</ul>"


def code(text: str) -> str:
    """Lines to type."""
    return f"<pre><code>{escape(text)}</code></pre>"


def tiles(items: Sequence[tuple[str, str]]) -> str:
    """Large numbers, each with the words that say what it is."""
    cells = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(words)}</span></div>'
        for value, words in items
    )
    return f'<div class="tiles">{cells}</div>'


def figure(uri: str, words: str, caption: str) -> str:
    """A figure from a `data:` address; words are for those who do not see it."""
    return (
        f'<figure><img src="{uri}" '
        f'alt="{escape(words, quote=True)}"><figcaption>{inline(caption)}</figcaption></figure>'
    )


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[object]],
    text: Sequence[int] = (0,),
    total: bool = False,
) -> str:
    """A table; the columns in `text` are aligned to the left, numbers to the right. `total` sets
    the last row apart."""

    def cells(row: Sequence[object], tag: str) -> str:
        return "".join(
            f"<{tag}{_class('text' if i in text else '')}>{escape(str(cell))}</{tag}>"
            for i, cell in enumerate(row)
        )

    body = "".join(
        f"<tr{_class('total' if total and i == len(rows) - 1 else '')}>{cells(row, 'td')}</tr>"
        for i, row in enumerate(rows)
    )
    return (
        "<div "
        f'class="wide"><table><thead><tr>{cells(header, "th")}</tr></thead><tbody>{body}</tbody></'
        "table></div>"
    )


def folded(summary: str, content: str) -> str:
    """Content that opens on a click."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
