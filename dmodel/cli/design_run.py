"""`dmodel design` of a whole run: sizes, hardware and plan chosen together for an objective under limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dmodel.cli.design_options import FREE_BATCH, DesignJob, batch, device_range, freed
from dmodel.cli.options import Job
from dmodel.cli.output import Document, digits, gib, percent, say, seconds, show_lines, show_table
from dmodel.types import InputError

if TYPE_CHECKING:
    from dmodel.cli.question import Setting
    from dmodel.codesign import CoDesign, Design, Question

DAY_S = 86400.0

FAMILY, BATCH = "llama-3-70b", 1024
"""Family of a model whose shape is free, and the global batch where it is neither given nor free."""

UNITS = {
    "seconds": ("time", DAY_S, "days"),
    "loss": ("loss", 1.0, "nat/token"),
    "dollars": ("rent", 1.0, "dollars"),
    "joules": ("energy", 3.6e9, "MWh"),
    "flop": ("compute", 1.0, "FLOP"),
    "watts": ("power of the facility", 1e6, "MW"),
    "area_mm2": ("die", 1.0, "mm2"),
    "batch": ("batch over the critical one", 1.0, ""),
    "tokens": ("tokens", 1e9, "10^9"),
    "memory": ("memory over the device's", 1.0, ""),
}
"""Quantity of a run → name for people, what its SI value is divided by, and the unit then."""


def run_setting(job: DesignJob) -> Setting:
    """Records of the job, with stand-ins for what is free.

    Raises:
      InputError: what is missing or makes no sense.
    """
    from dmodel.cli.question import setting

    span = device_range(job.devices)
    if job.system is None or (span is None and "devices" not in freed(job)):
        missing = [o for o, x in (("--system", job.system), ("--devices N or MIN:MAX", span)) if x is None]
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
    """What is chosen: as asked, and what follows: a shape without a model, tokens that a loss or a budget decides."""
    words = [*freed(job)]
    if job.model is None and "shape" not in words:
        words.append("shape")
    open_tokens = job.loss is not None or job.flop is not None or job.objective in ("loss", "largest")
    if open_tokens and "tokens" not in words and (job.tokens is None or job.objective in ("loss", "largest")):
        words.append("tokens")
    return tuple(words)


def question_of(job: DesignJob, asked: Setting, laws: Any, failures: bool, attention: str) -> tuple[Question, list[str]]:
    """The stated problem, and the assumptions that fill what the options leave open."""
    from dmodel import codesign
    from dmodel.cli.question import settings
    from dmodel.footprint import LEAST, whole
    from dmodel.goodput import Reliability

    base, assumed = settings(asked, attention)
    free, span = free_of(job), device_range(job.devices)
    bounds = {} if span is None or span[0] == span[1] else {"devices": (float(span[0]), float(span[1]))}
    if job.model is None:
        assumed.append(f"the family of {FAMILY} (gated MLP, 8 key/value heads, its vocabulary): no --model was named")
    if job.global_batch is None:
        assumed.append(f"global batch {BATCH}: none was named (`--global-batch {FREE_BATCH}` chooses it)")
    loss, limits = job.loss, _limits(job)
    if job.flop is not None:
        loss, more = _loss_of(job, asked, laws)
        assumed.append(more)
    known = asked.stack in asked.profile.footprints
    stated = codesign.question(
        asked.system,
        asked.model,
        asked.coefficients,
        objective=job.objective,
        limits=limits.replace(loss=loss),
        free=free,
        devices=float(asked.devices),
        global_batch=float(asked.global_batch),
        tokens=None if "tokens" in free else job.tokens,
        bounds=bounds,
        law=laws,
        base=base,
        footprint=whole(asked.profile.footprint_for(asked.stack).footprint) if known else LEAST,
        reliability=Reliability() if failures else None,
    )
    if job.tokens is None and "tokens" not in free:
        assumed.append("tokens by the data law")
    return stated, [*assumed, "failures as often as Llama 3's" if failures else "no failures"]


def _limits(job: DesignJob) -> Any:
    from dmodel.codesign import Limits

    return Limits(
        seconds=None if job.budget_days is None else job.budget_days * DAY_S,
        dollars=job.budget_dollars,
        joules=job.budget_joules,
        tokens=job.tokens,
    )


def _loss_of(job: DesignJob, asked: Setting, laws: Any) -> tuple[float, str]:
    """The loss that a compute budget reaches: of the given model on all tokens it pays for, or of the best model for it.

    `min over N of L(N, C / 6N)` in closed form for `E + A N^-α + B D^-β`; on a grid of N, as other forms have none.
    """
    import numpy as np

    from dmodel import counts
    from dmodel.codesign.laws import loss

    flop = float(job.flop)  # type: ignore[arg-type]
    if job.objective in ("loss", "largest"):
        raise InputError(f"--flop with --objective {job.objective}: the compute is given, so say what shall be least: time, cost or energy")
    if job.model is not None and "shape" not in freed(job):
        tokens = flop / float(counts.model_flops_per_token(asked.model, "6N+6Lhs"))
        found = float(loss(float(counts.active_parameters(asked.model)), tokens, laws.loss))
        return found, f"loss {found:.4f}: {asked.model_name} on the {tokens:.3g} tokens that {flop:.3g} FLOP train"
    sizes = np.geomspace(1e6, 1e14, 1601)
    values = np.asarray(loss(sizes, flop / (6.0 * sizes), laws.loss))
    best = int(values.argmin())
    return float(
        values[best]
    ), f"loss {values[best]:.4f}: the least that {flop:.3g} FLOP reach by the loss law, at {sizes[best]:.2g} parameters"


def answered(job: DesignJob, asked: Setting, ways: Any) -> tuple[Document, Document | None]:
    """Search, and ask what goes with the answer: its document, and the launch settings if asked for."""
    from dmodel.codesign import solve_question

    laws, chosen = laws_of(ways.law)
    stated, assumed = question_of(job, asked, laws, ways.failures, ways.attention)
    say(f"searching {', '.join(n for n, free in zip(stated.unknowns.names, stated.unknowns.free, strict=True) if free) or 'plans'} …")
    found = solve_question(stated, n_starts=ways.starts or 16)
    span = device_range(job.devices)
    devices = asked.devices if span is None or span[0] == span[1] else list(span)
    head = {**asked.document(), "devices": devices, "global_batch": job.global_batch or asked.global_batch}
    document = {**head, **run_document(found, job), "laws": laws_document(chosen), "assumptions": assumed}
    if found.found is not None and not ways.brief:
        document |= prices_document(stated, found.found) | influence_document(stated, found.found)
    if found.found is None or ways.emit is None:
        return document, None
    return document, emitted(asked, stated, found.found, "shape" in document["free"], ways.emit)


def prices_document(stated: Question, design: Design) -> Document:
    """What one more unit of everything limited or given is worth, at the best sizes for the plan."""
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
    return {"other_laws": entries, "deciding_law": found.decides, "deciding_law_says": found.statement}


def emitted(asked: Setting, stated: Question, design: Design, shaped: bool, target: str) -> Document:
    """Launch settings of the best design: its model has the sizes that were chosen."""
    from dmodel.cli.emitted import emit_document
    from dmodel.codesign.lattice import model_of

    model = model_of(design.sizes, stated.world.fixed) if shaped else asked.model
    assert design.plan is not None
    return emit_document(asked._replace(model_name="") if shaped else asked, model, design.plan, target)


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
        "neighbours_checked": found.neighbours,
        "evaluations": {**found.evaluations._asdict(), "total": found.evaluations.total},
        "nearest": None if found.nearest is None or found.nearest.plan is None else design_of(found.nearest),
    }


def _given(stated: Question) -> dict[str, float]:
    """Limits that there are."""
    from dmodel.codesign.limits import NO_LIMIT
    from dmodel.codesign.outcome import NAMES

    return {name: limit for name, limit in zip(NAMES, stated.at.limit, strict=True) if limit < NO_LIMIT}


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


def quantity(name: str, value: float) -> str:
    """A quantity of a run for people."""
    _, scale, unit = UNITS[name]
    return f"{digits(value / scale, 4)} {unit}".rstrip()


def show_run(d: Document) -> None:
    """Tables of sizes, of the run and its limits, and what was checked."""
    head = f"{d['model']}, {d['seq_len']} tokens, on {d['accelerator']} ({d['system']}): least {d['objective']}"
    if d["best"] is None:
        show_lines(head.replace("least largest", "largest run"), "No design keeps the limits.")
        _show_nearest(d)
    else:
        rows = [(x["name"], _size(x["value"]), x["unit"], "chosen" if x["free"] else "given", x["bound"]) for x in d["sizes"]]
        hardware = any(x["free"] for x in d["sizes"] if "bytes" in x["name"] or "flops" in x["name"])
        shown = rows if hardware else [row for row in rows if row[0] in SHOWN]
        show_table(head.replace("least largest", "largest run"), ("size", "value", "unit", "", "at bound"), shown, right="value")
        limits = {m["name"]: m for m in d["margins"]}
        table = [
            (UNITS[name][0], quantity(name, value), quantity(name, limits[name]["limit"]) if name in limits else "",
             quantity(name, limits[name]["slack"]) if name in limits else "")
            for name, value in d["quantities"].items()
        ]  # fmt: skip
        show_table("The run", ("quantity", "value", "limit", "left"), table)
        best = d["best"]
        show_lines(
            f"Plan: {best['label']}: {seconds(best['step_time_s'])} per step, MFU {percent(best['mfu'])}, "
            f"{gib(best['memory_bytes_per_device'])} per device; {digits(best['parameters'] / 1e9, 4)} billion parameters"
        )
    show_lines(f"Certificate: {d['certificate']}")
    _show_prices(d)
    _show_laws(d)
    show_lines(f"Assumed: {'; '.join(d['assumptions'])}")


def _size(x: float) -> str:
    """A size: counts in full, up to where nobody counts."""
    return f"{x:.4g}" if x >= 1e7 else f"{x:,.0f}" if x == int(x) else digits(x, 4)


SHOWN = ("n_layers", "d_model", "ff_ratio", "head_dim", "global_batch", "tokens", "devices")


def _show_nearest(d: Document) -> None:
    near = d["nearest"]
    if near is not None:
        sizes = ", ".join(f"{name} {digits(near['sizes'][name], 4)}" for name in SHOWN if name in near["sizes"])
        show_lines(f"Closest: {sizes}; plan {near['label']}")


def _show_prices(d: Document) -> None:
    """What one more unit of each thing is worth, the largest effects."""
    known = d.get("shadow_prices", [])[:PRICES]
    if not known:
        return
    name, scale, unit = UNITS[OBJECTIVE_OF[d["objective"]]]
    rows = [
        (x["name"], x["kind"], f"{digits(x['at'], 4)} {x['unit']}", f"{x['elasticity']:+.4f}", f"{x['per_unit'] / scale:+.3g} {unit}",
         "" if x["dollars"] is None else f"{x['dollars']:+,.3g}")
        for x in known
    ]  # fmt: skip
    title = f"What one more unit is worth ({name}; plan held, sizes at their best for it)"
    show_table(title, ("of", "kind", "now", "elasticity", "per unit", "dollars"), rows, right="elasticity|per unit|dollars")


PRICES = 10
OBJECTIVE_OF = {"time": "seconds", "loss": "loss", "cost": "dollars", "energy": "joules", "largest": "flop"}


def _show_laws(d: Document) -> None:
    if d.get("deciding_law_says"):
        show_lines(f"What decides: {d['deciding_law_says']}")
    chosen = ", ".join(f"{kind} {law['name']}" for kind, law in d["laws"].items())
    show_lines(f"Laws: {chosen} (`--law kind=name` chooses others)")


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

    return {kind: {"name": name, "source": KINDS[kind][name].source} for kind, name in chosen.items()}


def say_infeasible(d: Document) -> None:
    """Why nothing keeps the limits, on stderr."""
    change = d.get("nearest_change")
    say(f"dmodel: no design keeps the limits{f': {change}' if change else ''}")
