"""Plans of a search with everything that the model says of them."""

from __future__ import annotations

import jax
import numpy as np

from dmodel import run, struct
from dmodel.breakdown import Breakdown
from dmodel.cost.memory import Memory
from dmodel.design import rows as rows_
from dmodel.design.constraints import Use
from dmodel.design.judge import Evaluation, Problem, evaluate, used
from dmodel.design.rows import INDEX
from dmodel.once import together
from dmodel.records import Cluster, Plan
from dmodel.types import Array


class Margin(struct.PyTreeNode, kw_only=True):
    """A named signed margin of a plan, in its unit: negative = the limit is broken. limit: infinite
    where there is none."""

    name: str = struct.field(pytree_node=False)
    unit: str = struct.field(pytree_node=False)
    value: Array
    limit: Array


class Candidate(struct.PyTreeNode, kw_only=True):
    """One plan and what the model says of it (scalars).

    Attributes:
      plan: the plan. precision: name of its matmul precision, "given" where the search had one
        only.
      breakdown: seconds by cause; `breakdown.total` is the step time [s]. memory: bytes of the
        fullest device by purpose.
      headroom_bytes: device memory less `memory.total`; negative = does not fit [byte]. mfu: by
      convention `run.CONVENTION` [1]. tokens_per_s: all devices [token/s]. joules_per_token: hosts
      and cooling with it. dollars_per_token: rent.
      margins: of everything limited.
    """

    plan: Plan
    precision: str = struct.field(pytree_node=False)
    breakdown: Breakdown
    memory: Memory
    headroom_bytes: Array
    mfu: Array
    tokens_per_s: Array
    joules_per_token: Array
    dollars_per_token: Array
    margins: tuple[Margin, ...]

    @property
    def step_time_s(self) -> Array:
        """Step time [s]."""
        return self.breakdown.total


def candidates(problem: Problem, rows: np.ndarray) -> list[Candidate]:
    """Rows as candidates, evaluated by the same function as in the search."""
    rows = np.atleast_2d(rows)
    if not len(rows):
        return []
    found = evaluate(problem, rows)
    everything = used(problem, rows, found.step_time_s, found.memory_bytes, found.facility_watts)
    names = [p.name for p in rows_.precisions(problem.space, problem.system)]
    peaks = [p.flops_per_s for p in rows_.precisions(problem.space, problem.system)]
    made = []
    with together():  # all of one model, whose FLOPs are counted once
        for i, plan in enumerate(rows_.plans(problem.space, problem.system, rows)):
            code = int(rows[i, INDEX["precision"]])
            system = problem.system.replace(
                chip=problem.system.chip.replace(flops_per_s=peaks[code])
            )
            made.append(
                _candidate(
                    problem,
                    system,
                    plan,
                    names[code],
                    _at(found, i),
                    [_at_use(use, i) for use in everything],
                )
            )
    return made


def _at(found: Evaluation, i: int) -> Evaluation:
    return jax.tree.map(lambda x: np.asarray(x)[i], found)


def _at_use(use: Use, i: int) -> Margin:
    margin = np.asarray(use.margin, dtype=float)
    return Margin(
        name=use.name,
        unit=use.unit,
        value=float(margin[i] if margin.ndim else margin),
        limit=float(np.asarray(use.limit)),
    )


def _candidate(
    problem: Problem,
    system: Cluster,
    plan: Plan,
    precision: str,
    found: Evaluation,
    margins: list[Margin],
) -> Candidate:
    model, times = problem.space.model, found.breakdown
    tokens = run.tokens_per_step(model, plan)
    return Candidate(
        plan=plan,
        precision=precision,
        breakdown=times,
        memory=found.memory,
        headroom_bytes=system.chip.hbm_bytes - found.memory_bytes,
        mfu=run.mfu(system, model, plan, times),
        tokens_per_s=run.tokens_per_s(model, plan, times),
        joules_per_token=found.joules / tokens,
        dollars_per_token=run.dollars_per_token(system, model, plan, times),
        margins=tuple(margins),
    )
