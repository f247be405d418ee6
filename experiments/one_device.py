"""Steps on one device, by kind of kernel: predicted, measured.

Claim: the parts of a step add up for the right reasons: kernels measured by kind on one device
take what the model has for them.

Training steps of a decoder in PyTorch on an H100 and an H200, eager and compiled, with the device's
time of every kernel (`calibration/torch_step`), which no fit has seen: of each kind, products,
attention core, what streams, update, the predicted over the measured time, by a profile's
coefficients for the chip and for a stack that it does not know, and what the step draws by the
times that its kernels took, over what was measured. Then what power leaves of the clock: how much
slower products run that have the device for a share of the time, measured and by
`dmodel.cost.power`; single products, alone and of several experts, by their law in the step model;
how much slower kernels run beside channels that copy, measured and by `dmodel.cost.interference`;
how steady a device is at its limit of power. `python -m experiments.one_device [--profile NAME]
[--quick] [--json] [--out DIR]`.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from calibration.torch_step import kinds, record
from calibration.torch_step.cases import Case
from dmodel import catalog, profiles
from dmodel.coefficients import Coefficients
from dmodel.cost.compute import matmul_time
from dmodel.cost.interference import PASSES, contention
from dmodel.cost.power import CORE, STREAMING, Activities, slowed, watts
from dmodel.counts import WORD
from dmodel.records import Chip, Cluster
from dmodel.report import style
from dmodel.smooth import SHARPNESS
from dmodel.step import CALIBRATED
from dmodel.tables import Matmuls
from dmodel.types import enable_float64
from experiments.study import arguments, deliver, run

DATA = Path(kinds.__file__).parent / "data"

CHIPS = {"NVIDIA H100 80GB HBM3": "H100-80GB", "NVIDIA H200": "H200-141GB"}

COLOURS = (style.BLUE, style.SKY, style.VERMILLION, style.ORANGE)
"""Of the chips, eager and compiled."""

PARTS = ("products", "attention", "streaming", "optimizer")
"""Kinds of kernels as the model parts them; products of experts are products."""

WEIGHTS = {"bf16": 1.0, "fp8": 1.0, "attention": CORE}
"""Power of what was measured beside something else over that of products [1]."""


def predicted(case: Case, system: Cluster, c: Coefficients) -> dict[str, float]:
    """Seconds of a step by kind of kernel."""
    model, plan = record.transformer(case), record.plan(case)
    system, plan = CALIBRATED.align(system, plan, model, c)
    costs = CALIBRATED.costs(system, model, plan, c, SHARPNESS)
    work, layers = costs.work, float(case.n_layers)
    again = float(case.recompute) * work.attention.forward
    times = {
        "products": layers * (work.matmul.total + work.redone - again) + work.logits,
        "attention": layers * (work.attention.total + again),
        "streaming": layers * (work.elementwise + work.recompute - work.redone)
        + work.head
        - work.logits,
        "optimizer": costs.optimizer,
    }
    return {name: float(np.asarray(time)) for name, time in times.items()}


def steps(profile: profiles.Profile, quick: bool) -> list[dict[str, Any]]:
    """A line for each step that was measured; what is 0 in either has no ratio. The update of a
    case without layers counts one, so has
    none either."""
    lines = []
    for cells in kinds.read(DATA / "steps.csv")[:: 8 if quick else 1]:
        case, chip = kinds.case_of(cells), CHIPS[cells["device"]]
        system = catalog.system(catalog.default_system(chip))
        found = predicted(case, system, profile.coefficients_for(chip))
        seen = {part: float(cells[f"{part}_s"]) for part in PARTS}
        seen["products"] += float(cells["grouped_s"])
        power = drawn(cells, system.chip, float(profile.coefficients_for(chip).power_demand))
        line: dict[str, Any] = {
            "chip": chip,
            "case": case.name,
            "measured_ms": 1e3 * float(cells["step_s"]),
        }
        line |= {"watts": float(cells["watts"]), "watts_ratio": power / float(cells["watts"])}
        for part in PARTS:
            known = (
                seen[part] > 1e-3
                and found[part] > 0.0
                and (part != "optimizer" or (case.n_layers and not case.adapters))
            )
            line |= {
                f"{part}_ms": 1e3 * seen[part],
                f"{part}_ratio": found[part] / seen[part] if known else None,
            }
        lines.append(line)
    return lines


def drawn(cells: dict[str, str], chip: Chip, demand: float) -> float:
    """Power that a measured step's kernels would draw by the times that they took [W]."""
    share = {
        part: float(cells[f"{part}_s"]) / float(cells["step_s"])
        for part in (*PARTS, "grouped", "busy")
    }
    busy = Activities(
        window=1.0 - share["optimizer"],
        working=min(share["busy"], 1.0) - share["optimizer"],
        products=share["products"] + share["grouped"],
        core=share["attention"],
        streaming=share["streaming"],
        exposed=0.0,
        updating=share["optimizer"],
        idling=0.0,
    )
    return float(watts(chip, busy, demand))


def middles(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The middle ratio of each kind, eager and compiled apart."""
    found = []
    for chip, how in product(dict.fromkeys(x["chip"] for x in lines), ("eager", "compiled")):
        mine = [x for x in lines if x["chip"] == chip and way(x) == how]
        of = {name: known(mine, name) for name in RATIOS}
        ratios = {name: float(np.median(values)) for name, values in of.items() if values}
        if ratios:
            found.append({"chip": chip, "case": f"middle of {how}", **ratios})
    return found


RATIOS = (*(f"{part}_ratio" for part in PARTS), "watts_ratio")
"""Columns of steps: predicted over measured."""


def way(line: dict[str, Any]) -> str:
    """How a step ran."""
    return "compiled" if "compiled" in line["case"] else "eager"


def known(lines: list[dict[str, Any]], name: str) -> list[float]:
    """A column where it is not empty."""
    return [line[name] for line in lines if line[name] is not None]


def clocks(profile: profiles.Profile) -> list[dict[str, Any]]:
    """What products, or the attention core, take over what they take where they have the least
    share of the time."""
    rows = kinds.read(DATA / "duty.csv")
    lines = []
    for cells in rows:
        alike = [
            r for r in rows if (r["device"], r["product"]) == (cells["device"], cells["product"])
        ]
        full = min(float(r["product_s"]) for r in alike)
        share, kind = float(cells["share"]), cells["product"].partition("-")[0]
        demand = WEIGHTS[kind] * jnp.asarray(
            profile.coefficients_for(CHIPS[cells["device"]]).power_demand
        )
        beside = STREAMING / WEIGHTS[kind] * (1.0 - share) * (cells["beside"] == "copy")
        # the share is of the full clock: at a lower one products have more of the time
        slow = slowed(
            jnp.asarray(share), jnp.asarray(0.0), jnp.asarray(beside), jnp.asarray(1.0), demand
        )
        seen = float(cells["product_s"]) / full
        what = f"{cells['product']}, {share:.0%} of the time beside {cells['beside']}"
        line = {
            "chip": CHIPS[cells["device"]],
            "case": what,
            "measured_slower": seen,
            "predicted_slower": float(slow),
        }
        lines.append(line | {"watts": float(cells["watts"])})
    return lines


LONG = 20e-6
"""Products that take less are left out [s]: launching and draining a kernel is no part of their
law."""


def products(profile: profiles.Profile) -> list[dict[str, Any]]:
    """Errors of the law of products, kind by kind, at the full clock: how many, their middle ratio,
    errors in the middle and mean [%]."""
    found: dict[str, list[float]] = {}
    for cells in kinds.read(DATA / "products.csv"):
        seconds, chip = float(cells["product_s"]), CHIPS[cells["device"]]
        if seconds > LONG and (cells["layout"], cells["bits"]) == ("forward", "16"):
            copies, what = (
                float(cells["groups"]),
                {
                    "one": "one after the other",
                    "streams": "on 4 streams",
                    "grouped": "in one kernel",
                },
            )
            how = "alone" if copies == 1.0 else f"of experts {what[cells['how']]}"
            found.setdefault(f"{chip}, {cells['dtype']}, {how}", []).append(
                _law(cells, profile, chip) / seconds
            )
    lines = []
    for what, ratios in found.items():
        errors = 100.0 * np.abs(np.array(ratios) - 1.0)
        chip, _, case = what.partition(", ")
        line = {
            "chip": chip,
            "case": f"{len(ratios)} products in {case}",
            "products_ratio": float(np.median(ratios)),
        }
        lines.append(line | {"median_%": float(np.median(errors)), "mean_%": float(errors.mean())})
    return lines


def _law(cells: dict[str, str], profile: profiles.Profile, name: str) -> float:
    """Seconds of a product, or of those of several experts, by the step model."""
    chip, c = catalog.chip(name, cells["dtype"]), profile.coefficients_for(name)
    sizes = {size: np.array([float(cells[size])]) for size in ("rows", "columns", "inner")}
    copies, low = np.array([float(cells["groups"])]), cells["dtype"] != "bf16"
    shape = Matmuls(**sizes, copies=copies, grouped=1.0 * (copies > 1.0))
    rate = chip.flops_per_s * (c.low_precision_efficiency if low else 1.0)
    return float(matmul_time(shape, rate, 1.0 if low else WORD, chip, c)[0])


PROCESSORS = 132.0
"""Of an H100 or H200."""


def beside_channels(profile: profiles.Profile) -> list[dict[str, Any]]:
    """How much slower each work runs beside channels that copy, by the mechanism: work bound by
    arithmetic, or by memory."""
    rows = kinds.read(DATA / "channels.csv")
    alone = {(r["device"], r["work"]): float(r["work_s"]) for r in rows if r["channels"] == "0"}
    lines = []
    for r in rows:
        if (channels := float(r["channels"])) > 0.0:
            chip = CHIPS[r["device"]]
            hbm, copied = (
                float(np.asarray(catalog.chip(chip).hbm_bytes_per_s)),
                float(r["copied_bytes_per_s"]),
            )
            lost = contention(
                float(r["work"] != "streaming"), PROCESSORS, copied / PASSES, hbm, channels
            )
            seen = float(r["work_s"]) / alone[r["device"], r["work"]]
            what = f"{r['work']} beside {channels:.0f} channels"
            lines.append(
                {
                    "chip": chip,
                    "case": what,
                    "measured_slower": seen,
                    "predicted_slower": 1.0 + float(lost),
                }
            )
    return lines


def wandering() -> list[dict[str, Any]]:
    """Blocks of products that never rest: how far the slowest of several devices would be behind
    their mean."""
    lines = []
    for r in kinds.read(DATA / "steady.csv"):
        for n in (2, 8):
            case = f"the slowest of {n} devices, products of {r['width']}"
            lines.append(
                {
                    "chip": CHIPS[r["device"]],
                    "case": case,
                    "measured_slower": 1.0 + float(r[f"slowest_of_{n}"]),
                }
            )
    return lines


def draw(lines: list[dict[str, Any]], table: list[dict[str, Any]]) -> Any:
    """Predicted over measured of each kind of kernel, step by step, and by how much kernels run
    slower."""
    figure = style.new_figure(10.4, 4.2)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    groups = product(CHIPS.values(), ("eager", "compiled"))
    for i, ((chip, how), colour) in enumerate(zip(groups, COLOURS, strict=True)):
        mine = [x for x in lines if x["chip"] == chip and way(x) == how]
        for at, name in enumerate(RATIOS):
            y = known(mine, name)
            x = np.full(len(y), at + 0.18 * (i - 1.5))
            left.plot(x, y, "o", ms=3.5, alpha=0.7, color=colour)
        left.plot([], [], "o", color=colour, label=f"{chip}, {how}")
    left.axhline(1.0, color=style.GREY, lw=0.8)
    left.set_xticks(range(len(RATIOS)), [name.removesuffix("_ratio") for name in RATIOS])
    left.set(yscale="log", ylabel="predicted / measured")
    left.set_yticks([0.25, 0.5, 1.0, 2.0, 4.0], ["1/4", "1/2", "1", "2", "4"])
    left.minorticks_off()
    left.set_title("Steps by kind of kernel, and their power")
    left.legend(frameon=False, fontsize=8)
    _slower(right, [x for x in table if {"measured_slower", "predicted_slower"} <= x.keys()])
    return figure


def _slower(axes: Any, lines: list[dict[str, Any]]) -> None:
    seen, said = ([x[f"{by}_slower"] for x in lines] for by in ("measured", "predicted"))
    ends = (min(*seen, *said), max(*seen, *said))
    axes.plot(seen, said, "o", ms=4, color=style.BLUE, alpha=0.7)
    axes.plot(ends, ends, color=style.GREY, lw=0.8)
    axes.set(xlabel="measured", ylabel="predicted")
    axes.set_title("Slower by clocks and channels [times]")


def _options() -> argparse.Namespace:
    parser = arguments(__doc__ or "")
    parser.add_argument("--profile", default="generic", help="a shipped profile, or a file")
    return parser.parse_args()


def main() -> None:
    """Steps, their middles, clocks."""
    options = _options()
    enable_float64()
    profile = profiles.load(options.profile)
    lines = steps(profile, options.quick)
    single = [*products(profile), *beside_channels(profile), *wandering()]
    table = [*lines, *middles(lines), *clocks(profile), *single]
    deliver("one_device", table, draw(lines, table), options)


if __name__ == "__main__":
    run(main)
