"""Operations of traced programs as numpy has them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

Parameters = tuple[Any, ...]


class Unknown(Exception):
    """An operation, or a way of it, that has no counterpart here."""


Operation = Callable[..., Any]
"""An operation whose parameters are known: operands to the result, or to several."""

Made = Callable[[Parameters], Operation]
"""What makes an operation of its parameters."""


def _broadcast(p: Parameters) -> Operation:
    shape, places = p

    def of(x: Any) -> Any:
        x = np.asarray(x)
        strides, inner = [0] * len(shape), [1] * len(shape)
        for place, size, stride in zip(places, x.shape, x.strides, strict=True):
            inner[place] = size
            strides[place] = stride if size == shape[place] else 0
        if x.flags.c_contiguous:  # as below, seven times as fast
            return np.ndarray(shape, x.dtype, x, 0, strides)
        return np.broadcast_to(x.reshape(inner), shape)

    return of


def _sliced(p: Parameters) -> Operation:
    starts, stops, strides = p
    at = tuple(map(slice, starts, stops, strides or (1,) * len(starts)))
    return lambda x: x[at]


def _selected(which: Any, *cases: Any) -> Any:
    if len(cases) == 2:
        return np.where(which, cases[1], cases[0])
    return np.choose(which, cases)


def _cumsum(p: Parameters) -> Operation:
    axis, reverse = p
    if reverse:
        return lambda x: np.flip(np.cumsum(np.flip(x, axis), axis), axis)
    return lambda x: np.cumsum(x, axis)


def _unstacked(p: Parameters) -> Operation:
    axis = p[0]

    def of(x: Any) -> Any:
        parts = np.moveaxis(x, axis, 0) if axis else x
        return parts[0] if len(parts) == 1 else list(parts)

    return of


def _split(p: Parameters) -> Operation:
    sizes, axis = p
    before = (slice(None),) * axis
    ends = zip(sizes, accumulate(sizes), strict=True)
    parts = [(*before, slice(end - size, end)) for size, end in ends]
    if len(parts) == 1:
        return lambda x: x[parts[0]]
    return lambda x: [x[part] for part in parts]


def _product(p: Parameters) -> Operation:
    return lambda a, b: np.tensordot(a, b, p[0][0])


def _padded(p: Parameters) -> Operation:
    ends = [(low, high) for low, high, _ in p[0]]

    def of(x: Any, filling: Any) -> Any:
        sizes = list(zip(ends, x.shape, strict=True))
        found = np.full([low + size + high for (low, high), size in sizes], filling, x.dtype)
        found[tuple([slice(low, low + size) for (low, _), size in sizes])] = x
        return found

    return of


def _stacked(p: Parameters) -> Operation:
    at = (*(slice(None),) * p[0], None)
    return lambda *values: np.concatenate([x[at] for x in values], p[0])


def _counted(p: Parameters) -> Operation:
    kind, shape, axis = p
    along = [size if i == axis else 1 for i, size in enumerate(shape)]
    return lambda: np.broadcast_to(np.arange(shape[axis], dtype=kind).reshape(along), shape)


def _each(function: Operation) -> Made:
    return lambda p: function


def _along(function: Operation) -> Made:
    """A function of one operand and its only parameter."""
    return lambda p: lambda x: function(x, p[0])


def _powered(p: Parameters) -> Operation:
    power = float(p[0])
    return np.square if p[0] == 2 else lambda x: np.power(x, power)


def _reduced(function: np.ufunc) -> Made:
    return lambda p: partial(function.reduce, axis=p[0])


def _by_element(function: Callable[[float], float]) -> Made:
    return _each(np.vectorize(function, otypes=[np.float64]))


PLAIN: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "add_any": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.true_divide,
    "max": np.maximum,
    "min": np.minimum,
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "square": np.square,
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "logistic": lambda x: np.exp(-np.logaddexp(0.0, -x)),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "pow": np.power,
    "rem": np.fmod,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
}
"""Operations that no parameter decides, element by element."""

OPERATIONS: dict[str, Made] = {
    **{name: _each(function) for name, function in PLAIN.items()},
    "erf": _by_element(math.erf),
    "erfc": _by_element(math.erfc),
    "select_n": _each(_selected),
    "integer_pow": _powered,
    "convert_element_type": lambda p: lambda x: np.asarray(x).astype(p[0]),
    "broadcast_in_dim": _broadcast,
    "reshape": lambda p: lambda x: x.reshape(p[0]),
    "squeeze": _along(np.squeeze),
    "transpose": _along(np.transpose),
    "rev": _along(np.flip),
    "slice": _sliced,
    "concatenate": lambda p: lambda *values: np.concatenate(values, p[0]),
    "split": _split,
    "pad": _padded,
    "iota": _counted,
    "stack": _stacked,
    "unstack": _unstacked,
    "reduce_sum": _reduced(np.add),
    "reduce_prod": _reduced(np.multiply),
    "reduce_max": _reduced(np.maximum),
    "reduce_min": _reduced(np.minimum),
    "cumsum": _cumsum,
    "dot_general": _product,
}
"""What each is, once its parameters are known."""

ELEMENTWISE = frozenset(PLAIN) | {"erf", "erfc", "clamp", "select_n", "integer_pow"}
ELEMENTWISE |= {"convert_element_type"}
"""Operations whose operands may be of any shapes that numpy broadcasts."""

NOTHING = ("copy", "stop_gradient")
"""Operations that give what they get."""

PARAMETERS: dict[str, tuple[str, ...]] = {
    "integer_pow": ("y",),
    "convert_element_type": ("new_dtype",),
    "broadcast_in_dim": ("shape", "broadcast_dimensions"),
    "reshape": ("new_sizes",),
    "squeeze": ("dimensions",),
    "transpose": ("permutation",),
    "rev": ("dimensions",),
    "slice": ("start_indices", "limit_indices", "strides"),
    "concatenate": ("dimension",),
    "split": ("sizes", "axis"),
    "pad": ("padding_config",),
    "iota": ("dtype", "shape", "dimension"),
    "stack": ("axis",),
    "unstack": ("axis",),
    "reduce_sum": ("axes",),
    "reduce_prod": ("axes",),
    "reduce_max": ("axes",),
    "reduce_min": ("axes",),
    "cumsum": ("axis", "reverse"),
    "dot_general": ("dimension_numbers",),
}
"""Names of the parameters that decide an operation; of others none does."""

ONLY: dict[str, dict[str, Sequence[Any]]] = {
    "round": {"rounding_method": (1,)},  # to the nearest, ties to even
    "reshape": {"dimensions": (None,)},
    "iota": {"sharding": (None,)},
}
"""Parameters that have to have a certain value."""

INTEGERS = ("div", "rem", "and", "or", "not", "integer_pow", "pow")
"""Operations whose counterpart here is that of other kinds of numbers than whole ones."""


def operation(equation: Any) -> tuple[str, Parameters]:
    """Name and parameters of an equation of a traced program.

    Raises:
      Unknown: it has no counterpart.
    """
    name, given = equation.primitive.name, equation.params
    if name not in OPERATIONS:
        raise Unknown(name)
    whole = any(x.aval.dtype.kind in "iu" for x in equation.invars)
    if (name in INTEGERS and whole) or not _is_usual(name, given):
        raise Unknown(f"{name} of this kind")
    return name, tuple(_told(given[parameter]) for parameter in PARAMETERS.get(name, ()))


def _is_usual(name: str, given: Mapping[str, Any]) -> bool:
    """Whether the parameters of an operation are those that it has here."""
    if name == "dot_general":
        return not any(map(len, given["dimension_numbers"][1]))
    if name == "pad":
        return all(
            min(low, high) >= 0 and not inner for low, high, inner in given["padding_config"]
        )
    return all(given[parameter] in allowed for parameter, allowed in ONLY.get(name, {}).items())


def _told(value: Any) -> Any:
    """A parameter as words, numbers and tuples."""
    if isinstance(value, tuple | list):
        return tuple(map(_told, value))
    if isinstance(value, np.dtype):
        return value.name
    if value is None or isinstance(value, bool):
        return value
    return int(value)
