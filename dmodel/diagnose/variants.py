"""Every cause at every size as one batch of cases: the stated run first, then what it would be."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from dmodel.diagnose.causes import Cause, Change
from dmodel.diagnose.subject import Records, Subject
from dmodel.errors import InputError
from dmodel.records import having, leaf, sized, value

AROUND = ("step.outside", "step.retries", "step.between")
"""What lengthens a whole step, and is none of its compute nor communication: waiting for data, for
the allocator, and what lies between steps."""

READING = ("reading.peak", "reading.flops", "reading.tokens")
"""What a figure is of: the peak that a utilization divides by, the FLOPs that are counted, and the
share of tokens that are."""

BESIDE = ("step.waits", "step.update", *AROUND, *READING)
"""What causes change that is no number of a case: waiting for others, the optimizer's update, and
`AROUND` and `READING`; each is 1 of the stated run."""


class Variants(NamedTuple):
    """Cases in columns, `[n]`; column 0 is the stated run.

    Attributes:
      records: leaves `[n]`, of the network `[K, n]`. factors: of coefficients by name, `[n]`.
      beside: `BESIDE` by name, `[n]`.
      cause: index of each column's cause, −1 of the stated run. size: of the cause.
      labels: words for sizes that are listed elsewhere, else "".
      home: column of the same run on machines as stated: 0 where the cause is of the machines.
    """

    records: Records
    factors: Mapping[str, np.ndarray]
    beside: Mapping[str, np.ndarray]
    cause: np.ndarray
    size: np.ndarray
    labels: tuple[str, ...]
    home: np.ndarray

    @property
    def count(self) -> int:
        """n."""
        return len(self.cause)

    def number(self, name: str) -> np.ndarray:
        """A number of all cases by its dotted name, `[n]`."""
        if name in BESIDE:
            return self.beside[name]
        record, _, field = name.partition(".")
        if record == "coefficients":
            return self.factors.get(field, np.ones(self.count))
        return np.broadcast_to(np.asarray(_get(self.records, name), float), (self.count,))


_LEVEL = re.compile(r"(\w+)\.(\w+)(?:\[(\w+)\])?$")


def _parts(name: str) -> tuple[str, str, str]:
    """Record, field and level of a dotted name.

    Raises:
      InputError: it is none.
    """
    found = _LEVEL.match(name)
    if found is None:
        raise InputError(f"causes: {name!r} is no number of a case")
    record, field, level = found.groups(default="")
    return record, field, level


def _places(level: str, count: int) -> list[int]:
    """Levels of the network that a word means."""
    return [0] if level == "inner" else list(range(1, count))


def _get(records: Records, name: str) -> Any:
    record, field, level = _parts(name)
    if record == "plan":
        return leaf(records.plan, field)
    if record == "model":
        return value(records.model, field, 1.0)
    if record == "chip":
        return getattr(records.cluster.chip, field)
    values = np.asarray(getattr(records.cluster.network, field))
    places = _places(level, len(values))
    return values[places[0]] if places else np.ones(values.shape[1:])


def _moved(records: Records, name: str, by: Callable[[Any], Any]) -> Records:
    """Records with a number changed."""
    record, field, level = _parts(name)
    if record == "plan":
        new = by(leaf(records.plan, field))
        return records._replace(plan=records.plan.having(**{field: new}))
    if record == "model":
        if not hasattr(records.model, field) and not having(records.model, field):
            return records
        new = by(value(records.model, field))
        return records._replace(model=sized(records.model, **{field: new}))
    cluster = records.cluster
    if record == "chip":
        new = by(getattr(cluster.chip, field))
        chip = cluster.chip.replace(**{field: new})
        return records._replace(cluster=cluster.replace(chip=chip))
    values = np.array(getattr(cluster.network, field), float)
    for k in _places(level, len(values)):
        values[k] = by(values[k])
    network = cluster.network.replace(**{field: values})
    return records._replace(cluster=cluster.replace(network=network))


def _rule(change: Change, size: np.ndarray, a_node: Any) -> Callable[[Any], Any]:
    """What a change makes of a number.

    Args:
      size: of each case `[n]`. a_node: devices of a node.
    """
    if change.by == "times":
        return lambda x: x * size
    if change.by == "toward":
        return lambda x: x + size * (change.value - x)
    if change.by == "at most":
        return lambda x: np.minimum(x, size)
    if change.by == "shared":
        return lambda x: np.minimum(x, size / a_node)
    raise InputError(f"causes: {change.by!r} is no kind of change")


def repeated(records: Records, count: int) -> Records:
    """One run in so many columns."""
    cluster, model, plan = records
    several = jax.tree.map(lambda x: np.full(count, float(x)), (cluster.chip, model, plan))
    network = jax.tree.map(
        lambda x: np.repeat(np.asarray(x, float)[:, None], count, 1), cluster.network
    )
    # devices are the plan's
    whole = cluster.replace(chip=several[0], network=network, devices=np.zeros(count))
    return Records(whole, several[1], several[2])


def _joined(parts: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *xs: np.concatenate(xs, -1), *parts)


def _of_cause(subject: Subject, cause: Cause) -> tuple[Records, np.ndarray, tuple[str, ...]]:
    """Records, sizes and labels of a cause, before its changes."""
    if not cause.size.of:
        sizes = cause.size.grid()
        return repeated(subject.records, len(sizes)), sizes, ("",) * len(sizes)
    others = subject.others.get(cause.size.of, ())
    if not others:
        return repeated(subject.records, 0), np.empty(0), ()
    each = [repeated(other.records, 1) for other in others]
    return _joined(each), np.arange(1.0, len(each) + 1.0), tuple(o.label for o in others)


def variants(subject: Subject, causes: Sequence[Cause]) -> Variants:
    """The stated run and every cause at every size of its grid."""
    each = [_of_cause(subject, cause) for cause in causes]
    counts = [1, *(len(size) for _, size, _ in each)]
    cause_of = np.repeat(np.arange(-1, len(causes)), counts)
    sizes = np.concatenate([np.ones(1), *(size for _, size, _ in each)])
    changed = [moved(r, cause.changes, s) for cause, (r, s, _) in zip(causes, each, strict=True)]

    def size_of(leaf: str) -> np.ndarray:
        """The size where a cause changes a number, and 1 elsewhere."""
        own = [any(change.leaf == leaf for change in cause.changes) for cause in causes]
        return np.where(np.array([False, *own])[cause_of + 1], sizes, 1.0)

    return Variants(
        records=_joined([repeated(subject.records, 1), *changed]),
        factors={name: size_of(f"coefficients.{name}") for name in _coefficients(causes)},
        beside={name: size_of(name) for name in BESIDE},
        cause=cause_of,
        size=sizes,
        labels=("", *(word for _, _, words in each for word in words)),
        home=np.where(_of_machines(causes)[cause_of + 1], 0, np.arange(len(sizes))),
    )


def _of_machines(causes: Sequence[Cause]) -> np.ndarray:
    """Whether each is of the machines, the stated run first, `[1 + cause]`."""
    return np.array([True, *(cause.machine for cause in causes)])


def _coefficients(causes: Sequence[Cause]) -> list[str]:
    """Names of the coefficients that causes change."""
    parts = [_parts(change.leaf) for cause in causes for change in cause.changes]
    return list(dict.fromkeys(field for record, field, _ in parts if record == "coefficients"))


def moved(records: Records, changes: Sequence[Change], size: np.ndarray) -> Records:
    """Records in columns with all changes of a size `[n]`, or of the change's own value.

    What is beside a case, and coefficients, stay.
    """
    a_node = np.asarray(records.cluster.network.size)[0]
    for change in changes:
        if change.leaf in BESIDE or _parts(change.leaf)[0] == "coefficients":
            continue
        own = change.by != "toward" and change.value is not None
        rule = _rule(change, np.full_like(size, change.value) if own else size, a_node)
        records = _moved(records, change.leaf, rule)
    return records
