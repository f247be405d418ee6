"""`dmodel design` of a whole run: sizes, hardware and plan chosen together for an objective under
limits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dmodel.cli.design_options import FREE_BATCH, DesignJob, batch, device_range, freed
from dmodel.cli.options import Job
from dmodel.cli.output import Document, say
from dmodel.types import InputError

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
    open_devices = span is None and "devices" not in freed(job)
    missing = ["--system"] if job.system is None else []
    missing += ["--devices N or MIN:MAX"] if span is None else []
    if job.system is None or open_devices:
        raise InputError(f"a run needs --system and --devices; missing: {', '.join(missing)}")
    given = batch(job.global_batch)
    return setting(
        Job(
            system=job.system,
            devices=512 if span is None else span[1],
            model=job.model or FAMILY,
            seq_len=job.seq_len or (None if job.model else 8192),
            global_batch=BATCH if given is None else given,
            precision=job.precision,
            profile=job.profile,
            stack=job.stack,
        )
    )


def free_of(job: DesignJob) -> tuple[str, ...]:
    """What is chosen: as asked, and what follows: a shape without a model, tokens that a loss or a
    budget decides."""
    words = [*freed(job)]
    if job.model is None and "shape" not in words:
        words.append("shape")
    by_compute = job.flop is not None and "shape" in words
    open_tokens = job.loss is not None or by_compute or job.objective in ("loss", "largest")
    if (
        open_tokens
        and "tokens" not in words
        and (job.tokens is None or job.objective in ("loss", "largest"))
    ):
        words.append("tokens")
    return tuple(words)


def question_of(
    job: DesignJob, asked: Asked, laws: Any, failures: bool, attention: str
) -> tuple[Question, list[str]]:
    """The stated problem, and the assumptions that fill what the options leave open."""
    from dmodel import codesign
    from dmodel.goodput import Reliability
    from dmodel.searching import for_any_layout, space_of

    searched = space_of(asked, attention)
    assumed = [*map(str, searched.assumptions), *_left_out(job)]
    free, span = free_of(job), device_range(job.devices)
    apart = span is not None and span[0] < span[1]
    loss, tokens, more = _by_compute(job, asked, free, laws)
    tokens = None if "tokens" in free else tokens
    if tokens is None and "tokens" not in free:
        more.append("tokens by the data law")
    stated = codesign.question(
        asked.cluster,
        asked.model,
        asked.coefficients,
        objective=job.objective,
        limits=_limits(job).replace(loss=loss),
        free=free,
        devices=float(asked.devices),
        global_batch=float(asked.global_batch),
        tokens=tokens,
        bounds={"devices": (float(span[0]), float(span[1]))} if apart and span else {},
        law=laws,
        base=for_any_layout(searched),
        footprint=asked.footprint,
        reliability=Reliability() if failures else None,
    )
    lost = "failures as often as Llama 3's" if failures else "no failures"
    return stated, [*assumed, *more, lost]


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


def _by_compute(
    job: DesignJob, asked: Asked, free: tuple[str, ...], laws: Any
) -> tuple[float | None, float | None, list[str]]:
    """Loss and tokens: as given, or those that a compute budget decides; and in words."""
    if job.flop is None:
        return job.loss, job.tokens, []
    if "shape" in free:
        loss, text = _loss_of(job.flop, laws)
        return loss, job.tokens, [text]
    tokens = _tokens_of(job.flop, asked)
    return (
        job.loss,
        tokens,
        [f"{tokens:.4g} tokens: what {job.flop:.3g} FLOP train {asked.model_name} on"],
    )


def _limits(job: DesignJob) -> Any:
    from dmodel.codesign import Limits

    return Limits(
        seconds=None if job.budget_days is None else job.budget_days * DAY_S,
        dollars=job.budget_dollars,
        joules=job.budget_joules,
        tokens=job.tokens,
    )


def _loss_of(flop: float, laws: Any) -> tuple[float, str]:
    """The loss that a compute budget reaches at best, `min over N of L(N, C / 6N)`: usual shapes,
    small batches."""
    import numpy as np

    from dmodel.codesign.laws import loss

    sizes = np.geomspace(1e6, 1e14, 1601)
    values = np.asarray(loss(sizes, flop / (6.0 * sizes), laws.loss))
    best = int(values.argmin())
    return (
        float(values[best]),
        (
            f"loss {values[best]:.4f}: the least that {flop:.3g} FLOP reach by the loss law, at "
            f"{sizes[best]:.2g} parameters"
        ),
    )


def _tokens_of(flop: float, asked: Asked) -> float:
    """Tokens that a compute budget trains a model on: `C` over its FLOP per token, 6N and causal
    attention."""
    from dmodel import counts

    return flop / float(counts.model_flops_per_token(asked.model, "6N+6Lhs"))


def answered(job: DesignJob, asked: Asked, ways: Any) -> tuple[Document, Document | None]:
    """Search, and ask what goes with the answer: its document, and the launch settings if asked
    for."""
    from dmodel.codesign import solve_question

    laws, chosen = laws_of(ways.law)
    stated, assumed = question_of(job, asked, laws, ways.failures, ways.attention)
    sought = stated.unknowns
    free = [name for name, yes in zip(sought.names, sought.free, strict=True) if yes]
    say(f"searching {', '.join(free) or 'plans'} …")
    found = solve_question(stated, n_starts=ways.starts or 16)
    span = device_range(job.devices)
    devices = asked.devices if span is None or span[0] == span[1] else list(span)
    head = {
        **asked.document(),
        "devices": devices,
        "global_batch": batch(job.global_batch) or job.global_batch or asked.global_batch,
    }
    document = {
        **head,
        **run_document(found, job),
        "laws": laws_document(chosen),
        "assumptions": assumed,
        **_besides(asked, stated, found, ways.brief),
    }
    if found.found is None or ways.emit is None:
        return document, None
    return document, emitted(asked, stated, found.found, "shape" in document["free"], ways.emit)


def _besides(asked: Asked, stated: Question, found: CoDesign, brief: bool) -> Document:
    """What goes with an answer: prices, other laws and doubt; the nearest change where nothing
    fits."""
    if found.found is None:
        return change_document(stated, found)
    if brief:
        return {}
    return {
        **prices_document(stated, found.found),
        **influence_document(stated, found.found),
        "robust": doubt_document(asked, stated, found.found),
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
    """How often the chosen plan stays the best at its sizes when the coefficients are drawn; None
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
    """The limit that binds, by how much, and what each limit would have to be with the others as
    they are."""
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
    good = found.found
    return {
        "objective": found.objective,
        "free": list(free_of(job)),
        "limits": {name: float(x) for name, x in _given(found.question).items()},
        "value": found.value,
        "unit": found.unit,
        "sizes": [x._asdict() for x in found.sizes],
        "quantities": found.quantities,
        "margins": [x._asdict() for x in found.margins],
        "best": None if good is None else design_of(good),
        "certificate": found.statement,
        "relaxed_value": found.relaxed,
        "proven_bound": found.bound
        if found.bound is not None and math.isfinite(found.bound)
        else None,
        "neighbours_checked": found.neighbours,
        "evaluations": {**found.evaluations._asdict(), "total": found.evaluations.total},
        "nearest": None
        if found.nearest is None or found.nearest.plan is None
        else design_of(found.nearest),
    }


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
