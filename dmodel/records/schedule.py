"""What schedules of a pipeline ask of a layout, by name, and layouts that mix several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dmodel.types import Array


class Rules(NamedTuple):
    """What a schedule asks of a pipeline of pp ranks and m micro-batches, and how layers lie on it.

    Attributes:
      chunks: model chunks of a rank; 0 = any number [count].
      fold: how the chunks lie on ranks, one of `FOLDS`.
      copies: of all weights, and of gradients, that the ranks of a pipeline hold [count].
      multiple: pp is one of so many [count]. pairs: m is a multiple of so many [count].
      fill: m is at least so many times pp [1].
    """

    chunks: int = 1
    fold: str = "loop"
    copies: int = 1
    multiple: int = 1
    pairs: int = 1
    fill: int = 0

    @property
    def folded(self) -> bool:
        """Whether the first and the last layers are on one rank, as of one stage."""
        return self.fold != "loop"

    def allows(self, pp: float, m: float) -> bool:
        """Whether it runs on so many ranks with so many micro-batches."""
        return pp % self.multiple == 0 and m >= self.fill * pp and m % self.pairs == 0

    def refusal(self, pp: float, m: float) -> str:
        """What it asks of a pipeline that does not keep it, in words."""
        if pp % self.multiple:
            return f"expected a multiple of {self.multiple} for pp; got {pp:g}"
        pairs = f", a multiple of {self.pairs}" if self.pairs > 1 else ""
        least = f"{self.fill * pp:g} ({self.fill} pp) micro-batches"
        return f"expected at least {least}{pairs}; got {m:g}"


FOLDS = ("loop", "v", "both")
"""Of pp ranks, chunk k lies on rank `k mod pp` ("loop"), or every second pass over the ranks goes
back ("v"); "both": rank i holds stage i of one copy of the model and stage pp − 1 − i of another
one."""

RULES: dict[str, Rules] = {
    "gpipe": Rules(),
    "1f1b": Rules(),
    "interleaved": Rules(chunks=0),
    "zero-bubble": Rules(fill=2),
    "zbv": Rules(chunks=2, fold="v", fill=2),
    "dualpipe": Rules(fold="both", copies=2, multiple=2, pairs=2, fill=2),
    "dualpipev": Rules(chunks=2, fold="v", fill=2),
}
"""Schedule → what it asks. DualPipe as `dualpipe.py` of github.com/deepseek-ai/DualPipe checks it
(2025-03), DualPipeV as PyTorch's `ScheduleDualPipeV`; PyTorch's ZBV also runs with fewer
micro-batches, for as long as with 2 pp − 1."""

SCHEDULES: tuple[str, ...] = tuple(RULES)

USUAL = ("1f1b", "interleaved")
"""Schedules with the same formulas: one chunk is 1F1B."""

MIXED: dict[str, str] = {n.replace("-", "_"): n for n in SCHEDULES if n not in USUAL}
"""Leaf of `Mixed.mix` → the schedule whose share it is."""


def blended(layout: Any, of: Callable[[str], Any]) -> Array:
    """What a layout's schedule has of something, by name; of a mixture the mean."""
    mix: Mapping[str, Array] | None = getattr(layout, "mix", None)
    if mix is None:
        return of(layout.schedule)
    usual = of(USUAL[-1])
    return usual + sum(share * (of(MIXED[name]) - usual) for name, share in mix.items())


def weight_copies(layout: Any) -> Array:
    """Copies of all weights that the ranks of one pipeline hold together [count]."""
    return blended(layout, lambda name: float(RULES[name].copies))


def ends_together(layout: Any) -> Array:
    """1 where the schedule puts the first and the last layers on one rank, 0 where it does not."""
    return blended(layout, lambda name: float(RULES[name].folded))
