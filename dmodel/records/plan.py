"""A job's batch and how it is run. Sizes are float leaves, so that they can be differentiated."""

from __future__ import annotations

from typing import Any

from dmodel import struct
from dmodel.records.layout import NEUTRAL, Layout
from dmodel.records.precision import Precision
from dmodel.records.software import Software
from dmodel.types import Array

RECORDS = {"layout": Layout, "precision": Precision, "software": Software}


class Plan(struct.PyTreeNode, kw_only=True):
    """One way to run a training step.

    Attributes:
      global_batch: B, sequences of a step [sequence].
      layout: how the work is spread.
      precision: bytes of everything.
      software: what the stack does.
    """

    global_batch: Array
    layout: Layout
    precision: Precision = Precision()
    software: Software = Software()

    @classmethod
    def of(cls, *, global_batch: Array, **leaves: Any) -> Plan:
        """The plan of flat names; what is not named is neutral.

        >>> Plan.of(dp=8.0, tp=2.0, flash=0.0, global_batch=64.0).layout.tp
        2.0

        Raises:
          TypeError: a name that no record has.
        """
        parts: dict[str, dict[str, Any]] = {name: {} for name in RECORDS}
        parts["layout"] = dict(NEUTRAL)
        for name, value in leaves.items():
            parts[_home(name)][name] = value
        return cls(global_batch=global_batch, **{n: RECORDS[n](**parts[n]) for n in RECORDS})

    def having(self, **leaves: Any) -> Plan:
        """The plan with other values of flat names.

        Raises:
          TypeError: a name that no record has.
        """
        parts: dict[str, dict[str, Any]] = {}
        for name, value in leaves.items():
            parts.setdefault(_home(name), {})[name] = value
        own = parts.pop("plan", {})
        return self.replace(**own, **{n: getattr(self, n).replace(**x) for n, x in parts.items()})

    def alike(self) -> Plan:
        """The plan with stages that hold the same: what they hold is that of some degrees, and does
        not go on to others."""
        return self.having(stage_excess=0.0, head_displaces=0.0)

    @property
    def devices(self) -> Array:
        """dp · tp · cp · pp."""
        return self.layout.devices

    @property
    def n_microbatches(self) -> Array:
        """m = B / (dp · b), micro-batches per pipeline and step."""
        return self.global_batch / (self.layout.dp * self.layout.micro_batch)


LEAVES: dict[str, str] = {"global_batch": "plan"} | {
    name: record for record, kind in RECORDS.items() for name in kind.__dataclass_fields__
}
"""Flat name of every number, and of the two static choices, → the attribute of a plan that has it;
"plan" = the plan itself."""


def _home(name: str) -> str:
    """The record of a flat name."""
    if name not in LEAVES:
        raise TypeError(f"a plan has no {name!r}; it has {', '.join(LEAVES)}")
    return LEAVES[name]


def flat(path: str) -> str:
    """The name of a number by its dotted path, as users say it: without the record of the plan.

    >>> flat("plan.layout.tp"), flat("precision.weight_bytes"), flat("plan.global_batch")
    ('plan.tp', 'weight_bytes', 'plan.global_batch')
    """
    *before, home, name = ["", *path.split(".")]
    apart = home in RECORDS and LEAVES.get(name) == home
    return ".".join([*before, name])[1:] if apart else path


def leaf(plan: Plan, name: str) -> Any:
    """The value of a flat name; TypeError where no record has it."""
    home = _home(name)
    return getattr(plan if home == "plan" else getattr(plan, home), name)
