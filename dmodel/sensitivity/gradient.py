"""Value and all slopes of any output for a batch of cases: what every question that this package
asks runs on.

Cases do not meet, so one reverse pass through their sum gives the gradient of each; the outputs are
chosen by number, case by case, so that they share a compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dmodel.once import together
from dmodel.recorded import Recorded
from dmodel.sensitivity.case import Inputs, Point, rebuild
from dmodel.sensitivity.outputs import OUTPUTS
from dmodel.smooth import SHARPNESS
from dmodel.step import step_time
from dmodel.types import stack

CASES = 64
"""Cases of one call [count]."""

STEP = ("step_time", "memory")
"""Outputs of a record of their own, which is half as long as that of all."""

NUDGE = 1e-7
"""Relative step to either side of an input, far above rounding and far below what changes a slope:
it only steps off kinks."""


class Form(NamedTuple):
    """What is recorded once: structure of the case, levels of its network, sharpness of the step's
    maxima, names of the outputs."""

    tree: Any
    levels: int
    sharpness: float
    outputs: tuple[str, ...]


def outputs_of(x: jax.Array, output: jax.Array, form: Form) -> jax.Array:
    """The output of number `output[case]`, among those of the form, of each case of `x [n,
    case]`."""
    return jnp.take_along_axis(every(x, form), output[None], 0)[0]


def every(x: jax.Array, form: Form) -> jax.Array:
    """All outputs of the form of each case of `x [n, case]`, `[output, case]`."""
    return outputs_at(rebuild(x, form.tree, form.levels), form)


def outputs_at(case: Point, form: Form) -> jax.Array:
    """All outputs of the form of cases, `[output, case]`."""
    with together():
        time = step_time(
            case.system, case.model, case.plan, case.coefficients, sharpness=form.sharpness
        )
        return stack(*(OUTPUTS[name](case, time) for name in form.outputs))


def _value_and_slopes(x: jax.Array, output: jax.Array, form: Form) -> tuple[jax.Array, jax.Array]:
    def total(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        values = outputs_of(x, output, form)
        return values.sum(), values

    slopes, values = jax.grad(total, has_aux=True)(x)
    return values, slopes


def _recorded(
    like: Point,
    x: jax.Array,
    chosen: jax.Array,
    *,
    levels: int,
    sharpness: float,
    outputs: tuple[str, ...],
) -> dict[str, jax.Array]:
    """Values `[case]` and slopes `[n, case]`; like: any case of the structure, chosen: 1 for the
    output of each case, `[output, case]`."""
    form = Form(jax.tree.structure(like), levels, sharpness, outputs)

    def total(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        values = jnp.where(chosen > 0.0, every(x, form), 0.0).sum(0)
        return values.sum(), values

    slopes, values = jax.grad(total, has_aux=True)(x)
    return {"values": values, "slopes": slopes}


SLOPES = Recorded(_recorded)


def _with(x: jax.Array, moved: jax.Array, form: Form, places: Sequence[int]) -> Point:
    """The case of inputs `x [n]`, those of some places of each row instead, `moved [place,
    row]`."""
    leaves = jax.tree.leaves(rebuild(x[:, None], form.tree, form.levels))
    first = [0, *accumulate(len(leaf) if leaf.ndim > 1 else 1 for leaf in leaves)]
    for place, row in zip(places, moved, strict=True):
        leaves[first.index(place)] = row
    return jax.tree.unflatten(form.tree, leaves)


def _moving(
    like: Point,
    x: jax.Array,
    rows: dict[str, jax.Array],
    *,
    places: tuple[int, ...],
    levels: int,
    sharpness: float,
) -> dict[str, jax.Array]:
    """Values `[row]` of `STEP`, and slopes `[place, row]` by some inputs alone.

    Args:
      like: any case of the structure. x: the inputs that all rows share, `[n]`.
      rows: those at the places, "moved" `[place, row]`, and which output is meant, "chosen"
        `[output, row]`.
    """
    form = Form(jax.tree.structure(like), levels, sharpness, STEP)

    def total(moved: jax.Array) -> tuple[jax.Array, jax.Array]:
        every = outputs_at(_with(x, moved, form, places), form)
        values = jnp.where(rows["chosen"] > 0.0, every, 0.0).sum(0)
        return values.sum(), values

    slopes, values = jax.grad(total, has_aux=True)(rows["moved"])
    return {"values": values, "slopes": slopes}


MOVING = Recorded(_moving, any_rows=True, of_last=True)


def _second_order(x: jax.Array, tangent: jax.Array, output: jax.Array, form: Form) -> tuple:
    """Forward over reverse: value and slopes, and how both change along the tangent of each
    case."""
    return jax.jvp(lambda x: _value_and_slopes(x, output, form), (x,), (tangent,))


def _program(inputs: Inputs, output: np.ndarray, sharpness: float) -> tuple[Form, np.ndarray]:
    """The form that is recorded for some outputs, by number, and their numbers in it: `STEP` where
    they are among these, else all."""
    names = (
        STEP
        if set(output.tolist()) <= {list(OUTPUTS).index(name) for name in STEP}
        else tuple(OUTPUTS)
    )
    place = np.array([names.index(name) if name in names else -1 for name in OUTPUTS])
    return Form(inputs.tree, inputs.levels, sharpness, names), place[output]


def _in_chunks(
    run: Callable, arrays: tuple[np.ndarray, ...], output: np.ndarray
) -> list[np.ndarray]:
    """Run over a batch `[…, n]` in calls of `CASES`, the last one padded with its last case."""
    size, parts = arrays[0].shape[-1], []
    for start in range(0, size, CASES):
        take = np.minimum(np.arange(start, start + CASES), size - 1)
        found = run(*(a[..., take] for a in arrays), output[take])
        parts.append([np.asarray(leaf)[..., : size - start] for leaf in jax.tree.leaves(found)])
    return [np.concatenate(leaves, -1) for leaves in zip(*parts, strict=True)]


def outputs_by_number(output: str | np.ndarray, size: int) -> np.ndarray:
    """The number of an output for each case, or as given."""
    return np.full(size, list(OUTPUTS).index(output)) if isinstance(output, str) else output


def evaluate(
    inputs: Inputs, x: np.ndarray, output: str | np.ndarray, sharpness: float = SHARPNESS
) -> tuple[np.ndarray, np.ndarray]:
    """Values and logarithmic slopes of a batch of cases.

    Args:
      inputs: names and structure. x: their values, `[n, case]`. output: a name, or the number of
        one for each case.

    Returns:
      values `[case]`, own unit; ∂ ln value / ∂ x `[n, case]`, one over the unit of x.
    """
    form, number = _program(inputs, outputs_by_number(output, x.shape[-1]), sharpness)
    like = jax.tree.unflatten(form.tree, [0.0] * form.tree.num_leaves)
    static = {"levels": form.levels, "sharpness": sharpness, "outputs": form.outputs}

    def run(x: np.ndarray, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        chosen = np.arange(len(form.outputs))[:, None] == number[None]
        found = SLOPES(like, x, chosen, **static)
        return found["values"], found["slopes"]

    values, slopes = _in_chunks(run, (x,), number)
    # an output of zero is refused by those who ask, with its name
    return values, slopes / np.where(values == 0.0, np.nan, values)[None]


def elasticities_of(
    inputs: Inputs, x: np.ndarray, output: str | np.ndarray, sharpness: float = SHARPNESS
) -> tuple[np.ndarray, np.ndarray]:
    """Values `[case]` and elasticities `[n, case]`; those of zeros and infinities are 0."""
    values, slopes = evaluate(inputs, x, output, sharpness)
    finite = np.where(np.isfinite(x), x, 0.0)
    return values, np.where(finite == 0.0, 0.0, slopes * finite)


class Along(NamedTuple):
    """Step time [s] and memory [byte] of a point, and their logarithmic slopes by the inputs that
    move, `[place]`, one over the unit of each."""

    time: float
    memory: float
    time_slopes: np.ndarray
    memory_slopes: np.ndarray


def along(
    inputs: Inputs, x: np.ndarray, places: Sequence[int], sharpness: float = SHARPNESS
) -> Callable[[np.ndarray], Along]:
    """`evaluate` of `STEP` where a few inputs move: what the others decide is computed once.

    Args:
      inputs: names and structure. x: their values, `[n]`. places: of those that move, none of them
        of a level of the network.

    Returns:
      From their values at a point, `[place]`.
    """
    like = jax.tree.unflatten(inputs.tree, [0.0] * inputs.tree.num_leaves)
    static = {"places": tuple(places), "levels": inputs.levels, "sharpness": sharpness}

    def rows(moved: np.ndarray) -> dict[str, np.ndarray]:
        return {"moved": np.stack([moved] * len(STEP), 1), "chosen": np.eye(len(STEP))}

    of = MOVING.varied(like, x, like=rows(x[list(places)]), **static)

    def at(moved: np.ndarray) -> Along:
        found = of(rows(moved))
        values = found["values"]
        slopes = found["slopes"] / np.where(values == 0.0, np.nan, values)
        return Along(*values.tolist(), *slopes.T)

    return at


def directional(
    inputs: Inputs, x: np.ndarray, tangent: np.ndarray, output: str, sharpness: float = SHARPNESS
) -> np.ndarray:
    """How the logarithmic slopes change along a tangent, `[n, case]`: forward over reverse.

    Operation by operation, half a minute of one core: XLA's fusion copies what both modes reuse
    into every consumer, and to compile that takes more than ten gigabytes; without fusion the
    compiler ends the process (jaxlib 0.10).
    """
    form, number = _program(inputs, outputs_by_number(output, x.shape[-1]), sharpness)
    values, slopes, dvalues, dslopes = _in_chunks(
        lambda x, t, o: _second_order(x, t, o, form=form), (x, tangent), number
    )
    return dslopes / values[None] - slopes * (dvalues / values**2)[None]
