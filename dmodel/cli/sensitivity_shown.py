"""What `dmodel sensitivity` shows beyond elasticities: tables, sentences, figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dmodel.cli.output import Document, digits, percent, plain, seconds, show_lines, show_table
from dmodel.errors import InputError

Figures = dict[str, Callable[[], Any]]
"""Figures by name, drawn when they are written."""


def show_parts(d: Document) -> None:
    """Tables of what was asked beyond the elasticities, and the sentences."""
    if "reoptimized" in d:
        _show_reoptimized(d["reoptimized"], d["design"])
        _show_searched_again(d["design"])
    if "global" in d:
        _show_global(d["global"], d["output"])
    for name, found in d.get("check", {}).items():
        _show_check(name, found)
    show_lines("", *d["summary"], *(f"Written: {path}" for path in d.get("files", [])))


def _show_global(found: Document, output: str) -> None:
    """Table of shares of the variance."""
    rows = [
        (
            e["name"],
            f"{digits(e['low'])} … {digits(e['high'])}",
            f"{e['first']:.3f} ±{e['first_error']:.3f}",
            f"{e['total']:.3f} ±{e['total_error']:.3f}",
        )
        for e in found["indices"]
    ]
    title = (
        f"Shares of the variance of ln {output} (Sobol indices, "
        f"{found['evaluations']:,} evaluations)"
    )
    show_table(title, ("input", "range", "alone", "in all"), rows)


def _show_check(name: str, found: Document) -> None:
    """How far elasticities are from what they are checked against."""
    against = "central differences" if name == "fixed" else "solving again"
    show_lines(
        f"Check, {name}: {found['inputs']} elasticities differ from {against} by at most "
        f"{found['difference']:.1e} ({found['worst']})."
    )
    if found.get("not_solved"):
        show_lines(f"Not solved again, so not checked: {', '.join(found['not_solved'])}.")


def _show_reoptimized(found: Document, best: Document) -> None:
    """The optimum with real-valued degrees, and what holds it."""
    degrees = " · ".join(
        f"{name} {value:.3g}" for name, value in found["plan"].items() if name != "recompute_layers"
    )
    shorter = percent(1.0 - found["step_time_s"] / best["step_time_s"])
    show_lines(
        f"Plan with real-valued degrees: {degrees}; step {seconds(found['step_time_s'])}, "
        f"{shorter} below the best whole-numbered one. "
        f"Held by: {', '.join(a['name'] for a in found['active'] if a['name'] != 'devices')}."
    )
    if not found["unique"]:
        show_lines(
            "More limits meet there than there are unknowns, or the optimum is flat: prices and "
            "movements are not the only ones."
        )


def _show_searched_again(best: Document) -> None:
    """Table of the best plans along the inputs that are followed."""
    rows = [
        (
            e["name"],
            *(_change(e[name]) for name in ("kept_more", "more", "less")),
            *(_flip(e[name]) for name in ("up", "down")),
        )
        for e in best["effects"]
    ]
    show_table(
        "Best whole-numbered plan searched again",
        ("input", "+10 %, plan kept", "+10 %", "−10 %", "flips up", "flips down"),
        rows,
    )
    show_lines(
        f"The second best of {best['considered']:,} valid plans is "
        f"{percent(best['runner_up'], 2)} slower."
    )


def _change(share: float | None) -> str:
    return "nothing fits" if share is None else f"{100.0 * share:+.2f} %"


def _flip(flip: Document | None) -> str:
    """Where another plan becomes the best, and which."""
    return f"{100.0 * (flip['factor'] - 1.0):+.1f} %: {flip['label']}" if flip else "none"


def draw_tornado(d: Document) -> Any:
    from dmodel.report.tornado import Elasticity, tornado

    follows = d.get("reoptimized")
    items = [Elasticity(e["name"], e["group"], e["elasticity"]) for e in d["elasticities"]]
    return tornado(items, d["output_words"], marks=follows["elasticities"] if follows else None)


def draw_interactions(d: Document) -> Any:
    from dmodel.report.heatmap import heatmap

    found = d["interactions"]
    return heatmap(found["names"], found["hessian"], d["output_words"])


def draw_regimes(found: Any, d: Document) -> Any:
    from dmodel.report.regimes import regimes

    return regimes(
        found, f"What bounds the step: {d['model']}, {d['devices']:,} × {d['accelerator']}"
    )


def write_report(folder: Path, d: Document, figures: Figures) -> list[str]:
    """Write the figures, the sentences and the document; their paths."""
    import json

    from dmodel.report.style import save_png

    make_folder(folder)
    text, document = folder / "summary.txt", folder / "sensitivity.json"
    try:
        paths = [save_png(draw(), folder / f"{name}.png") for name, draw in figures.items()]
        text.write_text("\n".join(d["summary"]) + "\n", encoding="utf-8")
        document.write_text(
            json.dumps(plain(d), indent=1, allow_nan=False, ensure_ascii=False) + "\n",
            encoding="utf-8",
        )
    except OSError as error:
        raise InputError(
            f"--report {folder}: cannot write there ({(error.strerror or 'unknown error').lower()})"
        ) from None
    return [str(path) for path in (*paths, text, document)]


def make_folder(folder: Path) -> None:
    """Make the folder of a report; InputError where there can be none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--report {folder}: cannot be used as a folder "
            f"({(error.strerror or 'unknown error').lower()})"
        ) from None
