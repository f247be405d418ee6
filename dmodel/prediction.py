"""The answer about one plan: time by cause, memory by purpose, utilization, energy and money, with
intervals, and what was assumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from dmodel import run, step, uncertainty
from dmodel.asked import Asked
from dmodel.breakdown import TERMS, Breakdown
from dmodel.by_stage import stages
from dmodel.coefficients import from_unconstrained
from dmodel.cost.memory import MOMENTS, Memory, fullest, out_of_memory_probability
from dmodel.cost.pipeline import idle_slots
from dmodel.counts import CONVENTIONS
from dmodel.energy import GRID_KG
from dmodel.errors import InputError
from dmodel.footprint import whole
from dmodel.question import Assumption
from dmodel.recorded import Recorded
from dmodel.records import Plan
from dmodel.records.case import Case
from dmodel.resolve import Resolved

if TYPE_CHECKING:
    from dmodel.explain import Explained

Document = dict[str, Any]

CARRIED = (
    "step_time_s",
    "tokens_per_s",
    "tokens_per_s_per_device",
    "joules_per_token",
    "dollars_per_token",
)
"""Outputs that get an interval; MFU follows the step time."""


NONE = 1e-9
"""Share of a step below which a term's sign is rounding [1]."""


def _outcome(cluster: Any, model: Any, plan: Any, coefficients: Any, fitted: Any) -> dict[str, Any]:
    """Everything that is said of one plan, for several coefficients at once, `[n]`. Memory is the
    fullest device's, with all that it holds."""
    breakdown = step.step_time(cluster, model, plan, coefficients)
    footprint = whole(fitted.footprint)
    moments = step.memory_moments(model, plan, footprint)
    memory = fullest(moments)
    size = cluster.chip.hbm_bytes
    outputs = run.outputs(cluster, model, plan, breakdown, coefficients, footprint=footprint)
    return {
        "breakdown": {f"{term}_s": getattr(breakdown, term) for term in TERMS},
        "memory": {f"{name}_bytes": value for name, value in vars(memory).items()},
        "moments": {name: at.total for name, at in moments.items()},
        "oom_probability": out_of_memory_probability(memory.total, size, fitted.spread),
        "outputs": vars(outputs),
        "mfu": {name: run.mfu(cluster, model, plan, breakdown, name) for name in CONVENTIONS},
    }


OUTCOME = Recorded(_outcome)


def answer(asked: Asked, plan: Plan, chunks: Sequence[float] = ()) -> Document:
    """What is said of one plan, as plain data.

    Args:
      chunks: layers of every model chunk in order; () = memory is not told by stage, and of a
        pipeline the last stage counts as the fullest at the loss, else the first.

    `fits` is False when it needs more memory than the device has; `headroom_bytes` is signed.
    """
    drawn = _drawn(asked)
    found, *_ = draws = _outcomes(asked, plan, drawn)
    out = found["outputs"]
    _check_physics(asked, plan, out, found["breakdown"])
    # a compiled function gives dictionaries back by alphabet; people read causes and purposes in
    # their own order
    purposes = [f"{field.name}_bytes" for field in fields(Memory)]
    return {
        "step_time_s": out["step_time_s"],
        "breakdown": {f"{term}_s": found["breakdown"][f"{term}_s"] for term in TERMS},
        "memory_bytes_per_device": out["memory_bytes"],
        "device_memory_bytes": float(asked.cluster.chip.hbm_bytes),
        "headroom_bytes": out["headroom_bytes"],
        "fits": out["headroom_bytes"] >= 0.0,
        "oom_probability": found["oom_probability"],
        "memory": {name: found["memory"][name] for name in purposes},
        "memory_by_moment": {f"{name}_bytes": found["moments"][name] for name in MOMENTS},
        **_fullest(asked, plan, found["moments"], chunks),
        "mfu": {name: found["mfu"][name] for name in CONVENTIONS},
        "peak_flops_per_s": float(asked.cluster.chip.flops_per_s),
        "exposed_communication_share": out["exposed_share"],
        **_idle(plan),
        "tokens_per_s": out["tokens_per_s"],
        "tokens_per_s_per_device": out["tokens_per_s_per_device"],
        "watts_per_device": out["device_watts"],
        "joules_per_token": out["joules_per_token"],
        "kg_co2_per_million_tokens": 1e6 * out["joules_per_token"] * GRID_KG,
        "dollars_per_million_tokens": 1e6 * out["dollars_per_token"],
        **_ends(asked, plan, found, draws[1:]),
    }


def _check_physics(asked: Asked, plan: Plan, out: Document, breakdown: Document) -> None:
    """Refuse an answer that no machine can give: a time or a memory that is no positive number, a
    term of the time below 0, or products of more FLOP/s than the chips have.

    Raises:
      InputError: with the figure that cannot be.
    """
    time = out["step_time_s"]
    figures = {"step time [s]": time, "memory of a device [byte]": out["memory_bytes"]}
    wrong = [f"{name} {x:.4g}" for name, x in figures.items() if not 0.0 < x < inf]
    wrong += [
        f"{name.removesuffix('_s')} {x:.4g} s" for name, x in breakdown.items() if x < -NONE * time
    ]
    rate = run.least_utilization(asked.cluster, asked.model, plan, time) if not wrong else 0.0
    if rate > 1.0:
        wrong.append(f"products of {rate:.4g} times the chips' peak FLOP/s")
    if wrong:
        raise InputError(
            f"no machine does what is asked: predicted {', '.join(wrong)}; some value lies outside "
            "of the range of the model"
        )


def _idle(plan: Plan) -> Document:
    """Share of the slots of a pipeline that are idle, the bubble over itself and the
    micro-batches."""
    idle = float(idle_slots(plan))
    if idle <= 0.0:
        return {}
    return {"pipeline_idle_share": idle / (float(plan.n_microbatches) + idle)}


def _fullest(
    asked: Asked, plan: Plan, moments: dict[str, float], chunks: Sequence[float]
) -> Document:
    """Which stage is the fullest, and when; with memory of every stage of a pipeline whose layers
    are laid out."""
    moment = max(MOMENTS, key=lambda name: moments[name])
    last = max(round(float(plan.layout.pp)) - 1, 0)
    if not chunks or not last:
        stage = last if moment == "loss" else 0
        return {"fullest": {"stage": stage, "stages": last + 1, "moment": moment}}
    each = stages(asked.model, plan, chunks, asked.footprint)
    stage = max(range(len(each)), key=lambda i: each[i].memory.total)
    return {
        "fullest": {"stage": stage, "stages": last + 1, "moment": each[stage].moment},
        "memory_by_stage": [
            {"stage": i, "layers": s.layers, "micro_batches_in_flight": s.in_flight}
            | {"moment": s.moment, "bytes": float(s.memory.total)}
            | {f"{name}_bytes": x for name, x in vars(s.memory).items()}
            for i, s in enumerate(each)
        ],
    }


def _drawn(asked: Asked) -> np.ndarray:
    """Unconstrained coefficients that tell how far the answer may be off, `[coefficient, n]`; none
    where the profile carries no covariance."""
    profile, stack = asked.profile, asked.stack
    center = profile.unconstrained(asked.accelerator, stack)
    sigma = uncertainty.covariance(profile, asked.accelerator, stack)
    return np.empty((len(center), 0)) if sigma is None else uncertainty.points(center, sigma)


def _outcomes(asked: Asked, plan: Plan, drawn: np.ndarray) -> list[Document]:
    """What is said of one plan: by its coefficients, then by each of those that are drawn."""
    fitted = asked.profile.footprint_for(asked.stack)
    model = asked.model.replace(order=())  # so that models of one structure share a record
    one = jax.tree.map(lambda x: np.atleast_1d(np.asarray(x, float)), (model, plan, fitted))
    coefficients = jax.tree.map(
        lambda x, more: np.append(np.asarray(x, float), more),
        asked.coefficients,
        from_unconstrained(drawn),
    )
    found = OUTCOME(asked.cluster, *one[:2], coefficients, one[2])
    n = 1 + drawn.shape[1]
    every = jax.tree.map(lambda x: np.broadcast_to(x, (n,)).tolist(), found)
    return [jax.tree.map(lambda _, x, i=i: x[i], found, every) for i in range(n)]


def _ends(asked: Asked, plan: Plan, found: dict[str, Any], draws: Sequence[Document]) -> Document:
    """Ends of the 90 % intervals, `*_low` and `*_high`; none where the profile carries no
    covariance."""
    profile, stack = asked.profile, asked.stack
    if not draws:
        return {}
    place = uncertainty.features(asked.cluster, asked.model, plan)
    far = uncertainty.distance(profile, stack, place)[0]
    rest, result = uncertainty.misfit(uncertainty.scatter_of(profile, stack), far), {}
    for name in CARRIED:
        drawn = np.array([draw["outputs"][name] for draw in draws], float)
        sd = uncertainty.parameter_sd(np.log(drawn))
        low, high = uncertainty.band(found["outputs"][name], np.hypot(sd, rest))
        money = name == "dollars_per_token"
        shown, unit = ("dollars_per_million_tokens", 1e6) if money else (name, 1.0)
        result |= {f"{shown}_low": unit * float(low), f"{shown}_high": unit * float(high)}
    return result | _followers(found, result, profile.footprint_for(stack).spread)


def _followers(found: dict[str, Any], ends: Document, spread: float) -> Document:
    """Ends of MFU, which follow the step time's, and of memory."""
    time, memory = found["outputs"]["step_time_s"], found["outputs"]["memory_bytes"]
    slowest, fastest = time / ends["step_time_s_high"], time / ends["step_time_s_low"]
    wide = float(np.exp(uncertainty.SIDE * spread))
    return {
        "mfu_low": {name: x * slowest for name, x in found["mfu"].items()},
        "mfu_high": {name: x * fastest for name, x in found["mfu"].items()},
        "memory_bytes_per_device_low": memory / wide,
        "memory_bytes_per_device_high": memory * wide,
    }


class Prediction(NamedTuple):
    """The prediction for one plan.

    Attributes:
      asked: the job and the profile. plan: how it is run. assumptions: values of inputs left out,
        with sources.
      document: every figure by name, as `dmodel predict --json` prints it.
    """

    asked: Asked
    plan: Plan
    assumptions: tuple[Assumption, ...]
    document: Document

    @property
    def case(self) -> Case:
        """The plan as numbers: what `step_time` and its gradients take."""
        return Case(
            cluster=self.asked.cluster,
            model=self.asked.model,
            plan=self.plan,
            coefficients=self.asked.coefficients,
            footprint=self.asked.footprint,
        )

    @property
    def step_time_s(self) -> float:
        """Step time [s]."""
        return self.document["step_time_s"]

    @property
    def interval(self) -> tuple[float, float] | None:
        """What 90 % of such runs take [s]; None where the profile carries no covariance."""
        if "step_time_s_low" not in self.document:
            return None
        return self.document["step_time_s_low"], self.document["step_time_s_high"]

    @property
    def breakdown(self) -> Breakdown:
        """Step time by cause [s]."""
        named = self.document["breakdown"]
        return Breakdown(**{term: named[f"{term}_s"] for term in TERMS})

    @property
    def fits(self) -> bool:
        """Whether the device has the memory."""
        return self.document["fits"]

    def explained(self, term: str = "all") -> tuple[Explained, ...]:
        """Where terms of the step come from, as records; see `explain`."""
        from dmodel.explain import explained

        return explained(self, term)

    def explain(self, term: str = "all") -> str:
        """Where a term of the step comes from: formula, work, rate, coefficients with their errors,
        what hides it, source.

        Args:
          term: one of `step.TERMS`, or "all".
        Raises:
          InputError: an unknown term, with the nearest.
        """
        return "\n\n".join(map(str, self.explained(term)))

    def __str__(self) -> str:
        from dmodel.report.summary import summary

        return summary(self)


def prediction(asked: Asked, found: Resolved) -> Prediction:
    """The answer about one plan of a job, as `asked.laid` has it."""
    document = answer(asked, found.plan, found.chunks)
    return Prediction(asked, found.plan, found.assumptions, document)
