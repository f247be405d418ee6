"""Measured against predicted scaling, source by source.

Measured against predicted scaling, source by source, each curve relative to its smallest scale
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
from experiments.bases import Bases
from experiments.scaling_measured_figure import draw
from experiments.study import parse, plain_arguments, print_cells, print_paths, say, tell, write
from experiments.study import run as run_study

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


def keys(cases: Cases) -> list[tuple[str, str]]:
    """What rows of one curve share."""
    labels, plan, model = cases.labels, cases.plan, cases.model
    names = ("source", "stack", "model", "chip", "precision", "devices")
    texts = (labels.source, labels.stack, labels.model, labels.accelerator, labels.precision)
    at = plan.layout
    columns = (*(x.astype(str) for x in texts), labels.n_accel)
    names += ("tp", "cp", "pp", "zero", "seq_len")
    columns += (at.tp, at.cp, at.pp, at.zero, model.seq_len)
    names += ("batch", "micro_batch")
    columns += (plan.global_batch, at.micro_batch)
    rows = zip(*(np.asarray(x).tolist() for x in columns), strict=True)
    return [(row[0], curve_of(dict(zip(names, row, strict=True)))) for row in rows]


def curve_of(row: dict[str, Any]) -> str:
    """The curve of its source that a row is on, in words."""
    source, job = row["source"], f"{row['model']}, {row['chip']}"
    if source in GROWS:
        return "model grows with the devices"
    if source == "llm-foundry" or source.startswith("mlperf"):
        # ZeRO stage, recomputation and degrees change along with the devices in these
        pure = ", pure" if row["stack"].endswith("pure") else ""
        return f"{job}{pure}, {row['seq_len']:.0f} tokens"
    degrees = f"tp {row['tp']:.0f}, cp {row['cp']:.0f}, pp {row['pp']:.0f}"
    if source.startswith("dgxc"):
        each = row["batch"] / row["devices"]
        return f"{row['stack']}: {job}, {row['precision']}, {degrees}, {each:g} sequences a device"
    if source in SOURCES:
        sharded = row["zero"] == 3.0 and not source.startswith("maxtext")
        return job + (", ZeRO-3" if sharded else "")
    batch = f"{row['micro_batch']:.0f} of {row['batch']:.0f}"
    return f"{job}, {degrees}, ZeRO {row['zero']:.0f}, {batch}"


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
    fitted, held_out = errors(found, "fitted", None), errors(found, "held_out", False)
    judged = held_out if len(held_out) else fitted
    unfitted = not any(c.seen_fitted.any() for c in found)
    rest = summed("fifth", np.zeros(0) if fifth is None else errors(fifth, "held_out", False))
    return {
        "source": source,
        "curves": len(found),
        "points": sum(len(c.devices) - 1 for c in found),
        "from": int(ends.min()),
        "to": int(ends.max()),
        **summed("fitted", fitted),
        **summed("held_out", held_out),
        **{name: rest[name] for name in ("fifth_points", "fifth_median")},
        "target_median": TARGET,
        "reached": bool(float(np.median(judged)) <= TARGET),
        "note": "no row of it is in any fit" if unfitted else "",
    }


def summed(title: str, found: np.ndarray) -> dict[str, Any]:
    """How many errors, their median and mean [%]."""
    known = len(found) > 0
    return {
        f"{title}_points": len(found),
        f"{title}_median": float(np.median(found)) if known else None,
        f"{title}_mean": float(found.mean()) if known else None,
    }


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


COLUMNS = {
    "source": "source",
    "curves": "curves",
    "points": "points",
    "from": "from",
    "to": "to",
    "fitted_median": "fitted",
    "fitted_mean": "mean",
    "held_out_points": "held out",
    "held_out_median": "median",
    "held_out_mean": "mean",
    "fifth_points": "a fifth",
    "fifth_median": "median",
}
"""What is shown of a line, and under which name."""


def show(lines: list[dict[str, Any]]) -> None:
    """The table, in columns."""
    shown = [
        k for k in COLUMNS if not k.startswith("fifth") or any(x["fifth_points"] for x in lines)
    ]
    head = [*(COLUMNS[k] for k in shown), "≤ 5 %", ""]
    print_cells([head, *(cells(entry, shown) for entry in lines)])


def cells(entry: dict[str, Any], shown: list[str]) -> list[str]:
    """A line as text."""

    def text(key: str) -> str:
        if entry[key] is None:
            return ""
        percent = key.endswith(("median", "mean"))
        return f"{entry[key]:.1f} %" if percent else str(entry[key])

    verdict = "reached" if entry["reached"] else "MISSED"
    return [*map(text, shown), verdict, entry["note"]]


def worst(by_source: dict[str, list[Curve]], lines: list[dict[str, Any]]) -> list[str]:
    """The three points that sources above the target miss by most, held out."""
    missed = [x["source"] for x in lines if not x["reached"] and x["source"] in by_source]
    text = [words for source in missed for words in furthest(source, by_source[source])]
    return ["Furthest off, where the target is missed:", *text] if text else []


def furthest(source: str, found: list[Curve]) -> list[str]:
    """The three points of a source that are missed by most."""
    gaps = [
        (c.held_out[i] / c.measured[i] - 1.0, c, i) for c in found for i in range(1, len(c.devices))
    ]
    return [
        f"{source}: {c.name}: {c.devices[0]:,.0f} → {c.devices[i]:,.0f} devices, measured "
        f"{c.measured[i]:.2f}, "
        f"held out {c.held_out[i]:.2f} ({100.0 * gap:+.0f} %), fitted {c.fitted[i]:.2f}"
        for gap, c, i in sorted(gaps, key=lambda g: -abs(g[0]))[:3]
    ]


def judged(
    cases: Cases, measured: np.ndarray, profile: Profile, quick: bool
) -> tuple[dict[str, list[Curve]], list[dict[str, Any]]]:
    """Curves by source, and the line of each; rows flagged as slow in lines of their own, with the
    others of their source."""
    slow = np.char.find(cases.labels.flag.astype(str), "slow-unexplained") >= 0
    plain = cases.take(~slow), measured[~slow]
    found = grouped(curves(*plain, profile))
    fifth = {} if quick else grouped(curves(*plain, profiles.load(profiles.EVIDENCE)))
    lines = [line(source, of, fifth.get(source)) for source, of in found.items()]
    if slow.any():
        mixed = np.isin(cases.labels.source, cases.labels.source[slow])
        more = grouped(curves(cases.take(mixed), measured[mixed], profile))
        lines += [line(f"{source}, slow rows too", of) for source, of in more.items()]
    return found, lines


def main() -> None:
    """Predict all rows twice, compare curve by curve, draw one figure per source."""
    parser = plain_arguments(__doc__ or "")
    parser.add_argument(
        "--traces",
        nargs="*",
        default=[],
        metavar="FILE",
        help="trace files to judge beside the published table",
    )
    args = parse(parser)
    cases, measured = table_of(args.traces)
    by_source, lines = judged(cases, measured, held_out_profile(cases, args), args.quick)
    found = [c for of in by_source.values() for c in of]
    args.out.mkdir(parents=True, exist_ok=True)
    written = {"table": str(write(args.out / "scaling_measured.csv", points(found)))}
    written["table_compared"] = str(write(args.out / "scaling_measured_compared.csv", lines))
    written |= draw({SOURCES.get(s, s): (s, of) for s, of in by_source.items()}, args.out)

    def show_all() -> None:
        show(lines)
        print("", *worst(by_source, lines), sep="\n")
        say(f"{len(found)} curves of {len(by_source)} sources")
        print()
        print_paths(written)

    tell({"study": "scaling_measured", **written, "rows": lines}, args.json, show_all)


if __name__ == "__main__":
    run_study(main)
