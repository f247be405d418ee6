"""The report: one HTML page and three figures from the demo's document, which is plain data
(`demo.json` beside it)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmodel.report import html, style
from dmodel.report.bars import Bar, breakdown
from dmodel.report.scatter import Point, scatter
from dmodel.report.text import digits, percent, plan_cells, seconds
from dmodel.report.tornado import Elasticity, tornado

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MLPERF = (
    "Rows named mlperf-train are medians over the samples of public logs: no official MLPerf "
    "metric, and not verified by MLCommons. "
    "Rows named vtrain-single are sums of per-layer measurements by their authors."
)

Document = Mapping[str, Any]

TITLE = "dmodel: step time of distributed training, predicted, designed, explained"

LIMITS = (
    "Not modelled: failures and restarts, input pipelines, uneven sequence lengths, congestion by "
    "other jobs, and kernels that change "
    "with the shape. The model is smooth where kernels have tile and wave steps.",
    (
        "Memory is counted, not measured: allocator fragmentation is left out, and 2.5 GiB are "
        "reserved for context and buffers."
    ),
    (
        "Power uses assumed shares of arithmetic, memory and network; prices are rounded public "
        "list "
        "prices: energy and cost are rough."
    ),
    (
        "A plan far from every measured one is an extrapolation: its error is not the error of the "
        "tables above."
    ),
)


def figures(d: Document) -> dict[str, Figure]:
    """The figures of a demo by file name."""
    bars = [
        Bar(f"{name}:  {_wrapped(p['label'])}", _terms(p), f"MFU {percent(p['mfu'], 0)}")
        for name, p in _plans(d["design"])
    ]
    inputs = [
        Elasticity(_readable(e["name"]), e["group"], e["elasticity"])
        for e in d["sensitivity"]["elasticities"]
        if e["group"] != "coefficient"
    ]
    return {
        "predicted_vs_measured.png": scatter(
            [Point(p["measured_s"], p["predicted_s"], p["held_out"]) for p in d["points"]]
        ),
        "step_time_breakdown.png": breakdown(bars),
        "elasticities.png": tornado(inputs),
    }


def _plans(design: Document) -> list[tuple[str, Document]]:
    """The plans found and those compared, each with its name."""
    exact = [(f"exact {i + 1}", p) for i, p in enumerate(design["exact"])]
    gradient = [("gradient", design["gradient"])] if design["gradient"] else []
    return exact + gradient + [(p["name"], p) for p in design["compared"]]


def _terms(plan: Document) -> dict[str, float]:
    return {name.removesuffix("_s"): value for name, value in plan["breakdown"].items()}


def _wrapped(label: str, width: int = 30) -> str:
    """A long label on two lines."""
    if len(label) <= width:
        return label
    cut = label.rfind(" · ", 0, width)
    return label if cut < 0 else label[:cut] + "\n" + label[cut + 3 :]


WORDS = {
    "model.seq_len": "sequence length",
    "model.n_layers": "layers",
    "model.d_model": "width of the model",
    "model.d_ff": "width of the MLP",
    "model.n_heads": "heads",
    "model.n_kv_heads": "KV heads",
    "model.head_dim": "size of a head",
    "model.vocab": "vocabulary",
    "plan.dp": "data parallelism, dp",
    "plan.tp": "tensor parallelism, tp",
    "plan.pp": "pipeline stages, pp",
    "plan.cp": "context parallelism, cp",
    "chip.flops_per_s": "peak FLOP/s, matmuls",
    "chip.attention_flops_per_s": "peak FLOP/s, attention",
    "chip.exponentials_per_s": "exponentials/s, attention",
    "chip.hbm_bytes_per_s": "memory bandwidth",
    "chip.kernel_latency_s": "kernel latency",
}
"""Inputs in the words of a chart."""


def _readable(name: str) -> str:
    """`network.bytes_per_s[NVLink 4]` → `bandwidth of NVLink 4`, `coefficients.launch` →
    `coefficient launch`."""
    if name in WORDS:
        return WORDS[name]
    record, _, rest = name.partition(".")
    field, _, level = rest.partition("[")
    words = {"bytes_per_s": "bandwidth", "latency_s": "latency"}.get(field, field).replace("_", " ")
    return (
        f"{words} of {level[:-1]}"
        if level
        else f"coefficient {words}"
        if record == "coefficients"
        else words
    )


def write(d: Document, out: Path) -> list[Path]:
    """Write `report.html` and the figures as PNG into a folder; returns the paths, the report
    first."""
    drawn = figures(d)
    written = [style.save_png(figure, out / name) for name, figure in drawn.items()]
    uris = [style.data_uri(figure) for figure in drawn.values()]
    report = out / "report.html"
    report.write_text(render(d, uris), encoding="utf-8")
    return [report, *written]


def render(d: Document, uris: Sequence[str]) -> str:
    """The page, with its three figures as `data:` addresses."""
    parts = [
        _opening(d),
        _errors(d, uris[0]),
        _data(d),
        _design(d, uris[1]),
        _sensitivity(d, uris[2]),
        _closing(d),
    ]
    return html.page(TITLE, *parts)


def _opening(d: Document) -> str:
    fit, best = d["fit"], d["design"]["exact"][0] if d["design"]["exact"] else None
    held = (fit["dense_16_bit_gpu_without_flags"] or {}).get("held_out") or fit["overall"][
        "held_out"
    ]
    tiles = [
        (
            percent(fit["overall"]["held_out"]["median"]),
            (
                f"median error on {fit['overall']['held_out']['rows']} rows that the fit never "
                "saw, "
                "all kinds"
            ),
        ),
        (
            percent(held["median"]),
            (
                f"the same for dense bf16/fp16 GPU rows without flags ({held['rows']} rows; mean "
                f"{percent(held['mean'])})"
            ),
        ),
        (
            str(d["data"]["rows_fitted"]),
            (
                f"published measurements fitted in {fit['seconds']:.0f} s, of "
                f"{d['data']['rows_read']} read"
            ),
        ),
    ]
    if best:
        tiles.append(
            (seconds(best["step_time_s"]), f"best step found for {d['design']['question']}")
        )
    lead = (
        "A model of one training step, fitted to published measurements, judged on measurements "
        "kept out of the fit, "
        "and then asked for the best plan and for what that plan depends on."
    )
    quick = [
        html.paragraph(
            "Quick run: a part of the rows and a short fit, to try the program; its errors are "
            "larger than those of the full run."
        )
    ]
    return "\n".join(
        [
            html.heading("Step time of distributed training", 1),
            html.paragraph(lead, "lead"),
            *(quick if d["quick"] else []),
            html.tiles(tiles),
        ]
    )


def _errors(d: Document, uri: str) -> str:
    fit, data = d["fit"], d["data"]
    lines = [*fit["by_source"].values(), fit["overall"]]
    rows = [
        [
            line["source"],
            _aside(line["source"], data["set_aside_by_source"]),
            *_cells(line["fitted"]),
            *_cells(line["held_out"]),
        ]
        for line in lines
    ]
    names = ("rows", "median", "mean", "p90")
    header = [
        "source",
        "set aside",
        *(f"fitted {n}" for n in names),
        *(f"held-out {n}" for n in names),
    ]
    words = (
        f"About {percent(fit['hold_out'], 0)} of the rows were held out by whole groups (model, "
        "accelerator, devices), so that no near "
        "copy of a held-out row was fitted. Errors are |predicted / measured − 1| of the step time."
    )
    caption = (
        "Every usable row. The line is equality, the grey band ±10 %; below, the error of each "
        "row, points beyond the scale at its edge."
    )
    return "\n".join(
        [
            html.heading("Predicted against measured"),
            html.paragraph(words),
            html.figure(uri, "Scatter of predicted against measured step time", caption),
            html.table(header, rows, total=True),
            _coefficients(fit),
        ]
    )


def _coefficients(fit: Document) -> str:
    rows = [
        (
            c["name"],
            f"{c['value']:.4g}",
            c["unit"],
            f"{c['prior_value']:g}",
            f"{c['standard_error']:.2g}",
            "yes" if c["determined"] else "no",
            c["meaning"],
        )
        for c in fit["coefficients"]
    ]
    header = (
        "coefficient",
        "shared value",
        "unit",
        "prior",
        "std. error*",
        "determined",
        "meaning",
    )
    note = (
        '* of the logarithm (of the logit for shares). "Determined": the data cut the width of '
        "the prior at least by half; "
        "the others lean on the prior."
    )
    return html.folded(
        f"The {len(rows)} coefficients, {len(fit['determined'])} of them determined by the data",
        html.table(header, rows, (0, 2, 5, 6)) + html.paragraph(note),
    )


def _aside(source: str, aside: Mapping[str, int]) -> int:
    return sum(aside.values()) if source == "overall" else aside.get(source, 0)


def _cells(errors: Document | None) -> list[str]:
    if errors is None:
        return ["–", "", "", ""]
    return [str(errors["rows"]), *(percent(errors[name]) for name in ("median", "mean", "p90"))]


def _data(d: Document) -> str:
    data = d["data"]
    sources = [
        (
            s["source"],
            s["rows"],
            s["license"],
            s["url"] + (f" and {s['more']} more" if s["more"] else ""),
        )
        for s in data["sources"]
    ]
    reasons = [(r["rows"], r["reason"], r["example"].rpartition("/")[2]) for r in data["reasons"]]
    flags = [
        f"{n} rows flagged {flag}: judged above, not fitted (no mechanism in the model)"
        for flag, n in data["not_fitted_by_flag"].items()
    ]
    words = (
        f"{data['rows_read']} rows read from the shipped table, {data['rows_used']} usable, "
        f"{data['rows_read'] - data['rows_used']} set "
        "aside. Each figure keeps its citation and licence:"
    )
    assumptions = [(a["rows"], a["assumption"]) for a in data["assumptions"]]
    return "\n".join(
        [
            html.heading("The data, and what was set aside"),
            html.paragraph(words),
            html.table(("source", "rows used", "licence", "where"), sources, (0, 2, 3)),
            html.paragraph(MLPERF),
            html.heading("Set aside, and why", 3),
            html.table(("rows", "reason (of the first such row)", "first row"), reasons, (1, 2)),
            html.bullets(flags) if flags else "",
            html.folded(
                "What was assumed where a cell was blank",
                html.table(("rows", "assumption"), assumptions, (1,)),
            ),
        ]
    )


def _design(d: Document, uri: str) -> str:
    found = d["design"]
    rows = [plan_cells(name, p) for name, p in _plans(found)]
    header = ("search", "plan", "step", "MFU", "tokens/s", "memory", "headroom")
    return "\n".join(
        [
            html.heading(f"The best plan: {found['question']}"),
            html.paragraph(found["words"]),
            html.table(header, rows, (0, 1)),
            html.paragraph(_gap(found)),
            html.figure(
                uri,
                "Stacked bars of step time by cause",
                (
                    "Seconds of one step by cause; exposed communication is what nothing hides. "
                    "The "
                    "last two plans are for comparison."
                ),
            ),
            html.paragraph(
                f"Coefficients: {found['coefficients']}. MFU counts 6N + 12Lhs FLOPs for a "
                "token. "
                "Memory is that of the fullest device."
            ),
        ]
    )


def _gap(found: Document) -> str:
    """The two searches compared, and the lower bound."""
    gap = (
        ""
        if found["gap"] is None
        else f"Gap of the gradient's plan to the best of all: {percent(found['gap'], 2)}. "
    )
    return (
        f"{gap}No plan can be faster than {seconds(found['lower_bound_s'])}, the bare arithmetic "
        "of all devices at their best rate."
    )


def _sensitivity(d: Document, uri: str) -> str:
    found = d["sensitivity"]
    rows = [
        (e["name"], e["group"], f"{digits(e['at'], 4)}", f"{e['elasticity']:+.4f}")
        for e in found["elasticities"]
        if abs(e["elasticity"]) >= 5e-4
    ]
    words = (
        f"Elasticities of the step time of the best exact plan ({found['label']}), all from one "
        "gradient: by how many per cent "
        "it changes when one input grows by 1 % and all others stay. Degrees count as "
        "independent: more `dp` here means more devices."
    )
    check = (
        "Check: Σ elasticities of rates − Σ elasticities of times = "
        f"{found['sum_rates_minus_sum_times']:.9f}; by dimension it must be −1."
    )
    return "\n".join(
        [
            html.heading("What that plan depends on"),
            html.paragraph(words),
            html.figure(
                uri,
                "Tornado chart of elasticities",
                (
                    "The largest elasticities to hardware, workload and plan; bars to the left "
                    "shorten the step when the input grows."
                ),
            ),
            html.paragraph(check),
            html.folded(
                "All elasticities",
                html.table(("input", "group", "at (SI units)", "elasticity"), rows, (0, 1)),
            ),
        ]
    )


def _closing(d: Document) -> str:
    steps = (
        f"dmodel fit YOUR.csv --profile {d['fit']['profile']} --out mine.json   # a dozen rows of "
        "your own stack are enough to start\n"
        "dmodel evaluate YOUR.csv --profile mine.json\n"
        "dmodel design --system H100-DGX --devices 512 --model llama-3-70b --seq-len 8192 "
        "--global-batch 1024 --profile mine.json\n"
    )
    versions = ", ".join(f"{name} {version}" for name, version in d["fit"]["versions"].items())
    return "\n".join(
        [
            html.heading("What this does not say"),
            html.bullets(LIMITS),
            html.heading("Next: your own measurements"),
            html.code(steps),
            html.paragraph(
                f"Seed {d['fit']['seed']}; {versions}; {d['seconds']:.0f} s in all. The "
                "numbers "
                "behind this page: `demo.json`, beside it."
            ),
        ]
    )
