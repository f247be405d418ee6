"""Global sensitivity: which inputs decide the spread of an output while all of them range at once.

First-order index: share of the variance of ln y that an input explains by itself; total index: by
itself and together with others. Samples and estimators are those of SALib (Saltelli et al. 2010),
the model is evaluated for all of them in one sweep.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import lru_cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from dmodel.coefficients import SPECS
from dmodel.errors import InputError
from dmodel.parts import Arrays, Block, parts
from dmodel.sensitivity.case import Inputs, Point, base_name, inputs
from dmodel.sensitivity.gradient import Form, outputs_of
from dmodel.sensitivity.local import check_positive, of_case
from dmodel.sensitivity.outputs import output_name
from dmodel.smooth import SHARPNESS
from dmodel.sweep import sweep

BASE = 2**14
"""Base samples; the model is evaluated `(inputs + 2)` times as often."""

FACTOR = 1.25
"""Default range: the value divided and multiplied by this; of a share, its odds."""


LEAST_SPREAD = 1e-12
"""Standard deviation of ln output that is no more than rounding."""


class Range(NamedTuple):
    """An input and the ends of its range, in its unit: uniform in the logarithm, for a share
    (`share`) in the logit."""

    name: str
    low: float
    high: float
    share: bool = False

    def at(self, u: np.ndarray) -> np.ndarray:
        """Values for u in 0..1."""
        if not self.share:
            return self.low * (self.high / self.low) ** u
        low, high = (np.log(x / (1.0 - x)) for x in (self.low, self.high))
        return 1.0 / (1.0 + np.exp(-(low + (high - low) * u)))


class Global(NamedTuple):
    """Indices by input, with their 95 % bootstrap half-widths, and the spread of the output.

    Attributes:
      ranges: of the inputs. first, first_error, total, total_error: `[input]`. evaluations: of the
        model.
      median, low, high: of the output and of its middle 90 %, own unit. deviation: standard
        deviation of ln output.
    """

    output: str
    ranges: tuple[Range, ...]
    first: np.ndarray
    first_error: np.ndarray
    total: np.ndarray
    total_error: np.ndarray
    evaluations: int
    median: float
    low: float
    high: float
    deviation: float


def is_share(name: str) -> bool:
    """Whether an input is a share between 0 and 1."""
    record, _, field = base_name(name).partition(".")
    return record == "coefficients" and SPECS[field].bound == "share"


def default_range(known: Inputs, name: str, factor: float = FACTOR) -> Range:
    """An input's value divided and multiplied by a factor; of a share, its odds."""
    x = known[name]
    if not (np.isfinite(x) and x > 0.0):
        raise InputError(
            f"range of {name}: expected a positive finite value to range around; got {x:g}"
        )
    if is_share(name):
        if x >= 1.0:
            raise InputError(
                f"range of {name}: a share of 1 has no odds to range around; state a range "
                "below "
                "1, or leave it out"
            )
        odds = x / (1.0 - x)
        return Range(
            name, odds / factor / (1.0 + odds / factor), odds * factor / (1.0 + odds * factor), True
        )
    return Range(name, x / factor, x * factor)


def stated_range(known: Inputs, name: str, low: float, high: float) -> Range:
    """A range that somebody states; InputError where it makes no sense."""
    known.index(name)
    share = is_share(name)
    if not (0.0 < low < high and (high < 1.0 or not share)):
        raise InputError(
            f"range of {name}: expected 0 < low < high{' < 1' if share else ''}; got {low:g} "
            "and "
            f"{high:g}"
        )
    return Range(name, low, high, share)


def default_ranges(
    case: Point, output: str, most: int = 10, level_names: Sequence[str] | None = None
) -> list[Range]:
    """The inputs of hardware and coefficients with the largest elasticities; not shares of 1, which
    have no odds to range around."""
    known = inputs(case, level_names)
    found = of_case(case, output, level_names=level_names).largest
    kept = [
        e for e in found if e.group in ("hardware", "coefficient", "run") and abs(e.value) > 0.0
    ]
    names = [e.name for e in kept if not (is_share(e.name) and e.at >= 1.0)]
    return [default_range(known, name) for name in names[:most]]


@lru_cache(maxsize=8)
def _function(
    tree: Any, levels: int, places: tuple[int, ...], output: str, sharpness: float
) -> Callable:
    """The case function of the sweep: some inputs from the batch, all others as they are."""
    form = Form(tree, levels, sharpness, (output,))

    def value(batch: list, fixed: Any) -> Any:
        size = jnp.shape(batch[0])
        rows = [jnp.broadcast_to(fixed[i], size) for i in range(fixed.shape[0])]
        for place, x in zip(places, batch, strict=True):
            rows[place] = x
        return outputs_of(jnp.stack(rows), jnp.zeros(size, int), form)

    return value


def _salib() -> tuple[Any, Any]:
    """Sampling and analysis of SALib; InputError when it is not there."""
    try:
        # it and what it imports warn about themselves on import
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from SALib.analyze import sobol as analyze
            from SALib.sample import sobol as sample
    except ImportError as error:
        raise InputError(
            f"global sensitivities need SALib, which cannot be imported ({error}): pip install "
            "'dmodel-jax[cli]'"
        ) from error
    return sample, analyze


def sobol(
    case: Point,
    output: str = "step_time",
    ranges: Sequence[Range] | None = None,
    *,
    base: int = BASE,
    seed: int = 0,
    resamples: int = 100,
    sharpness: float = SHARPNESS,
    level_names: Sequence[str] | None = None,
    threads: int | None = None,
    executor: Executor | None = None,
) -> Global:
    """First-order and total indices of ln output over ranges of the inputs.

    Limits: the first-order indices of a product of powers add up to 1 and equal the totals; of one
    input alone, both are 1.

    Args:
      ranges: None for `default_ranges`. base: samples of the design, a power of two. seed: of the
        sample and the bootstrap.
      resamples: of the bootstrap behind the errors.
      executor: whose workers evaluate the model; None for threads of this process.

    Raises:
      InputError: unknown or repeated names, no power of two, an output that does not change, or
        SALib missing.
    """
    output, known = output_name(output), inputs(case, level_names)
    if ranges is None:
        ranges = default_ranges(case, output, level_names=level_names)
    ranges = tuple(ranges)
    _check(base, ranges)
    sample, analyze = _salib()
    problem = _problem(ranges)
    u = sample.sample(problem, base, calc_second_order=False, seed=seed)
    batch = [r.at(u[:, i]) for i, r in enumerate(ranges)]
    for each in ranges:
        known.index(each.name)  # an unknown name is told before anything is computed
    asked = _Asked(case, tuple(r.name for r in ranges), output, sharpness, level_names)
    if executor is None:
        values = _values(asked, batch, threads)
    else:
        values = _values_elsewhere(asked, batch, executor)
    check_positive(values, output)
    logs = np.log(values)
    if logs.std() < LEAST_SPREAD:
        raise InputError(
            f"{output} stays the same over these ranges, with no variance to share out: range "
            "inputs that it depends on"
        )
    # indices are shares of the variance, so that a shift of ln y does not matter, but it costs
    # digits
    resampled = {"num_resamples": resamples, "seed": seed + 1}  # SALib takes 0 for no seed
    found = analyze.analyze(problem, logs - logs.mean(), calc_second_order=False, **resampled)
    low, median, high = np.quantile(values, [0.05, 0.5, 0.95])
    return Global(
        output=output,
        ranges=ranges,
        first=np.asarray(found["S1"]),
        first_error=np.asarray(found["S1_conf"]),
        total=np.asarray(found["ST"]),
        total_error=np.asarray(found["ST_conf"]),
        evaluations=len(values),
        median=float(median),
        low=float(low),
        high=float(high),
        deviation=float(logs.std()),
    )


class _Asked(NamedTuple):
    """What is evaluated: a case, of which some inputs have other values, and its output."""

    case: Point
    names: tuple[str, ...]
    output: str
    sharpness: float
    level_names: Sequence[str] | None


def _values(asked: _Asked, batch: Sequence[np.ndarray], threads: int | None) -> np.ndarray:
    """The output at values of the inputs, `[n]` each."""
    known = inputs(asked.case, asked.level_names)
    places = tuple(map(known.index, asked.names))
    function = _function(known.tree, known.levels, places, asked.output, asked.sharpness)
    return np.asarray(sweep(function, list(batch), known.values, threads=threads, quick=True))


CASES_OF_BLOCK = 1 << 14
"""Cases that a worker evaluates at once [count]."""


def _values_elsewhere(asked: _Asked, batch: Sequence[np.ndarray], executor: Executor) -> np.ndarray:
    """`_values` by an executor's workers."""
    size = CASES_OF_BLOCK
    cut = [[x[i : i + size] for x in batch] for i in range(0, len(batch[0]), size)]
    blocks = [Block(values_block, {**asked._asdict(), "batch": part}) for part in cut]
    return np.concatenate([part.arrays["values"] for part in parts(blocks, executor)])


def values_block(*, batch: Sequence[np.ndarray], **asked: Any) -> Arrays:
    """What a worker makes of some cases: their values."""
    return {"values": _values(_Asked(**asked), batch, 1)}


def _check(base: int, ranges: Sequence[Range]) -> None:
    """Refuse samples that are no power of two, and ranges that are none or repeat."""
    if base < 2 or base & (base - 1):
        raise InputError(f"base samples: expected a power of two from 2 on; got {base}")
    if not ranges:
        raise InputError("global sensitivities: expected at least one input that ranges; got none")
    if twice := _repeated([r.name for r in ranges]):
        raise InputError(f"ranges: expected each input once; got {', '.join(twice)} more than once")


def _repeated(names: Sequence[str]) -> list[str]:
    """Names that occur more than once, sorted."""
    return sorted(name for name, n in Counter(names).items() if n > 1)


def _problem(ranges: Sequence[Range]) -> dict[str, Any]:
    """Inputs as SALib takes them: each from 0 to 1 of its range."""
    return {
        "num_vars": len(ranges),
        "names": [r.name for r in ranges],
        "bounds": [[0.0, 1.0]] * len(ranges),
    }
