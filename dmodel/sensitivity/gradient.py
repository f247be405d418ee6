"""Value and all slopes of any output for a batch of cases: what every question that this package
asks runs on.

Cases do not meet, so one reverse pass through their sum gives the gradient of each; the outputs are
chosen by number, case by case, so that they share a compilation.
"""

from __future__ import annotations

from collections.abc import Callable
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
"""Cases of one call of the recorded program [count]."""

STEP = ("step_time", "memory")
"""Outputs of a program of their own, which takes less time to trace than that of all."""

NUDGE = 1e-7
"""Relative step to either side of an input, far above rounding and far below what changes a slope:
it only steps off kinks."""


class Form(NamedTuple):
    """What is traced once: structure of the case, levels of its network, sharpness of the step's
    maxima, names of the outputs."""

    tree: Any
    levels: int
    sharpness: float
    outputs: tuple[str, ...]


def outputs_of(x: jax.Array, output: jax.Array, form: Form) -> jax.Array:
    """The output of number `output[case]`, among those of the form, of each case of `x [n,
    case]`."""
    case = rebuild(x, form.tree, form.levels)
    with together():
        time = step_time(
            case.system, case.model, case.plan, case.coefficients, sharpness=form.sharpness
        )
        values = stack(*(OUTPUTS[name](case, time) for name in form.outputs))
    chosen, *others = jnp.unstack(values)
    for number, value in enumerate(others, 1):
        chosen = jnp.where(output == number, value, chosen)
    return chosen


def _value_and_slopes(x: jax.Array, output: jax.Array, form: Form) -> tuple[jax.Array, jax.Array]:
    def total(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        values = outputs_of(x, output, form)
        return values.sum(), values

    slopes, values = jax.grad(total, has_aux=True)(x)
    return values, slopes


def _second_order(x: jax.Array, tangent: jax.Array, output: jax.Array, form: Form) -> tuple:
    """Forward over reverse: value and slopes, and how both change along the tangent of each
    case."""
    return jax.jvp(lambda x: _value_and_slopes(x, output, form), (x,), (tangent,))


def _slopes(
    case: Point, output: jax.Array, *, sharpness: float, outputs: tuple[str, ...]
) -> dict[str, jax.Array]:
    """Values `[case]` and slopes `[n, case]` of a batch of cases, by the numbers of outputs."""
    x = jnp.concatenate([x.reshape(-1, x.shape[-1]) for x in jax.tree.leaves(case)])
    levels = jnp.shape(case.system.network.size)[0]
    form = Form(jax.tree.structure(case), levels, sharpness, outputs)
    values, slopes = _value_and_slopes(x, output, form)
    return {"values": values, "slopes": slopes}


SLOPES = Recorded(_slopes)


def _program(inputs: Inputs, output: np.ndarray, sharpness: float) -> tuple[Form, np.ndarray]:
    """The form that is traced for some outputs, by number, and their numbers in it: `STEP` where
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
    size = arrays[0].shape[-1]
    parts = []
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

    def run(x: np.ndarray, output: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        case = rebuild(x, form.tree, form.levels)
        # the order of layers decides nothing here, and models of one structure share a record
        case = case.replace(model=case.model.replace(order=()))
        found = SLOPES(case, output, sharpness=form.sharpness, outputs=form.outputs)
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
