"""What the studies of design share: options, systems with their coefficients, the best plan of a
job, tables and figures."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dmodel import catalog, profiles
from dmodel.codesign import CoDesign, Laws, Limits, question, solve_question
from dmodel.codesign.laws import loss
from dmodel.coefficients import Coefficients
from dmodel.records import Cluster, Model
from dmodel.report import style
from experiments import study
from experiments.study import parse, plain_arguments

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = (*study.COLORS, style.YELLOW)

DAY_S = 86400.0


def options(about: str) -> argparse.Namespace:
    """What is asked of a study of this group; computes in 64 bits."""
    parser = plain_arguments(about)
    parser.add_argument(
        "--profile", default=None, help="coefficients; default: the nearest to each system"
    )
    return parse(parser)


class Machine(NamedTuple):
    """A system of the catalog with the coefficients that hold for it."""

    name: str
    accelerator: str
    system: Cluster
    coefficients: Coefficients
    profile: str


def machine(name: str, profile: str | None = None) -> Machine:
    """A system by name, at 16 bits; coefficients of a profile, or of the shipped one nearest to its
    chip."""
    accelerator = next(
        entry["chip"] for entry in catalog.entries("systems") if entry["name"] == name
    )
    chosen = profiles.load(profile) if profile else profiles.nearest(accelerator, "")[0]
    return Machine(
        name,
        accelerator,
        catalog.system(name, "fp16" if accelerator.startswith("V100") else "bf16"),
        chosen.coefficients_for(accelerator, None),
        chosen.name,
    )


def model(name: str, seq_len: int | None = None) -> Model:
    """A model by name."""
    return catalog.transformer(name, seq_len)


class Clock:
    """Seconds since it was made, and since the last look."""

    def __init__(self) -> None:
        self.begin = self.last = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last look [s]."""
        now = time.perf_counter()
        self.last, passed = now, now - self.last
        return passed


def deliver(
    name: str,
    lines: Sequence[dict[str, Any]],
    figure: Figure,
    args: argparse.Namespace,
    *,
    summary: Sequence[dict[str, Any]] | None = None,
) -> None:
    """Write figure and table; print the lines, or their summary, as a table or as JSON."""
    study.deliver(name, lines, figure, args, shown=summary, digits=".4g")


def quiet_grid(axes: Axes, axis: str = "y") -> None:
    """Pale lines behind the data."""
    axes.grid(axis=axis, color=style.PALE, linewidth=0.6)  # type: ignore[arg-type]
    axes.set_axisbelow(True)


class Scale(NamedTuple):
    """A size of run: the compute that decides its loss, and that loss."""

    flop: float
    loss: float


def scale_of(flop: float, laws: Laws) -> Scale:
    """The least loss that a compute budget reaches by the loss law, `min over N of L(N, C /
    6N)`."""
    sizes = np.geomspace(1e6, 1e14, 1601)
    return Scale(flop, float(np.asarray(loss(sizes, flop / (6.0 * sizes), laws.loss)).min()))


def cheapest(
    at: Machine, family: str, seq_len: int, scale: Scale, laws: Laws, days: float, n_starts: int
) -> CoDesign:
    """The cheapest run to a loss within a deadline: shape, batch, tokens, devices and plan free;
    asked again with more starts when none of them ended within the limits."""
    asked = question(
        at.system,
        model(family, seq_len),
        at.coefficients,
        objective="cost",
        limits=Limits(seconds=days * DAY_S, loss=scale.loss),
        free=("shape", "batch", "tokens", "devices"),
        devices=512.0,
        global_batch=1024.0,
        law=laws,
    )
    answer = solve_question(asked, n_starts=n_starts)
    for again in (1, 2):
        if answer.found is None:
            answer = solve_question(asked, n_starts=2**again * n_starts, seed=again)
    return answer


def plain_ticks(axes: Axes) -> None:
    """Numbers instead of powers on a logarithmic vertical axis of little range."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.yaxis.set_major_locator(LogLocator(base=10.0, subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda x, _: f"{x:,.0f}" if x >= 1.0 else f"{x:g}")
    )
    axes.yaxis.set_minor_formatter(NullFormatter())
