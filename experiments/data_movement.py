"""What the studies of data movement share: options, sweeps as curves, published figures beside
them, tables and axes.

Published figures are those of arXiv 2411.01137 and of its authors' code, in
`experiments/reference`.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dmodel.goodput import Reliability
from dmodel.records import Cluster
from dmodel.report import style
from dmodel.theory import Best, SmallestCluster, gpu, headline, laws, sweep_widths
from dmodel.theory.laws import BATCH_LAWS, Laws
from dmodel.theory.study import LINEAR, MONTH_S, ceiling
from experiments.study import keep, print_cells, print_paths, say, tell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REFERENCE = Path(__file__).parent / "reference"


class Curve(NamedTuple):
    """A sweep over widths: the smallest cluster within three months for each."""

    label: str
    gpu: str
    sparse: bool
    system: Cluster
    clusters: list[SmallestCluster]

    @property
    def known(self) -> list[Best]:
        """Widths that have a layout in time, ascending."""
        return [c.best for c in self.clusters if c.best is not None]

    @property
    def linear_end(self) -> Best | None:
        """The first run at or below 0.8 of the utilization ceiling."""
        return headline(self.clusters, self.system).linear_end

    @property
    def largest(self) -> Best | None:
        """The largest run in time."""
        return headline(self.clusters, self.system).largest


def curve(
    name: str,
    label: str = "",
    *,
    sparse: bool = False,
    law: Laws = laws.STUDY,
    widths: Iterable[float] = laws.WIDTHS,
    reliability: Reliability | None = None,
    system: Cluster | None = None,
) -> Curve:
    """Sweep one GPU; `system` where it is not the one of that name."""
    label = label or f"{name}, {'sparse' if sparse else 'dense'}"
    chip = gpu(name) if system is None else system
    clusters = sweep_widths(chip, sparse=sparse, law=law, widths=widths, reliability=reliability)
    say(f"{label}: {len(clusters)} widths")
    return Curve(label, name, sparse, chip, clusters)


def batch_law(name: str) -> Laws:
    """The study's laws with one of its batch laws."""
    return laws.STUDY.replace(batch=BATCH_LAWS[name])


def reference(name: str) -> list[dict[str, str]]:
    """Rows of a table of published figures."""
    with (REFERENCE / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def compared(
    what: str, published: float | None, model: float | None, note: str = ""
) -> dict[str, Any]:
    """One line of a comparison; the difference is relative, None where one of the two is not
    known."""
    known = published is not None and model is not None and published != 0.0
    return {
        "what": what,
        "published": published,
        "model": model,
        "difference": model / published - 1.0 if known else None,  # type: ignore[operator]
        "note": note,
    }


def headlines(c: Curve, law: str = "default") -> list[dict[str, Any]]:
    """Linear end and largest run of a curve against the published ones where those are known: three
    digits of each."""
    kind = "sparse" if c.sparse else "dense"
    rows = [
        r
        for r in reference("theory_headlines")
        if (r["gpu"], r["model_type"], r["batch_law"]) == (c.gpu, kind, law)
    ]

    def published(column: str) -> float | None:
        return float(rows[0][column]) if rows and rows[0][column] else None

    pairs = {
        "linear scaling ends at [FLOP]": ("linear_end_flop", flop(c.linear_end)),
        "largest run [FLOP]": ("largest_flop", flop(c.largest)),
    }
    if (top := c.largest) is not None:
        pairs["its utilization"] = ("largest_utilization", top.utilization)
        pairs["its GPUs"] = ("largest_gpus", float(top.n_gpus))
    return [
        compared(f"{c.label}: {what}", published(column), value)
        for what, (column, value) in pairs.items()
    ]


def ends(c: Curve) -> dict[str, float | None]:
    """Compute at which linear scaling ends, and of the largest run [FLOP]."""
    return {"linear_end": flop(c.linear_end), "largest": flop(c.largest)}


def growth(c: Curve, base: Curve) -> dict[str, float]:
    """How many times as far both ends lie as those of another curve, where both have them."""
    mine, theirs = ends(c), ends(base)
    return {what: x / y for what, x in mine.items() if x and (y := theirs[what])}


def flop(best: Best | None) -> float | None:
    """Compute of a run [FLOP]."""
    return None if best is None else float(best.run.flop)


def points(c: Curve) -> list[dict[str, Any]]:
    """Lines of a curve's table: the layout and what it takes."""
    return [
        {
            "curve": c.label,
            "d_model": int(b.run.d_model),
            "training_flop": float(b.run.flop),
            "n_gpus": b.n_gpus,
            "utilization": b.utilization,
            "share_of_ceiling": b.utilization / ceiling(c.system),
            "train_time_months": b.train_time_s / MONTH_S,
        }
        for b in c.known
    ]


def deliver(
    name: str,
    comparison: list[dict[str, Any]],
    curves: list[dict[str, Any]],
    figure: Figure,
    args: argparse.Namespace,
    shown: list[dict[str, Any]] | None = None,
) -> None:
    """Write the figure and both tables; print the comparison, or what of it is `shown`, as a table,
    or all of it as JSON."""
    written = keep(name, figure, {"": curves, "_compared": comparison}, args.out)

    def show() -> None:
        _show(comparison if shown is None else shown)
        print_paths(written)

    tell({"study": name, **written, "rows": comparison}, args.json, show)


def _show(comparison: list[dict[str, Any]]) -> None:
    cells = [["", "published", "model", "difference", ""]]
    cells += [
        [
            r["what"],
            _digits(r["published"]),
            _digits(r["model"]),
            _percent(r["difference"]),
            r["note"],
        ]
        for r in comparison
    ]
    print_cells(cells, right=(1, 2, 3))


def _digits(x: float | None) -> str:
    return "" if x is None else f"{x:.3g}"


def _percent(x: float | None) -> str:
    return "" if x is None else f"{100 * x:+.1e} %" if 0 < abs(x) < 1e-4 else f"{100 * x:+.2f} %"


def compute_axis(axes: Axes, label: str = "training compute [FLOP]") -> None:
    """A logarithmic axis of training compute, a mark for every second power of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(base=100.0, numticks=30))
    axes.xaxis.set_minor_locator(LogLocator(base=10.0, numticks=30))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(label)


def draw_curves(
    axes: Axes, curves: Sequence[Curve], colors: dict[str, str], *, of_ceiling: bool = False
) -> None:
    """Utilization against compute; sparse models dashed; a ring where linear scaling ends, a cross
    at the largest run in time."""
    for c in curves:
        _draw_curve(axes, c, colors[c.label], 1.0 / ceiling(c.system) if of_ceiling else 1.0)
    if of_ceiling:
        axes.axhline(LINEAR, color=style.GREY, linewidth=0.8, linestyle=":")
    compute_axis(axes)
    axes.set_ylim(0.0, None)
    axes.set_ylabel("utilization over its ceiling" if of_ceiling else "utilization of the peak")
    axes.grid(axis="x", color=style.PALE, linewidth=0.6)
    axes.set_axisbelow(True)


def _draw_curve(axes: Axes, c: Curve, color: str, scale: float) -> None:
    x, y = [float(b.run.flop) for b in c.known], [scale * b.utilization for b in c.known]
    dashes = "--" if c.sparse else "-"
    axes.plot(x, y, color=color, linewidth=1.6, linestyle=dashes, label=c.label)
    for best, marker in ((c.linear_end, "o"), (c.largest, "x")):
        if best is not None:
            at = (float(best.run.flop), scale * best.utilization)
            axes.plot(*at, marker, color=color, markersize=6, markerfacecolor="white")


def legend(axes: Axes, **where: Any) -> None:
    """Names of the lines, and what ring and cross mean."""
    from matplotlib.lines import Line2D

    handles, _ = axes.get_legend_handles_labels()
    for marker, text in (("o", "linear scaling ends"), ("x", "largest run in three months")):
        handles.append(
            Line2D(
                [],
                [],
                color=style.GREY,
                marker=marker,
                linestyle="",
                markerfacecolor="white",
                label=text,
            )
        )
    axes.legend(handles=handles, frameon=False, fontsize=7.5, **where)
