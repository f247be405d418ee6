"""From fitted operations to priors of the step model's coefficients, by accelerator, in its
unconstrained space.

The shipped file holds what was fitted; what a single clean call does not say about a training step
is added here, as width.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from calibration.micro import fitting
from calibration.micro.fitting import Fitted
from calibration.micro.groups import Group, form_of, groups, problem_of
from calibration.micro.reader import DATA, published
from dmodel import catalog
from dmodel.catalog.chips import COEFFICIENTS, processor, trait
from dmodel.catalog.loader import resolve
from dmodel.coefficients import SPECS, unconstrained
from dmodel.cost.collectives import OWN_PART
from dmodel.cost.compute import SOFTER
from dmodel.errors import InputError
from dmodel.smooth import SHARPNESS, maximum

FILE = DATA / "fits.json"

BURST_WIDTH = 0.07
"""Standard deviation of the logarithm of the clock of a benchmark over the full one: products of
the tables that take more than 10 ms run at 0.97 (A100), 0.93 (H100), 0.89 (H200) and 0.84 to 0.92
(Blackwell) of the rate that shorter ones have."""

DEMAND_WIDTH = 0.15
"""Standard deviation of the logarithm of `power_demand` of the catalog's chips: by how much slower
they run alone, products of 8192 have 1.48 on an H200 and 1.33 on an H100, narrower ones and 8 bits
1.48 to 1.50 and 1.74 to 1.94 (`calibration/torch_step/data/duty.csv`)."""

GROUPED_WIDTH = 0.5
"""Standard deviation, in the unconstrained space, by which the share that products of experts keep
(`grouped_efficiency` of the catalog's chips) is taken to carry over to a step: two of it are 0.83
to 0.97 (assumed)."""

WIDTHS = {"power_demand": DEMAND_WIDTH, "grouped_efficiency": GROUPED_WIDTH}
"""Widths of coefficients of the catalog's chips; of others `TRANSFER`."""

OF_PROCESSOR = ("matmul", "attention")
"""Kinds of operations that chips of one processor share; links are each chip's own."""

TRANSFER = 0.3
"""Standard deviation, in the unconstrained space, of a coefficient of a step around a single
call's: other kernels, other neighbours."""

TRANSFER_HALF = 0.5
"""The same for half sizes. With 1.0 fits took them at up to ten times those of single calls, and
elementwise kernels at 0.4 of the least traffic that there is: `k M N` of arithmetic looks like
traffic on one chip. On another, or in fewer bits, it does not: Megatron-Bridge on Blackwell told of
H100 missed by 93 % (median), by 12 since (`experiments.accuracy --only chips`)."""

BACKWARD = 0.3
"""The same on top for attention, whose backward pass, the larger part, is in no table."""

TYPICAL = 4096.0
"""Columns at which an unfilled wave is counted as rows, which is how the step model has it; length
of a sequence of attention."""

TYPICAL_HEAD, TYPICAL_RANKS = 128.0, 8.0
"""Head size of attention, and ranks of a collective, at which these are read off."""

LARGE_SHARE = 0.97
"""Most that a share may be, as its logit has no end."""


class MicroPrior(NamedTuple):
    """Mean and standard deviation of a coefficient of the step model in its unconstrained space."""

    mean: float
    sd: float


class Reading(NamedTuple):
    """A coefficient of the step model as operations show it: value in its unit, standard deviation
    in the unconstrained space."""

    value: float
    sd: float


def priors(accelerator: str, precision: str = "fp8") -> dict[str, MicroPrior]:
    """Priors of the step model's coefficients that micro-benchmarks of an accelerator give; empty
    where there are none.

    Args:
      accelerator: a name of the catalog. precision: whose `low_precision_efficiency` is meant,
        where several were measured.

    >>> found = priors("H100-80GB")
    >>> {name: round(found[name].sd, 1) for name in found if name.startswith("matmul_half")}
    {'matmul_half_rows': 0.5, 'matmul_half_columns': 1.0, 'matmul_half_inner': 0.5}
    """
    chip = resolve("chips", accelerator)
    mine = _fits_of(chip)
    found = _of_attention([entry for entry in mine if entry["kind"] == "attention"])
    for entry in (e for e in mine if e["kind"] != "attention"):
        read = _of_matmul(entry, precision) if entry["kind"] == "matmul" else _of_collective(entry)
        found |= {name: r for name, r in read.items() if name not in found or r.sd < found[name].sd}
    return {name: _prior(name, found[name]) for name in SPECS if name in found} | _of_chip(chip)


def _fits_of(chip: str) -> list[dict[str, Any]]:
    """Fits of a chip, and of products and attention those of its processor on another."""
    same = processor(chip)
    alike = [e for e in fits() if e["chip"] == same != chip and e["kind"] in OF_PROCESSOR]
    return [e for e in fits() if e["chip"] == chip] + alike


def _of_chip(chip: str) -> dict[str, MicroPrior]:
    """What the catalog knows of a chip that no table of operations tells."""
    known = {name: trait(chip, name) for name in COEFFICIENTS}
    return {
        name: MicroPrior(unconstrained(name, value), WIDTHS.get(name, TRANSFER))
        for name, value in known.items()
        if value
    }


def _prior(name: str, reading: Reading) -> MicroPrior:
    """A reading in the unconstrained space, at the full clock."""
    value, share = reading.value, SPECS[name].bound == "share"
    variance = reading.sd**2 + (TRANSFER_HALF if name.startswith("matmul_half") else TRANSFER) ** 2
    if name in ("matmul_efficiency", "attention_efficiency"):
        # d logit = d ln / (1 − x)
        variance += (BURST_WIDTH / (1.0 - min(value, LARGE_SHARE))) ** 2
    if name == "attention_efficiency":
        variance += BACKWARD**2
    value = min(value, LARGE_SHARE) if share else value
    return MicroPrior(
        float(np.log(value) - (np.log1p(-value) if share else 0.0)), float(np.sqrt(variance))
    )


@lru_cache(maxsize=1)
def fits() -> tuple[dict[str, Any], ...]:
    """The shipped fits: kind, chip, variant, rows, coefficients with their values and errors,
    Student-t scale, range of the data."""
    return tuple(json.loads(FILE.read_text(encoding="utf-8"))["fits"])


def shipped(kind: str, chip: str, variant: str) -> Fitted:
    """A shipped fit, ready to predict; it has no covariance between coefficients.

    Raises:
      InputError: there is no such fit; the message names those of the kind.
    """
    entry = _fit_of(kind, chip, variant)
    if entry is None:
        known = "; ".join(f"{e['chip']}, {e['variant']}" for e in fits() if e["kind"] == kind)
        raise InputError(
            f"no fit of {kind} for {chip}, {variant}; there are: {known or 'none of this kind'}"
        )
    form = form_of(kind)
    variances = [entry["errors"][name] ** 2 for name in form.specs]
    z = fitting.unconstrained(form.specs, entry["values"])
    return Fitted(form, z, np.diag(variances), entry["scale"])


def _fit_of(kind: str, chip: str, variant: str) -> dict[str, Any] | None:
    wanted = (kind, chip, variant)
    return next((e for e in fits() if (e["kind"], e["chip"], e["variant"]) == wanted), None)


def _of_matmul(entry: Mapping[str, Any], precision: str) -> dict[str, Reading]:
    """Of 16-bit products all; of others what `_of_few_bits` reads."""
    if entry["variant"] not in ("bf16", "fp16"):
        return _of_few_bits(entry, precision)
    v, e = entry["values"], entry["errors"]
    # what the last wave leaves idle, as rows of a product of typical columns, beside those of any
    # product
    parts = {"half_rows": v["half_rows"], "half_area": v["half_area"] / TYPICAL}
    rows = sum(parts.values())
    return {
        "matmul_efficiency": Reading(v["efficiency"], e["efficiency"]),
        "matmul_half_rows": Reading(
            rows, float(np.hypot(*(part * e[name] for name, part in parts.items()))) / rows
        ),
        "matmul_half_columns": Reading(v["half_columns"], e["half_columns"]),
        "matmul_half_inner": Reading(v["half_inner"], e["half_inner"]),
        "memory_efficiency": Reading(v["memory_efficiency"], e["memory_efficiency"]),
    }


def _of_few_bits(entry: Mapping[str, Any], precision: str) -> dict[str, Reading]:
    """Of products in few bits their share of the peak over that of 16 bits, and the traffic of
    casts; of NVFP4 also that over the share of 8 bits."""
    found = {}
    kept = _kept(entry, "bf16") if entry["variant"] == precision else None
    if kept:
        found["low_precision_efficiency"] = kept
        found["cast_traffic"] = Reading(
            entry["values"]["cast_traffic"], entry["errors"]["cast_traffic"]
        )
    further = _kept(entry, "fp8") if entry["variant"] == "nvfp4" else None
    if further:
        found["four_bit_efficiency"] = further
    return found


def _kept(entry: Mapping[str, Any], wider: str) -> Reading | None:
    """Share of the peak over that of products of more bits on the same chip, where those were
    measured."""
    other = _fit_of("matmul", entry["chip"], wider)
    if other is None:
        return None
    ratio = entry["values"]["efficiency"] / other["values"]["efficiency"]
    return Reading(ratio, entry["errors"]["efficiency"] / max(1.0 - min(ratio, LARGE_SHARE), 0.1))


def _of_attention(entries: Sequence[Mapping[str, Any]]) -> dict[str, Reading]:
    """Of all kernels of a chip together: the mean of what they reach at a typical length and head
    size, and how that splits.

    What exponentials take is known only where several head sizes were measured; elsewhere the step
    model's own splits the mean.
    """
    if not entries:
        return {}
    several = [e for e in entries if e["distinct_head_dims"] > 1]
    exponentials = _mean_exponentials(several)
    reached = np.array([_share(e["values"], e["chip"]) for e in entries])
    efficiency = float(np.exp(np.log(reached).mean())) * _slowed(exponentials, entries[0]["chip"])
    spread = float(np.log(reached).std()) / max(1.0 - efficiency, 1.0 - LARGE_SHARE)
    error = max(e["errors"]["efficiency"] for e in entries)
    found = {"attention_efficiency": Reading(efficiency, spread + error)}
    if several:
        found["attention_exponentials"] = Reading(
            exponentials, max(e["errors"]["exponentials"] for e in several)
        )
    return found


def _mean_exponentials(entries: Sequence[Mapping[str, Any]]) -> float:
    """The geometric mean over some fits; the step model's own without any."""
    taken = [e["values"]["exponentials"] for e in entries]
    return float(np.exp(np.mean(np.log(taken or [SPECS["attention_exponentials"].default]))))


def _share(v: Mapping[str, float], chip: str) -> float:
    """Share of the peak that causal attention reaches at a typical length and head size."""
    seen = 0.5 * TYPICAL / (0.5 * TYPICAL + v["half_sequence"])
    return v["efficiency"] * seen / _slowed(v["exponentials"], chip)


def _slowed(exponentials: float, name: str) -> float:
    """Times as long as its products a forward core takes with heads of a typical size [1]."""
    chip = catalog.chip(name)
    products, powers = (
        4.0 * TYPICAL_HEAD / chip.attention_flops_per_s,
        exponentials / chip.exponentials_per_s,
    )
    return float(maximum(np.array([products, powers]), SOFTER * SHARPNESS) / products)


def _of_collective(entry: Mapping[str, Any]) -> dict[str, Reading]:
    """The inner level from ranks in one domain, the outer from ranks across.

    Inside, a hop is what one rank more adds; what a call takes once, its start and its protocol's,
    is the step model's `collective_start`. As hops, seven of which shared it in a node, a ring
    through 256 nodes would pay it 256 times. Between, a gather's hop is that of a ring in lines,
    which follows from hops of trees by the ratios of the library's table alone: the rows across
    nodes are all-reduces.
    """
    v, e = entry["values"], entry["errors"]
    if entry["variant"] != "one domain":
        return {
            "net_efficiency_outer": Reading(v["efficiency_outer"], e["efficiency_outer"]),
            "net_latency_outer": Reading(v["latency_outer"], e["latency_outer"]),
            "net_contention": Reading(v["contention"], e["contention"]),
        }
    crowd = v["crowding"] * np.log(TYPICAL_RANKS)
    rate = (
        np.exp(-crowd)
        * (1.0 + OWN_PART / (TYPICAL_RANKS - 1.0))
        / (1.0 + v["partners"] / (TYPICAL_RANKS - 1.0))
    )
    # what ranks lose to each other is the wiring of the host that was measured, of links through
    # switches next to nothing
    return {
        "net_efficiency_inner": Reading(
            v["efficiency_inner"] * rate, float(np.hypot(e["efficiency_inner"], crowd))
        ),
        "net_latency_inner": Reading(v["latency_inner"], e["latency_inner"]),
    }


def fit_all(
    kinds: Sequence[str] = ("matmul", "attention", "collective"), seed: int = 0
) -> list[dict[str, Any]]:
    """Fit every group of the shipped tables, on all of its rows."""
    found = []
    for kind in kinds:
        members = list(groups(published(kind)))
        results = fitting.fit(form_of(kind), [problem_of(g) for g in members], seed=seed)
        found += [_entry(g, f) for g, f in zip(members, results, strict=True)]
    return found


def _entry(group: Group, fitted: Fitted) -> dict[str, Any]:
    """A fit as it is shipped, with rounded figures."""

    def rounded(values: Mapping[str, float]) -> dict[str, float]:
        return {name: float(f"{x:.5g}") for name, x in values.items()}

    entry = {
        "kind": group.kind,
        "chip": group.chip,
        "variant": group.variant,
        "rows": len(group.table.rows),
        "sources": sorted(set(group.table.texts("source").tolist())),
        "scale": float(f"{fitted.scale:.4g}"),
        "values": rounded(fitted.values),
        "errors": rounded(fitted.errors),
    }
    if group.kind == "attention":
        entry["distinct_head_dims"] = len(set(group.table.numbers("head_dim").tolist()))
    return entry


def write() -> None:
    """Fit everything and write the shipped file."""
    document = {
        "version": 1,
        "about": "fits of calibration.micro to its shipped tables; units in the forms' specs",
        "fits": fit_all(),
    }
    FILE.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
