"""Sections of the report: pieces of its page from parts of the demo's document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dmodel.report import html
from dmodel.report.text import digits, percent, plan_cells, seconds

MLPERF = (
    "Rows named mlperf-train are medians over the samples of public logs: no official MLPerf "
    "metric, and not verified by MLCommons. "
    "Rows named vtrain-single are sums of per-layer measurements by their authors."
)

Document = Mapping[str, Any]

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


def plans(design: Document) -> list[tuple[str, Document]]:
    """The plans found and those compared, each with its name."""
    exact = [(f"exact {i + 1}", p) for i, p in enumerate(design["exact"])]
    gradient = [("gradient", design["gradient"])] if design.get("gradient") else []
    return exact + gradient + [(p["name"], p) for p in design["compared"]]


def opening(d: Document) -> str:
    """What was found, in large numbers."""
    shipped, fit = d["shipped"], d["fit"]
    best = d["design"]["exact"][0] if d["design"]["exact"] else None
    whole = shipped["overall"]["held_out"]
    held = (shipped["dense_16_bit_gpu_without_flags"] or {}).get("held_out") or whole
    tiles = [
        (
            percent(whole["median"]),
            f"median error on {whole['rows']} rows that the profile never saw, all kinds",
        ),
        (
            percent(held["median"]),
            (
                f"the same for dense bf16/fp16 GPU rows without flags ({held['rows']} rows; mean "
                f"{percent(held['mean'])})"
            ),
        ),
        (
            f"{percent(fit['before']['median'])} → {percent(fit['after']['median'])}",
            (
                f"median error on a stack that the base does not know, before and after "
                f"{fit['rows_fitted']} of its rows were fitted in {fit['seconds']:.0f} s"
            ),
        ),
    ]
    if best:
        tiles.append(
            (seconds(best["step_time_s"]), f"best step found for {d['design']['question']}")
        )
    lead = (
        "A model of one training step, judged on published measurements that it was not fitted "
        "to, fitted to a dozen rows of a new stack, and then asked for the best plan and for what "
        "that plan depends on."
    )
    quick = [
        html.paragraph(
            "Quick run: a part of the rows, to try the program; its errors are not those of all."
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


def errors(d: Document, uri: str) -> str:
    """How far predictions are from measurements, by source."""
    fit, shipped, data = d["fit"], d["shipped"], d["data"]
    lines = [*shipped["by_source"].values(), shipped["overall"]]
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
        f"The shipped profile {shipped['profile']} was fitted to four fifths of the rows, the "
        "others were held out by whole groups (model, accelerator, devices), so that no near "
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
            html.heading("A dozen rows of a new stack"),
            html.paragraph(_dozen(fit)),
            _coefficients(fit),
        ]
    )


def _dozen(fit: Document) -> str:
    """What a fit of a dozen rows does for the others of their stack."""
    ends = [
        f"{percent(fit[name]['median'])} in the median and {percent(fit[name]['mean'])} in the mean"
        for name in ("before", "after")
    ]
    return (
        f"{fit['rows_fitted']} rows of {fit['stack']} on {fit['accelerator']} were fitted from "
        f"the profile {fit['base']}, which saw neither them nor the name of their stack. The "
        f"{fit['rows_held_out']} other rows were predicted with an error of {ends[0]} before, and "
        f"of {ends[1]} after."
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


def data(d: Document) -> str:
    """Where the rows come from, and what was set aside."""
    data = d["data"]
    sources = [(s["source"], s["rows"], s["license"], _addresses(s)) for s in data["sources"]]
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


def _addresses(source: Document) -> str:
    """Where a source is, and how many other places there are."""
    more = f" and {source['more']} more" if source["more"] else ""
    return source["url"] + more


def design(d: Document, uri: str) -> str:
    """The best plan, and plans beside it."""
    found = d["design"]
    rows = [plan_cells(name, p) for name, p in plans(found)]
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
        if found.get("gap") is None
        else f"Gap of the gradient's plan to the best of all: {percent(found['gap'], 2)}. "
    )
    return (
        f"{gap}No plan can be faster than {seconds(found['lower_bound_s'])}, the bare arithmetic "
        "of all devices at their best rate."
    )


def sensitivity(d: Document, uri: str) -> str:
    """What the best plan depends on."""
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


def closing(d: Document) -> str:
    """What the model leaves out, and what to do next."""
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
