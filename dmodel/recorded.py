"""Functions of a few cases as lists of numpy's operations, recorded once ever.

What runs on one plan takes a thousand times longer to trace and to compile than to compute. So it
is traced once, by any process, and the list of its operations is kept as words; the next process
reads them and computes at once, without a compiler.
"""

from __future__ import annotations

import json
import platform
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dmodel import entries
from dmodel.entries import Entry
from dmodel.operations import OPERATIONS, Unknown, bound, operation
from dmodel.structures import nested, plain, told

Tree = Any
"""A pytree of arrays."""


class Step(NamedTuple):
    """One operation: its name, what it reads and writes by place, and its parameters."""

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


def unread(steps: Sequence[Step], kept: Iterable[int]) -> list[list[int]]:
    """Places that nobody reads after each step, but for those that are kept."""
    seen, found = set(kept), []
    for step in reversed(steps):
        found.append([i for i in {*step.reads, *step.writes} if i not in seen])
        seen.update(found[-1])
    return found[::-1]


class Run:
    """Steps of a record, for values by place.

    Args:
      steps: in order. kept: places whose values are wanted in the end.
    """

    def __init__(self, steps: Sequence[Step], kept: Iterable[int]) -> None:
        drops = unread(steps, kept)
        self.steps = [
            (bound(step.name, step.parameters), _reader(step.reads), step.writes, drop)
            for step, drop in zip(steps, drops, strict=True)
        ]

    def __call__(self, at: list[Any]) -> list[Any]:
        """Values by place, those of the steps put in and those that nobody reads any more taken
        out."""
        with np.errstate(all="ignore"):
            for function, read, writes, drop in self.steps:
                found = function(*read(at))
                if len(writes) == 1:
                    at[writes[0]] = found
                else:
                    for i, value in zip(writes, found, strict=True):
                        at[i] = value
                for i in drop:
                    at[i] = None
        return at


def _reader(places: tuple[int, ...]) -> Callable[[list[Any]], Sequence[Any]]:
    """What takes the values at some places."""
    if len(places) == 1:
        return itemgetter(slice(places[0], places[0] + 1))
    return itemgetter(*places) if places else lambda at: ()


def _places(record: Record) -> int:
    """How many places a record has [count]."""
    held = record.inputs + len(record.constants)
    return 1 + max(held - 1, *(i for step in record.steps for i in step.writes), -1)


class Ready:
    """A record that can be run.

    Args:
      record: of a function.
    """

    def __init__(self, record: Record) -> None:
        self.record, self.run = record, Run(record.steps, record.outputs)
        self.places = _places(record)

    def __call__(self, leaves: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs for inputs."""
        given = (*leaves, *self.record.constants)
        at = self.run([*given, *[None] * (self.places - len(given))])
        return [np.asarray(at[i]) for i in self.record.outputs]


def varied(
    record: Record, fixed: Sequence[np.ndarray]
) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """The outputs of a record as a function of its last inputs: what the first ones alone decide is
    computed once."""
    moved = set(range(len(fixed), record.inputs))
    still, moving = [], []
    for step in record.steps:
        if moved.isdisjoint(step.reads):
            still.append(step)
        else:
            moved.update(step.writes)
            moving.append(step)
    read = {*record.outputs, *(i for step in moving for i in step.reads)}
    known: list[Any] = [None] * _places(record)
    known[: len(fixed)] = fixed
    known[record.inputs : record.inputs + len(record.constants)] = record.constants
    known = Run(still, read)(known)
    run = Run(moving, {*record.outputs, *(i for i, x in enumerate(known) if x is not None)})

    def of(last: Sequence[np.ndarray]) -> list[np.ndarray]:
        at = known.copy()
        at[len(fixed) : record.inputs] = last
        at = run(at)
        return [np.asarray(at[i]) for i in record.outputs]

    return of


class Recorder:
    """Makes a record of a traced program: what is constant is computed, what repeats is shared, and
    what nobody reads is left out."""

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.constants: dict[tuple, int] = {}
        self.values: dict[int, np.ndarray] = {}
        self.shared: dict[tuple, tuple[int, ...]] = {}
        self.steps: list[Step] = []
        self.next = inputs

    def constant(self, value: Any) -> int:
        """The place of a constant."""
        array = np.asarray(value)
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self.constants:
            self.constants[key] = self._place()
            self.values[self.constants[key]] = array
        return self.constants[key]

    def _place(self) -> int:
        self.next += 1
        return self.next - 1

    def program(self, jaxpr: Any, constants: Sequence[Any], places: Sequence[int]) -> list[int]:
        """Record a program whose inputs lie at places; those of its outputs."""
        at = dict(zip(jaxpr.invars, places, strict=True))
        at |= {v: self.constant(x) for v, x in zip(jaxpr.constvars, constants, strict=True)}

        def place(x: Any) -> int:
            return self.constant(x.val) if hasattr(x, "val") else at[x]

        for equation in jaxpr.eqns:
            found = self._equation(equation, [place(x) for x in equation.invars])
            at |= dict(zip(equation.outvars, found, strict=True))
        return [place(x) for x in jaxpr.outvars]

    def _equation(self, equation: Any, reads: list[int]) -> Sequence[int]:
        inner = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
        if inner is not None:
            if equation.primitive.name not in ("jit", "pjit", "closed_call", "custom_jvp_call"):
                raise Unknown(equation.primitive.name)
            return self.program(inner.jaxpr, inner.consts, reads)
        name, parameters = operation(equation)
        key = (name, parameters, *reads)
        if key not in self.shared:
            self.shared[key] = self._step(name, tuple(reads), parameters, len(equation.outvars))
        return self.shared[key]

    def _step(
        self, name: str, reads: tuple[int, ...], parameters: tuple, count: int
    ) -> tuple[int, ...]:
        if all(i in self.values for i in reads):
            with np.errstate(all="ignore"):
                found = OPERATIONS[name](parameters, *[self.values[i] for i in reads])
            return tuple(map(self.constant, [found] if count == 1 else found))
        writes = tuple(self._place() for _ in range(count))
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


def _numbered(number: dict[int, int], places: Sequence[int]) -> tuple[int, ...]:
    return tuple(number[i] for i in places)


def recorded(function: Callable[..., Any], *records: Tree) -> Record:
    """The record of a function of records.

    Raises:
      Unknown: it uses an operation that has no counterpart here.
    """
    leaves, tree = jax.tree.flatten(records)
    names: list[tuple[str, ...]] = []

    def flat(*leaves: jax.Array) -> list[jax.Array]:
        found = jax.tree_util.tree_leaves_with_path(function(*jax.tree.unflatten(tree, leaves)))
        names[:] = [tuple(key.key for key in path) for path, _ in found]
        return [jnp.asarray(leaf) for _, leaf in found]

    closed = jax.make_jaxpr(flat)(*[jax.ShapeDtypeStruct(np.shape(x), float) for x in leaves])
    recorder = Recorder(len(leaves))
    outputs = recorder.program(closed.jaxpr, closed.consts, range(len(leaves)))
    return recorder.finished(outputs, names)


_RECORDS: dict[tuple, Ready | None] = {}
_LOCK = threading.RLock()


class Recorded:
    """A function whose records are kept.

    Limits: counts in float64; the answer has numpy's arrays.

    Args:
      function: pure, of a module, with nested dictionaries of arrays by text as its answer; keyword
        arguments are static.
    """

    def __init__(self, function: Callable[..., dict[str, Any]]) -> None:
        self.function = function

    def __call__(self, *records: Tree, **static: Any) -> dict[str, Any]:
        """The answer for plain numbers and arrays."""
        arrays = _arrays(records)
        ready = self._known(records, static, arrays)
        if ready is None:
            return self._compiled(records, static)
        return nested(ready.record.names, ready(arrays))

    def varied(self, *fixed: Tree, like: Tree, **static: Any) -> Callable[[Tree], dict[str, Any]]:
        """The answer as a function of the last record: what the others alone decide is computed
        once.

        Args:
          like: a last record, of the shapes of all that follow.
        """
        ready = self._known((*fixed, like), static, _arrays((*fixed, like)))
        if ready is None:
            return lambda last: self._compiled((*fixed, last), static)
        of, names = varied(ready.record, _arrays(fixed)), ready.record.names
        return lambda last: nested(names, of(_arrays(last)))

    def _known(
        self, records: Tree, static: dict[str, Any], arrays: Sequence[np.ndarray]
    ) -> Ready | None:
        """What runs for the shapes of some records, made once in a process."""
        shapes = tuple(x.shape for x in arrays)
        at = (self.function, tuple(static.items()), jax.tree.structure(records), shapes)
        if at not in _RECORDS:
            with _LOCK:
                if at not in _RECORDS:
                    found = self._record(records, static, at)
                    _RECORDS[at] = None if found is None else Ready(found)
        return _RECORDS[at]

    def _record(self, records: Tree, static: dict[str, Any], at: tuple) -> Record | None:
        """The record from a file, else a new one; None where there can be none."""
        key = self._key(at)
        place = entries.folder("records") if key else None
        if key is None or place is None:
            return self._made(records, static)
        entry = entries.read(place, key)
        found = None if entry is None else read(entry)
        if found is None:
            found = self._made(records, static)
            if found is not None:
                entries.write(place, key, written(found))
        return found

    def _key(self, at: tuple) -> str | None:
        """The name of a record; None where not all that decides it can be told."""
        function, static, tree, shapes = at
        package = function.__module__.partition(".")[0]
        source = entries.sources(*dict.fromkeys(("dmodel", package)))
        try:
            said = [plain(static), told(tree), plain(shapes), *_versions()]
        except TypeError:
            return None
        name = f"{function.__module__}.{function.__qualname__}"
        return entries.key_of([name, source, *said]) if source else None

    def _made(self, records: Tree, static: dict[str, Any]) -> Record | None:
        with jax.enable_x64(True):
            try:
                return recorded(lambda *given: self.function(*given, **static), *records)
            except Unknown as e:
                entries.tell(f"{self.function.__name__} is compiled each time: no numpy for {e}")
                return None

    def _compiled(self, records: Tree, static: dict[str, Any]) -> dict[str, Any]:
        """The answer by JAX itself."""
        with jax.enable_x64(True):
            floats = jax.tree.map(lambda x: np.asarray(x, np.float64), records)
            found = jax.jit(lambda *given: self.function(*given, **static))(*floats)
        return jax.tree.map(np.asarray, found)


def _arrays(records: Tree) -> list[np.ndarray]:
    return [np.asarray(x, np.float64) for x in jax.tree.leaves(records)]


@cache
def _versions() -> tuple[str, ...]:
    return jax.__version__, platform.python_version(), np.__version__


def written(record: Record) -> Entry:
    """A record as a file has it."""
    values = [[x.dtype.name, list(x.shape), x.ravel().tolist()] for x in record.constants]
    body = {
        "inputs": record.inputs,
        "constants": values,
        "steps": record.steps,
        "outputs": record.outputs,
        "names": record.names,
    }
    return Entry({}, json.dumps(body).encode())


def read(entry: Entry) -> Record | None:
    """The record of a file; None, with a word, where it is none."""
    try:
        body = json.loads(entry.content)
        constants = [np.array(x, kind).reshape(shape) for kind, shape, x in body["constants"]]
        steps = [Step(n, tuple(r), tuple(w), _tuples(p)) for n, r, w, p in body["steps"]]
        if any(step.name not in OPERATIONS for step in steps):
            raise ValueError("it has an unknown operation")
        return Record(
            body["inputs"],
            tuple(constants),
            tuple(steps),
            tuple(body["outputs"]),
            tuple(map(tuple, body["names"])),
        )
    except (ValueError, LookupError, TypeError) as e:
        entries.tell(f"a record that was kept is no record ({e}) and is made anew")
        return None


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
