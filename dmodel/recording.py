"""Records of traced programs: lists of operations on numbered places.

What a compiler would do of itself is done here once: what is constant is computed, what repeats is
shared, and what nobody reads is left out. A value that is the same along an axis is held once: what
is counted element by element broadcasts it.

A record may answer for any number of rows: it is traced for one number, which no other size is a
multiple of, and wherever that stands among sizes the number of rows is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dmodel.operations import ELEMENTWISE, NOTHING, OPERATIONS, Unknown, operation

Tree = Any
"""A pytree of arrays."""

Shape = tuple[int, ...]


class Step(NamedTuple):
    """One operation: its name, what it reads and writes by place, and its parameters, where `ROWS`
    stands for the number of rows."""

    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    parameters: tuple[Any, ...]


class Record(NamedTuple):
    """Operations in order, on numbered places: inputs first, then constants.

    Attributes:
      inputs: how many there are [count]. constants: their values. steps: operations.
      outputs: places of the answer. names: of each leaf of the answer, the keys that lead there.
    """

    inputs: int
    constants: tuple[np.ndarray, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    names: tuple[tuple[str, ...], ...]


ROWS = "rows"
"""What stands for the number of rows in a record that answers for any."""

MARK = 7919
"""Rows that such a record is traced for: a prime that no other size is a multiple of."""


def _for_any(value: Any) -> Any:
    """Parameters with `ROWS` in place of `MARK`.

    Raises:
      Unknown: a size mixes the rows with others, so that it cannot be told for another number.
    """
    if isinstance(value, tuple):
        return tuple(map(_for_any, value))
    if not isinstance(value, int) or value < MARK:
        return value
    if value != MARK:
        raise Unknown(f"a size of {value} for {MARK} rows")
    return ROWS


def _for_some(value: Any, rows: int) -> Any:
    """Parameters for a number of rows."""
    if isinstance(value, tuple):
        return tuple([_for_some(x, rows) for x in value])
    return rows if value == ROWS else value


def for_rows(record: Record, rows: int) -> Record:
    """A record that answers for any number of rows, for one."""
    steps = [
        step._replace(parameters=_for_some(step.parameters, rows)) if step.parameters else step
        for step in record.steps
    ]
    return record._replace(steps=tuple(steps))


def _mentions_rows(value: Any) -> bool:
    return value == ROWS or (isinstance(value, tuple) and any(map(_mentions_rows, value)))


INNER = ("jit", "pjit", "closed_call", "custom_jvp_call")
"""Operations that are programs of their own."""


class Recorder:
    """Makes a record of a traced program.

    Args:
      shapes: of the inputs. any_rows: whether it is traced for `MARK` rows and to answer for any
        number.
    """

    def __init__(self, shapes: Sequence[Shape], any_rows: bool = False) -> None:
        self.inputs, self.any_rows = len(shapes), any_rows
        self.shapes = dict(enumerate(shapes))
        self.constants: dict[tuple, int] = {}
        self.values: dict[int, np.ndarray] = {}
        self.shared: dict[tuple, tuple[int, ...]] = {}
        self.steps: list[Step] = []

    def constant(self, value: Any) -> int:
        """The place of a constant."""
        array = np.asarray(value)
        if self.any_rows and MARK in array.shape:
            array = _alike(array)
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self.constants:
            self.constants[key] = self._place(array.shape)
            self.values[self.constants[key]] = array
        return self.constants[key]

    def _place(self, shape: Shape) -> int:
        place = len(self.shapes)
        self.shapes[place] = shape
        return place

    def program(self, jaxpr: Any, constants: Sequence[Any], places: Sequence[int]) -> list[int]:
        """Record a program whose inputs lie at places; those of its outputs, each of a shape that
        broadcasts to the output's."""
        at = dict(zip(jaxpr.invars, places, strict=True))
        at |= {v: self.constant(x) for v, x in zip(jaxpr.constvars, constants, strict=True)}

        def place(x: Any) -> int:
            return self.constant(x.val) if hasattr(x, "val") else at[x]

        for equation in jaxpr.eqns:
            found = self._equation(equation, [place(x) for x in equation.invars])
            at |= dict(zip(equation.outvars, found, strict=True))
        return [place(x) for x in jaxpr.outvars]

    def whole(self, place: int, shape: Shape) -> int:
        """A value in its whole shape."""
        own = self.shapes[place]
        if own == shape:
            return place
        along = tuple(range(len(shape) - len(own), len(shape)))
        return self._step("broadcast_in_dim", (place,), (shape, along), [shape])[0]

    def _equation(self, equation: Any, reads: list[int]) -> Sequence[int]:
        name = equation.primitive.name
        inner = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
        if inner is not None:
            if name not in INNER:
                raise Unknown(name)
            return self.program(inner.jaxpr, inner.consts, reads)
        if name in NOTHING or _keeps_kind(equation):
            return reads
        name, parameters = operation(equation)
        given = [x.aval.shape for x in equation.invars]
        if name == "broadcast_in_dim":
            return [self._spread(reads[0], given[0], parameters)]
        if name in ELEMENTWISE:
            return self._by_element(name, reads, parameters)
        whole = [self.whole(i, shape) for i, shape in zip(reads, given, strict=True)]
        found = [x.aval.shape for x in equation.outvars]
        if name in ("reshape", "squeeze"):
            return [self._reshaped(whole[0], found[0])]
        return self._step(name, tuple(whole), parameters, found)

    def _spread(self, place: int, shape: Shape, parameters: tuple) -> int:
        """A value of a shape, with the axes that it is broadcast along left out or of one."""
        wide, along = parameters
        own = self.shapes[place]
        sizes = [1] * len(wide)
        for axis, size in zip(along, (1,) * (len(shape) - len(own)) + own, strict=True):
            sizes[axis] = size
        first = next((i for i, size in enumerate(sizes) if size != 1), len(sizes))
        return self._reshaped(place, tuple(sizes[first:]))

    def _reshaped(self, place: int, shape: Shape) -> int:
        if self.shapes[place] == shape:
            return place
        return self._step("reshape", (place,), (shape,), [shape])[0]

    def _by_element(self, name: str, reads: list[int], parameters: tuple) -> Sequence[int]:
        if name == "mul" and (same := self._times_one(*reads)) is not None:
            return [same]
        shape = np.broadcast_shapes(*(self.shapes[i] for i in reads))
        return self._step(name, tuple(reads), parameters, [shape])

    def _times_one(self, a: int, b: int) -> int | None:
        """The other factor where one is 1 throughout."""
        for one, other in ((a, b), (b, a)):
            held = self.values.get(one)
            if held is not None and bool((held == 1.0).all()):
                wide = np.broadcast_shapes(held.shape, self.shapes[other])
                return other if wide == self.shapes[other] else None
        return None

    def _step(
        self, name: str, reads: tuple[int, ...], parameters: tuple, shapes: Sequence[Shape]
    ) -> tuple[int, ...]:
        """Places of what an operation gives, the same for the same one."""
        if self.any_rows:
            parameters = _for_any(parameters)
        key = (name, parameters, *reads)
        if key not in self.shared:
            self.shared[key] = self._made(name, reads, parameters, shapes)
        return self.shared[key]

    def _made(
        self, name: str, reads: tuple[int, ...], parameters: tuple, shapes: Sequence[Shape]
    ) -> tuple[int, ...]:
        if all(i in self.values for i in reads) and not _mentions_rows(parameters):
            with np.errstate(all="ignore"):
                found = OPERATIONS[name](parameters)(*[self.values[i] for i in reads])
            return tuple(map(self.constant, [found] if len(shapes) == 1 else found))
        writes = tuple(map(self._place, shapes))
        self.steps.append(Step(name, reads, writes, parameters))
        return writes

    def finished(self, outputs: Sequence[int], names: Sequence[tuple[str, ...]]) -> Record:
        """The record of what the outputs need, places numbered anew."""
        needed, steps = set(outputs), []
        for step in reversed(self.steps):
            if needed.intersection(step.writes):
                needed.update(step.reads)
                steps.append(step)
        held = [i for i in self.values if i in needed]
        number = {i: n for n, i in enumerate([*range(self.inputs), *held])}
        for step in reversed(steps):
            for i in step.writes:
                number[i] = len(number)
        return Record(
            self.inputs,
            tuple(self.values[i] for i in held),
            tuple(
                Step(s.name, _numbered(number, s.reads), _numbered(number, s.writes), s.parameters)
                for s in reversed(steps)
            ),
            _numbered(number, outputs),
            tuple(names),
        )


def _alike(array: np.ndarray) -> np.ndarray:
    """A constant of all rows, which is the same for each, held once.

    Raises:
      Unknown: it tells one row from another.
    """
    one = array[..., :1]
    if array.shape[-1] != MARK or MARK in one.shape or not (array == one).all():
        raise Unknown("a constant that differs from row to row")
    return one


def _keeps_kind(equation: Any) -> bool:
    """Whether an operation converts numbers to the kind that they are of."""
    kind = equation.params.get("new_dtype")
    return kind is not None and equation.invars[0].aval.dtype == kind


def _numbered(number: dict[int, int], places: Sequence[int]) -> tuple[int, ...]:
    return tuple(number[i] for i in places)


def recorded(function: Callable[..., Any], *records: Tree, shared: int | None = None) -> Record:
    """The record of a function of records.

    Args:
      shared: None for an answer of the shapes at hand; else it is to answer for any number of rows,
        the last axis of every leaf but the first ones, so many.

    Raises:
      Unknown: it uses an operation that has no counterpart here.
    """
    leaves, tree = jax.tree.flatten(records)
    names: list[tuple[str, ...]] = []

    def flat(*leaves: jax.Array) -> list[jax.Array]:
        found = jax.tree_util.tree_leaves_with_path(function(*jax.tree.unflatten(tree, leaves)))
        names[:] = [tuple(key.key for key in path) for path, _ in found]
        return [jnp.asarray(leaf) for _, leaf in found]

    shared = len(leaves) if shared is None else shared
    any_rows = shared < len(leaves)
    shapes = [np.shape(x) for x in leaves[:shared]]
    shapes += [(*np.shape(x)[:-1], MARK) for x in leaves[shared:]]
    closed = jax.make_jaxpr(flat)(*[jax.ShapeDtypeStruct(shape, float) for shape in shapes])
    recorder = Recorder(shapes, any_rows)
    places = recorder.program(closed.jaxpr, closed.consts, range(len(leaves)))
    outputs = [
        recorder.whole(i, x.aval.shape) for i, x in zip(places, closed.jaxpr.outvars, strict=True)
    ]
    return recorder.finished(outputs, names)
