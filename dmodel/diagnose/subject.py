"""What is diagnosed: one run as numbers, how sure the model is of it, and what else it might be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from dmodel import uncertainty
from dmodel.asked import Asked, where_blank
from dmodel.catalog.chips import chip, generation, other_counts
from dmodel.catalog.facts import release_of
from dmodel.catalog.loader import known_name, table
from dmodel.errors import InputError
from dmodel.footprint import Footprint
from dmodel.profiles import Profile
from dmodel.question import Question
from dmodel.records import Cluster, Model, Plan
from dmodel.resolve import Resolved, resolve
from dmodel.settings import changed


class Records(NamedTuple):
    """A run as numbers: scalars, of the network `[K]`; or `[n]` and `[K, n]` of several."""

    cluster: Cluster
    model: Model
    plan: Plan


class Other(NamedTuple):
    """Another reading of what was asked: its name and its numbers."""

    label: str
    records: Records


class Subject(NamedTuple):
    """One run, before anything is measured of it.

    Attributes:
      records: as stated. points: unconstrained coefficients that carry their doubt, `[C, 1 + 2 C]`
        (`uncertainty.points`); the first is the prediction's.
      misfit: Student-t scale of ln(time) that is not the coefficients' doing.
      footprint, memory_spread: of the stack, and standard deviation of ln(peak).
      others: what lists sizes of causes ("releases", "chips", "parts") → the readings.
    """

    records: Records
    points: np.ndarray
    misfit: float
    footprint: Footprint
    memory_spread: float
    others: Mapping[str, tuple[Other, ...]]


def of_profile(
    records: Records,
    profile: Profile,
    accelerator: str,
    stack: str,
    others: Mapping[str, tuple[Other, ...]] | None = None,
) -> Subject:
    """A run of a chip and stack, as a profile knows them.

    Raises:
      InputError: the profile carries no covariance.
    """
    sigma = uncertainty.covariance(profile, accelerator, stack)
    if sigma is None:
        raise InputError(
            f"profile {profile.name} does not say how sure it is of its coefficients, so nothing "
            "can be told from a measurement; expected a profile with a covariance: leave --profile "
            "out, or fit one with `dmodel fit`"
        )
    far = uncertainty.distance(profile, stack, uncertainty.features(*records))[0]
    known = profile.footprint_for(stack)
    records = records._replace(model=records.model.replace(order=()))
    return Subject(
        records=records,
        points=uncertainty.points(profile.unconstrained(accelerator, stack), sigma),
        misfit=float(uncertainty.misfit(uncertainty.scatter_of(profile, stack), far)),
        footprint=known.footprint,
        memory_spread=known.spread,
        others=others or {},
    )


class Stated(NamedTuple):
    """A run in words and in numbers.

    Attributes:
      question: of the whole plan. found: its records. profile: what answers.
      accelerator, stack: ids, "" where there is none.
    """

    question: Question
    found: Resolved
    profile: Profile
    accelerator: str
    stack: str


def stated(asked: Asked, found: Resolved) -> Stated:
    """The run of a job and its layout."""
    return Stated(asked.question, found, asked.profile, asked.accelerator, asked.stack)


def subject(run: Stated) -> Subject:
    """A run, with what else it might be."""
    records = Records(run.found.cluster, run.found.model, run.found.plan)
    others = {
        "releases": _releases(run, records),
        "chips": _chips(run, records),
        "parts": _parts(run, records),
    }
    kept = {name: _unlike(each, records) for name, each in others.items()}
    return of_profile(records, run.profile, run.accelerator, run.stack, kept)


MOST = 4
"""Other readings of a kind that are looked at: the nearest."""

FAR = 2.0
"""Sum of the logarithms of what tells two chips apart from which nobody takes one for the other."""


SHARED = (
    "flops_per_s",
    "attention_flops_per_s",
    "exponentials_per_s",
    "hbm_bytes",
    "hbm_bytes_per_s",
    "idle_watts",
    "peak_watts",
    "price_per_s",
    "host_bytes_per_s",
    "host_memory_bytes_per_s",
)
"""Numbers of a chip of which a part has its share."""


def _releases(run: Stated, records: Records) -> list[Other]:
    """The same question of other releases of its stack, the newest first."""
    question, stack = run.question, run.question.stack
    if not run.stack or stack.release is None:
        return []
    names = [*run.profile.stacks, *run.profile.offsets["stack"]]
    own = [n for n in dict.fromkeys(names) if n.partition("/")[0] == stack.id and n != stack.name]
    dated = [(found, n) for n in own if (found := release_of(n.partition("/")[2])) is not None]
    found = []
    for _, name in sorted(dated, reverse=True):
        try:
            rule = where_blank(run.profile, name)
            other = resolve(changed(question, {"stack": name}), rule)
        except InputError:
            continue
        found.append(Other(name, Records(records.cluster, other.model, other.plan)))
    return found


def _chips(run: Stated, records: Records) -> list[Other]:
    """The same plan on chips like the stated one, in the stated network, the nearest first."""
    mine, cluster = run.accelerator, records.cluster
    if known_name("chips", mine) is None:
        return []
    found = []
    for name in table("chips"):
        if name == mine or generation(name) != generation(mine):
            continue
        try:
            other = cluster.replace(
                chip=chip(name, run.question.text("precision") or run.question.precision)
            )
        except InputError:
            continue
        found.append(Other(name, records._replace(cluster=other)))
    apart = {other.label: _apart(other.records, records) for other in found}
    near = filter(lambda other: apart[other.label] <= FAR, found)
    return sorted(near, key=lambda other: apart[other.label])


def _parts(run: Stated, records: Records) -> list[Other]:
    """The same plan on as many parts of the stated chips, or on as many whole ones of the stated
    parts: a part has its share of rates, memory and links, and a node as many more of them, unless
    the devices of a node are stated."""
    cluster, question = records.cluster, run.question
    counted = any(question.number(name) for name in ("accel_per_node", "domain_size"))
    found = []
    for label, share in other_counts(run.accelerator).items():
        each = {name: share * getattr(cluster.chip, name) for name in SHARED}
        size = np.array(cluster.network.size, float)
        size[0] = size[0] if counted else max(size[0] / share, 1.0)
        network = cluster.network.replace(
            size=size, bytes_per_s=share * np.asarray(cluster.network.bytes_per_s)
        )
        other = cluster.replace(chip=cluster.chip.replace(**each), network=network)
        found.append(Other(label, records._replace(cluster=other)))
    return found


def _apart(one: Records, other: Records) -> float:
    """How far apart two chips are: logarithms of their rates and memories [1]."""
    ratio = np.log(_rates(one)) - np.log(_rates(other))
    return float(np.abs(ratio).sum())


def _rates(records: Records) -> np.ndarray:
    """What tells chips apart."""
    each = records.cluster.chip
    return np.array(
        [each.flops_per_s, each.attention_flops_per_s, each.hbm_bytes_per_s, each.hbm_bytes], float
    )


def _unlike(others: list[Other], stated: Records) -> tuple[Other, ...]:
    """Readings that are of other numbers than the stated one and each other, and of its
    structure."""
    found: list[Other] = []
    known = [_numbers(stated)]
    for label, records in others:
        records = records._replace(model=records.model.replace(order=()))
        if _structure(records) != _structure(stated) or _numbers(records) in known:
            continue
        known.append(_numbers(records))
        found.append(Other(label, records))
    return tuple(found[:MOST])


def _numbers(records: Records) -> list[float]:
    """What decides time and memory, the network aside."""
    rest = jax.tree.leaves((records.model, records.plan))
    return [float(x) for x in (*_rates(records), *rest)]


def _structure(records: Records) -> Any:
    return jax.tree.structure(records._replace(model=records.model.replace(order=())))
