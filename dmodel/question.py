"""A question in words: one configuration as somebody states it, whatever they leave open.

Files, the shell and the API all make a `Question`; `dmodel.resolve` turns it into records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from dmodel.catalog.chips import generation, usual_precision
from dmodel.catalog.facts import Rule
from dmodel.catalog.model_names import identify
from dmodel.catalog.stack import Stack, stack
from dmodel.columns import base_precision
from dmodel.errors import InputError

if TYPE_CHECKING:
    from dmodel.records import Model

Value = float | str | tuple[str, ...] | Rule
TUNINGS = ("none", "sft", "lora", "qlora")


class Assumption(NamedTuple):
    """What fills something that a question leaves open: in words.

    Attributes:
      text: what is taken. source, date: who says so, where a fact does. about: columns and settings
        that it fills; () = no single one.
    """

    text: str
    source: str = ""
    date: str = ""
    about: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.text} ({self.source}, {self.date})" if self.source else self.text


class Question(NamedTuple):
    """One configuration in words.

    Attributes:
      columns: name of `dmodel.columns` → value, text or number; what is missing is open.
      settings: any other name → value; what is missing is the stack's.
      model: a shape of the caller's own, in place of the catalog's and of columns.
      system: name of a system of the catalog; "" = the one that stack and chip imply.
      where: file and line, for messages; "" where there is none.
      notes: what was taken for granted to read the shape of the caller's own.
    """

    columns: Mapping[str, float | str]
    settings: Mapping[str, Any] = {}
    model: Model | None = None
    system: str = ""
    where: str = ""
    notes: tuple[str, ...] = ()

    def text(self, name: str) -> str:
        """A column of words; "" when open."""
        return str(self.columns.get(name, ""))

    def number(self, name: str) -> float | None:
        """A column of numbers; None when open."""
        value = self.columns.get(name)
        return None if value is None or value == "" else float(value)

    def known(self, name: str) -> float:
        """A number that must be there.

        Raises:
          InputError: it is open.
        """
        value = self.number(name)
        if value is None:
            at = f"{self.where}: " if self.where else ""
            raise InputError(f"{at}{name} is open; say it as a column, an option or --set {name}=…")
        return value

    @property
    def stack(self) -> Stack:
        """The software."""
        return stack(self.text("stack"))

    @property
    def precision(self) -> str:
        """Precision of the matmuls without its variant; when open, the usual one of the chip."""
        said = base_precision(self.text("precision"))
        return said or usual_precision(self.text("accelerator"))

    @property
    def tuning(self) -> str:
        """One of `TUNINGS` but for "qlora", which is "lora" here: as set, else by the ending of the
        model's name."""
        said = str(self.settings.get("tuning") or identify(self.text("model"))[1])
        return "lora" if said == "qlora" else said

    @property
    def frozen(self) -> str:
        """How frozen weights are held: "nf4" where they are quantized to 4 bits, else ""."""
        return "nf4" if self.settings.get("tuning") == "qlora" else ""

    @property
    def fused_attention(self) -> bool:
        """Whether kernels fuse attention, as they do unless told."""
        return self.text("attention") != "none"


Pairs = tuple[tuple[str, Any], ...]
"""Names and values, by which answers can be remembered."""


def picked(values: Mapping[str, Any], names: Iterable[str]) -> Pairs:
    """Those of some values that have one of the names; lists as tuples."""
    found = ((name, values[name]) for name in names if name in values)
    return tuple((n, tuple(x) if isinstance(x, list) else x) for n, x in found)


class Said:
    """A question without a shape of the caller's own, by what it says, wherever it stands."""

    def __init__(self, question: Question) -> None:
        self.question = question
        settings = picked(question.settings, question.settings)
        self.words = (*question.columns.items(), *settings, question.system)

    def __hash__(self) -> int:
        return hash(self.words)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Said) and self.words == other.words


class Degrees(NamedTuple):
    """Degrees [count] and micro-batch [sequence], none of them open; what is assumed of them."""

    dp: float
    tp: float
    pp: float
    cp: float
    ep: float
    micro_batch: float | None
    assumed: tuple[Assumption, ...]


def degrees(question: Question) -> Degrees:
    """Fill the open degrees so that dp·tp·pp·cp are the devices.

    Open cp, pp, tp and ep count as 1. An open dp is what is left of the devices. Where dp is said
    and only one of tp and pp is open, that one is what is left. The micro-batch stays open.

    Raises:
      InputError: the degrees do not multiply to the devices.
    """
    said = (question.number(name) for name in ("dp", "tp", "pp", "cp", "ep", "micro_batch"))
    return _degrees(question.known("n_accel"), *said)


@lru_cache(maxsize=4096)
def _degrees(
    devices: float,
    dp: float | None,
    tp: float | None,
    pp: float | None,
    cp: float | None,
    ep: float | None,
    micro_batch: float | None,
) -> Degrees:
    """As `degrees`, of what is said."""
    given = {"dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": ep}
    derived = _derived(given)
    assumed = _ones(given, derived)
    product = prod(_whole(given)[name] for name in ("dp", "tp", "pp", "cp"))
    if derived and devices % product == 0.0:
        given[derived] = devices / product
        assumed.append(_left(derived, devices / product))
    elif product != devices:
        raise InputError(_mismatch(given, product, devices))
    return Degrees(**_whole(given), micro_batch=micro_batch, assumed=tuple(assumed))


def _whole(given: Mapping[str, float | None]) -> dict[str, float]:
    """Degrees, of which open ones count as 1."""
    return {name: float(value or 1.0) for name, value in given.items()}


def _ones(given: dict[str, float | None], derived: str | None) -> list[Assumption]:
    """Fill open degrees by 1, but the one that follows from the others."""
    ones = [n for n in ("tp", "pp", "cp", "ep") if given[n] is None and n != derived]
    given |= dict.fromkeys(ones, 1.0)
    return [Assumption(f"{name} blank: 1", about=(name,)) for name in ones]


def _left(name: str, value: float) -> Assumption:
    """That a degree is what the others leave."""
    rest = "from the devices and the other degrees"
    return Assumption(f"{name} blank: {value:g}, {rest}", about=(name,))


def _derived(given: Mapping[str, float | None]) -> str:
    """The degree that follows from the others; "" where all are said."""
    if given["dp"] is None:
        return "dp"
    blank = [name for name in ("tp", "pp") if given[name] is None]
    return blank[0] if len(blank) == 1 else ""


def _mismatch(given: Mapping[str, float | None], product: float, devices: float) -> str:
    names = [name for name in ("dp", "tp", "pp", "cp") if given[name] is not None]
    shown = "·".join(f"{given[name]:g}" for name in names)
    return (
        f"degrees do not multiply to the devices: {'·'.join(names)} = {shown} = {product:g}, "
        f"n_accel = {devices:g}; {_would_do(product / (given['dp'] or 1.0), devices)}"
    )


def _would_do(others: float, devices: float) -> str:
    """The dp with which degrees are right, where there is one."""
    if devices % others == 0.0:
        return f"dp = {devices / others:g} would do"
    return "choose degrees whose product divides the devices"


def words(question: Question, at: Degrees, chip: str) -> dict[str, Any]:
    """What conditions of facts may ask about a question (`dmodel.catalog.facts.CONDITIONS`)."""
    software, experts = question.stack, max(question.number("n_experts") or 1.0, 1.0)
    layers = question.known("n_layers")
    return {
        "stack": software.basis,
        "variant": software.variant,
        "release": software.release,
        "model": identify(question.text("model"))[0],
        "chip": chip,
        "generation": generation(chip),
        "precision": question.precision,
        "scaling": question.text("precision").lower() or question.precision,
        "attention": "flash" if question.fused_attention else "none",
        "recompute": question.text("recompute"),
        "composed": bool(question.settings.get("composed")),
        "n_experts": experts,
        "top_k": question.number("top_k") or 1.0,
        "n_layers": layers,
        "stage_layers": layers / at.pp,
        "devices": question.known("n_accel"),
        "accel_per_node": question.number("accel_per_node"),
        "seq_len": question.known("seq_len"),
        "micro_batch": at.micro_batch,
        "dp": at.dp,
        "tp": at.tp,
        "pp": at.pp,
        "cp": at.cp,
        "ep": at.ep,
        "zero": 1.0 if (zero := question.number("zero_stage")) is None else zero,
        "shard": question.number("shard"),
        "interleave": question.number("interleave"),
        **question.settings,
        "tuning": question.tuning,
        "frozen": question.frozen,
    }
