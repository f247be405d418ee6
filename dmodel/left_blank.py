"""Recomputation where neither a question nor its stack says any: the least that fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import jax
import numpy as np

from dmodel.cost.memory import out_of_memory_probability
from dmodel.footprint import LEAST, Footprint, share_at_risk
from dmodel.records import Cluster, Model, Plan
from dmodel.types import Array


class OfCases(Protocol):
    """Records of cases in a batch, `[n]`."""

    @property
    def system(self) -> Cluster: ...
    @property
    def model(self) -> Model: ...
    @property
    def plan(self) -> Plan: ...


class Chosen(NamedTuple):
    """What a rule chooses: shares of the layers done again in full, and of attention's core, `[n]`;
    and of each case, why."""

    layers: Array
    attention: Array
    why: Sequence[str]


RuleOfRecompute = Callable[[OfCases], Chosen]
"""Rule for an open `recompute`: from cases with none."""


class Least(NamedTuple):
    """The least recomputation whose memory fits the device.

    Attributes:
      footprint: what the software holds. spread: standard deviation of the logarithm of the need;
        0 = nothing is said of a risk. risk: probability that memory is not enough that is
        accepted [1]. The first two are of all cases, or one of each, `[n]`.
    """

    footprint: Footprint = LEAST
    spread: Array = 0.0
    risk: float = 0.5

    def __call__(self, cases: OfCases) -> Chosen:
        """None, else selective, else in full for the smallest share of the layers that fits (all of
        them when even that does not). Memory is convex in the share, so it fits where a straight
        line between the ends says so."""
        count = np.asarray(cases.plan.layout.dp).shape
        ones, zeros = np.ones(count), np.zeros(count)
        size = np.asarray(cases.system.chip.hbm_bytes)
        room = size * share_at_risk(self.risk, self.spread)
        none, selective, full = (
            self._needed(cases, *shares) - room
            for shares in ((zeros, zeros), (zeros, ones), (ones, zeros))
        )
        share = np.clip(none / np.maximum(none - full, 1.0), 0.0, 1.0)
        fits = (none <= 0.0) | (selective <= 0.0)
        only_core = (none > 0.0) & (selective <= 0.0)
        of = np.where(fits, 0.0, full), (full + room) / size, self.spread
        why = [self._why(*map(float, one)) for one in zip(*np.broadcast_arrays(*of), strict=True)]
        return Chosen(np.where(fits, 0.0, share), np.where(only_core, 1.0, 0.0), why)

    def _needed(self, cases: OfCases, layers: np.ndarray, attention: np.ndarray) -> np.ndarray:
        """Bytes of the fullest device with shares of layers and of attention done again."""
        from dmodel.step import memory_use

        plan = cases.plan.having(recompute_layers=layers, recompute_attention=attention)
        return np.asarray(memory_use(cases.model, plan, footprint=self.footprint).total)

    def _why(self, missing: float, needed: float, spread: float) -> str:
        """What is said of a case.

        Args:
          missing: what it lacks with all layers done again [byte]. needed: what it needs then, of
            what there is [1]. spread: its own.
        """
        if not spread:
            return "the least that fits"
        if missing <= 0.0:
            accepted = f"{100.0 * self.risk:.0f} %"
            return f"the least with a risk of {accepted} at most that memory is not enough"
        risk = float(out_of_memory_probability(needed, 1.0, spread))
        return f"even so the risk that memory is not enough is {100.0 * risk:.0f} %"


Rules = RuleOfRecompute | Sequence[Least]
"""One rule for all cases, or one for each, of the same risk."""


def together(rules: Sequence[Least]) -> Least:
    """The rules of some cases as one."""
    footprint = jax.tree.map(lambda *each: np.array(each, float), *(r.footprint for r in rules))
    return Least(footprint, np.array([r.spread for r in rules], float), rules[0].risk)


cheapest_that_fits = Least()
"""By the least that a plan holds; for software that nobody has measured."""


def never_recompute(cases: OfCases) -> Chosen:
    """The rule that nothing is recomputed unless said."""
    zeros = np.zeros(np.asarray(cases.plan.layout.dp).shape)
    return Chosen(zeros, zeros, ["unless said"] * zeros.size)
