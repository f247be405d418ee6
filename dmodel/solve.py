"""The value of one input at which an output of a plan is as wanted: all of them in a range, or why
there is none.

Numbers that may take any value are solved for by Newton's method on the exact derivative, kept
inside of brackets; degrees and devices, which are whole, are tried one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from dmodel.asked import Asked, laid
from dmodel.breakdown import TERMS
from dmodel.columns import BY_NAME
from dmodel.errors import InputError
from dmodel.goodput import DAY_S
from dmodel.recorded import Recorded
from dmodel.resolve import Resolved
from dmodel.sensitivity.case import Inputs, Point, base_name, inputs, make_case, rebuild
from dmodel.sensitivity.outputs import ALIASES, OUTPUTS
from dmodel.settings import unknown
from dmodel.step import step_time
from dmodel.units import GIB

POINTS = 64
"""Values at which the model is asked at once: those that a range is searched on [count]."""

SPAN = 100.0
"""Where no range is given: a positive number is this many times less, to more, than it is."""

NEWTON, CLOSE = 60, 1e-12
"""Most steps towards a root, and the relative width at which it is one."""

EXTRA: dict[str, tuple[str, Callable[[float, Point], float]]] = {
    "tokens_per_s_per_device": ("tokens_per_s", lambda y, case: y * _devices(case)),
    "days": ("time_to_loss", lambda y, case: y * DAY_S),
}
"""Outputs that are others of `sensitivity.OUTPUTS` in another unit: which, and what it is in it."""

UNITS: dict[str, dict[str, float]] = {
    "step_time": {"": 1.0, "s": 1.0, "ms": 1e-3, "min": 60.0},
    "mfu": {"": 1.0, "%": 0.01},
    "memory": {"": 1.0, "b": 1.0, "gb": 1e9, "gib": GIB},
    "days": {"": 1.0, "d": 1.0, "days": 1.0},
    "time_to_loss": {"": 1.0, "s": 1.0, "d": DAY_S, "days": DAY_S},
}
"""Units in which outputs may be wanted → SI units, or days, in one."""

HARDWARE = {
    "bandwidth.inner": "network.bytes_per_s[0]",
    "bandwidth.intra": "network.bytes_per_s[0]",
    "bandwidth.outer": "network.bytes_per_s[1]",
    "bandwidth.inter": "network.bytes_per_s[1]",
    "latency.inner": "network.latency_s[0]",
    "latency.intra": "network.latency_s[0]",
    "latency.outer": "network.latency_s[1]",
    "latency.inter": "network.latency_s[1]",
}
"""Short names of numbers of the network: inside of the innermost level, and beyond it."""

WHOLE = ("n_accel", "dp", "tp", "pp", "cp", "ep", "zero_stage", "interleave", "micro_batch")
"""Columns that are whole numbers and decide others: they are tried, not solved for."""

SPELLED = {"devices": "n_accel", "zero": "zero_stage"}

_GOAL = re.compile(r"\s*(\w+)\s*=\s*([0-9.eE+-]+)\s*([A-Za-z%/]*)\s*")


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


class Solution(NamedTuple):
    """All roots in a range.

    Attributes:
      input, output: full names. unit_of_output: "1", "s", "byte", ….
      wanted: value of the output. at: of the input as stated. now: output as stated.
      between: the range. roots: from its lower end on. ends: of the range. limits: the output as
        the input goes far beyond the ends: a thousand times less, and more.
      least, most: the output's extremes in the range. tried: of whole numbers, value → output.
    """

    input: str
    output: str
    wanted: float
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
    def why_none(self) -> str:
        """Why there is no root, in words; "" where there is one."""
        if self.roots:
            return ""
        low, high = self.between
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
            **{n: getattr(self, n) for n in ("input", "output", "wanted", "at", "now")},
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
        return self.why_none or f"{self.output} = {self.wanted:.4g} at {self.input} = {listed}"


def _all(case: Point, way: Point, *, output: str) -> dict[str, Any]:
    """An output with its derivative along a way, terms and memory of a batch of cases."""

    def value(case: Point) -> tuple[Any, dict[str, Any]]:
        time = step_time(case.system, case.model, case.plan, case.coefficients)
        beside = {name: getattr(time, name) for name in TERMS}
        beside["memory"] = OUTPUTS["memory"](case, time)
        return OUTPUTS[output](case, time), beside

    found, slope, beside = jax.jvp(value, (case,), (way,), has_aux=True)
    return {"value": found, "slope": slope, "beside": beside}


ALL = Recorded(_all)


def _devices(case: Point) -> float:
    return float(case.plan.devices)


class _Line(NamedTuple):
    """A plan along one input: the output at `POINTS` values at once."""

    names: Inputs
    index: int
    output: str

    def __call__(self, values: np.ndarray) -> dict[str, Any]:
        """Value and slope, terms and memory, `[value]` each, at up to `POINTS` values."""
        size = len(values)
        padded = np.concatenate([values, np.full(POINTS - size, values[-1])])
        x = np.repeat(self.names.values[:, None], POINTS, 1)
        x[self.index] = padded
        way = np.zeros_like(x)
        way[self.index] = 1.0
        at, along = (rebuild(a, self.names.tree, self.names.levels) for a in (x, way))
        found = ALL(at, along, output=self.output)
        return jax.tree.map(lambda y: np.broadcast_to(y, (POINTS,))[:size], found)


def solve(
    asked: Asked,
    name: str,
    such_that: str,
    between: tuple[float, float] | None = None,
    words: Mapping[str, Any] | None = None,
) -> Solution:
    """All values of an input at which an output is as wanted.

    Args:
      name: of the input: a name of `--set`, an input as `dmodel sensitivity` names it
        ("chip.flops_per_s", "network.bytes_per_s[NVLink 4]"), or one of `HARDWARE`.
      such_that: `output=value` with a unit ("mfu=45%", "memory=70GB", "days=30").
      between: range of the input, SI; None = a hundredth to a hundred times of what it is, shares
        from 0 to 1, whole numbers as far as they go.
      words: of the layout, beside the question's.

    Raises:
      InputError: an unknown name, a value that is none, an empty range.
    """
    output, wanted = goal(such_that)
    whole = SPELLED.get(name, name)
    if whole in WHOLE:
        return _tried(asked, whole, (output, wanted), between, words or {})
    found = laid(asked, words or {})
    case = _case(asked, found)
    names = inputs(case, asked.level_names or None)
    index = names.names.index(full_name(name, names))
    at = float(names.values[index])
    low, high = _range(names.names[index], at, between)
    target, factor = _target(output, wanted, case)
    line = _Line(names, index, EXTRA.get(output, (output,))[0])
    return _solved(line, (output, target, factor), at, (low, high), asked)


def goal(text: str) -> tuple[str, float]:
    """Output and wanted value of `output=value`.

    >>> goal("mfu=45%")
    ('mfu', 0.45)

    Raises:
      InputError: another form, an unknown output or unit, a value that cannot be.
    """
    match = _GOAL.fullmatch(text)
    if match is None:
        raise InputError(
            f"such that {text!r}: expected OUTPUT=VALUE, such as mfu=45% or step_time=5s"
        )
    name, number, unit = match.groups()
    name = ALIASES.get(name, name)
    known = [*OUTPUTS, *EXTRA]
    if name not in known:
        raise InputError(
            f"such that {text!r}: unknown output {name!r}; expected one of {', '.join(known)}"
        )
    units = UNITS.get(name, {"": 1.0})
    if unit.lower() not in units:
        allowed = ", ".join(filter(None, units)) or "none"
        raise InputError(f"such that {text!r}: unknown unit {unit!r}; units of {name}: {allowed}")
    try:
        value = float(number) * units[unit.lower()]
    except ValueError:
        value = float("nan")
    if not 0.0 < value < float("inf"):
        raise InputError(f"such that {text!r}: expected a positive number")
    if name == "mfu" and value > 1.0:
        raise InputError(f"such that {text!r}: utilization is 100 % at most; say mfu=45%")
    return name, value


def _target(output: str, wanted: float, case: Point) -> tuple[float, float]:
    """The wanted value in the unit of the output that is computed, and that unit in its own."""
    if output not in EXTRA:
        return wanted, 1.0
    value = EXTRA[output][1](wanted, case)
    return value, value / wanted


def _case(asked: Asked, found: Resolved) -> Point:
    model = found.model.replace(order=())
    return make_case(asked.cluster, model, found.plan, asked.coefficients, asked.footprint)


def full_name(name: str, names: Inputs) -> str:
    """The input that a name means.

    Raises:
      InputError: none, or one of several.
    """
    if name in HARDWARE:
        return _level(name, names)
    if name in names.names:
        return name
    column = SPELLED.get(name, name)
    found = [n for n in names.names if n.rpartition(".")[2] == column]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"{name}: which of {', '.join(found)}?")
    if column in BY_NAME:
        raise InputError(f"{name}: is no number that a plan depends on smoothly; see --help")
    raise InputError(f"{unknown(name)}; of hardware: {', '.join(HARDWARE)}")


def _level(name: str, names: Inputs) -> str:
    base, place = HARDWARE[name][:-1].split("[")
    levels = [n for n in names.names if base_name(n) == base]
    if int(place) >= len(levels):
        raise InputError(f"{name}: the network of this job has one level, {levels[0]}")
    return levels[int(place)]


def _range(name: str, at: float, between: tuple[float, float] | None) -> tuple[float, float]:
    """The range that is searched."""
    if between is not None:
        low, high = between
        if not (low < high and np.isfinite([low, high]).all() and low >= 0.0):
            raise InputError(
                f"between {low:g} and {high:g}: expected two numbers from 0 on, the smaller first"
            )
        return low, high
    if name.startswith("plan.") and 0.0 <= at <= 1.0 and name != "plan.global_batch":
        return 0.0, 1.0
    if not 0.0 < at < float("inf"):
        raise InputError(f"{name} is {at:g}: say a range with --between LOW HIGH")
    return at / SPAN, at * SPAN


class _Scale(NamedTuple):
    """Where a range is searched evenly: on logarithms where it is positive."""

    is_log: bool

    def to(self, x: Any) -> Any:
        return np.log(x) if self.is_log else np.asarray(x, float)

    def back(self, u: Any) -> Any:
        return np.exp(u) if self.is_log else np.asarray(u, float)

    def slope(self, x: Any, slope: Any) -> Any:
        """Derivative by the scale's variable."""
        return slope * x if self.is_log else slope


def _solved(
    line: _Line,
    wanted: tuple[str, float, float],
    at: float,
    between: tuple[float, float],
    asked: Asked,
) -> Solution:
    """Roots between two ends.

    Args:
      wanted: name of the output; its value, and one unit of it, as the line has it.
    """
    output, target, unit = wanted
    scale = _Scale(between[0] > 0.0)
    u = np.linspace(scale.to(between[0]), scale.to(between[1]), POINTS)
    x = np.clip(scale.back(u), *between)
    found = line(x)
    brackets, seen = _brackets(line, scale, x, found, target)
    roots = _newton(line, scale, brackets, target)
    size = float(asked.cluster.chip.hbm_bytes)
    now = float(line(np.array([at]))["value"][0])
    ends = tuple(_end(found, x, i, unit) for i in (0, POINTS - 1))
    far = [1e-3 * between[0], 1e3 * between[1]] if scale.is_log else []
    values = [float(y) / unit for y in line(np.array(far))["value"]] if far else []
    return Solution(
        input=line.names.names[line.index],
        output=output,
        wanted=target / unit,
        at=at,
        now=now / unit,
        between=between,
        roots=tuple(_root(line, x, unit, size) for x in roots),
        ends=ends,
        limits=tuple(v for v in values if np.isfinite(v)),
        least=float(seen.min()) / unit,
        most=float(seen.max()) / unit,
        tried={},
    )


def _brackets(
    line: _Line, scale: _Scale, x: np.ndarray, found: Mapping[str, Any], target: float
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of inputs between which the output passes the target, `[pair, 2]`, and all outputs
    seen. Where it turns between two points, the turning point is one, too."""
    gap, slope = found["value"] - target, scale.slope(x, found["slope"])
    turns = np.flatnonzero(slope[:-1] * slope[1:] < 0.0)
    if turns.size:
        more = _turning(line, scale, x[turns], x[turns + 1])
        x = np.concatenate([x, more])
        gap = np.concatenate([gap, line(more)["value"] - target])
        order = np.argsort(x)
        x, gap = x[order], gap[order]
    at = np.flatnonzero((gap[:-1] * gap[1:] < 0.0) | (gap[:-1] == 0.0))
    pairs = [(x[i], x[i] if gap[i] == 0.0 else x[i + 1]) for i in at]
    pairs += [(x[-1], x[-1])] if gap[-1] == 0.0 else []
    return np.array(pairs).reshape(-1, 2), gap + target


def _turning(line: _Line, scale: _Scale, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Where the slope changes its sign between pairs, by bisection."""
    a, b = scale.to(low), scale.to(high)
    first = np.sign(line(low)["slope"])
    for _ in range(40):
        middle = 0.5 * (a + b)
        same = np.sign(line(scale.back(middle))["slope"]) == first
        a, b = np.where(same, middle, a), np.where(same, b, middle)
    return scale.back(0.5 * (a + b))


def _newton(line: _Line, scale: _Scale, pairs: np.ndarray, target: float) -> np.ndarray:
    """Roots inside of brackets `[pair, 2]`: Newton's steps, and halves where they leave it."""
    if not len(pairs):
        return np.empty(0)
    pairs = pairs[:POINTS]
    a, b = scale.to(pairs[:, 0]), scale.to(pairs[:, 1])
    rises = line(pairs[:, 1])["value"] >= target
    u = 0.5 * (a + b)
    for _ in range(NEWTON):
        x = scale.back(u)
        found = line(x)
        gap, slope = found["value"] - target, scale.slope(x, found["slope"])
        above = (gap > 0.0) == rises
        a, b = np.where(above, a, u), np.where(above, u, b)
        with np.errstate(divide="ignore", invalid="ignore"):
            step = u - gap / slope
        inside = (step >= np.minimum(a, b)) & (step <= np.maximum(a, b))
        new = np.where(gap == 0.0, u, np.where(inside, step, 0.5 * (a + b)))
        if (np.abs(new - u) <= CLOSE * np.maximum(np.abs(u), 1.0)).all():
            return np.unique(scale.back(new))
        u = new
    return np.unique(scale.back(u))


def _root(line: _Line, x: float, unit: float, size: float) -> Root:
    found = line(np.array([x]))
    value, beside = float(found["value"][0]), found["beside"]
    memory = float(beside["memory"][0])
    return Root(
        value=float(x),
        output=value / unit,
        slope=float(found["slope"][0]) * float(x) / value,
        step_time_s=float(sum(beside[name][0] for name in TERMS)),
        memory_bytes=memory,
        fits=memory <= size,
        exact=True,
    )


LARGEST_TERMS = 3


def _end(found: Mapping[str, Any], x: np.ndarray, i: int, unit: float) -> End:
    terms = {name: float(found["beside"][name][i]) for name in TERMS}
    whole = sum(terms.values())
    most = sorted(terms, key=lambda name: -terms[name])[:LARGEST_TERMS]
    shares = {name: terms[name] / whole for name in most}
    return End(float(x[i]), float(found["value"][i]) / unit, shares)


def _tried(
    asked: Asked,
    name: str,
    wanted: tuple[str, float],
    between: tuple[float, float] | None,
    words: Mapping[str, Any],
) -> Solution:
    """A whole number: every value of the range that makes a plan."""
    from dmodel.asked import ask

    output, target = wanted
    stated = laid(asked, words)
    now = _number(name, stated)
    low, high = between or (1.0, _most(name, now, stated))
    if not low < high:
        raise InputError(f"between {low:g} and {high:g}: expected two numbers, the smaller first")
    points: list[tuple[float, Point, Asked]] = []
    for value in _candidates(name, now, low, high):
        try:
            job = ask(_changed(asked, name, value, words), asked.profile)
            points.append((value, _case(job, laid(job, {})), job))
        except InputError:
            continue
    if not points:
        raise InputError(
            f"{name} from {low:g} to {high:g}: no value makes a plan; degrees have to divide the "
            "devices and the batch"
        )
    evaluated = [(value, *_evaluated(case, output, job, value)) for value, case, job in points]
    tried = {value: root.output for value, root, _ in evaluated}
    return Solution(
        input=name,
        output=output,
        wanted=target,
        at=now,
        now=_evaluated(_case(asked, stated), output, asked, now)[0].output,
        between=(low, high),
        roots=tuple(_passing([root for _, root, _ in evaluated], target)),
        ends=(evaluated[0][2], evaluated[-1][2]),
        limits=(),
        least=min(tried.values()),
        most=max(tried.values()),
        tried=tried,
    )


def _passing(found: list[Root], target: float) -> list[Root]:
    """Values with the wanted output; else, where it passes between two, the nearer one."""
    near = lambda root: abs(np.log(root.output / target))  # noqa: E731
    roots: dict[float, Root] = {}
    for one, other in zip(found, found[1:] or found, strict=False):
        for root in (one, other):
            if near(root) < 1e-9:
                roots[root.value] = root._replace(exact=True)
        if (one.output - target) * (other.output - target) < 0.0:
            best = min(one, other, key=near)
            roots.setdefault(best.value, best)
    return [roots[value] for value in sorted(roots)]


def _number(name: str, found: Resolved) -> float:
    plan = found.plan
    if name == "n_accel":
        return float(plan.devices)
    return float(getattr(plan.layout, "zero" if name == "zero_stage" else name))


def _most(name: str, now: float, found: Resolved) -> float:
    if name == "zero_stage":
        return 3.0
    return 64.0 * now if name == "n_accel" else float(found.plan.devices)


def _candidates(name: str, now: float, low: float, high: float) -> list[float]:
    """Whole numbers that are worth a try: 2^k and 3 · 2^k, multiples of what is stated for devices,
    and all small ones."""
    base = [2.0**k for k in range(24)] + [3.0 * 2.0**k for k in range(24)]
    small = [float(n) for n in range(17)]
    scaled = [now * x for x in base] + [now / x for x in base] if name == "n_accel" else []
    every = sorted({x for x in (*base, *small, *scaled) if x == round(x) and low <= x <= high})
    return every[:POINTS] if name != "zero_stage" else [x for x in every if x <= 3.0]


def _changed(asked: Asked, name: str, value: float, words: Mapping[str, Any]) -> Any:
    """The question with a whole number changed; dp is what is left of the devices."""
    from dmodel.settings import changed

    question = changed(asked.question, words)
    gone = () if name == "dp" else ("dp", "shard")
    columns = {n: v for n, v in question.columns.items() if n not in gone}
    if name == "dp":
        columns.pop("shard", None)
        columns["n_accel"] = (
            value * float(columns["n_accel"]) / float(laid(asked, words).plan.layout.dp)
        )
    return changed(question._replace(columns=columns), {name: value})


def _evaluated(case: Point, output: str, asked: Asked, at: float) -> tuple[Root, End]:
    """One plan, with a whole number of some value."""
    target, unit = _target(output, 1.0, case)
    names = inputs(case, None)
    line = _Line(names, names.names.index("plan.global_batch"), EXTRA.get(output, (output,))[0])
    x = np.array([names.values[line.index]])
    found = line(x)
    root = _root(line, float(x[0]), unit, float(asked.cluster.chip.hbm_bytes))
    end = _end(found, x, 0, unit)
    return root._replace(value=at, slope=None, exact=False), end._replace(value=at)
