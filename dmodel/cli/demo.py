"""`dmodel demo`: fit published measurements, judge on held-out ones, design, explain, and write it
all down."""

from __future__ import annotations

import json as jsonlib
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dmodel.cli.compiled import ready
from dmodel.cli.options import Degrees, Job, Json, Seed
from dmodel.cli.output import Document, deliver, percent, plain, say, seconds, show_lines

if TYPE_CHECKING:
    import numpy as np

    from calibration.traces import Cases, TraceTable
    from dmodel.asked import Asked
    from dmodel.profiles import Profile
    from dmodel.records import Plan

Out = Annotated[
    Path,
    typer.Option(
        metavar="FOLDER", help="Where report, figures, profile and numbers go; made if missing."
    ),
]
Quick = Annotated[
    bool,
    typer.Option(
        "--quick", help="A part of the rows and a short fit: to try the program, not to judge it."
    ),
]

HOLD_OUT = 0.2
QUICK_ROWS = 120
JOB = Job(system="H100-DGX", devices=512, model="llama-3-70b", seq_len=8192, global_batch=1024)
QUESTION = "Llama-3-70B, sequence 8,192, global batch 1,024, on 512 H100"
SHOWN_PLANS = 2
COMPARED = {"node-wide tp": Degrees(tp=8, pp=4), "FSDP": Degrees(zero=3, recompute="full")}
"""Plans that people would write down without a search, to see what the search is worth."""


def command(
    out: Out = Path("out"), quick: Quick = False, seed: Seed = 0, json: Json = False
) -> None:
    """The whole path on embedded published measurements: fit, errors, design, elasticities, figures
    and report.html."""
    from dmodel.report.page import write

    ready()
    started = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    document = plain({**study(out, quick, seed), "quick": quick})
    document["seconds"] = time.perf_counter() - started
    say("5/5 figures and report")
    written = write(document, out)
    (out / "demo.json").write_text(
        jsonlib.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n",
        encoding="utf-8",
    )
    document["files"] = [str(path) for path in (*written, out / "demo.json", out / "profile.json")]
    document["seconds"] = time.perf_counter() - started
    deliver(document, json, _show)


def study(out: Path, quick: bool, seed: int) -> Document:
    """Steps 1 to 4 as one document of plain data; the fitted profile is written beside."""
    from calibration.traces import published, split, to_cases
    from dmodel import profiles
    from dmodel.cli.fit import fit_with_bar

    table = _thinned(published()) if quick else published()
    cases = to_cases(table)
    held_out = split(cases, HOLD_OUT, seed)
    say(
        f"1/5 fit: {int((~held_out).sum())} of {len(cases)} published rows, "
        f"{int(held_out.sum())} "
        "held out by group"
    )
    started = time.perf_counter()
    fitted = fit_with_bar(
        cases, None, seed, held_out, "demo", **({"starts": 1, "rounds": 1} if quick else {})
    )
    took = time.perf_counter() - started
    profiles.save(fitted, out / "profile.json")
    say("2/5 predicted against measured")
    errors = _errors(table, cases, fitted, out)
    errors["fit"] |= {
        "seconds": took,
        "seed": seed,
        "hold_out": HOLD_OUT,
        "rows_held_out": int(held_out.sum()),
    }
    say(f"3/5 design: {QUESTION}")
    asked = _question(cases, fitted)
    design, best = _design(asked, quick)
    say("4/5 elasticities of the best plan")
    return {**errors, "design": design, "sensitivity": _sensitivity(asked, best, design)}


def _thinned(table: TraceTable) -> TraceTable:
    """Every k-th usable row, about `QUICK_ROWS` of them."""
    step = max(len(table.rows) // QUICK_ROWS, 1)
    return table.select([i % step == 0 for i in range(len(table.rows))])


def _errors(table: TraceTable, cases: Cases, fitted: Profile, out: Path) -> Document:
    """What was used, set aside and reached: the documents `data`, `fit` and `points`."""
    from calibration.evaluate import fitted_rows
    from calibration.predict import predict
    from dmodel.cli.fit import summary

    found = summary(table, cases, fitted)
    in_data = (
        "rows_read",
        "rows_used",
        "rows_fitted",
        "set_aside",
        "set_aside_by_source",
        "reasons",
        "not_fitted_by_flag",
    )
    data = {name: found.pop(name) for name in in_data}
    predicted = predict(cases, fitted).step_time_s
    return {
        "data": {**data, "sources": _sources(table), "assumptions": _assumptions(cases)},
        "fit": {**found, "profile": str(out / "profile.json"), "versions": dict(fitted.versions)},
        "points": _points(cases, predicted, fitted_rows(cases, fitted.fitted_rows)),
    }


def _sources(table: TraceTable) -> list[Document]:
    """Where the usable rows come from: rows, licence and one address by source."""
    found: dict[str, list[Any]] = {}
    for row in table.rows:
        found.setdefault(row.text("source"), []).append(row)
    return [
        {
            "source": name,
            "rows": len(rows),
            "license": "; ".join(dict.fromkeys(row.text("license") for row in rows)),
            "url": rows[0].text("url"),
            "more": len({row.text("url") for row in rows}) - 1,
        }
        for name, rows in found.items()
    ]


def _assumptions(cases: Cases) -> list[Document]:
    """What was assumed where cells were blank, most frequent first; figures of single rows are left
    out."""
    counts: Counter[str] = Counter()
    for row in cases.labels.assumptions:
        for text in row:
            name, blank, value = text.partition(" blank: ")
            if "from the" in value:
                value = "from the other cells"
            elif value.endswith("of the layers, the least that fits"):
                value = "as many layers as the memory asks for"
            counts[f"{name}{blank}{value}"] += 1
    return [{"assumption": text, "rows": n} for text, n in counts.most_common()]


def _points(cases: Cases, predicted: np.ndarray, used: np.ndarray) -> list[Document]:
    labels = cases.labels
    columns = zip(
        labels.source.tolist(),
        labels.line.tolist(),
        labels.step_time_s.tolist(),
        predicted.tolist(),
        used.tolist(),
        strict=True,
    )
    return [
        {"source": s, "line": n, "measured_s": m, "predicted_s": p, "held_out": not u}
        for s, n, m, p, u in columns
    ]


def _question(cases: Cases, fitted: Profile) -> Asked:
    """The demo's job under the coefficients of the stack with most rows of model parallelism on its
    accelerator."""
    import numpy as np

    from dmodel.asked import ask
    from dmodel.cli.question import question_of
    from dmodel.settings import changed

    question = question_of(JOB)
    accelerator = ask(question, "prior").accelerator
    split = np.asarray(cases.plan.layout.tp) * np.asarray(cases.plan.layout.pp) > 1.0
    stacks = Counter(cases.labels.stack[split & (cases.labels.accelerator == accelerator)].tolist())
    named = {"stack": stacks.most_common(1)[0][0]} if stacks else {}
    return ask(changed(question, named), fitted)._replace(reason="just fitted")


def _design(asked: Asked, quick: bool) -> tuple[Document, Plan]:
    """Exact and gradient search side by side, and the best exact plan."""
    from dmodel.cli.design_doubt import add_intervals
    from dmodel.cli.design_plan import found_document, search, stated_of
    from dmodel.design import Limits

    found, assumed = search(asked, "both", SHOWN_PLANS, n_starts=8 if quick else 32)
    document = found_document(asked, found, assumed)
    add_intervals(asked, stated_of(asked, "flash", "usual", Limits(), "time"), found, document)
    document["question"] = QUESTION
    document["coefficients"] = (
        f"of the fit above, for {asked.accelerator} and the stack {asked.stack or '(shared)'}; "
        f"{'; '.join(assumed)}"
    )
    document["compared"] = [_compared(asked, name, degrees) for name, degrees in COMPARED.items()]
    limit = f" The limit that decides: {found.binding.message}." if found.binding else ""
    document["words"] = (
        f"{found.considered:,} valid integer plans were checked one by one, {found.feasible:,} "
        "fit the memory. The gradient search "
        "relaxes degrees, micro-batch and recomputation, descends, rounds and polishes, and "
        f"looked at {found.evaluated:,} plans. Result: "
        f"{found.certificate.statement}.{limit}"
    )
    return document, found.exact[0].plan


def _compared(asked: Asked, name: str, degrees: Degrees) -> Document:
    """One plan beside those of the search, in the same form."""
    from dmodel.cli.question import plan, plan_document, short
    from dmodel.prediction import answer
    from dmodel.run import CONVENTION

    chosen, _ = plan(asked, degrees)
    found, numbers = answer(asked, chosen), plan_document(chosen)
    return {
        "name": name,
        "label": short(numbers),
        "plan": numbers,
        **found,
        "mfu": found["mfu"][CONVENTION],
    }


def _sensitivity(asked: Asked, best: Plan, design: Document) -> Document:
    from dmodel.cli.elasticities import elasticities_document

    return {"label": design["exact"][0]["label"], **elasticities_document(asked, best)}


def _show(d: Document) -> None:
    from dmodel.cli.design import show_design
    from dmodel.cli.evaluate import show_headline
    from dmodel.cli.rows import show_errors, show_reasons
    from dmodel.cli.sensitivity import show_elasticities

    data, fit = d["data"], d["fit"]
    show_errors(
        [*fit["by_source"].values(), fit["overall"]],
        "|predicted / measured − 1| of step time",
        data["set_aside_by_source"],
    )
    show_headline(fit["dense_16_bit_gpu_without_flags"])
    show_lines(
        (
            f"{data['rows_used']} of {data['rows_read']} rows used, {data['rows_fitted']} fitted "
            "in "
            f"{fit['seconds']:.0f} s."
        ),
        "",
    )
    show_reasons(data["reasons"])
    show_design(d["design"])
    show_lines("")
    show_elasticities(d["sensitivity"], 15)
    best = d["design"]["exact"][0]
    show_lines(
        "",
        f"Best plan: {best['label']}: {seconds(best['step_time_s'])}, MFU {percent(best['mfu'])}.",
        f"Report: {d['files'][0]}   (figures and numbers beside it; {d['seconds']:.0f} s)",
        f"Next, your own rows: dmodel fit YOUR.csv --profile {fit['profile']} --out mine.json",
        "                     dmodel evaluate YOUR.csv --profile mine.json",
    )
