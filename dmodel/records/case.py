"""All that a step's time and memory depend on."""

from __future__ import annotations

from dmodel import struct
from dmodel.coefficients import Coefficients
from dmodel.footprint import Footprint
from dmodel.records.cluster import Cluster
from dmodel.records.model import Model
from dmodel.records.plan import Plan


class Case(struct.PyTreeNode, kw_only=True):
    """One configuration as numbers; leaves are scalars, of the network `[K]`, or have a batch of
    cases as the last axis.

    Attributes:
      cluster: chip and network.
      model: what is trained.
      plan: its batch and how it is run.
      coefficients: fitted.
      footprint: what the stack holds in memory beside what is counted.
    """

    cluster: Cluster
    model: Model
    plan: Plan
    coefficients: Coefficients
    footprint: Footprint
