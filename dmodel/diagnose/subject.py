"""What is diagnosed: one run as numbers, how sure the model is of it, and what else it might be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dmodel import uncertainty
from dmodel.asked import Asked
from dmodel.catalog.chips import generation
from dmodel.catalog.facts import release_of
from dmodel.catalog.loader import table
from dmodel.errors import InputError
from dmodel.footprint import Footprint
from dmodel.profiles import Profile
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
      others: what lists sizes of causes ("releases", "chips") → the readings.
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


def subject(asked: Asked, found: Resolved, question: Any) -> Subject:
    """The run of a job and its layout.

    Args:
      question: of the whole plan, for other readings of it.
    """
    records = Records(asked.cluster, found.model, found.plan)
    others = {"releases": _releases(asked, question), "chips": _chips(asked, question)}
    kept = {name: _alike(each, records) for name, each in others.items()}
    return of_profile(records, asked.profile, asked.accelerator, asked.stack, kept)


MOST = 4
"""Other readings of a kind that are looked at: the nearest."""


def _releases(asked: Asked, question: Any) -> list[tuple[str, Any]]:
    """The same question of other releases of its stack, the newest first."""
    stack = question.stack
    if not asked.stack or stack.release is None:
        return []
    names = [*asked.profile.stacks, *asked.profile.offsets["stack"]]
    own = [n for n in dict.fromkeys(names) if n.partition("/")[0] == stack.id and n != stack.name]
    dated = [(found, n) for n in own if (found := release_of(n.partition("/")[2])) is not None]
    near = sorted(dated, reverse=True)[:MOST]
    return [(n, changed(question, {"stack": n})) for _, n in near]


def _chips(asked: Asked, question: Any) -> list[tuple[str, Any]]:
    """The same question of other chips of the same generation."""
    mine = table("chips")[asked.accelerator] if asked.accelerator else {}
    if not mine:
        return []
    alike = [
        name
        for name in table("chips")
        if name != asked.accelerator and generation(name) == generation(asked.accelerator)
    ]
    return [
        (n, changed(question._replace(system=""), {"accelerator": n})) for n in alike[:MOST]
    ]


def _alike(questions: list[tuple[str, Any]], stated: Records) -> tuple[Other, ...]:
    """Readings that can be answered, and have the structure of the stated one; a chip is put into
    the stated network."""
    found = []
    for label, question in questions:
        try:
            other = resolve(question)
        except InputError:
            continue
        cluster = stated.cluster.replace(chip=other.cluster.chip)
        records = Records(cluster, other.model.replace(order=()), other.plan)
        if _structure(records) == _structure(stated):
            found.append(Other(label, records))
    return tuple(found)


def _structure(records: Records) -> Any:
    import jax

    return jax.tree.structure(records._replace(model=records.model.replace(order=())))
