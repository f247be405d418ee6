"""What is found: values of an input, or why there is none."""

from __future__ import annotations

from typing import Any, NamedTuple


class Root(NamedTuple):
    """One value at which the output is as wanted.

    Attributes:
      value: of the input, SI. output: there, own unit. slope: relative change of the output for
        one of the input; None of whole numbers. step_time_s, memory_bytes: of the plan there.
      fits: whether the device has that memory. exact: whether the output is the wanted one; of
        whole numbers the nearest where it passes.
    """

    value: float
    output: float
    slope: float | None
    step_time_s: float
    memory_bytes: float
    fits: bool
    exact: bool


class End(NamedTuple):
    """An end of the range: the input, the output there, and the largest terms of the step there
    with their shares."""

    value: float
    output: float
    terms: dict[str, float]


NAMED = ("input", "output", "wanted", "relation", "at", "now")
"""What an answer has as it is."""


class Solution(NamedTuple):
    """All roots in a range.

    Attributes:
      input, output: full names. wanted: value of the output. relation: of the output to it, one of
        =, <=, >=. at: of the input as stated. now: output as stated.
      between: the range. roots: from its lower end on. ends: of the range. limits: the output as
        the input goes far beyond the ends: a thousand times less, and more.
      least, most: the output's extremes in the range. tried: of whole numbers, value → output.
    """

    input: str
    output: str
    wanted: float
    relation: str
    at: float
    now: float
    between: tuple[float, float]
    roots: tuple[Root, ...]
    ends: tuple[End, ...]
    limits: tuple[float, ...]
    least: float
    most: float
    tried: dict[float, float]

    @property
    def found(self) -> bool:
        """Whether there is a root."""
        return bool(self.roots)

    @property
    def holds_all_over(self) -> bool:
        """Whether the whole range keeps a bound."""
        below, above = self.most <= self.wanted, self.least >= self.wanted
        return {"=": False, "<=": below, ">=": above}[self.relation]

    @property
    def why_none(self) -> str:
        """Why there is no root, in words; "" where there is one."""
        if self.roots:
            return ""
        low, high = self.between
        if self.holds_all_over:
            return (
                f"{self.output} {self.relation} {self.wanted:.4g} all over the range: it is "
                f"{self.least:.4g} to {self.most:.4g} where {self.input} is {low:.4g} to {high:.4g}"
            )
        nearest = min(self.ends, key=lambda end: abs(end.output - self.wanted))
        bound = ", ".join(f"{name.replace('_', ' ')} {x:.0%}" for name, x in nearest.terms.items())
        text = (
            f"{self.output} is {self.least:.4g} to {self.most:.4g} where {self.input} is "
            f"{low:.4g} to {high:.4g}, never {self.wanted:.4g}"
        )
        far = "".join(
            f"; it goes to {y:.4g} as {self.input} {way}"
            for y, way in zip(self.limits, ("falls", "grows"), strict=False)
        )
        return f"{text}{far}. At {nearest.value:.4g} the step is {bound}"

    @property
    def document(self) -> dict[str, Any]:
        """As plain data."""
        return {
            **{n: getattr(self, n) for n in NAMED},
            "between": list(self.between),
            "found": self.found,
            "roots": [root._asdict() for root in self.roots],
            "ends": [end._asdict() for end in self.ends],
            "limits": list(self.limits),
            "least": self.least,
            "most": self.most,
            "tried": [{"value": v, "output": y} for v, y in self.tried.items()],
            "why_none": self.why_none,
        }

    def __str__(self) -> str:
        listed = ", ".join(f"{root.value:.6g}" for root in self.roots)
        return self.why_none or (
            f"{self.output} {self.relation} {self.wanted:.4g} at {self.input} = {listed}"
        )
