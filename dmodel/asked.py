"""A job as it is asked: the question, its records, and the profile that answers it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dmodel import profiles
from dmodel.catalog.chips import known_as
from dmodel.catalog.loader import nearest, resolve, table
from dmodel.catalog.stack import check as check_stack
from dmodel.catalog.stack import stack
from dmodel.catalog.systems import default_system, machine_named
from dmodel.coefficients import Coefficients
from dmodel.errors import InputError
from dmodel.footprint import RISK, Footprint, whole
from dmodel.left_blank import Least, never_recompute
from dmodel.profiles import Profile, family, members
from dmodel.question import Assumption, Question
from dmodel.records import Cluster, Model, Plan
from dmodel.resolve import Resolved
from dmodel.resolve import resolve as resolved
from dmodel.settings import changed
from dmodel.topology import check_devices


class Asked(NamedTuple):
    """A job, before its layout is chosen.

    Attributes:
      question: the job in words, its layout open.
      records: of the job with all devices data-parallel: its model, cluster, and what its stack
        does.
      profile, reason: what answers, and why. coefficients: of it, for chip and stack.
      system_name: id of the catalog. accelerator: id of the chip whose coefficients and facts hold.
      level_names: of the network, innermost first.
    """

    question: Question
    records: Resolved
    profile: Profile
    reason: str
    coefficients: Coefficients
    system_name: str
    accelerator: str
    level_names: tuple[str, ...]

    @property
    def cluster(self) -> Cluster:
        """Chip and network."""
        return self.records.cluster

    @property
    def model(self) -> Model:
        """What is trained, as its stack trains it."""
        return self.records.model

    @property
    def model_name(self) -> str:
        """Name of the model, as it is asked for."""
        return self.question.text("model")

    @property
    def devices(self) -> int:
        """Accelerators [count]."""
        return int(self.question.known("n_accel"))

    @property
    def global_batch(self) -> int:
        """Sequences per step."""
        return int(self.question.known("global_batch"))

    @property
    def precision(self) -> str:
        """Of the matmuls, with its variant."""
        return self.question.text("precision") or self.question.precision

    @property
    def stack(self) -> str:
        """Canonical name of the software; "" where none is named."""
        return self.question.stack.name if self.question.text("stack") else ""

    @property
    def footprint(self) -> Footprint:
        """What the stack holds in memory on the fullest device: the least, where nobody has
        measured it."""
        return whole(self.profile.footprint_for(self.stack).footprint)

    def document(self) -> dict[str, Any]:
        """What was asked, for the answer."""
        return {
            "system": self.system_name,
            "accelerator": self.question.text("accelerator"),
            "devices": self.devices,
            "model": self.model_name,
            "seq_len": int(self.model.seq_len),
            "global_batch": self.global_batch,
            "precision": self.precision,
            "stack": self.stack,
            "profile": {"name": self.profile.name, "reason": self.reason},
        }


OF_LAYOUT = frozenset(
    "dp tp pp cp ep etp sp zero_stage shard interleave micro_batch stage_layers recompute".split()
)
"""Columns of the layout, which a job leaves open."""


def ask(question: Question, profile: str | Profile | None = None) -> Asked:
    """The records of a job and the profile that answers it.

    Where the question names no stack and the profile was fitted to rows of one, that one is meant.

    Args:
      question: columns of the layout are left to each plan.
      profile: a name or file, a loaded one, or None for the shipped one nearest to chip and stack.

    Raises:
      InputError: what is missing or unknown, with the nearest names.
    """
    question = _placed(question)
    accelerator = known_as(question.text("accelerator"))
    found, reason = chosen_profile(profile, accelerator, question.text("stack"))
    if not question.text("stack") and len(found.own) == 1:
        question = changed(question, {"stack": found.own[0]})
        reason += f"; for {found.own[0]}, whose rows it was fitted to, as no stack is named"
    check_stack(question.text("stack"), (*found.own, *found.stacks))
    records = records_of(question)
    name = question.system or default_system(question.text("accelerator"))
    check_devices(records.cluster.network, question.known("n_accel"), name)
    software = question.stack.name if question.text("stack") else None
    levels = table("systems")[name]["levels"][: records.cluster.network.n_levels]
    return Asked(
        question=question,
        records=records,
        profile=found,
        reason=reason,
        coefficients=found.coefficients_for(accelerator, software),
        system_name=name,
        accelerator=accelerator,
        level_names=tuple(level["name"] for level in levels),
    )


def records_of(question: Question) -> Resolved:
    """Records of a job with all devices data-parallel and a sequence on each; columns of its layout
    are left out."""
    columns = {n: v for n, v in question.columns.items() if n not in OF_LAYOUT}
    columns["global_batch"] = question.known("n_accel")
    return resolved(question._replace(columns=columns), never_recompute)


def _placed(question: Question) -> Question:
    """The question with its chip and system by their ids; a system that settings say wins."""
    settings = dict(question.settings)
    name, said = machine_named(
        settings.pop("system", question.system), question.text("accelerator")
    )
    if not name and not said:
        raise InputError("a job needs a system of the catalog, or an accelerator")
    system = resolve("systems", name) if name else ""
    chip = resolve("chips", said) if said else table("systems")[system]["chip"]
    columns = {**question.columns, "accelerator": chip}
    return question._replace(columns=columns, system=system, settings=settings)


def chosen_profile(
    profile: str | Profile | None, accelerator: str, software: str = ""
) -> tuple[Profile, str]:
    """The profile asked for, else the shipped one nearest to an accelerator and stack; and why."""
    if isinstance(profile, Profile):
        return profile, "given"
    if profile is None:
        return profiles.nearest(accelerator, stack(software).name if software else "")
    return profiles.load(profile), "asked for"


def plan(asked: Asked, words: Mapping[str, Any]) -> tuple[Plan, tuple[Assumption, ...]]:
    """The plan of a layout in words, and what fills what they leave open.

    Args:
      words: name → value of columns and settings (`dmodel.settings`).
    Raises:
      InputError: an unknown name, degrees that do not multiply to the devices.
    """
    found = laid(asked, words)
    return found.plan, found.assumptions


def laid(asked: Asked, words: Mapping[str, Any]) -> Resolved:
    """The records of a layout in words; as `plan`."""
    return resolved(changed(asked.question, words), where_blank(asked.profile, asked.stack))


def where_blank(profile: Profile, stack: str) -> Least:
    """The rule for recomputation that is left blank: the least at the usual risk of running out of
    memory, by what a profile says that a stack holds."""
    held = profile.footprint_for(stack)
    return Least(whole(held.footprint), held.spread, RISK)


NAMED = 6
"""Stacks named as examples, at most."""


def provenance(asked: Asked) -> str:
    """Which profile predicts and why; of software without rows, the nearest names; where none is
    named, whose its intervals hold for."""
    profile = asked.profile
    line = f"profile {profile.name}: {asked.reason}"
    stacks = [*profile.offsets["stack"], *profile.own]
    if asked.stack and family(asked.stack) not in {family(each) for each in stacks}:
        near = ", ".join(nearest(asked.stack, stacks))
        hint = f" (nearest {near})" if near else ""
        return f"{line}; it has no rows of {asked.stack}{hint}: this is what any software may take"
    known = _known_software(profile, asked.accelerator)
    if asked.stack or not known:
        return line
    examples = ", ".join(known[:NAMED]) + (", …" if len(known) > NAMED else "")
    whose = _whose(profile, asked.accelerator)
    return (
        f"{line}; no --stack is named, so intervals hold for {whose}: naming one that is known "
        f"here narrows them ({examples})"
    )


def _known_software(profile: Profile, accelerator: str) -> list[str]:
    """Families with rows of the chip, the profile's own first."""
    pairs = (pair.partition(" ") for pair in profile.pair_covariances)
    own = [family(each) for each in profile.own]
    others = sorted({family(name) for chip, _, name in pairs if chip == accelerator})
    return list(dict.fromkeys([*own, *others]))


def _whose(profile: Profile, accelerator: str) -> str:
    lineages = {members(accelerator, each)["lineage"] for each in profile.stacks}
    return (
        f"any software of the family of {lineages.pop()}" if len(lineages) == 1 else "any software"
    )
