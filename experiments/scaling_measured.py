"""Measured against predicted scaling, source by source, each curve relative to its smallest scale
(weak and strong scaling, GPU and TPU).

A curve: rows of one source that differ in devices and what goes with them (data-parallel degree,
batch); where a source grows its model with its devices, all its rows. Measured is the model FLOP/s
of a device (6N + 12Lhs) over that at the smallest scale, so a model that is wrong by a factor
everywhere is right here. Judged is |predicted / measured − 1| of that ratio at every larger scale.
Two kinds of predictions: fitted, by the shipped profile nearest to each row; held out, by a fit of
all rows but those of the larger scales, of all sources at once. Quick mode, and a second comparison
of the full one, holds out less: the fifth of the groups that one shipped profile has not seen,
judged on that fifth. Rows without a time have their published FLOP/s per device. Rows flagged as
slow for no listed reason are judged apart, with the others of their source.
`python -m experiments.scaling_measured [--traces FILE …] [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import numpy as np

from calibration.evaluate import fitted_rows
from calibration.predict import predict
from calibration.traces import Cases, concatenate, read, to_cases
from calibration.traces.published import PUBLISHED
from dmodel import profiles
from dmodel.counts import model_flops_per_token
from dmodel.profiles import Profile
from dmodel.types import enable_float64
from experiments import scaling as shared
from experiments.bases import Bases
from experiments.scaling_measured_figure import draw
from experiments.study import run as run_study
from experiments.study import say, write

GROWS = ("megatron-sc21-t1", "megatron-lm-h100-weak")
"""Sources whose model grows with the devices: one curve."""

SOURCES = {
    "llm-foundry": "LLM Foundry, FSDP, 8 to 128 GPUs",
    "mlperf-train-v4.0": "MLPerf 4.0 logs, Llama-2 70B LoRA",
    "mlperf-train-v5.0": "MLPerf 5.0 logs, Llama-2 70B LoRA",
    "megatron-sc21-t1": "Megatron, weak, 32 to 3,072 A100",
    "megatron-lm-h100-weak": "Megatron, weak, 48 to 6,144 H100",
    "megatron-sc21-t2": "Megatron against ZeRO-3, strong, A100",
    "mt-nlg-530b": "Turing 530B, strong, to 3,360 A100",
    "maxtext-readme": "MaxText, TPU pods, to 8,192 chips",
    "maxtext-a3": "MaxText, Llama-2 7B on H100",
    "dgxc-nemo": "NeMo, weak, to 2,304 H100 and 512 GB200",
    "dgxc-maxtext": "MaxText, FSDP, weak, to 2,048 H100",
    "dgxc-pax": "Paxml, FSDP, weak, to 2,048 H100",
}
"""Sources of the published table with several scales of one configuration, in words."""

TARGET = 5.0
"""Median error of a source [%]."""


class Curve(NamedTuple):
    """A curve: devices `[scale]`, ascending; measured, and predicted by both kinds, relative to the
    smallest scale; whether the fit of each kind has seen the point."""

    source: str
    name: str
    devices: np.ndarray
    measured: np.ndarray
    fitted: np.ndarray
    held_out: np.ndarray
    seen_fitted: np.ndarray
    seen_held_out: np.ndarray


def table_of(files: list[str]) -> tuple[Cases, np.ndarray]:
    """Rows of the sources and of further files, and the measured FLOP/s of a device `[row]`: from
    the time, or as published."""
    enable_float64()
    whole = concatenate([read(PUBLISHED, require_time=False), *([read(files)] if files else [])])
    mine = tuple(
        r
        for r in whole.rows
        if r.file != str(PUBLISHED) or (r.text("source") in SOURCES and _has_rate(r))
    )
    cases = to_cases(whole._replace(rows=mine))
    published = np.array([1e12 * (row.number("tflops_reported") or np.nan) for row in mine])
    timed = flops(cases) / cases.labels.step_time_s
    return cases, np.where(np.isfinite(timed), timed, published)


def _has_rate(row: Any) -> bool:
    return any(
        row.text(name) for name in ("step_time_s", "tokens_per_s_per_accel", "tflops_reported")
    )


def flops(cases: Cases) -> np.ndarray:
    """Model FLOPs of a step and device [FLOP], `[row]`."""
    per_token = np.asarray(model_flops_per_token(cases.model))
    return (
        per_token
        * np.asarray(cases.plan.global_batch)
        * np.asarray(cases.model.seq_len)
        / cases.labels.n_accel
    )


def keys(cases: Cases) -> list[tuple[str, ...]]:
    """What rows of one curve share."""
    labels, plan, model = cases.labels, cases.plan, cases.model
    shape = zip(
        *(
            np.asarray(x)
            for x in (
                plan.layout.tp,
                plan.layout.cp,
                plan.layout.pp,
                plan.layout.zero,
                model.seq_len,
            )
        ),
        strict=True,
    )
    found = []
    for i, (tp, cp, pp, zero, seq) in enumerate(shape):
        source, stack, name, chip = (
            str(x[i]) for x in (labels.source, labels.stack, labels.model, labels.accelerator)
        )
        if source in GROWS:
            found.append((source, "model grows with the devices"))
        elif source == "llm-foundry" or source.startswith("mlperf"):
            # ZeRO stage, recomputation and degrees change along with the devices in these
            found.append(
                (
                    source,
                    f"{name}, {chip}"
                    + (", pure" if stack.endswith("pure") else "")
                    + f", {seq:.0f} tokens",
                )
            )
        elif source.startswith("dgxc"):
            each = float(np.asarray(plan.global_batch)[i] / labels.n_accel[i])
            job = (
                f"{labels.precision[i]}, tp {tp:.0f}, cp {cp:.0f}, pp {pp:.0f}, {each:g} "
                "sequences a device"
            )
            found.append((source, f"{stack}: {name}, {chip}, {job}"))
        elif source in SOURCES:
            found.append(
                (
                    source,
                    f"{name}, {chip}"
                    + (", ZeRO-3" if zero == 3.0 and not source.startswith("maxtext") else ""),
                )
            )
        else:
            batch, micro = (
                float(np.asarray(x)[i]) for x in (plan.global_batch, plan.layout.micro_batch)
            )
            found.append(
                (
                    source,
                    (
                        f"{name}, {chip}, tp {tp:.0f}, cp {cp:.0f}, pp {pp:.0f}, ZeRO {zero:.0f}, "
                        f"{micro:.0f} of {batch:.0f}"
                    ),
                )
            )
    return found


def along(cases: Cases) -> dict[tuple[str, ...], np.ndarray]:
    """Rows of every curve that has at least two scales."""
    names = keys(cases)
    found = {key: np.array([k == key for k in names]) for key in dict.fromkeys(names)}
    return {
        key: rows for key, rows in found.items() if len(np.unique(cases.labels.n_accel[rows])) > 1
    }


def larger(cases: Cases) -> np.ndarray:
    """Rows beyond the smallest scale of their curve, and all that must be held out with them,
    `[row]` bool."""
    beyond = np.zeros(len(cases), bool)
    for rows in along(cases).values():
        beyond |= rows & (cases.labels.n_accel > cases.labels.n_accel[rows].min())
    return beyond | np.isin(cases.labels.group, cases.labels.group[beyond])


def held_out_profile(cases: Cases, args: argparse.Namespace) -> Profile:
    """The fit that has not seen the larger scales; in quick mode the shipped one that has not seen
    a fifth of the groups."""
    if args.quick:
        return profiles.load(profiles.EVIDENCE)
    whole = to_cases(read(PUBLISHED))
    hidden = np.isin(whole.labels.fingerprint, cases.labels.fingerprint[larger(cases)])
    return Bases(args.out / "bases").without(whole, hidden, "the larger scales")


def curves(cases: Cases, measured: np.ndarray, held_out: Profile) -> list[Curve]:
    """Every curve; several rows of one scale count as their median."""
    work = flops(cases)
    nearest = predict(cases)
    rates = measured, work / nearest.step_time_s, work / predict(cases, held_out).step_time_s
    names = list(dict.fromkeys(nearest.profile))
    seen_nearest = np.any(
        [
            fitted_rows(cases, profiles.load(n).fitted_rows) & (np.array(nearest.profile) == n)
            for n in names
        ],
        0,
    )
    seen = seen_nearest, fitted_rows(cases, held_out.fitted_rows)
    found = []
    for (source, name), rows in along(cases).items():
        scales = np.unique(cases.labels.n_accel[rows])
        at = [rows & (cases.labels.n_accel == n) for n in scales]
        middle = [np.array([np.median(rate[here]) for here in at]) for rate in rates]
        known = [np.array([bool(s[here].any()) for here in at]) for s in seen]
        found.append(Curve(source, name, scales, *(m / m[0] for m in middle), *known))
    return found


def grouped(found: list[Curve]) -> dict[str, list[Curve]]:
    """Curves by source."""
    return {
        source: [c for c in found if c.source == source]
        for source in dict.fromkeys(c.source for c in found)
    }


def errors(found: list[Curve], kind: str, seen: bool | None) -> np.ndarray:
    """|predicted / measured − 1| of the ratio at every larger scale [%]; of points that the fit has
    seen, has not, or all."""
    parts = [np.zeros(0)]
    for c in found:
        known = getattr(c, f"seen_{kind}")[1:]
        wanted = np.ones(len(known), bool) if seen is None else known == seen
        parts.append(100.0 * np.abs(getattr(c, kind)[1:] / c.measured[1:] - 1.0)[wanted])
    return np.concatenate(parts)


def line(source: str, found: list[Curve], fifth: list[Curve] | None = None) -> dict[str, Any]:
    """Errors of one source, of both kinds; and of the fit that has not seen a fifth of the groups,
    on that fifth."""
    ends = np.concatenate([c.devices for c in found])
    values: dict[str, Any] = {
        "source": source,
        "curves": len(found),
        "points": sum(len(c.devices) - 1 for c in found),
    }
    values |= {"from": int(ends.min()), "to": int(ends.max())}
    for title, kind, seen in (("fitted", "fitted", None), ("held_out", "held_out", False)):
        e = errors(found, kind, seen)
        values |= {
            f"{title}_points": len(e),
            f"{title}_median": float(np.median(e)) if len(e) else None,
        }
        values |= {f"{title}_mean": float(e.mean()) if len(e) else None}
    judged = values["held_out_median"] if values["held_out_points"] else values["fitted_median"]
    unfitted = not any(c.seen_fitted.any() for c in found)
    note = "no row of it is in any fit" if unfitted else ""
    e = np.zeros(0) if fifth is None else errors(fifth, "held_out", False)
    values |= {"fifth_points": len(e), "fifth_median": float(np.median(e)) if len(e) else None}
    return {**values, "target_median": TARGET, "reached": bool(judged <= TARGET), "note": note}


def points(found: list[Curve]) -> list[dict[str, Any]]:
    """One line per point of every curve."""
    return [
        {
            "source": c.source,
            "curve": c.name,
            "devices": int(n),
            "measured": float(c.measured[i]),
            "fitted": float(c.fitted[i]),
            "held_out": float(c.held_out[i]),
            "in_fit": bool(c.seen_fitted[i]),
            "in_held_out_fit": bool(c.seen_held_out[i]),
        }
        for c in found
        for i, n in enumerate(c.devices)
    ]


def show(lines: list[dict[str, Any]]) -> None:
    """The table, in columns."""
    head = ("source", "curves", "points", "from", "to", "fitted_median", "fitted_mean")
    head += ("held_out_points", "held_out_median", "held_out_mean")
    names = [
        "source",
        "curves",
        "points",
        "from",
        "to",
        "fitted",
        "mean",
        "held out",
        "median",
        "mean",
    ]
    if any(entry["fifth_points"] for entry in lines):
        head, names = (*head, "fifth_points", "fifth_median"), [*names, "a fifth", "median"]
    cells = [[*names, "≤ 5 %", ""]]
    for entry in lines:
        text = [
            ""
            if entry[k] is None
            else f"{entry[k]:.1f} %"
            if k.endswith(("median", "mean"))
            else str(entry[k])
            for k in head
        ]
        cells.append([*text, "reached" if entry["reached"] else "MISSED", entry["note"]])
    width = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    for row in cells:
        print(*(cell.ljust(w) for cell, w in zip(row, width, strict=True)), sep="  ")


def worst(by_source: dict[str, list[Curve]], lines: list[dict[str, Any]]) -> list[str]:
    """The three points that sources above the target miss by most, held out."""
    text = []
    for source in (
        entry["source"] for entry in lines if not entry["reached"] and entry["source"] in by_source
    ):
        gaps = [
            (c.held_out[i] / c.measured[i] - 1.0, c, i)
            for c in by_source[source]
            for i in range(1, len(c.devices))
        ]
        for gap, c, i in sorted(gaps, key=lambda g: -abs(g[0]))[:3]:
            text.append(
                f"{source}: {c.name}: {c.devices[0]:,.0f} → {c.devices[i]:,.0f} devices, measured "
                f"{c.measured[i]:.2f}, "
                f"held out {c.held_out[i]:.2f} ({100.0 * gap:+.0f} %), fitted {c.fitted[i]:.2f}"
            )
    return ["Furthest off, where the target is missed:", *text] if text else []


def main() -> None:
    """Predict all rows twice, compare curve by curve, draw one figure per source."""
    parser = shared.arguments(__doc__ or "")
    parser.add_argument(
        "--traces",
        nargs="*",
        default=[],
        metavar="FILE",
        help="trace files to judge beside the published table",
    )
    args = shared.parse(parser)
    cases, measured = table_of(args.traces)
    profile = held_out_profile(cases, args)
    slow = np.char.find(cases.labels.flag.astype(str), "slow-unexplained") >= 0
    found = curves(cases.take(~slow), measured[~slow], profile)
    by_source = grouped(found)
    fifth = (
        {}
        if args.quick
        else grouped(curves(cases.take(~slow), measured[~slow], profiles.load(profiles.EVIDENCE)))
    )
    lines = [line(source, of, fifth.get(source)) for source, of in by_source.items()]
    if slow.any():
        mixed = np.isin(cases.labels.source, cases.labels.source[slow])
        lines += [
            line(f"{s}, slow rows too", of)
            for s, of in grouped(curves(cases.take(mixed), measured[mixed], profile)).items()
        ]
    args.out.mkdir(parents=True, exist_ok=True)
    written = {"table": str(write(args.out / "scaling_measured.csv", points(found)))}
    written["table_compared"] = str(write(args.out / "scaling_measured_compared.csv", lines))
    written |= draw({SOURCES.get(s, s): (s, of) for s, of in by_source.items()}, args.out)
    if args.json:
        import json

        print(json.dumps({"study": "scaling_measured", **written, "rows": lines}, allow_nan=False))
        return
    show(lines)
    print("", *worst(by_source, lines), sep="\n")
    say(f"{len(found)} curves of {len(by_source)} sources")
    print("", *(f"{what}: {path}" for what, path in written.items()), sep="\n")


if __name__ == "__main__":
    run_study(main)
