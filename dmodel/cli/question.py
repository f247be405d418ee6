"""From the options of the shell to a question, and from a plan back to words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dmodel.cli.compiled import ready
from dmodel.cli.options import Degrees, Job
from dmodel.cli.output import say
from dmodel.errors import InputError

if TYPE_CHECKING:
    from dmodel.asked import Asked
    from dmodel.question import Question
    from dmodel.records import Plan

COLUMNS = {"devices": "n_accel", "zero": "zero_stage", "chip": "accelerator"}
"""Options whose column has another name."""


def setting(job: Job, degrees: Degrees | None = None) -> Asked:
    """The job of the options; of the degrees, its batch alone.

    Raises:
      InputError: an option is missing or no positive integer; unknown system, model, precision,
        stack or profile.
    """
    question = question_of(job if degrees is None else _with_batch(job, degrees))
    ready()
    return _asked(question, job.profile)


def _asked(question: Question, profile: str | None) -> Asked:
    from dmodel.asked import ask

    return ask(question, profile)


def question_of(job: Job, degrees: Degrees | None = None) -> Question:
    """The question that options ask: those that are given, and `--set` over them.

    Raises:
      InputError: an option is missing or no positive integer; an unknown name.
    """
    from dmodel.question import Question
    from dmodel.settings import changed, typed

    job = job if degrees is None else _with_batch(job, degrees)
    said = typed(job.settings or ())
    _check_missing(job, said)
    _check_names(job, said)
    for name in ("devices", "global_batch", "seq_len"):
        check_count(name, getattr(job, name))
    words = {} if degrees is None else layout_words(degrees)
    if "recompute" in said:
        words.pop("recompute_layers", None)
    start = changed(Question({}, system=job.system or ""), _own_words(job) | words | said)
    return with_shape(start, job.model or "", job.seq_len)


def _with_batch(job: Job, degrees: Degrees) -> Job:
    """The job with the batch that accumulation makes: micro-batch · steps · dp.

    Raises:
      InputError: no positive integer, or the batch is given too.
    """
    from dmodel.settings import typed

    steps = degrees.accumulation_steps
    if steps is None:
        return job
    check_count("accumulation_steps", steps)
    said = typed(job.settings or ())
    if job.global_batch is not None or "global_batch" in said:
        raise InputError(
            f"--accumulation-steps {steps}: the global batch is given too, and both say the "
            "sequences of a step; give one of them"
        )
    given = {**degrees._asdict(), "n_accel": job.devices, **said}
    devices, tp, pp, cp, micro_batch = (
        _count(given.get(name)) for name in ("n_accel", "tp", "pp", "cp", "micro_batch")
    )
    dp = _count(given["dp"] or max(devices // (tp * pp * cp), 1))
    return job._replace(global_batch=micro_batch * steps * dp)


def _count(value: object) -> int:
    """A count as it is given; 1 of what is left out, or is none and will be refused."""
    text = str(value)
    return int(text) if text.isdecimal() and int(text) else 1


def with_shape(question: Question, model_name: str, seq_len: float | None) -> Question:
    """The question with the shape of a configuration file, where the model is one."""
    from dmodel.catalog.model_names import config_of

    if not model_name or config_of(model_name) is None:
        return question
    from dmodel.catalog.models import reading

    model, notes = reading(model_name, seq_len) or (None, ())
    return question._replace(model=model, notes=notes)


def _check_names(job: Job, said: dict[str, str]) -> None:
    """Refuse names that the catalog and the disk do not have; say what a machine's file leaves out.

    The model's may be any where `--set` says its shape.
    """
    from dmodel.catalog.loader import known_name
    from dmodel.catalog.model_names import check as check_model
    from dmodel.catalog.model_names import identify
    from dmodel.profiles.shipped import check as check_profile

    _say_doubts(said.get("system", job.system), job.chip)
    if job.model and said.keys().isdisjoint(SHAPE):
        name, _ = identify(job.model)
        check_model(job.model if known_name("models", name) is None else name)
    if job.profile is not None:
        check_profile(job.profile)
    _check_stack(said.get("stack", job.stack), job.profile)


def _check_stack(name: str, profile: str | None) -> None:
    """Refuse a stack that neither a file nor a shipped profile knows; a profile of the user's may
    know others."""
    from dmodel.catalog.stack import check
    from dmodel.profiles import shipped

    names = shipped.names() if profile is None else [profile]
    if {*names} <= {*shipped.names()}:
        fitted = (shipped.known(each) for each in names if each != shipped.PRIOR)
        check(name, (stack for each in fitted for stack in each.stacks))


def _say_doubts(system: str | None, chip: str | None) -> None:
    """Say what is doubtful about machines of the user's own."""
    from dmodel.catalog.loader import resolve, table
    from dmodel.catalog.systems import machine_named

    system, chip = machine_named(system or "", chip or "")
    entries = [table("systems")[resolve("systems", system)]] if system else []
    chip = chip or next((entry["chip"] for entry in entries), None)
    entries += [table("chips")[resolve("chips", chip)]] if chip else []
    for text in dict.fromkeys(text for entry in entries for text in entry.get("notes", ())):
        say(f"dmodel: {text}")


SHAPE = ("model", "n_layers", "d_model", "d_ff", "n_heads", "vocab")
"""Settings that say another model, or the shape of one that the catalog does not have."""


def _own_words(job: Job) -> dict[str, Any]:
    """Options of the job as columns."""
    names = ("chip", "devices", "model", "seq_len", "global_batch", "precision", "stack")
    return {COLUMNS.get(name, name): value for name, value in _given(job, names).items()}


def _given(record: Any, names: Sequence[str]) -> dict[str, Any]:
    """Options of those names that are given."""
    found = {name: getattr(record, name) for name in names}
    return {name: value for name, value in found.items() if value not in (None, "")}


NEEDED = {
    "system": ("accelerator", "system"),
    "devices": ("n_accel",),
    "model": ("model", "n_layers"),
    "global_batch": ("global_batch",),
}
"""Options that every job has → names of settings that say the same."""


def _check_missing(job: Job, said: dict[str, str]) -> None:
    """Refuse a job without what every job has."""
    missing = [
        f"--{name.replace('_', '-')}"
        for name, others in NEEDED.items()
        if getattr(job, name) in (None, "")
        and said.keys().isdisjoint(others)
        and not (name == "system" and job.chip)
    ]
    if missing:
        raise InputError(
            "one plan needs --system, --devices, --model and --global-batch; missing: "
            f"{', '.join(missing)}"
        )


def layout_words(degrees: Degrees) -> dict[str, Any]:
    """Options of the layout as columns and settings; what is not given stays open.

    Raises:
      InputError: no positive integer, or an option that would be ignored.
    """
    for name in ("micro_batch", "tp", "pp", "cp", "dp", "ep", "interleave", "shard"):
        check_count(name, getattr(degrees, name))
    _check_sharding(degrees)
    _check_offload(degrees.offload)
    found = {COLUMNS.get(name, name): value for name, value in _given(degrees, WORDS).items()}
    found |= {} if degrees.sp is None else {"sp": int(degrees.sp)}
    found |= {} if degrees.reshard else {"reshard": 0}
    return found | _recompute_words(degrees.recompute)


WORDS = (
    *("micro_batch", "tp", "pp", "cp", "dp", "ep", "zero", "shard", "interleave"),
    *("schedule", "offload", "attention"),
)
"""Options of the layout that are said as they are given."""


def _check_offload(share: float | None) -> None:
    if share is not None and not 0.0 <= share <= 1.0:
        raise InputError(f"--offload {share:g}: expected a share of the layers between 0 and 1")


def _check_sharding(degrees: Degrees) -> None:
    """Refuse options of sharding that the ZeRO stage leaves nothing to do."""
    zero = 1 if degrees.zero is None else degrees.zero
    if zero == 0 and degrees.shard not in (None, 1):
        raise InputError(
            f"--shard {degrees.shard}: ZeRO stage 0 shards nothing; choose --zero 1, 2 or 3"
        )
    if zero < 3 and not degrees.reshard:
        raise InputError(
            f"--no-reshard: ZeRO stage {zero} gathers no weights in a step; choose --zero 3, or "
            "leave the option out"
        )


def _recompute_words(text: str) -> dict[str, Any]:
    """A share of the layers is a setting, words are the column."""
    if not text:
        return {}
    try:
        share = float(text)
    except ValueError:
        return {"recompute": text}
    if not 0.0 <= share <= 1.0:
        raise InputError(
            "--recompute: expected none, selective, full or a share of the layers between 0 and "
            f"1; got {text!r}"
        )
    return {"recompute_layers": share}


def plan(asked: Asked, degrees: Degrees) -> tuple[Plan, list[str]]:
    """The plan of the options, and the assumptions that fill what they leave open.

    Raises:
      InputError: the degrees do not multiply to the devices, or do not divide what they split.
    """
    from dmodel.asked import plan as planned

    found, assumed = planned(asked, layout_words(degrees))
    return found, [str(each) for each in assumed]


def check_count(name: str, value: int | None, least: int = 1) -> None:
    """Refuse what is no count from `least` on, or more than its column takes: beyond it a typing
    mistake is likelier than a machine."""
    most = largest(name)
    if value is not None and not least <= value <= most:
        raise InputError(
            f"--{name.replace('_', '-')}: expected an integer from {least} to {most:,}, got {value}"
        )


def largest(name: str) -> int:
    """The most that a count of an option may be: what its column takes."""
    from dmodel.columns import BY_NAME, LARGEST

    column = BY_NAME.get(COLUMNS.get(name, name))
    return int(LARGEST if column is None else column.most)


def choice(name: str, value: str, allowed: Sequence[str]) -> str:
    """Refuse what is none of the allowed words."""
    if value not in allowed:
        raise InputError(f"--{name}: expected one of {', '.join(allowed)}; got {value!r}")
    return value


RECOMPUTE = {(0.0, 0.0): "none", (0.0, 1.0): "selective", (1.0, 0.0): "full"}
"""Share of the layers recomputed in full, share whose attention core alone is → name."""


def _recompute(plan: Plan) -> str:
    """What is done again, in words."""
    layout = plan.layout
    if layout.recompute_elementwise:
        return "selective"
    pair = (float(layout.recompute_layers), float(layout.recompute_attention))
    if pair[0] == 0.0 and (layout.recompute_products or layout.recompute_bytes):
        return "parts of a layer"
    return RECOMPUTE.get(pair, f"{pair[0]:.2f} of the layers")


def plan_document(plan: Plan) -> dict[str, Any]:
    """A plan as numbers and words."""
    layout = plan.layout
    degrees = ("dp", "tp", "cp", "pp", "ep", "zero", "shard", "interleave", "micro_batch")
    return {
        **{name: _integer(float(getattr(layout, name))) for name in degrees},
        "global_batch": _integer(float(plan.global_batch)),
        "n_microbatches": _integer(float(plan.n_microbatches)),
        "sp": bool(layout.sp),
        "recompute": _recompute(plan),
        "offload": float(layout.offload),
        "etp": _integer(float(layout.etp)),
        "reshard": bool(layout.reshard),
        "placement": list(layout.placement),
        "schedule": layout.schedule,
        "attention": "flash" if plan.software.flash else "none",
    }


def trained(d: dict[str, Any]) -> str:
    """What is trained, from a document: the model's name, if it has one."""
    return str(d["model"] or "a model without a name")


def title(d: dict[str, Any]) -> str:
    """A job in one line, from its document."""
    return (
        f"{trained(d)}, {d['seq_len']} tokens, batch {d['global_batch']}, on {d['devices']} × "
        f"{d['accelerator']} ({d['system']})"
    )


def _integer(x: float) -> int | float:
    return int(x) if x == int(x) else x


def short(p: dict[str, Any]) -> str:
    """A plan in a few words: `tp 8 · pp 4 · dp 16 · b 1 · zero 1`."""
    shown = ("tp", "cp", "ep", "pp", "dp")
    parts = [f"{name} {p[name]:.4g}" for name in shown if p[name] != 1 or name in ("tp", "dp")]
    parts += [f"v {p['interleave']:g}"] if p["interleave"] != 1 else []
    parts += [
        *_without_sp(p),
        f"b {p['micro_batch']:.4g}",
        f"zero {p['zero']:g}",
        *_sharding(p),
        *_further(p),
    ]
    return " · ".join(parts)


def _without_sp(p: dict[str, Any]) -> list[str]:
    return ["no sp"] if p["tp"] != 1 and not p["sp"] else []


def _sharding(p: dict[str, Any]) -> list[str]:
    parts = [f"shard {p['shard']:g}"] if p["zero"] and p["shard"] != p["dp"] else []
    kept = p["zero"] == 3 and not p["reshard"]
    return [*parts, *(["weights kept for the backward pass"] if kept else [])]


def _further(p: dict[str, Any]) -> list[str]:
    from dmodel.records import PLACEMENT, USUAL

    parts = [f"recompute {p['recompute']}"] if p["recompute"] != "none" else []
    parts += [f"{p['offload']:.0%} in host memory"] if p["offload"] else []
    unusual = p["schedule"] not in USUAL and p["pp"] != 1
    parts += [p["schedule"]] if unusual else []
    return [*parts, *(["-".join(p["placement"])] if tuple(p["placement"]) != PLACEMENT else [])]
