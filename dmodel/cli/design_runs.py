"""`dmodel design` of a list of values where sizes of the run are free: one search for each, and
their table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dmodel.cli.design_curve import show_filled, why_far
from dmodel.cli.design_tables import DAY_S
from dmodel.cli.output import Document, digits, gib, percent, say, seconds, show_lines
from dmodel.errors import InputError

if TYPE_CHECKING:
    from dmodel.asked import Asked
    from dmodel.cli.design_options import DesignJob
    from dmodel.cli.design_vary import Varied

OF_ANSWER = (
    *("system", "accelerator", "devices", "model", "seq_len", "global_batch", "precision"),
    *("stack", "profile", "objective", "unit", "free", "limits", "quantities", "margins"),
    *("certificate", "binding", "nearest_changes", "robust", "sense", "laws", "assumptions"),
)
"""Fields of an answer that its line keeps."""

OF_BEST = ("label", "plan", "step_time_s", "mfu", "memory_bytes_per_device", "parameters")
"""Fields of its best run that a line keeps, beside its sizes."""


def answered(jobs: list[DesignJob], varied: Varied, ways: Any) -> Document:
    """The best run for each value, as one document."""
    from dmodel.asked import provenance

    asked = [_setting(*pair, varied) for pair in zip(jobs, varied.values, strict=True)]
    say("\n".join(dict.fromkeys(map(provenance, asked))))
    by = [
        _line(job, one, value, ways)
        for job, one, value in zip(jobs, asked, varied.values, strict=True)
    ]
    return {"objective": jobs[0].objective, "varies": varied.name, "by": by}


def _setting(job: DesignJob, value: str, varied: Varied) -> Asked:
    """The records of one value's run.

    Raises:
      InputError: with the value.
    """
    from dmodel.cli.design_run import run_setting

    try:
        return run_setting(job)
    except InputError as error:
        raise InputError(f"{varied.name} {value}: {error}") from None


def _line(job: DesignJob, asked: Asked, value: str, ways: Any) -> Document:
    """One value: what its answer says, and its best run, whose `label` is None where none keeps the
    limits."""
    from dmodel.cli.design_run import answered as answer_of_one

    answer, _ = answer_of_one(job, asked, ways)
    line = {"value": value, **{name: answer[name] for name in OF_ANSWER if name in answer}}
    best = answer["best"]
    if best is None:
        return line | {"label": None}
    sizes = best["sizes"]
    rate = sizes["global_batch"] * answer["seq_len"] / best["step_time_s"]
    line |= {**{name: best[name] for name in OF_BEST}, "sizes": sizes, "tokens_per_s": rate}
    return line | {"tokens_per_s_per_device": rate / sizes["devices"]}


def why_none(document: Document, anyway: bool) -> str:
    """Why no value has an answer; "" where one has."""
    found = [line for line in document["by"] if line["label"] is not None]
    return why_far(found, anyway) if found else "no value has a run that keeps the limits"


HEADER = (
    *("plan", "parameters", "devices", "batch", "tokens", "step", "MFU", "memory"),
    *("loss", "days", "dollars", "MWh"),
)


def show(d: Document) -> None:
    """Table of the values, and why some have no run."""
    free = ", ".join([*d["by"][0]["free"], "the plan"])
    title = f"Best runs by {d['varies']} (least {d['objective']}): free are {free}"
    rows = [(d["varies"], *HEADER), *map(_cells, d["by"])]
    show_filled(title.replace("least largest", "largest run"), rows, HEADER[1:])
    for line in d["by"]:
        show_lines(*_remarks(line, f"{d['varies']} {line['value']}"))
    assumed = dict.fromkeys(text for line in d["by"] for text in line["assumptions"])
    show_lines(f"Assumed: {'; '.join(assumed)}")


def _cells(line: Document) -> list[str]:
    """One value's line of the table."""
    if line["label"] is None:
        return [str(line["value"]), "no run keeps the limits", *[""] * (len(HEADER) - 1)]
    sizes, found = line["sizes"], line["quantities"]
    return [
        str(line["value"]),
        line["label"],
        f"{line['parameters'] / 1e9:.4g}e9",
        f"{sizes['devices']:,.0f}",
        f"{sizes['global_batch']:,.0f}",
        f"{found['tokens']:.4g}",
        seconds(line["step_time_s"]),
        percent(line["mfu"]),
        gib(line["memory_bytes_per_device"]),
        digits(found["loss"], 4),
        digits(found["seconds"] / DAY_S),
        digits(found["dollars"]),
        digits(found["joules"] / 3.6e9),
    ]


def _remarks(line: Document, at: str) -> list[str]:
    """Why a value has no run, or what is unusual about it."""
    if line["label"] is None:
        return [f"{at}: {line['binding']['message']}."]
    odd = "; ".join(each["text"] for each in line.get("sense", ()))
    return [f"{at}: unusual: {odd}."] if odd else []
