"""Figures of a step as people write them: `5.2s`, `3.1 s/it`, `6785 tokens/gpu/second`,
`3.7k tok/s/gpu`, `41%mfu`, `24h/1218steps`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import NamedTuple

from dmodel.errors import InputError

_TIMES = {
    1.0: ("s", "sec", "secs", "second", "seconds"),
    1e-3: ("ms", "msec", "millisecond", "milliseconds"),
    1e-6: ("us", "µs", "μs", "microsecond", "microseconds"),
    1e-9: ("ns",),
    60.0: ("min", "mins", "minute", "minutes"),
    3600.0: ("h", "hr", "hrs", "hour", "hours"),
    86400.0: ("d", "day", "days"),
}
_COUNTED = {
    "step": ("step", "steps", "it", "its", "iter", "iters", "iteration", "iterations", "update"),
    "token": ("tok", "toks", "token", "tokens"),
    "sequence": ("seq", "seqs", "sequence", "sequences", "sample", "samples"),
    "device": ("gpu", "gpus", "device", "devices", "chip", "chips", "card", "rank", "accelerator"),
    "flop": ("flop", "flops"),
    "mfu": ("mfu",),
}
WORDS: Mapping[str, tuple[str, float]] = MappingProxyType(
    {
        **{word: ("time", factor) for factor, words in _TIMES.items() for word in words},
        **{word: (kind, 1.0) for kind, words in _COUNTED.items() for word in words},
        "example": ("sequence", 1.0),
        "examples": ("sequence", 1.0),
        "%mfu": ("mfu", 0.01),
    }
)
"""Words of units → what they count, and how many."""

PREFIXES = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
"""Prefixes of what is counted, small → factor."""

WHOLE = {"tflops": "tflop/s", "tgs": "token/gpu/s", "mfu%": "%mfu"}
"""Abbreviations of whole units, and what they stand for."""

KINDS: dict[tuple[tuple[str, int], ...], tuple[str, int]] = {
    (("time", 1),): ("time", 1),
    (("step", -1), ("time", 1)): ("time", 1),
    (("step", 1), ("time", -1)): ("time", -1),
    (("time", -1), ("token", 1)): ("tokens_per_s", 1),
    (("time", 1), ("token", -1)): ("tokens_per_s", -1),
    (("device", -1), ("time", -1), ("token", 1)): ("tokens_per_s_per_device", 1),
    (("sequence", 1), ("time", -1)): ("sequences_per_s", 1),
    (("sequence", -1), ("time", 1)): ("sequences_per_s", -1),
    (("device", -1), ("sequence", 1), ("time", -1)): ("sequences_per_s_per_device", 1),
    (("mfu", 1),): ("mfu", 1),
    (("flop", 1), ("time", -1)): ("flops_per_s_per_device", 1),
    (("device", -1), ("flop", 1), ("time", -1)): ("flops_per_s_per_device", 1),
}
"""Powers of what is counted → the kind of figure, and whether it is that or one over it."""

SHOWN = (
    "s, ms, min, s/it, it/s, tok/s, tok/s/gpu, samples/s, samples/s/gpu, %mfu, TFLOP/s/gpu (a "
    "total and its time too: 24h/1218steps, 1.2Btokens/13.5h)"
)
"""Units, as errors list them."""

_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+"
_BEFORE = re.compile(rf"^\s*mfu\s*[:=]?\s*((?:{_NUMBER})\s*%?)\s*$", re.IGNORECASE)
_FACTOR = re.compile(rf"({_NUMBER})?([^\d.,]*)", re.IGNORECASE)


class Figure(NamedTuple):
    """A figure of a step: its kind and its value in SI units."""

    kind: str
    value: float


class Factor(NamedTuple):
    """A number of something: "24h", or "gpu" for one of them."""

    number: float
    counted: str
    each: float

    @property
    def value(self) -> float:
        """How many of what is counted, in SI."""
        return self.number * self.each


def in_order(text: str) -> str:
    """A figure whose unit is a word before it, as logs print utilizations, with the word behind.

    >>> in_order("MFU: 41.3%"), in_order("mfu=0.4"), in_order("5 s")
    ('41.3%mfu', '0.4mfu', '5 s')
    """
    return _BEFORE.sub(r"\1mfu", text)


def figure(text: str, what: str) -> Figure:
    """A figure of a step from words.

    >>> figure("0.5 it/s", "--measured").value, figure("MFU 50%", "--measured").value
    (2.0, 0.5)

    Raises:
      InputError: no number, no positive one, an unknown unit, or a unit of something else.
    """
    head, *below = _spelled(in_order(text)).split("/")
    if any(re.match(r"[\d.,]*epoch", part) for part in below):
        raise InputError(
            f"{what} {text!r}: an epoch is as long as the data; give its time over its sequences, "
            "tokens or steps, such as 13.5h/52002samples"
        )
    above, others = _factor(head, None), [_factor(part, 1.0) for part in below]
    kind = _kind(above, others)
    if above is None or kind is None:
        raise InputError(f"{what} {text!r}: expected a number with a unit, one of {SHOWN}")
    under = prod(each.value for each in others if each)
    value = above.value / under if under else 0.0
    if not 0.0 < value < 1e300:
        raise InputError(f"{what} {text!r}: expected a positive number")
    return Figure(kind[0], value ** kind[1])


def _factor(text: str, bare: float | None) -> Factor | None:
    """What stands above or below a line; None of what is none.

    Args:
      bare: how many there are where no number says it; None = that is none.
    """
    found = _FACTOR.fullmatch(text)
    word = None if found is None else _word(found[2])
    if found is None or word is None or (bare is None and not found[1]):
        return None
    number = float(found[1].replace("_", "").replace(",", "")) if found[1] else bare or 0.0
    return Factor(number, *word)


def _kind(above: Factor | None, below: Sequence[Factor | None]) -> tuple[str, int] | None:
    """The kind of figure by what is counted above and below the line, and its power."""
    powers = Counter({above.counted: 1}) if above else Counter[str]()
    for each in below:
        if each is None:
            return None
        powers[each.counted] -= 1
    return KINDS.get(tuple(sorted((n, p) for n, p in powers.items() if p)))


def _spelled(text: str) -> str:
    """A figure without spaces, small, with slashes for "per"."""
    small = re.sub(r"\s+per\s+", "/", text.strip().lower())
    small = re.sub(r"\s+", "", small)
    number = re.match(_NUMBER, small)
    unit = small[number.end() :] if number else ""
    head, slash, rest = unit.partition("/")
    if head in WHOLE and not (head.endswith("flops") and _is_timed(rest)):
        return f"{small[: len(small) - len(unit)]}{WHOLE[head]}{slash}{rest}"
    return small


def _is_timed(unit: str) -> bool:
    """Whether a unit below a line has a time."""
    return any(WORDS.get(part, ("", 1.0))[0] == "time" for part in unit.split("/"))


def _word(word: str) -> tuple[str, float] | None:
    """What a word counts, and how many; None of an unknown one."""
    if word in WORDS:
        return WORDS[word]
    factor, rest = PREFIXES.get(word[:1]), WORDS.get(word[1:])
    if factor is None or rest is None or rest[0] not in ("token", "sequence", "flop"):
        return None
    return rest[0], factor
