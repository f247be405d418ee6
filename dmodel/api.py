"""What Python users call: nouns for a job, a cluster and a layout, and verbs over them.

Every function translates its arguments into a `dmodel.question.Question`; nothing is assembled
here.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dmodel.asked import ask, laid
from dmodel.breakdown import Breakdown
from dmodel.called import step_time_of
from dmodel.catalog.loader import resolve as known_id
from dmodel.catalog.models import reading
from dmodel.prediction import Prediction, prediction
from dmodel.profiles import Profile
from dmodel.question import Question
from dmodel.records import Layout, Model
from dmodel.records.case import Case
from dmodel.settings import by_column, changed
from dmodel.smooth import SHARPNESS
from dmodel.step import memory_use as memory_of
from dmodel.types import enable_float64

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from calibration.evaluate import Evaluation
    from calibration.traces import TraceTable
    from dmodel.cost.memory import Memory
    from dmodel.design import Design
    from dmodel.diagnose.diagnosis import Diagnosis
    from dmodel.montecarlo import Swept
    from dmodel.sensitivity import Elasticities
    from dmodel.solve import Solution


class Job(NamedTuple):
    """A training job: model, sequence length and global batch.

    Attributes:
      model: a name of the catalog, the path of a Hugging Face `config.json`, or a `Model`.
      seq_len: tokens per sequence; None = the model's own.
      global_batch: sequences per step.
    """

    model: str | Model
    seq_len: int | None = None
    global_batch: int | None = None


class Site(NamedTuple):
    """A cluster by name.

    Attributes:
      name: id of a system of the catalog, or "" where only the chip is named.
      accelerator: id of a chip, or "" where the system has it.
      devices: accelerators of the run [count].
    """

    name: str
    accelerator: str
    devices: int


def cluster(name: str, devices: int) -> Site:
    """A cluster of the catalog: a system ("H100-DGX"), or a chip ("H100-80GB") in the system that
    it stands in unless the stack has another.

    Raises:
      InputError: unknown name, with the nearest.
    """
    from dmodel.catalog.systems import machine_named

    system, chip = machine_named(name)
    if chip:
        return Site("", known_id("chips", chip), devices)
    return Site(known_id("systems", system), "", devices)


COLUMN_OF = {"zero": "zero_stage"}
"""Fields of a layout whose column has another name."""


def question(
    job: Job,
    site: Site,
    layout: Layout | None = None,
    *,
    stack: str = "",
    precision: str = "",
    overrides: Mapping[str, Any] | None = None,
) -> Question:
    """The question that arguments ask.

    Args:
      layout: fields that are `OPEN` are left to the stack and to rules.
      overrides: name → value in the one name space of columns and settings; wins over all else.
    Raises:
      InputError: an unknown name, or a value that it does not take.
    """
    words: dict[str, Any] = {"n_accel": site.devices, "accelerator": site.accelerator}
    words |= {"seq_len": job.seq_len, "global_batch": job.global_batch}
    words |= {"stack": stack, "precision": precision}
    notes: tuple[str, ...] = ()
    if isinstance(job.model, Model):
        model: Model | None = job.model
        words["model"] = "own"
    else:
        model, notes = reading(str(job.model), job.seq_len) or (None, ())
        words["model"] = str(job.model)
    said = {name: value for name, value in words.items() if value not in (None, "")}
    start = Question({}, model=model, system=site.name, notes=notes)
    return changed(start, said | _layout_words(layout) | by_column(overrides or {}))


def _layout_words(layout: Layout | None) -> dict[str, Any]:
    """Fields of a layout that are not open."""
    if layout is None:
        return {}
    named = {f.name: getattr(layout, f.name) for f in fields(layout)}
    return {
        COLUMN_OF.get(name, name): value if isinstance(value, str | tuple) else float(value)
        for name, value in named.items()
        if not _is_open(name, value)
    }


def _is_open(name: str, value: Any) -> bool:
    """Whether a field of a layout says nothing."""
    by_default = name in ("schedule", "placement") and value == getattr(Layout(), name)
    return value is None or by_default


def predict(
    job: Job,
    cluster: Site,
    layout: Layout | None = None,
    *,
    stack: str = "",
    precision: str = "",
    overrides: Mapping[str, Any] | None = None,
    profile: str | Profile | None = None,
) -> Prediction:
    """Step time, memory, utilization, energy and cost of one plan, with intervals.

    Args:
      layout: fields left out follow: dp from the devices, the rest from the stack's facts.
      stack: software by name, with its release ("nemo/25.09"), or the path of a TOML file.
      overrides: name → value of columns and settings, such as `{"graphed": 1}`.
      profile: coefficients by name or file; None = the shipped ones nearest to chip and stack.

    Raises:
      InputError: what is missing, unknown, or does not divide.
    """
    enable_float64()
    words = question(job, cluster, layout, stack=stack, precision=precision, overrides=overrides)
    asked = ask(words, profile)
    return prediction(asked, laid(asked, {}))


def diagnose(
    job: Job,
    cluster: Site,
    layout: Layout | None = None,
    *,
    measured: str | Sequence[str],
    stack: str = "",
    precision: str = "",
    overrides: Mapping[str, Any] | None = None,
    profile: str | Profile | None = None,
) -> Diagnosis:
    """Whether a measured throughput is normal; and if not, the likely causes.

    Args:
      layout, stack, precision, overrides, profile: as of `predict`: the run as specified.
      measured: of the step ("5.2s", "6785tok/s/gpu", "41%mfu"), and further measurements
        ("compute=3.9s", "exposed=0.6s", "memory=61GB").

    Raises:
      InputError: what is missing, unknown, does not divide, or is no measurement.
    """
    from dmodel.diagnose.diagnosis import diagnose as diagnosed
    from dmodel.diagnose.measured import measured as figures
    from dmodel.diagnose.subject import stated, subject

    enable_float64()
    known = figures([measured] if isinstance(measured, str) else measured, "measured")
    words = question(job, cluster, layout, stack=stack, precision=precision, overrides=overrides)
    asked = ask(words, profile)
    return diagnosed(subject(stated(asked, laid(asked, {}))), known)


def solve(
    job: Job,
    cluster: Site,
    layout: Layout | None = None,
    *,
    input: str,
    such_that: str,
    between: tuple[float, float] | None = None,
    tokens: float | None = None,
    stack: str = "",
    precision: str = "",
    overrides: Mapping[str, Any] | None = None,
    profile: str | Profile | None = None,
) -> Solution:
    """All values of one input that give a wanted output of the plan; or why there is none.

    Args:
      layout, stack, precision, overrides, profile: as of `predict`.
      input: a name of the one name space, or of hardware ("bandwidth.inter"); see `dmodel.solve`.
      such_that: "mfu=45%", "days<=30", …. between: of the input. tokens: of the whole run.

    Raises:
      InputError: what is missing, unknown, or does not divide.
    """
    from dmodel.solve import solve as solved

    enable_float64()
    words = question(job, cluster, layout, stack=stack, precision=precision, overrides=overrides)
    return solved(ask(words, profile), input, such_that, between, tokens=tokens)


def design(
    job: Job,
    cluster: Site,
    *,
    stack: str = "",
    precision: str = "",
    overrides: Mapping[str, Any] | None = None,
    profile: str | Profile | None = None,
    attention: str = "",
    everything: bool = False,
    max_risk: float | None = None,
    **how: Any,
) -> Design:
    """The best plan for a job on a cluster, with a certificate.

    Args:
      stack, precision, overrides, profile: as of `predict`; the layout is searched.
      attention: "flash" or "none". everything: search all that a plan can vary.
      max_risk: largest accepted probability of running out of memory [1]; None =
        `footprint.RISK`, a tenth. A share of memory in `limits` overrides it.
      how: `method`, `top`, `limits`, `objective` and more of `dmodel.design.design`.

    Raises:
      InputError: what is missing or unknown, or is set but searched.
    """
    from dmodel.design import Limits
    from dmodel.footprint import RISK
    from dmodel.searching import search, space_of, usable

    enable_float64()
    words = question(job, cluster, stack=stack, precision=precision, overrides=overrides)
    asked = ask(words, profile)
    limits = how.pop("limits", None) or Limits()
    if float(limits.memory) == 1.0:
        limits = limits.replace(memory=usable(asked, RISK if max_risk is None else max_risk))
    how["limits"] = limits
    return search(asked, space_of(asked, attention, everything), **how)


def monte_carlo(
    job: Job,
    cluster: Site,
    plans: Sequence[Mapping[str, Any]] | None = None,
    *,
    draws: int = 256,
    stack: str = "",
    precision: str = "",
    overrides: Mapping[str, Any] | None = None,
    profile: str | Profile | None = None,
    everything: bool = False,
    out: str | Path | None = None,
    executor: Executor | None = None,
    **how: Any,
) -> Swept:
    """Step times of all plans of a job under draws of the coefficients from the profile's
    posterior.

    Args:
      plans: for each plan, columns and settings of its layout by name, such as `{"tp": 8}`;
        None = all plans of the stack's space.
      draws: of the coefficients [count]. stack, precision, overrides, profile: as of `predict`.
      everything: search all that a plan can vary; without `plans`.
      out: folder of finished parts, from which a run resumes; None keeps nothing.
      executor: of `concurrent.futures`, or Dask's `client.get_executor()`; None = threads.
      how: `seed`, `top`, `risk` and `pairs` of `dmodel.montecarlo.sweep_of`.

    Raises:
      InputError: what is missing or unknown, no covariance in the profile, or a worker that died.
    """
    from dmodel.montecarlo import plans_of, sweep_of, swept
    from dmodel.parts import Folder

    enable_float64()
    words = question(job, cluster, stack=stack, precision=precision, overrides=overrides)
    asked = ask(words, profile)
    known = plans_of(asked, plans, everything)
    folder = None if out is None else Folder(Path(out), partial(warnings.warn, stacklevel=2))
    sweep = sweep_of(asked, known, draws, **how)
    return swept([sweep], executor=executor, folder=folder)[0]


def step_time(case: Case, sharpness: float | None = None) -> Breakdown:
    """Seconds of a step by cause; differentiable in every leaf of the case.

    Args:
      sharpness: of smooth maxima; None = the default.
    """
    smooth = SHARPNESS if sharpness is None else sharpness
    return step_time_of((case.cluster, case.model, case.plan, case.coefficients), smooth)


def memory_use(case: Case) -> Memory:
    """Bytes of the fullest device by purpose; differentiable in every leaf of the case."""
    return memory_of(case.model, case.plan, footprint=case.footprint)


def sensitivity(found: Prediction, output: str = "step_time") -> Elasticities:
    """Elasticities of an output: its change in percent when an input grows by one percent.

    Args:
      found: a prediction, around whose plan they are taken.
      output: one of `dmodel.sensitivity.OUTPUTS`, "step_time" by default.
    Raises:
      InputError: an unknown output.
    """
    from dmodel.sensitivity import elasticities

    asked, plan = found.asked, found.plan
    return elasticities(asked.cluster, asked.model, plan, asked.coefficients, output, sort=True)


def _rows(traces: str | Path | list[str | Path]) -> TraceTable:
    """Rows of files; a warning says which are set aside, and which can hardly be right."""
    from calibration.traces import read

    table = read(traces)
    for said, problems in (("set aside", table.problems), ("flagged implausible", table.doubts)):
        if problems:
            text = f"{len(problems)} of {table.total} rows {said}, the first: {problems[0]}"
            warnings.warn(text, stacklevel=3)
    return table


def fit(
    traces: str | Path | list[str | Path],
    base: str | None = None,
    implausible: bool = False,
    **how: Any,
) -> Profile:
    """Coefficients fitted to measured configurations.

    Args:
      traces: files of rows, CSV or Parquet (`docs/data.md`).
      base: a profile to start from, which a few rows then move; None = nothing.
      implausible: fit rows that can hardly be right too.
      how: as `calibration.fit.fit` takes it.

    Raises:
      InputError: a file that cannot be read, or without usable rows.
    """
    from calibration.fit import fit as fitted
    from calibration.traces import to_cases
    from calibration.weights import believed
    from dmodel import profiles

    enable_float64()
    start = {} if base is None else {"base": profiles.load(base)}
    cases = to_cases(_rows(traces))
    return fitted(believed(cases) if implausible else cases, **start, **how)


def evaluate(
    traces: str | Path | list[str | Path], profile: str | Profile | None = None
) -> Evaluation:
    """Predicted against measured step times of rows, by source.

    Raises:
      InputError: a file that cannot be read, or without usable rows.
    """
    from calibration.evaluate import evaluate as evaluated
    from calibration.predict import predict as predicted
    from calibration.traces import to_cases
    from dmodel import profiles

    enable_float64()
    cases = to_cases(_rows(traces))
    chosen = profiles.load(profile) if isinstance(profile, str) else profile
    return evaluated(cases, predicted(cases, chosen).step_time_s)
