"""Recorded programs as graphs of scalars: every element of every array is a node of its own.

Arrays hold numbers of nodes, so that what only moves elements (slices, stacks, broadcasts) leaves
no trace. Constants are computed, and what repeats is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dmodel.operations import ELEMENTWISE, OPERATIONS, Unknown
from dmodel.recording import Record

MOVING = frozenset(
    (
        "broadcast_in_dim reshape squeeze transpose rev slice concatenate split pad stack unstack"
    ).split()
)
"""Operations that move elements and compute nothing."""

SAME = {"add_any": "add"}
"""Operations that are others by another name."""

REDUCED = {"reduce_sum": "add", "reduce_prod": "mul", "reduce_max": "max", "reduce_min": "min"}
"""Operations along axes, and what each does with two elements."""


class Node(NamedTuple):
    """One scalar: an operation of `dmodel.operations` on other nodes, "input" or "constant".

    Attributes:
      reads: nodes. extra: number of the input, or value of the constant; of `integer_pow`, the
        exponent.
    """

    name: str
    reads: tuple[int, ...] = ()
    extra: Any = None


class Graph:
    """Nodes in an order in which each stands behind what it reads."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.known: dict[tuple, int] = {}

    def node(self, name: str, reads: tuple[int, ...] = (), extra: Any = None) -> int:
        """The number of a node; the same for the same one."""
        key = (name, reads, type(extra), repr(extra))
        if key not in self.known:
            self.known[key] = len(self.nodes)
            self.nodes.append(Node(name, reads, extra))
        return self.known[key]

    def constant(self, value: Any) -> int:
        """The node of a number or a truth value."""
        plain = bool(value) if np.asarray(value).dtype == bool else float(value)
        return self.node("constant", (), plain)

    def value(self, number: int) -> Any:
        """The value of a constant node, else None."""
        node = self.nodes[number]
        return node.extra if node.name == "constant" else None

    def computed(self, name: str, reads: Sequence[int], parameters: tuple = ()) -> int:
        """The node of an operation on scalars, simplified where that changes no digit."""
        name = SAME.get(name, name)
        values = [self.value(i) for i in reads]
        if all(v is not None for v in values):
            with np.errstate(all="ignore"):
                return self.constant(OPERATIONS[name](parameters)(*map(np.asarray, values)))
        simple = SIMPLER.get(name)
        same = simple(self, reads, values) if simple else None
        if same is not None:
            return same
        return self.node(name, tuple(reads), parameters[0] if parameters else None)


def _sum_of(graph: Graph, reads: Sequence[int], values: Sequence[Any]) -> int | None:
    if values[0] == 0.0:
        return reads[1]
    return reads[0] if values[1] == 0.0 else None


def _product_of(graph: Graph, reads: Sequence[int], values: Sequence[Any]) -> int | None:
    for one, other in ((0, 1), (1, 0)):
        if values[one] == 1.0:
            return reads[other]
        if values[one] == -1.0:
            return graph.computed("neg", (reads[other],))
    return None


def _difference_of(graph: Graph, reads: Sequence[int], values: Sequence[Any]) -> int | None:
    return reads[0] if values[1] == 0.0 else None


def _quotient_of(graph: Graph, reads: Sequence[int], values: Sequence[Any]) -> int | None:
    return reads[0] if values[1] == 1.0 else None


def _negative_of(graph: Graph, reads: Sequence[int], values: Sequence[Any]) -> int | None:
    inner = graph.nodes[reads[0]]
    return inner.reads[0] if inner.name == "neg" else None


def _choice_of(graph: Graph, reads: Sequence[int], values: Sequence[Any]) -> int | None:
    if len(reads) != 3:
        raise Unknown(f"select_n of {len(reads) - 1} cases")
    if values[0] is not None:
        return reads[2] if values[0] else reads[1]
    return reads[1] if reads[1] == reads[2] else None


SIMPLER: dict[str, Callable[[Graph, Sequence[int], Sequence[Any]], int | None]] = {
    "add": _sum_of,
    "mul": _product_of,
    "sub": _difference_of,
    "div": _quotient_of,
    "neg": _negative_of,
    "select_n": _choice_of,
}
"""What an operation comes to without computing it, None where it has to be."""


class Scalars:
    """The graph of a record.

    Attributes:
      graph: its nodes. outputs: their numbers, for all elements of the outputs in order.
    """

    def __init__(self, record: Record, sizes: Sequence[tuple[int, ...]]) -> None:
        self.graph = Graph()
        self.at: list[np.ndarray | None] = [
            *self._inputs(sizes),
            *map(self._constant, record.constants),
        ]
        self.at += [None] * sum(len(step.writes) for step in record.steps)
        for step in record.steps:
            found = self._step(step.name, step.parameters, [self.at[i] for i in step.reads])
            for place, value in zip(step.writes, found, strict=True):
                self.at[place] = value
        wanted = [np.asarray(self.at[place]) for place in record.outputs]
        self.shapes = [np.shape(x) for x in wanted]
        self.outputs = [int(i) for x in wanted for i in np.ravel(x)]

    def _inputs(self, sizes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
        found, start = [], 0
        for shape in sizes:
            count = int(np.prod(shape, dtype=int))
            numbers = [self.graph.node("input", (), i) for i in range(start, start + count)]
            found.append(np.array(numbers, int).reshape(shape))
            start += count
        return found

    def _constant(self, values: np.ndarray) -> np.ndarray:
        numbers = [self.graph.constant(v) for v in np.ravel(values)]
        return np.array(numbers, int).reshape(np.shape(values))

    def _step(self, name: str, parameters: tuple, reads: list[Any]) -> list[np.ndarray]:
        if name in MOVING:
            found = OPERATIONS[name](parameters)(*reads)
            return list(found) if isinstance(found, list) else [found]
        if name in ELEMENTWISE:
            return [self._by_element(name, parameters, reads)]
        if name in REDUCED:
            return [self._along(REDUCED[name], parameters[0], reads[0])]
        if name == "cumsum":
            return [self._running(parameters, reads[0])]
        if name == "dot_general":
            return [self._products(parameters, *reads)]
        raise Unknown(f"{name} as JavaScript")

    def _by_element(self, name: str, parameters: tuple, reads: list[np.ndarray]) -> np.ndarray:
        wide = np.broadcast_arrays(*reads)
        each = zip(*(np.ravel(x).tolist() for x in wide), strict=True)
        numbers = [self.graph.computed(name, row, parameters) for row in each]
        return np.array(numbers, int).reshape(wide[0].shape)

    def _along(self, name: str, axes: tuple[int, ...], values: np.ndarray) -> np.ndarray:
        """One operation over some axes, element after element."""
        kept = [i for i in range(values.ndim) if i not in axes]
        rows = values.transpose(*kept, *axes).reshape(*(values.shape[i] for i in kept), -1)
        found = rows[..., 0]
        for i in range(1, rows.shape[-1]):
            found = self._by_element(name, (), [found, rows[..., i]])
        return found

    def _running(self, parameters: tuple, values: np.ndarray) -> np.ndarray:
        axis, reverse = parameters
        rows = list(np.moveaxis(values, axis, 0))[:: -1 if reverse else 1]
        for i in range(1, len(rows)):
            rows[i] = self._by_element("add", (), [rows[i - 1], rows[i]])
        return np.moveaxis(np.stack(rows[:: -1 if reverse else 1]), 0, axis)

    def _products(self, parameters: tuple, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The sum of products over some axes of both."""
        of_a, of_b = parameters[0][0]
        count, size = len(of_a), int(np.prod([a.shape[i] for i in of_a], dtype=int))
        first = np.moveaxis(a, of_a, range(a.ndim - count, a.ndim))
        other = np.moveaxis(b, of_b, range(b.ndim - count, b.ndim))
        left, right = first.shape[: a.ndim - count], other.shape[: b.ndim - count]
        rows, columns = first.reshape(-1, 1, size), other.reshape(1, -1, size)
        found = self._along("add", (2,), self._by_element("mul", (), [rows, columns]))
        return found.reshape(*left, *right)
