"""`dmodel design` of a whole run: sizes, hardware and plan chosen together for an objective under
limits."""

from __future__ import annotations

import math
from itertools import compress
from typing import TYPE_CHECKING, Any

from dmodel.cli.design_compute import by_compute
from dmodel.cli.design_options import (
    FREE_BATCH,
    OF_LOSS,
    DesignJob,
    batch,
    device_range,
    freed,
)
from dmodel.cli.design_risk import risk_of
from dmodel.cli.options import Job
from dmodel.cli.output import Document, say
from dmodel.cli.run_options import add_oddities
from dmodel.errors import InputError

if TYPE_CHECKING:
    from dmodel.asked import Asked
    from dmodel.codesign import CoDesign, Design, Question

DAY_S = 86400.0

FAMILY, BATCH = "llama-3-70b", 1024
"""Family of a model whose shape is free, and the global batch where it is neither given nor free.
"""


def run_setting(job: DesignJob) -> Asked:
    """Records of the job, with stand-ins for what is free.

    Raises:
      InputError: what is missing or makes no sense.
    """
    from dmodel.cli.question import setting

    span = device_range(job.devices)
    _check_missing(job, span is not None)
    given = batch(job.global_batch)
    return setting(
        Job(
            system=job.system,
            chip=job.chip,
            devices=512 if span is None else span[1],
            model=job.model or FAMILY,
            seq_len=job.seq_len or (None if job.model else 8192),
            global_batch=BATCH if given is None else given,
            precision=job.precision,
            profile=job.profile,
            stack=job.stack,
            settings=job.settings,
        )
    )


def _check_missing(job: DesignJob, counted: bool) -> None:
    """Refuse a run on nothing: without a system, or devices that are neither counted nor free."""
    placed = job.system is not None or job.chip is not None
    if placed and (counted or "devices" in freed(job)):
        return
    there = {"--system": placed, "--devices N or MIN:MAX": counted}
    missing = [option for option, is_there in there.items() if not is_there]
    raise InputError(f"a run needs --system and --devices; missing: {', '.join(missing)}")


def free_of(job: DesignJob) -> tuple[str, ...]:
    """What is chosen: as asked, and what follows. A shape without a model, tokens that a loss or a
    budget decides."""
    words = [*freed(job)]
    if job.model is None:
        words.append("shape")
    if _are_tokens_open(job, "shape" in words):
        words.append("tokens")
    return tuple(dict.fromkeys(words))


def _are_tokens_open(job: DesignJob, shaped: bool) -> bool:
    """Whether a loss or a budget decides the tokens, of a shape that is free (`shaped`) or not."""
    if job.objective in OF_LOSS:
        return True
    by_compute = job.flop is not None and shaped
    return job.tokens is None and (job.loss is not None or by_compute)


SAME_LOSS = (
    "no --loss: runs to the same loss are compared, so the objective counts 1 + batch / critical "
    "times"
)
"""What is said where a batch is free and no loss is given."""


def question_of(
    job: DesignJob, asked: Asked, laws: Any, failures: bool, attention: str
) -> tuple[Question, list[str]]:
    """The stated problem, and the assumptions that fill what the options leave open."""
    from dmodel import codesign
    from dmodel.goodput import Reliability
    from dmodel.searching import for_any_layout, space_of

    searched, free = space_of(asked, attention), free_of(job)
    loss, tokens, more = by_compute(job, asked, free, laws)
    if "tokens" in free:
        tokens = None
    elif tokens is None:
        more.append("tokens by the data law")
    stated = codesign.question(
        asked.cluster,
        asked.model,
        asked.coefficients,
        objective=job.objective,
        limits=_limits(job, asked).replace(loss=loss),
        free=free,
        devices=float(asked.devices),
        global_batch=float(asked.global_batch),
        tokens=tokens,
        bounds=_bounds(job),
        law=laws,
        base=for_any_layout(searched),
        footprint=asked.footprint,
        reliability=Reliability() if failures else None,
    )
    if stated.same_loss:
        more.append(SAME_LOSS)
    lost = "failures as often as Llama 3's" if failures else "no failures"
    return stated, [*map(str, searched.assumptions), *_left_out(job), *more, lost]


def _bounds(job: DesignJob) -> dict[str, tuple[float, float]]:
    """Least and most devices, where there are some to choose from."""
    least, most = device_range(job.devices) or (0, 0)
    return {"devices": (float(least), float(most))} if least < most else {}


def _left_out(job: DesignJob) -> list[str]:
    """What is taken for options that were not named."""
    found = []
    if job.model is None:
        shape = "gated MLP, 8 key/value heads, its vocabulary"
        found.append(f"the family of {FAMILY} ({shape}): no --model was named")
    if job.global_batch is None:
        free = f"`--global-batch {FREE_BATCH}` chooses it"
        found.append(f"global batch {BATCH}: none was named ({free})")
    return found


def _limits(job: DesignJob, asked: Asked) -> Any:
    from dmodel.codesign import Limits
    from dmodel.searching import usable

    return Limits(
        memory=usable(asked, risk_of(job.max_risk)),
        seconds=None if job.budget_days is None else job.budget_days * DAY_S,
        dollars=job.budget_dollars,
        joules=job.budget_joules,
        tokens=job.tokens,
    )


def answered(job: DesignJob, asked: Asked, ways: Any) -> tuple[Document, Document | None]:
    """Search, and ask what goes with the answer: its document, and the launch settings if asked
    for."""
    from dmodel.codesign import solve_question

    laws, chosen = laws_of(ways.law)
    stated, assumed = question_of(job, asked, laws, ways.failures, ways.attention)
    searched = compress(stated.unknowns.names, stated.unknowns.free)
    say(f"searching {', '.join(searched) or 'plans'} …")
    found = solve_question(stated, n_starts=ways.starts or 16)
    document = {
        **_head(job, asked),
        **run_document(found, job),
        "laws": laws_document(chosen),
        "assumptions": assumed,
    }
    if found.found is None:
        return document | change_document(stated, found), None
    _add_sense(document, job)
    if not ways.brief:
        document |= prices_document(stated, found.found) | influence_document(stated, found.found)
        document["robust"] = doubt_document(asked, stated, found.found)
    if ways.emit is None:
        return document, None
    return document, emitted(asked, stated, found.found, "shape" in document["free"], ways.emit)


def _add_sense(document: Document, job: DesignJob) -> None:
    """Say what the run has that published runs do not have."""
    best, sizes = document["best"], document["best"]["sizes"]
    tokens = document["quantities"]["tokens"]
    batch_tokens = sizes["global_batch"] * document["seq_len"]
    add_oddities(document, best["parameters"], batch_tokens, best["mfu"], tokens, job.loss)


def _head(job: DesignJob, asked: Asked) -> Document:
    """The job, with its devices and its batch as they were asked for."""
    least, most = device_range(job.devices) or (0, 0)
    return {
        **asked.document(),
        "devices": [least, most] if least < most else asked.devices,
        "global_batch": batch(job.global_batch) or job.global_batch or asked.global_batch,
    }


DRAWS = 64
"""Of the coefficients, to say how often the plan is the best [count]."""


def prices_document(stated: Question, design: Design) -> Document:
    """What one more unit of everything limited or given is worth, at the best sizes for the
    plan."""
    from dmodel.codesign.prices import marginal_values

    found = marginal_values(stated, design)
    return {
        "shadow_prices": [price._asdict() for price in found.prices],
        "slack": list(found.slack),
        "optimality_residual": float(found.local.residual),
    }


def influence_document(stated: Question, design: Design) -> Document:
    """What other published laws would change, and which kind decides the answer."""
    from dmodel.codesign.influence import influence

    found = influence(stated, design)
    entries = [{**x._asdict(), "sizes": dict(x.sizes)} for x in found.entries]
    return {
        "other_laws": entries,
        "deciding_law": found.decides,
        "deciding_law_says": found.statement,
    }


def doubt_document(asked: Asked, stated: Question, design: Design) -> Document | None:
    """How often the chosen plan stays the best at its sizes when the coefficients are drawn. None
    where the profile keeps no covariance."""
    from dmodel.codesign import profile_samples, robust

    if asked.profile.covariance is None:
        return None
    found = robust(
        stated,
        design.sizes,
        profile_samples(asked.profile, asked.accelerator, asked.stack or None, DRAWS),
    )
    return {
        "best_in": float(found.nominal.best_share),
        "mean_regret": float(found.nominal.regret),
        "low": float(found.nominal.low),
        "high": float(found.nominal.high),
        "draws": found.samples,
        "rivals": found.compared,
        "statement": found.statement,
    }


def change_document(stated: Question, found: CoDesign) -> Document:
    """The limit that binds, by how much, and what each would have to be, the others as they are."""
    from dmodel.codesign import nearest_change

    changes = nearest_change(stated, found)
    needed = [
        {
            "name": x.name,
            "unit": x.unit,
            "limit": float(x.limit),
            "needed": None if x.needed is None else float(x.needed),
        }
        for x in changes.changes
    ]
    binding = {
        "name": changes.binding,
        "unit": changes.unit,
        "amount": float(changes.amount),
        "message": changes.statement,
    }
    return {"binding": binding, "nearest_changes": needed}


def emitted(asked: Asked, stated: Question, design: Design, shaped: bool, target: str) -> Document:
    """Launch settings of the best design: its model has the sizes that were chosen."""
    from dmodel.cli.emitted import emit_document
    from dmodel.codesign.lattice import model_of

    model = model_of(design.sizes, stated.world.fixed) if shaped else asked.model
    assert design.plan is not None
    return emit_document(asked, model, design.plan, target, "" if shaped else None)


def run_document(found: CoDesign, job: DesignJob) -> Document:
    """The answer as plain data."""
    return {
        "objective": found.objective,
        "free": list(free_of(job)),
        "limits": {name: float(x) for name, x in _given(found.question).items()},
        "value": found.value,
        "unit": found.unit,
        "sizes": [x._asdict() for x in found.sizes],
        "quantities": found.quantities,
        "margins": [x._asdict() for x in found.margins],
        "best": None if found.found is None else design_of(found.found),
        "certificate": found.statement,
        "relaxed_value": found.relaxed,
        "proven_bound": _finite(found.bound),
        "neighbours_checked": found.neighbours,
        "evaluations": {**found.evaluations._asdict(), "total": found.evaluations.total},
        "nearest": _nearest(found.nearest),
    }


def _finite(bound: float | None) -> float | None:
    """A bound that says something."""
    return bound if bound is not None and math.isfinite(bound) else None


def _nearest(design: Design | None) -> Document | None:
    """The design that came nearest, where it has a plan."""
    return None if design is None or design.plan is None else design_of(design)


def _given(stated: Question) -> dict[str, float]:
    """Limits that there are."""
    from dmodel.codesign.limits import NO_LIMIT
    from dmodel.codesign.outcome import NAMES

    return {
        name: limit for name, limit in zip(NAMES, stated.at.limit, strict=True) if limit < NO_LIMIT
    }


def design_of(design: Design) -> Document:
    """Sizes and plan of one design as plain data."""
    from dmodel.cli.question import plan_document, short

    plan, out = plan_document(design.plan), design.outcome  # type: ignore[arg-type]
    return {
        "label": short(plan),
        "plan": plan,
        "sizes": design.sizes,
        "step_time_s": float(out.step_time_s),  # type: ignore[union-attr]
        "mfu": float(out.mfu),  # type: ignore[union-attr]
        "memory_bytes_per_device": float(out.memory_bytes),  # type: ignore[union-attr]
        "parameters": float(out.parameters),  # type: ignore[union-attr]
        "violation": float(design.violation),
        "plans_that_fit": design.fitting,
        "plans": design.considered,
    }


def laws_of(words: list[str]) -> tuple[Any, dict[str, str]]:
    """Laws named by `--law kind=name`, the defaults for the rest, and their names.

    Raises:
      InputError: no such kind or name.
    """
    from dmodel.codesign import DEFAULT, KINDS, laws

    chosen = dict(DEFAULT)
    for word in words:
        kind, equals, name = (part.strip() for part in word.partition("="))
        if not equals or kind not in KINDS:
            raise InputError(f"--law {word}: expected kind=name with a kind of {', '.join(KINDS)}")
        if name not in KINDS[kind]:
            raise InputError(f"--law {word}: expected a name of {', '.join(KINDS[kind])}")
        chosen[kind] = name
    return laws(**chosen), chosen


def laws_document(chosen: dict[str, str]) -> Document:
    """The laws of an answer with their sources."""
    from dmodel.codesign import KINDS

    return {
        kind: {"name": name, "source": KINDS[kind][name].source} for kind, name in chosen.items()
    }
