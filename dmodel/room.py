"""Which changes of a plan that is too large make it fit, and which blanks decide whether it does.

Each change is tried by the model; those that help are ordered by what a token then takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from dmodel.asked import Asked, where_blank
from dmodel.cost.memory import out_of_memory_probability
from dmodel.errors import InputError
from dmodel.footprint import RISK
from dmodel.prediction import answer
from dmodel.recomputation import CHOICES
from dmodel.records import Plan, counts_of
from dmodel.resolve import Resolved, resolve
from dmodel.settings import changed
from dmodel.step import memory_use

Named = dict[str, Any]
"""Names of columns and settings with their values."""

SHOWN = 6
"""Changes that are listed, at most."""

OPTIONS = {"n_accel": "devices", "zero_stage": "zero"}
"""Options of the shell that are not called as their columns."""

SWITCHES = {("sp", 0.0): "--no-sp", ("sp", 1.0): "--sp"}
"""Switches of the shell."""

SETTINGS = ("logit_bytes", "optimizer", "tuning")
"""Names that `--set` takes."""

TIMES = (2, 4, 8)
"""How many times as many devices or ranks are tried."""

ALTERING = frozenset(("tuning", "seq_len"))
"""Names whose change is another training."""


class Tried(NamedTuple):
    """A plan as it is asked, but for some names.

    Attributes:
      named: what is changed. asked, found: the job and its plan then. memory_bytes: of the fullest
        device. risk: that this is too much [1].
    """

    named: Named
    asked: Asked
    found: Resolved
    memory_bytes: float
    risk: float

    @property
    def words(self) -> str:
        """The change as options of the shell."""
        return " ".join(_option(name, value) for name, value in self.named.items())

    @property
    def alters_training(self) -> bool:
        """Whether the change is another training."""
        return not ALTERING.isdisjoint(self.named)

    def document(self) -> dict[str, Any]:
        """The change for an answer, without its time."""
        return {
            "change": self.words,
            "memory_bytes_per_device": self.memory_bytes,
            "oom_probability": self.risk,
        }


def _option(name: str, value: Any) -> str:
    if switch := SWITCHES.get((name, value)):
        return switch
    shown = f"{value:g}" if isinstance(value, int | float) else value
    if name in SETTINGS:
        return f"--set {name}={shown}"
    return f"--{OPTIONS.get(name, name).replace('_', '-')} {shown}"


def tried(asked: Asked, named: Named) -> Tried | None:
    """A plan but for some names; None where there is no such plan."""
    gone = {"dp", *(("recompute", *CHOICES) if "recompute" in named else ())}
    columns, settings = (
        {n: x for n, x in said.items() if n not in gone}
        for said in (asked.question.columns, asked.question.settings)
    )
    try:
        question = changed(asked.question._replace(columns=columns, settings=settings), named)
        found = resolve(question, where_blank(asked.profile, asked.stack))
    except InputError:
        return None
    needed = memory_use(found.model.replace(order=()), found.plan, footprint=asked.footprint).total
    spread = asked.profile.footprint_for(asked.stack).spread
    size = np.float64(asked.cluster.chip.hbm_bytes)
    risk = float(out_of_memory_probability(np.asarray(needed), size, spread))
    beside = asked._replace(question=question, records=found)
    return Tried(named, beside, found, float(np.asarray(needed)), risk)


def advice(asked: Asked, found: Resolved, said: Mapping[str, Any]) -> dict[str, Any]:
    """What an answer says of room: `would_fit` where the risk is too high, and
    `blanks_that_decide` where there are some.

    Args:
      said: the answer about the plan.
    """
    risk, blanks = said["oom_probability"], decisive(asked, found, said["fits"])
    more = {"would_fit": changes(asked, found.plan)} if risk > RISK else {}
    return more | ({"blanks_that_decide": blanks} if blanks else {})


def changes(asked: Asked, plan: Plan) -> list[dict[str, Any]]:
    """Changes after which a plan runs out of memory with a small probability, the cheapest token
    first: `change` (options of the shell), memory, risk and time. One change each; where none is
    enough, one beside recomputing everything in micro-batches of one sequence, then beside sharding
    everything too. Empty where nothing helps.
    """
    single = list(candidates(asked, plan))
    found: list[Tried] = []
    for beside in _beside(asked, plan):
        if all(each.alters_training for each in found):
            found += _enough(asked, (beside | named for named in single))
    documents = [(each.alters_training, each.document() | _pace(each)) for each in found]
    order = sorted(documents, key=lambda pair: (pair[0], -pair[1]["tokens_per_s_per_device"]))
    return [document for _, document in order[:SHOWN]]


def _beside(asked: Asked, plan: Plan) -> list[Named]:
    """What single changes may stand beside, the least first."""
    least, stages = _least(plan), _stages(asked, float(plan.layout.zero))
    most: Named = {"zero_stage": float(stages[-1])} if stages and asked.devices > 1 else {}
    return [{}, least, least | most]


def _enough(asked: Asked, ways: Iterable[Named]) -> Iterator[Tried]:
    """Of some changes those that suffice, the smallest of each kind."""
    seen: set[tuple[str, ...]] = set()
    for named in ways:
        kind = tuple(named)
        if kind in seen or (one := tried(asked, named)) is None or one.risk > RISK:
            continue
        seen.add(kind)
        yield one


def _pace(one: Tried) -> dict[str, Any]:
    """What a step then takes."""
    said = answer(one.asked, one.found.plan)
    return {n: said[n] for n in ("step_time_s", "tokens_per_s_per_device")}


def _least(plan: Plan) -> Named:
    """All layers recomputed, in micro-batches of one sequence."""
    named: Named = {"recompute": "full"} if float(plan.layout.recompute_layers) < 1.0 else {}
    return named | ({"micro_batch": 1.0} if float(plan.layout.micro_batch) > 1.0 else {})


def candidates(asked: Asked, plan: Plan) -> Iterator[Named]:
    """Single changes that make room, of each kind the smallest first."""
    layout = plan.layout
    yield from ({name: value} for name, value in _least(plan).items())
    yield from ({"micro_batch": b} for b in _halves(float(layout.micro_batch)))
    if float(layout.tp) > 1.0 and not float(layout.sp):
        yield {"sp": 1.0}
    yield from ({"zero_stage": float(stage)} for stage in _stages(asked, float(layout.zero)))
    yield from _degrees(asked, plan)
    yield {"offload": 1.0}
    yield from _more_devices(asked, plan)
    yield from _training(asked)


def _more_devices(asked: Asked, plan: Plan) -> Iterator[Named]:
    """More replicas; where the batch is too small to divide among them, more stages or ranks of tp
    instead."""
    if float(plan.global_batch) % (2.0 * float(plan.layout.dp)) == 0.0:
        yield from ({"n_accel": n * asked.devices} for n in TIMES)
        return
    for name, times, degree in _larger(asked, plan):
        if name in ("pp", "tp"):
            yield {"n_accel": times * asked.devices, name: degree}


def _training(asked: Asked) -> Iterator[Named]:
    """A loss that goes chunk by chunk, other optimizers, shorter sequences; other fine-tuning where
    the job is one."""
    question = asked.question
    yield {"logit_bytes": 0.0}
    if question.tuning != "lora" and _plain_optimizer(asked):
        yield {"optimizer": "adamw-8bit"}
    length = int(asked.model.seq_len)
    yield from ({"seq_len": length // n} for n in (2, 4, 8) if length % n == 0)
    if question.tuning == "sft":
        yield {"tuning": "lora"}
    if question.tuning != "none" and not question.frozen:
        yield {"tuning": "qlora"}


def _plain_optimizer(asked: Asked) -> bool:
    """Whether nothing is said of the optimizer."""
    return asked.question.settings.keys().isdisjoint({"optimizer", "optimizer_bytes"})


def _halves(micro_batch: float) -> list[float]:
    """Smaller micro-batches, the largest first."""
    return [b for k in (1, 2, 3, 4) if (b := micro_batch / 2**k) >= 1.0 and b.is_integer()]


def _stages(asked: Asked, stage: float) -> list[int]:
    """Higher ZeRO stages that the stack runs."""
    runs = asked.question.stack.runs.get("zero", (0, 1, 2, 3))
    return [each for each in sorted(runs) if each > stage]


def _degrees(asked: Asked, plan: Plan) -> Iterator[Named]:
    """Larger degrees of model parallelism on as many devices."""
    for name, _, degree in _larger(asked, plan):
        if asked.devices % degree == 0.0:
            yield {name: degree}


def _larger(asked: Asked, plan: Plan) -> Iterator[tuple[str, int, float]]:
    """Larger degrees of the model parallelism that the stack has and that divide what they have to:
    name, times the present one, degree."""
    runs = asked.question.stack.runs.get("degrees", ("tp", "pp", "cp", "ep"))
    layout, model = plan.layout, asked.model
    inside = float(np.asarray(asked.cluster.network.size).ravel()[0])
    heads = [float(n) for n in counts_of(model, "SPLIT")]
    of = {
        "tp": (inside, heads),
        "pp": (float(model.n_layers), [float(model.n_layers)]),
        "cp": (float(model.seq_len), [float(model.seq_len) / 2.0]),
        "ep": (float(asked.devices), _experts(asked)),
    }
    for name in (n for n in of if n in runs):
        most, divided = of[name]
        for times in TIMES:
            degree = times * float(getattr(layout, name))
            if degree <= most and divided and all(x % degree == 0.0 for x in divided):
                yield name, times, degree


def _experts(asked: Asked) -> list[float]:
    """Experts of a layer; none of a dense model."""
    count = asked.question.number("n_experts") or 1.0
    return [count] if count > 1.0 else []


BLANKS: Mapping[str, Named] = {"sp": {"sp": 0.0}, "zero_stage": {"zero_stage": 0.0}}
"""Columns that answers assume where they are blank, and what needs more memory."""


def decisive(asked: Asked, found: Resolved, fits: bool) -> list[dict[str, Any]]:
    """Blanks that decide whether a plan fits: what it needs if they were meant otherwise."""
    about = {name for each in found.assumptions for name in each.about}
    otherwise = [tried(asked, dict(named)) for name, named in BLANKS.items() if name in about]
    size = float(asked.cluster.chip.hbm_bytes)
    over = [each for each in otherwise if each is not None and each.memory_bytes > size]
    return [each.document() for each in over] if fits else []
