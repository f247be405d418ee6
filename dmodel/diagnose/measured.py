"""What was measured of a run, from words: `5.2s`, `6785tok/s/gpu`, `41%mfu` (`figures`),
`memory=61GB`, `elsewhere=3.1s`, `network-inside=18GB/s`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from dmodel import counts
from dmodel.diagnose.causes import Test, tests
from dmodel.diagnose.figures import figure, in_order
from dmodel.errors import InputError
from dmodel.records import Cluster, Model, Plan
from dmodel.run import CONVENTION
from dmodel.units import quantity

SEQUENCES = ("sequences_per_s", "sequences_per_s_per_device")
"""Kinds of measurement that count sequences, of whatever length."""

RATES = ("tokens_per_s", "tokens_per_s_per_device", *SEQUENCES)
"""Kinds of measurement that count what is trained in a second."""

UTILIZATION = ("mfu", "flops_per_s_per_device")
"""Kinds that count model FLOPs."""

MOST_MFU = 5.0
"""Utilization beyond which a figure is a mistake in its unit, whatever peak it is of [1]."""

BESIDE = {"compute": "s", "exposed": "s", "memory": "byte"}
"""What may be measured beside the step, and its unit."""

ELSEWHERE = "elsewhere"
"""A figure of the step of the same run on other machines, which are as stated."""


class Result(NamedTuple):
    """What a test showed: a number, in byte/s, s or 1 ("a ratio")."""

    value: float
    unit: str


class Measured(NamedTuple):
    """What was measured of a run.

    Attributes:
      kind: "time", or a name of `RATES` or `UTILIZATION`. value: of it, in SI units.
      compute, exposed: seconds of a step in which a device computes, and in which it communicates
        while nothing computes, as a profiler tells them; None = not measured.
      memory: peak of a device [byte]; None = not measured.
      text: of the step's measurement, as it was written.
      elsewhere: of the step of the same run on machines as stated, of the same kind and in the same
        unit as `value`; None = not measured. tests: results by the name of the test.
    """

    kind: str
    value: float
    compute: float | None = None
    exposed: float | None = None
    memory: float | None = None
    text: str = ""
    elsewhere: float | None = None
    tests: Mapping[str, Result] = MappingProxyType({})

    @property
    def beside(self) -> dict[str, float]:
        """What is known beside the step, by observable."""
        every = {name: getattr(self, name) for name in BESIDE}
        return {name: value for name, value in every.items() if value is not None}


def measured(texts: Sequence[str], option: str = "--measured") -> Measured:
    """A measurement from words: one of the step, and `kind=value` of what is known beside it.

    >>> measured(["850ms", "memory=61GB"]).value
    0.85

    Raises:
      InputError: none of the step, or two; an unknown kind or unit; of other machines another kind
        of figure than of these.
    """
    text, beside = _apart(list(map(in_order, texts)), option)
    kind, value = _step(text, option)
    known: dict[str, Any] = {}
    for each in beside:
        name, _, said = map(str.strip, each.partition("="))
        if name in known:
            raise InputError(f"{option}: {name} is given twice; give it once")
        known[name] = _known(name, said, kind, f"{option} {each!r}")
    done = {name: x for name, x in known.items() if isinstance(x, Result)}
    rest = {name: x for name, x in known.items() if name not in done}
    return Measured(kind, value, **rest, text=text, tests=MappingProxyType(done))


def _apart(texts: Sequence[str], option: str) -> tuple[str, list[str]]:
    """The figure of the step, and the others."""
    steps = [text for text in texts if "=" not in text or text.strip().startswith("step=")]
    if len(steps) != 1:
        raise InputError(
            f"{option}: expected one figure of the step, such as 5.2s, 6785tok/s/gpu or 41%mfu; "
            f"got {len(steps)}{': ' + ', '.join(steps) if steps else ''}"
        )
    return steps[0].strip().removeprefix("step="), [t for t in texts if t is not steps[0]]


def _step(text: str, what: str) -> tuple[str, float]:
    """Kind of a figure of the step, and its value in SI units."""
    kind, value = figure(text, what)
    if kind == "mfu" and not value <= MOST_MFU:
        raise InputError(
            f"{what} {text!r}: expected a utilization, such as 41%mfu or 0.41mfu, up to "
            f"{MOST_MFU:.0%} (more than 100 % is of another peak)"
        )
    return kind, value


def _known(name: str, text: str, kind: str, what: str) -> float | Result:
    """What is known beside a step's figure of some kind, in SI units."""
    if name in BESIDE:
        return _beside(name, text, what)
    if name == ELSEWHERE:
        other, value = _step(text, what)
        if other != kind:
            raise InputError(f"{what}: expected the unit of the step's own figure")
        return value
    test = results().get(name)
    if test is None:
        raise InputError(
            f"{what}: unknown kind {name!r}; expected one of step, "
            f"{', '.join((*BESIDE, ELSEWHERE, *results()))}; what a configuration shows is an "
            "option of the plan"
        )
    return _result(test, text, what)


def results() -> dict[str, Test]:
    """Tests of one number, by name: those whose result can be told."""
    return {t.name: t for t in tests() if t.changes or t.without or len(t.reads) == 1}


def _result(test: Test, text: str, what: str) -> Result:
    """What a test showed, in words.

    Raises:
      InputError: no positive number, or not of the test.
    """
    unit = _unit(test, text)
    try:
        value = 0.01 * quantity(text[:-1], "1") if text.endswith("%") else quantity(text, unit)
    except ValueError as error:
        raise InputError(f"{what}: {error}") from None
    is_bare = unit == "s" and not text[-1:].isalpha()
    if is_bare or not 0.0 < value < 1e300:
        raise InputError(f"{what}: expected {_expected(test, unit)}")
    return Result(value, unit)


def _unit(test: Test, text: str) -> str:
    """Unit of a result: bandwidths may be told as they are, and over the catalog's."""
    if not test.reads:
        return "s"
    is_rate = test.reads[0].leaf.startswith("network.bytes_per_s")
    return "byte/s" if is_rate and text[-1:].isalpha() else "1"


def _expected(test: Test, unit: str) -> str:
    """A result in words."""
    if unit == "1":
        return f"{test.reads[0].looks}, such as 0.8 or 80%"
    return "seconds of a step, such as 4.1s" if unit == "s" else "a rate, such as 18GB/s"


def _beside(name: str, text: str, what: str) -> float:
    """A positive amount of what is measured beside the step, in SI.

    Raises:
      InputError: no number, no positive one, or a unit of another kind.
    """
    unit = BESIDE[name]
    try:
        value = quantity(text, unit) if text.strip()[-1:].isalpha() else 0.0
    except ValueError as error:
        raise InputError(f"{what}: {error}") from None
    if not 0.0 < value < 1e300:
        raise InputError(f"{what}: expected a positive number with a unit, such as 3.9s or 61GB")
    return value


def step_seconds(of: Measured, cluster: Cluster, model: Model, plan: Plan) -> float:
    """Seconds of a step by a measurement, with the stated batch, sequence length and peak.

    Raises:
      InputError: parts of the step are longer than it.
    """
    seconds = in_seconds(of.kind, of.value, cluster, model, plan)
    for name in ("compute", "exposed"):
        part = of.beside.get(name, 0.0)
        if part > 1.001 * seconds:
            raise InputError(
                f"{name} takes {part:.4g} s, longer than the step, which takes {seconds:.4g} s; "
                "give seconds of one step"
            )
    if (of.compute or 0.0) + (of.exposed or 0.0) > 1.02 * seconds:
        raise InputError(
            f"compute and exposed communication together take longer than the step, {seconds:.4g} "
            "s; exposed is what nothing computes beside"
        )
    return seconds


def in_seconds(kind: str, value: float, cluster: Cluster, model: Model, plan: Plan) -> float:
    """Seconds of a step by one figure of it, with the stated batch, sequence length and peak."""
    tokens = float(plan.global_batch) * float(model.seq_len)
    devices = float(plan.devices)

    def flops() -> float:
        return tokens * float(counts.model_flops_per_token(model, CONVENTION)) / devices

    by_kind: dict[str, Callable[[], float]] = {
        "time": lambda: value,
        "tokens_per_s": lambda: tokens / value,
        "tokens_per_s_per_device": lambda: tokens / (value * devices),
        "sequences_per_s": lambda: float(plan.global_batch) / value,
        "sequences_per_s_per_device": lambda: float(plan.global_batch) / (value * devices),
        "mfu": lambda: flops() / (value * float(cluster.chip.flops_per_s)),
        "flops_per_s_per_device": lambda: flops() / value,
    }
    return by_kind[kind]()
