"""`dmodel demo`: judge a shipped profile on published measurements, fit a dozen of them, design,
explain, and write it all down."""

from __future__ import annotations

import json as jsonlib
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dmodel.cli.compiled import ready
from dmodel.cli.options import Degrees, Job, Json, Seed
from dmodel.cli.output import (
    Document,
    check_installed,
    deliver,
    percent,
    plain,
    say,
    seconds,
    show_lines,
)

if TYPE_CHECKING:
    import numpy as np

    from calibration.traces import Cases, TraceTable
    from dmodel.asked import Asked
    from dmodel.profiles import Profile
    from dmodel.records import Plan

Out = Annotated[
    Path,
    typer.Option(metavar="FOLDER", help="Output folder for report, figures, profile and numbers."),
]
Quick = Annotated[
    bool,
    typer.Option("--quick", help="Use a part of the rows: a trial, not an evaluation."),
]

QUICK_ROWS = 120
STACK, ACCELERATOR, ROWS = "llm-foundry", "A100-80GB", 12
"""Stack of the dozen rows that are fitted, where they ran, and how many they are [count]."""

NEW = "yours"
"""The name under which that stack is fitted: one that no profile knows, like a user's own."""

JOB = Job(system="H100-DGX", devices=512, model="llama-3-70b", seq_len=8192, global_batch=1024)
QUESTION = "Llama-3-70B, sequence 8,192, global batch 1,024, on 512 H100"
SHOWN_PLANS = 2
COMPARED = {"node-wide tp": Degrees(tp=8, pp=4), "FSDP": Degrees(zero=3, recompute="full")}
"""Plans that people would write down without a search, to see what the search is worth."""


def command(
    out: Out = Path("out"), quick: Quick = False, seed: Seed = 0, json: Json = False
) -> None:
    """Demonstrate all steps on shipped data: errors of a shipped profile, a fit of a dozen rows,
    design, elasticities, figures and report.html."""
    from dmodel.report.page import write

    check_installed("matplotlib")
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
    pages = _explorer(out)
    made = (*written, out / "demo.json", out / "profile.json", *pages)
    document["files"] = [str(path) for path in made]
    document["seconds"] = time.perf_counter() - started
    deliver(document, json, _show)


def _explorer(out: Path) -> list[Path]:
    """The explorer with the fitted profile, where its programs are kept; else how to write it."""
    from calibration.traces.neighbours import compact
    from dmodel.explore.page import missing, page
    from dmodel.profiles import load

    profile, path = out / "profile.json", out / "explorer.html"
    if missing():
        say(f"for a page to explore: dmodel explore --profile {profile} (a minute or two, once)")
        return []
    path.write_text(page(load(str(profile)), published=compact()), encoding="utf-8")
    return [path]


def study(out: Path, quick: bool, seed: int) -> Document:
    """Steps 1 to 4 as one document of plain data; the fitted profile is written beside."""
    from calibration.traces import published, to_cases
    from dmodel import profiles

    table = _thinned(published()) if quick else published()
    cases, base = to_cases(table), profiles.load(profiles.EVIDENCE)
    say(f"1/5 the shipped profile {base.name} against {len(cases)} published rows")
    found = _errors(table, cases, base)
    fit, fitted = _dozen(_of_stack() if quick else cases, base, seed, out)
    say(f"3/5 design: {QUESTION}")
    asked = _question(cases, fitted)
    design, best = _design(asked)
    say("4/5 elasticities of the best plan")
    return {**found, "fit": fit, "design": design, "sensitivity": _sensitivity(asked, best, design)}


def _dozen(cases: Cases, base: Profile, seed: int, out: Path) -> tuple[Document, Profile]:
    """A dozen rows, fitted from a base that saw neither them nor the name of their stack, and how
    well the other rows are predicted before and after; the profile is written."""
    import numpy as np

    from calibration.predict import predict
    from dmodel import profiles
    from dmodel.cli.fit import fit_with_bar

    rows = _unseen(cases, base)
    chosen = np.isin(
        np.arange(len(rows)), np.random.default_rng(seed).permutation(len(rows))[:ROWS]
    )
    say(
        f"2/5 fit: {chosen.sum()} rows of {STACK} on {ACCELERATOR}, as of a stack that {base.name} "
        f"does not know; {(~chosen).sum()} others are held out"
    )
    started = time.perf_counter()
    fitted = fit_with_bar(rows.take(chosen), base, seed, None, "demo")
    took = time.perf_counter() - started
    profiles.save(fitted, out / "profile.json")
    others = rows.take(~chosen)
    before, after = (
        _judged(others, predict(others, p.certain).step_time_s) for p in (base, fitted)
    )
    coefficients = fitted.describe()
    return {
        "profile": str(out / "profile.json"),
        "base": base.name,
        "stack": STACK,
        "accelerator": ACCELERATOR,
        "rows_fitted": int(chosen.sum()),
        "rows_held_out": len(others),
        "before": before,
        "after": after,
        "seconds": took,
        "seed": seed,
        "versions": dict(fitted.versions),
        "coefficients": coefficients,
        "determined": [c["name"] for c in coefficients if c["determined"]],
    }, fitted


def _of_stack() -> Cases:
    """All rows of the stack and its family."""
    from calibration.traces import to_cases
    from calibration.traces.published import of_families
    from dmodel.profiles import family

    return to_cases(of_families(frozenset({family(STACK)})))


def _unseen(cases: Cases, base: Profile) -> Cases:
    """The rows of the stack that a base was not fitted on, under a name that it does not know."""
    import numpy as np

    from calibration.evaluate import fitted_rows

    mine = (cases.labels.stack == STACK) & (cases.labels.accelerator == ACCELERATOR)
    rows = cases.take(mine & ~fitted_rows(cases, base.fitted_rows))
    return rows.replace(labels=rows.labels._replace(stack=np.full(len(rows), NEW)))


def _judged(cases: Cases, predicted: np.ndarray) -> Document:
    """Errors of predictions, the median and the mean."""
    from calibration.evaluate import errors

    found = errors(predicted, cases.labels.step_time_s)
    assert found is not None
    return {"median": found.median, "mean": found.mean}


def _thinned(table: TraceTable) -> TraceTable:
    """Every k-th usable row, about `QUICK_ROWS` of them."""
    step = max(len(table.rows) // QUICK_ROWS, 1)
    return table.select([i % step == 0 for i in range(len(table.rows))])


def _errors(table: TraceTable, cases: Cases, base: Profile) -> Document:
    """What was used, set aside and reached by a profile: the documents `data`, `shipped` and
    `points`."""
    from calibration.evaluate import evaluate, fitted_rows
    from calibration.predict import predict
    from dmodel.cli.evaluate import headline
    from dmodel.cli.fit import unfitted_flags
    from dmodel.cli.rows import aside_by_source, errors_by_source, reasons

    used = fitted_rows(cases, base.fitted_rows)
    predicted = predict(cases, base.certain).step_time_s
    data = {
        "rows_read": table.total,
        "rows_used": len(cases),
        "set_aside": [p._asdict() for p in table.problems],
        "set_aside_by_source": aside_by_source(table),
        "reasons": reasons(table),
        "not_fitted_by_flag": unfitted_flags(cases),
        "sources": _sources(table),
        "assumptions": _assumptions(cases),
    }
    shipped = {
        "profile": base.name,
        "rows_fitted": int(used.sum()),
        **errors_by_source(evaluate(cases, predicted, used)),
        "dense_16_bit_gpu_without_flags": headline(cases, predicted, used),
    }
    return {"data": data, "shipped": shipped, "points": _points(cases, predicted, used)}


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


def _design(asked: Asked) -> tuple[Document, Plan]:
    """The exact search and two usual plans side by side, and the best plan."""
    from dmodel.cli.design_doubt import add_intervals
    from dmodel.cli.design_plan import bar, found_document, near_published, search, stated_of
    from dmodel.cli.design_risk import memory_limit
    from dmodel.design import Limits
    from dmodel.footprint import RISK
    from dmodel.searching import usable

    limits = Limits(memory=usable(asked))
    with bar() as shown:
        found, assumed = search(asked, "exact", SHOWN_PLANS, limits=limits, progress=shown)
    document = found_document(asked, found, assumed)
    document["memory_limit"] = memory_limit(RISK, asked, found)
    add_intervals(asked, stated_of(asked, "", "usual", limits, "time"), found, document)
    document["published"] = near_published(asked, document)
    document["question"] = QUESTION
    document["coefficients"] = (
        f"of the profile fitted above, for {asked.accelerator} and the stack "
        f"{asked.stack or '(shared)'}; {'; '.join(assumed)}"
    )
    document["compared"] = [_compared(asked, name, degrees) for name, degrees in COMPARED.items()]
    limit = f" The limit that decides: {found.binding.message}." if found.binding else ""
    document["words"] = (
        f"{found.considered:,} valid integer plans were checked one by one, {found.feasible:,} "
        f"fit the memory. Result: {found.certificate.statement}.{limit}"
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


def dozen(fit: Document) -> str:
    """What a dozen rows do for the others of their stack, in a sentence."""
    before, after = (
        f"{percent(fit[name]['median'])} / {percent(fit[name]['mean'])}" for name in ENDS
    )
    return (
        f"{fit['rows_fitted']} rows of {fit['stack']} on {fit['accelerator']}, fitted in "
        f"{fit['seconds']:.0f} s from a base that does not know their stack: the error of "
        f"{fit['rows_held_out']} others falls from {before} to {after} (median / mean)."
    )


ENDS = ("before", "after")
"""Errors before and after a fit."""


def _show(d: Document) -> None:
    from dmodel.cli.design import show_design
    from dmodel.cli.evaluate import show_headline
    from dmodel.cli.rows import show_errors, show_reasons
    from dmodel.cli.sensitivity import show_elasticities

    data, shipped, fit = d["data"], d["shipped"], d["fit"]
    show_errors(
        [*shipped["by_source"].values(), shipped["overall"]],
        f"Profile {shipped['profile']}: |predicted / measured − 1| of step time",
        data["set_aside_by_source"],
    )
    show_headline(shipped["dense_16_bit_gpu_without_flags"])
    show_lines(f"{data['rows_used']} of {data['rows_read']} rows used.", "", dozen(fit), "")
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
