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
from functools import cache, lru_cache, partial
from typing import Any

import jax
import numpy as np

from dmodel import entries
from dmodel.entries import Entry
from dmodel.operations import OPERATIONS, Unknown
from dmodel.recording import ROWS, Record, Step, Tree, for_rows, recorded
from dmodel.structures import nested, plain, told


def unread(steps: Sequence[Step], kept: Iterable[int]) -> list[list[int]]:
    """Places that nobody reads after each step, but for those that are kept."""
    last = {i: n for n, step in enumerate(steps) for i in (*step.reads, *step.writes)}
    found: list[list[int]] = [[] for _ in steps]
    for i in last.keys() - set(kept):
        found[last[i]].append(i)
    return found


class Run:
    """Steps of a record, for values by place.

    Args:
      steps: in order. kept: places whose values are wanted in the end.
    """

    def __init__(self, steps: Sequence[Step], kept: Iterable[int]) -> None:
        self.steps = []
        for step, drop in zip(steps, unread(steps, kept), strict=True):
            reads, writes = step.reads, step.writes
            made = OPERATIONS[step.name](step.parameters)
            one = writes[0] if len(writes) == 1 else -1
            ends = reads[0] if reads else -1, reads[-1] if reads else -1
            self.steps.append((made, len(reads), *ends, reads, one, writes, drop))

    def __call__(self, at: list[Any]) -> list[Any]:
        """Values by place, those of the steps filled in and those that nobody reads any more left
        out."""
        with np.errstate(all="ignore"):
            for operation, count, first, last, reads, one, writes, drop in self.steps:
                if count == 2:
                    found = operation(at[first], at[last])
                elif count == 1:
                    found = operation(at[first])
                else:
                    found = operation(*[at[i] for i in reads])
                if one >= 0:
                    at[one] = found
                else:
                    for place, value in zip(writes, found, strict=True):
                        at[place] = value
                for i in drop:
                    at[i] = None
        return at


def places(record: Record) -> int:
    """How many there are in a record."""
    return record.inputs + len(record.constants) + sum(len(s.writes) for s in record.steps)


class Ready:
    """A record that can be run.

    Args:
      record: of a function.
    """

    def __init__(self, record: Record) -> None:
        self.record, self.run = record, Run(record.steps, record.outputs)
        self.empty = [None] * (places(record) - record.inputs - len(record.constants))
        self.parts: dict[int, tuple[Run, Run]] = {}

    def __call__(self, leaves: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs for inputs."""
        return self._outputs(self.run([*leaves, *self.record.constants, *self.empty]))

    def _outputs(self, at: list[Any]) -> list[np.ndarray]:
        return [np.asarray(at[i]) for i in self.record.outputs]

    def varied(
        self, fixed: Sequence[np.ndarray]
    ) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
        """The outputs as a function of the last inputs: what the first ones alone decide is
        computed once."""
        first, size = len(fixed), self.record.inputs
        if first not in self.parts:
            self.parts[first] = self._parted(first)
        still, moving = self.parts[first]
        later = [None] * (size - first)
        known = still([*fixed, *later, *self.record.constants, *self.empty])

        def of(last: Sequence[np.ndarray]) -> list[np.ndarray]:
            at = known.copy()
            at[first:size] = last
            return self._outputs(moving(at))

        return of

    def _parted(self, first: int) -> tuple[Run, Run]:
        """Steps that some first inputs decide, and those that the others change."""
        moved = set(range(first, self.record.inputs))
        still, moving = [], []
        for step in self.record.steps:
            if moved.isdisjoint(step.reads):
                still.append(step)
            else:
                moved.update(step.writes)
                moving.append(step)
        read = {*self.record.outputs, *(i for step in moving for i in step.reads)}
        return Run(still, read), Run(moving, read - moved | {*self.record.outputs})


MOST_SIZES = 8
"""Numbers of rows for which a record stays ready."""

Sized = Callable[[int], Ready]
"""What runs for a number of rows, of a record for any; for 0, of a record of given shapes."""


def _sized(record: Record) -> Sized:
    return lru_cache(maxsize=MOST_SIZES)(lambda rows: Ready(for_rows(record, rows)))


_RECORDS: dict[tuple, Sized | None] = {}
_LOCK = threading.RLock()


class Recorded:
    """A function whose records are kept.

    Limits: counts in float64; the answer has numpy's arrays.

    Args:
      function: pure, of a module, with nested dictionaries of arrays by text as its answer; keyword
        arguments are static.
      any_rows: whether one record is to answer for any number of rows: all leaves have them as
        their last axis, and so has the answer, and no row depends on another.
      of_last: whether only the leaves of the last argument have these rows, which all others share.
    """

    def __init__(
        self,
        function: Callable[..., dict[str, Any]],
        any_rows: bool = False,
        of_last: bool = False,
    ) -> None:
        self.function, self.any_rows, self.of_last = function, any_rows, of_last
        self.programs: dict[tuple, Callable[..., dict[str, Any]]] = {}

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
        of, names = ready.varied(_arrays(fixed)), ready.record.names
        return lambda last: nested(names, of(_arrays(last)))

    def is_known(self, *records: Tree, **static: Any) -> bool:
        """Whether numpy can answer for records of these shapes."""
        return self._known(records, static, _arrays(records)) is not None

    def _known(
        self, records: Tree, static: dict[str, Any], arrays: Sequence[np.ndarray]
    ) -> Ready | None:
        """What runs for the shapes of some records, made once in a process."""
        shapes = self._shapes(records, arrays)
        at = (self.function, tuple(static.items()), jax.tree.structure(records), shapes)
        if at not in _RECORDS:
            with _LOCK:
                if at not in _RECORDS:
                    found = self._record(records, static, at)
                    _RECORDS[at] = None if found is None else _sized(found)
        sized = _RECORDS[at]
        return None if sized is None else sized(arrays[-1].shape[-1] if self.any_rows else 0)

    def _shapes(self, records: Tree, arrays: Sequence[np.ndarray]) -> tuple[tuple[int, ...], ...]:
        """Shapes of leaves, without their rows where any number of them will do."""
        shared = self._shared(records)
        if self.any_rows and len({x.shape[-1:] or None for x in arrays[shared:]}) != 1:
            raise ValueError(
                f"{self.function.__name__}: expected leaves [..., row] of as many rows"
            )
        return tuple(x.shape[: -1 if i >= shared else None] for i, x in enumerate(arrays))

    def _shared(self, records: Tree) -> int:
        """How many of the leaves have no rows; they come first."""
        if not self.any_rows:
            return len(jax.tree.leaves(records))
        return len(jax.tree.leaves(records[:-1])) if self.of_last else 0

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
            said += [ROWS] * self.any_rows + ["of the last"] * self.of_last
        except TypeError:
            return None
        name = f"{function.__module__}.{function.__qualname__}"
        return entries.key_of([name, source, *said]) if source else None

    def _made(self, records: Tree, static: dict[str, Any]) -> Record | None:
        with jax.enable_x64(True):
            try:
                function = partial(self.function, **static)
                return recorded(function, *records, shared=self._shared(records))
            except Unknown as e:
                entries.tell(f"{self.function.__name__} is compiled each time: no numpy for {e}")
                return None

    def _compiled(self, records: Tree, static: dict[str, Any]) -> dict[str, Any]:
        """The answer by JAX itself."""
        key = tuple(static.items())
        if key not in self.programs:
            self.programs[key] = jax.jit(lambda *given: self.function(*given, **static))
        with jax.enable_x64(True):
            floats = jax.tree.map(lambda x: np.asarray(x, np.float64), records)
            found = self.programs[key](*floats)
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
