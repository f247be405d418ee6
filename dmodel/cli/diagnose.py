"""`dmodel diagnose`: whether a measured throughput is what such runs have, and if not, why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dmodel.cli.compiled import ready
from dmodel.cli.options import Degrees, Job, Json, takes
from dmodel.cli.output import Document, check_figure, deliver, say
from dmodel.errors import InputError

if TYPE_CHECKING:
    from dmodel.diagnose.diagnosis import Diagnosis
    from dmodel.diagnose.measured import Measured
    from dmodel.diagnose.subject import Stated

File = Annotated[
    Path | None,
    typer.Argument(
        metavar="[FILE]",
        help="A trace file, log or profiler trace that `dmodel import` reads; default: one plan.",
    ),
]
Figures = Annotated[
    list[str] | None,
    typer.Option(
        "--measured",
        metavar="FIGURE",
        help=(
            "Measured step: 5.2s, 0.6it/s, 6785tok/s/gpu, 33samples/s, 41%mfu, 405TFLOP/s/gpu, "
            "or of a whole run, 24h/1218steps. Repeat the option for "
            "compute=3.9s, exposed=0.6s (exposed communication), memory=61GB, elsewhere=4.1s "
            "(the same run on machines as specified), or results of tests: "
            "network-inside=18GB/s, clocks=0.8, synthetic-data=4.9s."
        ),
    ),
]
Line = Annotated[
    int | None, typer.Option(metavar="N", help="Line of the row; default: the only one.")
]
Neighbours = Annotated[int, typer.Option(help="Nearest published runs to show; 0 = none.")]
Figure = Annotated[
    Path | None,
    typer.Option(metavar="FILE.png", help="Draw the steps from predicted to measured time."),
]


@takes(job=Job, degrees=Degrees)
def command(
    file: File = None,
    *,
    measured: Figures = None,
    line: Line = None,
    neighbours: Neighbours = 3,
    figure: Figure = None,
    json: Json = False,
    job: Job,
    degrees: Degrees,
) -> None:
    """Is a measured throughput normal, and why is it lower (or higher)? Takes one plan with
    --measured, or a row of a file."""
    from dmodel.cli.question import check_count

    check_count("neighbours", neighbours, 0)
    check_figure(figure, file)
    if file is None:
        if line is not None:
            raise InputError("--line is of a file; name the file, or leave the option out")
        stated, known = _plan(job, degrees, measured)
    else:
        from dmodel.cli.diagnose_file import of_file

        stated, known = of_file(file, line, job, degrees, measured)
    document, found = _answer(stated, known, neighbours)
    if figure is not None:
        _draw(found, figure)
        say(f"wrote {figure}")
    from dmodel.cli.diagnose_shown import show

    deliver(document, json, show)


def _plan(job: Job, degrees: Degrees, texts: list[str] | None) -> tuple[Stated, Measured]:
    """The plan of the options, and what was measured of it."""
    if not texts:
        raise InputError(
            "nothing was measured; expected --measured, such as --measured 5.2s or --measured "
            "6785tok/s/gpu, or a file with a measured row"
        )
    from dmodel.cli.question import question_of

    question = question_of(job, degrees)
    ready()
    from dmodel.asked import ask, laid, provenance
    from dmodel.diagnose.measured import measured
    from dmodel.diagnose.subject import stated

    known = measured(texts)
    asked = ask(question, job.profile)
    say(provenance(asked))
    return stated(asked, laid(asked, {})), known


def _answer(stated: Stated, known: Measured, count: int) -> tuple[Document, Diagnosis]:
    """What is said of a run."""
    from calibration.traces.neighbours import neighbours
    from dmodel.cli.near import columns_of
    from dmodel.cli.question import plan_document
    from dmodel.diagnose.diagnosis import diagnose
    from dmodel.diagnose.subject import subject

    found = diagnose(subject(stated), known)
    records, columns = stated.found, stated.question.columns
    plan, devices = plan_document(records.plan), float(records.plan.devices)
    near = columns_of(columns, records.model, plan, devices, stated.accelerator)
    document: Document = {
        "model": stated.question.text("model"),
        "accelerator": stated.accelerator,
        "devices": int(devices),
        "seq_len": int(float(records.model.seq_len)),
        "stack": stated.stack,
        "profile": stated.profile.name,
        "plan": plan,
        "measurement": _measurement(known),
        **found.document,
        **_utilization(stated, found.measured_s),
        "neighbours": [each._asdict() for each in neighbours(near, count)],
        "assumptions": [str(each) for each in records.assumptions],
    }
    return document, found


def _measurement(known: Measured) -> Document:
    """What was measured, in SI units; results of tests by name."""
    said = {k: v for k, v in known._asdict().items() if v is not None and k != "tests"}
    return {**said, "tests": {k: v._asdict() for k, v in known.tests.items()}}


def _utilization(stated: Stated, seconds: float) -> Document:
    """The measured rate per device, and its utilization with the peak that it is of."""
    from dmodel import counts
    from dmodel.diagnose.responses import least_seconds
    from dmodel.diagnose.subject import Records
    from dmodel.run import CONVENTION

    model, plan = stated.found.model, stated.found.plan
    rate = float(plan.global_batch * model.seq_len) / seconds / float(plan.devices)
    flops = rate * float(counts.model_flops_per_token(model, CONVENTION))
    peak = float(stated.found.cluster.chip.flops_per_s)
    least = float(least_seconds(Records(stated.found.cluster, model, plan)))
    return {
        "tokens_per_s_per_device": rate,
        "mfu": {"value": flops / peak, "convention": CONVENTION, "peak_flops_per_s": peak},
        "beyond_peak": seconds < least,
    }


def _draw(found: Diagnosis, figure: Path) -> None:
    from dmodel.diagnose.telling import is_cause
    from dmodel.report.style import save_png
    from dmodel.report.waterfall import Part, waterfall

    parts = [Part(c.name, c.probability, c.seconds) for c in found.causes if is_cause(c.name)]
    save_png(waterfall(found.predicted_s, found.measured_s, found.interval, parts), figure)
