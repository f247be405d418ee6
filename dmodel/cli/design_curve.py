"""`dmodel design` of a list of values: one search for each, their table and their figure."""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING, Any

from dmodel.cli.output import Document, digits, gib, percent, say, seconds, show_lines, show_table
from dmodel.cli.run_options import Terms, beyond_sense
from dmodel.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from dmodel.asked import Asked
    from dmodel.cli.design_options import DesignJob
    from dmodel.cli.design_vary import Varied

OF_ANSWER = (
    *("system", "accelerator", "devices", "model", "seq_len", "global_batch", "precision"),
    *("stack", "profile", "certificate", "certificate_kind", "considered", "feasible"),
    *("memory_limit", "binding", "remedies", "closest", "robust", "sense", "assumptions"),
    "published",
)
"""Fields of an answer that its line keeps."""

OF_PLAN = (
    *("label", "plan", "step_time_s", "step_time_s_low", "step_time_s_high", "mfu"),
    *("tokens_per_s", "joules_per_token", "dollars_per_million_tokens"),
    *("memory_bytes_per_device", "headroom_bytes", "oom_probability"),
    *("days", "device_hours", "dollars", "run"),
)
"""Fields of its best plan that a line keeps."""


def answered(jobs: list[DesignJob], varied: Varied, ways: Any, terms: Terms) -> Document:
    """The best plan for each value, as one document."""
    from dmodel.asked import provenance

    settings = [
        _setting(job, varied, value) for job, value in zip(jobs, varied.values, strict=True)
    ]
    say("\n".join(dict.fromkeys(map(provenance, settings))))
    by = [
        _line(job, asked, value, ways, terms)
        for job, asked, value in zip(jobs, settings, varied.values, strict=True)
    ]
    document = {"objective": jobs[0].objective, "varies": varied.name, "by": _as_numbers(by)}
    return document | {"reference": _add_efficiency(document["by"])}


def _setting(job: DesignJob, varied: Varied, value: str) -> Asked:
    """The records of one value's job.

    Raises:
      InputError: with the value.
    """
    from dmodel.cli.design_options import fixed_job
    from dmodel.cli.question import setting

    try:
        return setting(fixed_job(job))
    except InputError as error:
        raise InputError(f"{varied.name} {value}: {error}") from None


def _line(job: DesignJob, asked: Asked, value: str, ways: Any, terms: Terms) -> Document:
    """One value: what its answer says, and the best plan, whose `label` is None where none fits."""
    from dmodel.cli.design_plan import answered as answer_of_one

    answer, _ = answer_of_one(job, asked, ways, terms)
    line = {"value": value, **{name: answer[name] for name in OF_ANSWER if name in answer}}
    best = next(iter(answer["exact"]), answer.get("gradient"))
    if best is None:
        return line | {"label": None}
    line |= {name: best[name] for name in OF_PLAN if name in best}
    return line | {"tokens_per_s_per_device": best["tokens_per_s"] / asked.devices}


def _as_numbers(by: list[Document]) -> list[Document]:
    """The lines with their values as numbers where all are."""
    try:
        values = [float(line["value"]) for line in by]
    except ValueError:
        return by
    return [
        line | {"value": int(value) if value.is_integer() else value}
        for line, value in zip(by, values, strict=True)
    ]


def _add_efficiency(by: list[Document]) -> Any:
    """Give every plan its tokens/s per device over those of the reference, and say which that is:
    the smallest number, or the first word, that has a plan."""
    planned = [line for line in by if line["label"] is not None]
    if not planned:
        return None
    first = planned[0] if isinstance(planned[0]["value"], str) else min(planned, key=_value)
    for line in planned:
        rate = line["tokens_per_s_per_device"]
        line["efficiency"] = rate / first["tokens_per_s_per_device"]
    return first["value"]


def _value(line: Document) -> Any:
    return line["value"]


def why_none(document: Document, anyway: bool) -> str:
    """Why no value has an answer, a plan that is not far beyond every published run; "" where one
    has."""
    planned = [line for line in document["by"] if line["label"] is not None]
    return why_far(planned, anyway) if planned else "no value has a plan that fits"


def why_far(found: list[Document], anyway: bool) -> str:
    """Why no answer of some is sane; "" where one is."""
    far = [odd for line in found if (odd := beyond_sense(line)) is not None]
    if anyway or len(far) < len(found):
        return ""
    return f"no sane run: {far[0]['text']} (--anyway accepts it)"


HEADER = (
    *("plan", "step", "tokens/s/device", "MFU", "memory", "risk", "efficiency"),
    *("days", "dollars", "in time"),
)


def show(d: Document) -> None:
    """Table of the values, and why some have no plan."""
    rows = [(d["varies"], *HEADER), *map(_cells, d["by"])]
    show_filled(_title(d), rows, HEADER[1:])
    show_lines(*_lines(d))


def show_filled(title: str, rows: list[Any], right: tuple[str, ...]) -> None:
    """A table without the columns that nothing is in, its header first.

    Args:
      right: columns of numbers.
    """
    filled = [any(column) for column in zip(*rows[1:], strict=True)]
    head, *table = (list(compress(row, filled)) for row in rows)
    show_table(title, head, table, right="|".join(right))


def _title(d: Document) -> str:
    """The job in one line, but for what varies."""
    first, name = d["by"][0], d["varies"]
    shown = {
        "model": first["model"],
        "seq_len": f"{first['seq_len']} tokens",
        "global_batch": f"batch {first['global_batch']}",
        "devices": f"{first['devices']} devices",
        "precision": first["precision"],
        "stack": first["stack"],
        "system": f"{first['accelerator']} ({first['system']})",
    }
    same = [text for key, text in shown.items() if text and key != name and _is_same(d, key)]
    return f"Least {d['objective']} by {name}: {', '.join(same)}"


def _is_same(d: Document, key: str) -> bool:
    return all(line[key] == d["by"][0][key] for line in d["by"])


def _cells(line: Document) -> list[str]:
    """One value's line of the table."""
    if line["label"] is None:
        return [str(line["value"]), "no plan fits", *[""] * (len(HEADER) - 1)]
    return [
        str(line["value"]),
        line["label"],
        seconds(line["step_time_s"]),
        digits(line["tokens_per_s_per_device"]),
        percent(line["mfu"]),
        gib(line["memory_bytes_per_device"]),
        percent(line["oom_probability"]),
        percent(line["efficiency"]),
        *_cells_of_run(line),
    ]


def _cells_of_run(line: Document) -> list[str]:
    """What the whole run takes, and how likely it is done by its date; blank where nobody asked."""
    cells = [digits(line[name]) if name in line else "" for name in ("days", "dollars")]
    deadline = line.get("run", {}).get("deadline")
    return [*cells, percent(deadline["probability"], 0) if deadline else ""]


def _lines(d: Document) -> list[str]:
    """What is said below the table."""
    lines = []
    if d["reference"] is not None:
        lines.append(
            f"Efficiency: tokens/s per device over those at {d['varies']} {d['reference']}."
        )
    lines += _line_of_run(d["by"])
    lines += _line_of_doubt(d["by"])
    for line in d["by"]:
        at = f"{d['varies']} {line['value']}"
        lines += [f"{at}: {text}." for text in _remarks(line)]
    assumed = dict.fromkeys(text for line in d["by"] for text in line["assumptions"])
    return [*lines, f"Assumed: {'; '.join(assumed)}"]


def _line_of_run(by: list[Document]) -> list[str]:
    """Which run takes the days and dollars; its date, where one was asked for."""
    run = next((line["run"] for line in by if "run" in line), None)
    if run is None:
        return []
    said = dict.fromkeys(line["run"]["tokens_said"] for line in by if "run" in line)
    deadline = run.get("deadline")
    until = f"; in time: done by {deadline['until']}, begun {run['start']}" if deadline else ""
    return [f"Run: {'; '.join(said)}{until}."]


def _line_of_doubt(by: list[Document]) -> list[str]:
    """How far the 90 % intervals of the steps reach."""
    known = [line for line in by if "step_time_s_low" in line]
    if not known:
        return []
    low = min(line["step_time_s_low"] / line["step_time_s"] for line in known)
    high = max(line["step_time_s_high"] / line["step_time_s"] for line in known)
    return [
        f"90 % intervals of the steps reach from {digits(low)} to {digits(high)} times what is "
        "printed; what all values share is in them too."
    ]


def _remarks(line: Document) -> list[str]:
    """Why a value has no plan and what would fit, or what is unusual about its run."""
    if line["label"] is not None:
        odd = "; ".join(each["text"] for each in line.get("sense", ()))
        return [f"unusual: {odd}"] if odd else []
    binding = line["binding"] or {"message": "no plan found that fits"}
    fits = ", or ".join(remedy["message"] for remedy in line["remedies"])
    return ["; would fit: ".join(filter(None, (binding["message"], fits)))]


def draw(d: Document, figure: Path) -> None:
    """Write the figure of the values that have a plan, where some have."""
    from dmodel.report.curve import Point, curve
    from dmodel.report.style import save_png

    points = [
        Point(x["value"], x["tokens_per_s"], x["tokens_per_s_per_device"], _span(x))
        for x in d["by"]
        if x["label"] is not None
    ]
    if not points:
        say(f"no plan to draw: {figure} is not written")
        return
    save_png(curve(d["varies"], points), figure)
    say(f"wrote {figure}")


def _span(line: Document) -> tuple[float, float] | None:
    """The 90 % interval of a rate over the rate; None where it is not known."""
    if "step_time_s_low" not in line:
        return None
    step = line["step_time_s"]
    return step / line["step_time_s_high"], step / line["step_time_s_low"]
