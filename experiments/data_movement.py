"""What the studies of data movement share: options, sweeps as curves, published figures beside
them, tables and axes.

Published figures are those of arXiv 2411.01137 and of its authors' code, in
`experiments/reference`.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dmodel.goodput import Reliability
from dmodel.records import Cluster
from dmodel.report import style
from dmodel.theory import Best, SmallestCluster, gpu, headline, laws, sweep_widths
from dmodel.theory.laws import BATCH_LAWS, Laws
from dmodel.theory.study import LINEAR, MONTH_S, ceiling
from dmodel.types import enable_float64
from experiments.study import say, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REFERENCE = Path(__file__).parent / "reference"

COLORS = (style.BLUE, style.ORANGE, style.GREEN, style.VERMILLION, style.PURPLE, style.SKY)


def arguments(about: str) -> argparse.ArgumentParser:
    """The options that every study of this group takes."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument(
        "--quick", action="store_true", help="a part of the study, in less than a minute"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument(
        "--out", type=Path, default=Path("out"), help="folder of the tables and the figure"
    )
    return parser


def options(about: str) -> argparse.Namespace:
    """Parse them, and compute in 64 bits."""
    enable_float64()
    return arguments(about).parse_args()


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

    end, top = c.linear_end, c.largest
    found = [
        compared(
            f"{c.label}: linear scaling ends at [FLOP]", published("linear_end_flop"), flop(end)
        )
    ]
    found.append(compared(f"{c.label}: largest run [FLOP]", published("largest_flop"), flop(top)))
    if top is not None:
        found.append(
            compared(
                f"{c.label}: its utilization", published("largest_utilization"), top.utilization
            )
        )
        found.append(compared(f"{c.label}: its GPUs", published("largest_gpus"), float(top.n_gpus)))
    return found


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
    args.out.mkdir(parents=True, exist_ok=True)
    written = {"figure": str(style.save_png(figure, args.out / f"{name}.png"))}
    for suffix, lines in (("", curves), ("_compared", comparison)):
        written[f"table{suffix}"] = str(write(args.out / f"{name}{suffix}.csv", lines))
    if args.json:
        print(json.dumps({"study": name, **written, "rows": comparison}, allow_nan=False))
        return
    _show(comparison if shown is None else shown)
    print(*(f"{what}: {path}" for what, path in written.items()), sep="\n")


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
    width = [max(len(row[i]) for row in cells) for i in range(4)]
    for what, *numbers, note in cells:
        print(
            what.ljust(width[0]),
            *(n.rjust(w) for n, w in zip(numbers, width[1:], strict=True)),
            note,
            sep="  ",
        )


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
        scale = 1.0 / ceiling(c.system) if of_ceiling else 1.0
        x, y = [float(b.run.flop) for b in c.known], [scale * b.utilization for b in c.known]
        axes.plot(
            x,
            y,
            color=colors[c.label],
            linewidth=1.6,
            linestyle="--" if c.sparse else "-",
            label=c.label,
        )
        for best, marker in ((c.linear_end, "o"), (c.largest, "x")):
            if best is not None:
                axes.plot(
                    float(best.run.flop),
                    scale * best.utilization,
                    marker,
                    color=colors[c.label],
                    markersize=6,
                    markerfacecolor="white",
                )
    if of_ceiling:
        axes.axhline(LINEAR, color=style.GREY, linewidth=0.8, linestyle=":")
    compute_axis(axes)
    axes.set_ylim(0.0, None)
    axes.set_ylabel("utilization over its ceiling" if of_ceiling else "utilization of the peak")
    axes.grid(axis="x", color=style.PALE, linewidth=0.6)
    axes.set_axisbelow(True)


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
