"""The sheet on which launch settings are written down. Nothing of a plan or a model can be
forgotten on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dmodel.emit.sizes import sizes
from dmodel.errors import InputError
from dmodel.records import LEAVES, Model, Plan, leaf

Setting = bool | int | float | str | list[str] | None


class Job(NamedTuple):
    """What is to be launched.

    Attributes:
      model, plan: scalars. model_name: in the catalog, "" for a shape of one's own. precision: of
      the matmuls, as traces name it. accelerator: of the catalog ("H100-80GB"). per_domain: devices
      of one host, or of one slice of a TPU [count].
    """

    model: Model
    plan: Plan
    model_name: str = ""
    precision: str = "bf16"
    accelerator: str = ""
    per_domain: int = 8


class LeftOut(NamedTuple):
    """A field of the plan or the model that a framework cannot be told. value: as planned. reason:
    what the framework does instead."""

    field: str
    value: float | str
    reason: str


class Sheet:
    """Settings of one framework, and what became of every field.

    Attributes:
      settings: name → value, in the order of writing. left_out: what cannot be told. broken: rules
        of the framework that the plan breaks.
    """

    def __init__(self, job: Job):
        self.job = job
        self.values = _values({n: leaf(job.plan, n) for n in LEAVES} | sizes(job.model))
        self.settings: dict[str, Setting] = {}
        self.left_out: list[LeftOut] = []
        self.broken: list[str] = []
        self._dealt_with: set[str] = set()

    def __getitem__(self, name: str) -> float:
        """Value of a numeric field; whole ones as integers."""
        value = self.values[name]
        return int(value) if value == int(value) else value

    def tell(self, names: str, settings: Mapping[str, Setting] | None = None) -> None:
        """These fields (separated by blanks) are expressed by these settings, or by the framework's
        default when there are none."""
        self._dealt_with.update(self._known(names))
        self.settings |= dict(settings or {})

    def leave(self, names: str, reason: str) -> None:
        """These fields cannot be told."""
        for name in self._known(names):
            self._dealt_with.add(name)
            self.left_out.append(LeftOut(name, self.values[name], reason))

    def either(self, names: str, settings: Mapping[str, Setting] | None, reason: str) -> None:
        """Tell these fields by settings, or leave them out when there are none (`None`)."""
        if settings is None:
            self.leave(names, reason)
        else:
            self.tell(names, settings)

    def keeps(
        self,
        names: str,
        holds: object,
        reason: str,
        settings: Mapping[str, Setting] | None = None,
    ) -> None:
        """Tell these fields where something holds that the framework asks for, or leave them out;
        without settings, by its default."""
        self.either(names, (settings or {}) if holds else None, reason)

    def rule(self, kept: bool, text: str) -> None:
        """A rule of the framework, as it should be."""
        if not kept:
            self.broken.append(text)

    def divides(self, of: float, by: float, text: str) -> None:
        """The rule that a number is a multiple of another one."""
        self.rule(by > 0 and of % by == 0, f"{text}: {of:g} is no multiple of {by:g}")

    def done(self) -> None:
        """Make sure that nothing was forgotten.

        Raises:
          RuntimeError: a field was neither told nor left out: a defect of the emitter.
        """
        forgotten = sorted(set(self.values) - self._dealt_with)
        if forgotten:
            raise RuntimeError(
                f"emitter says nothing of {', '.join(forgotten)}: tell each, or leave it out "
                "with "
                "a reason"
            )

    def _known(self, names: str) -> list[str]:
        wanted = names.split()
        unknown = [name for name in wanted if name not in self.values]
        if unknown:
            raise RuntimeError(f"no field named {', '.join(unknown)} in a plan or a model")
        return wanted


def _values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Name → number, or words for the static fields."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        words = " ".join(value) if isinstance(value, tuple) else value
        found[name] = words if isinstance(words, str) else float(words)
    return found


def number_format(sheet: Sheet) -> str:
    """Format of the products, in small letters and without its recipe: "fp8"."""
    return sheet.job.precision.partition("-")[0].lower()


def scaled_format(sheet: Sheet) -> str:
    """The same, of "fp8" with how operands are scaled where that is said: "fp8-rowwise", and
    "fp8-blockwise" of blocks of any size."""
    words, _, scales = sheet.job.precision.lower().partition("-")
    scales = scales.rstrip("0123456789") if words == "fp8" else ""
    return f"{words}-{scales}" if scales else words


def where(holds: object, settings: Mapping[str, Setting]) -> Mapping[str, Setting]:
    """These settings where something holds, none otherwise."""
    return settings if holds else {}


def whole(value: float, name: str) -> int:
    """A number that a launcher takes as an integer.

    Raises:
      InputError: it is none; only discrete plans can be launched.
    """
    nearest = round(value)
    if abs(value - nearest) > 1e-9 * max(abs(value), 1.0):
        raise InputError(
            f"{name}: expected a whole number in a plan that is to be launched; got {value:g}; "
            "round the plan first"
        )
    return nearest
