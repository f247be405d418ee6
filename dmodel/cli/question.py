"""From the options of one job and one plan to the records of the model; every mistake in them is
found here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dmodel.cli.options import Degrees, Job
from dmodel.records import PLACEMENT, leaf
from dmodel.types import InputError

if TYPE_CHECKING:
    from calibration.traces.sharding import Reduction
    from calibration.traces.stages import Stages
    from dmodel.coefficients import Coefficients
    from dmodel.design import Choices, Kept, Laid
    from dmodel.footprint import Footprint
    from dmodel.profiles import Profile
    from dmodel.records import Cluster, Model, Plan

RECOMPUTE = {"none": (0.0, 0.0), "selective": (0.0, 1.0), "full": (1.0, 0.0)}
"""Name → share of the layers recomputed in full, share whose attention core alone is recomputed."""

LARGEST = 10**9
"""No count of an option is larger: beyond it a typing mistake is likelier than a machine."""


class Setting(NamedTuple):
    """A job as records, and the names that it goes by.

    Attributes:
      level_names: of the network, innermost first. reason: why this profile.
    """

    system: Cluster
    model: Model
    coefficients: Coefficients
    profile: Profile
    reason: str
    system_name: str
    accelerator: str
    model_name: str
    devices: int
    global_batch: int
    precision: str
    stack: str
    level_names: tuple[str, ...]

    @property
    def footprint(self) -> Footprint:
        """What the job's stack holds in memory on the fullest device: the least, where nobody has
        measured it."""
        from dmodel.footprint import whole

        return whole(self.profile.footprint_for(self.stack).footprint)

    def document(self) -> dict[str, Any]:
        """What was asked, for the answer."""
        return {
            "system": self.system_name,
            "accelerator": self.accelerator,
            "devices": self.devices,
            "model": self.model_name,
            "seq_len": int(self.model.seq_len),
            "global_batch": self.global_batch,
            "precision": self.precision,
            "profile": {"name": self.profile.name, "reason": self.reason},
        }


def setting(job: Job) -> Setting:
    """The records of a job: the model with the heads of further tokens that its stack trains it
    with, as traces are read.

    Raises:
      InputError: an option is missing or no positive integer; unknown system, model, precision or
        profile.
    """
    from calibration.traces.experts import busiest
    from calibration.traces.recipes import further_tokens
    from dmodel import catalog
    from dmodel.catalog.loader import resolve, table
    from dmodel.topology import check_devices

    missing = [
        f"--{n.replace('_', '-')}"
        for n in ("system", "devices", "model", "global_batch")
        if getattr(job, n) is None
    ]
    if missing:
        raise InputError(
            "one plan needs --system, --devices, --model and --global-batch; missing: "
            f"{', '.join(missing)}"
        )
    for name in ("devices", "global_batch", "seq_len"):
        check_count(name, getattr(job, name))
    entry = table("systems")[resolve("systems", job.system)]  # type: ignore[arg-type]
    profile, reason = profile_for(job.profile, entry["chip"], job.stack)
    if not job.stack and len(profile.own) == 1:
        job = job._replace(stack=profile.own[0])
        reason = f"{reason}; for {job.stack}, whose rows it was fitted to, as no --stack is named"
    system = catalog.system(job.system, job.precision)  # type: ignore[arg-type]
    check_devices(system.network, float(job.devices), str(job.system))  # type: ignore[arg-type]
    model = catalog.transformer(job.model, job.seq_len)  # type: ignore[arg-type]
    heads, load = (
        further_tokens(job.stack, str(job.model), "")[0],
        busiest(job.stack, float(model.n_experts), float(model.top_k))[0],
    )
    return Setting(
        system=system,
        model=model.replace(n_mtp=heads or model.n_mtp, imbalance=model.imbalance * load),
        coefficients=profile.coefficients_for(entry["chip"], job.stack or None),
        profile=profile,
        reason=reason,
        system_name=resolve("systems", job.system),  # type: ignore[arg-type]
        accelerator=entry["chip"],
        model_name=str(job.model),
        devices=int(job.devices),  # type: ignore[arg-type]
        global_batch=int(job.global_batch),  # type: ignore[arg-type]
        precision=job.precision,
        stack=job.stack,
        level_names=tuple(level["name"] for level in entry["levels"]),
    )


def profile_for(name: str | None, accelerator: str, stack: str = "") -> tuple[Profile, str]:
    """The profile asked for, else the shipped one nearest to an accelerator and stack; and why."""
    from dmodel import profiles

    if name is None:
        return profiles.nearest(accelerator, stack)
    return profiles.load(name), "asked for"


NAMED = 6
"""Stacks named as examples, at most."""


def provenance(asked: Setting) -> str:
    """Which profile predicts and why; of software without rows, the nearest names; where none is
    named, whose its intervals hold for."""
    from dmodel.catalog.loader import nearest
    from dmodel.profiles import family, members

    line = f"profile {asked.profile.name}: {asked.reason}"
    stacks = [*asked.profile.offsets["stack"], *asked.profile.own]
    if asked.stack and family(asked.stack) not in {family(stack) for stack in stacks}:
        near = ", ".join(nearest(asked.stack, stacks))
        return (
            f"{line}; it has no rows of {asked.stack}{f' (nearest {near})' if near else ''}: this "
            "is what any software may take"
        )
    pairs = (pair.partition(" ") for pair in asked.profile.pair_covariances)
    own = [family(stack) for stack in asked.profile.own]
    known = list(
        dict.fromkeys(
            [
                *own,
                *sorted({family(stack) for chip, _, stack in pairs if chip == asked.accelerator}),
            ]
        )
    )
    if asked.stack or not known:
        return line
    lineages = {members(asked.accelerator, stack)["lineage"] for stack in asked.profile.stacks}
    whose = (
        f"any software of the family of {lineages.pop()}" if len(lineages) == 1 else "any software"
    )
    examples = ", ".join(known[:NAMED]) + (", …" if len(known) > NAMED else "")
    return (
        f"{line}; no --stack is named, so intervals hold for {whose}: naming one that is known "
        f"here narrows them ({examples})"
    )


def check_count(name: str, value: int | None, least: int = 1) -> None:
    """Refuse what is no count from `least` on."""
    if value is not None and not least <= value <= LARGEST:
        raise InputError(
            f"--{name.replace('_', '-')}: expected an integer from {least} to {LARGEST:,}, got "
            f"{value}"
        )


def choice(name: str, value: str, allowed: Sequence[str]) -> str:
    """Refuse what is none of the allowed words."""
    if value not in allowed:
        raise InputError(f"--{name}: expected one of {', '.join(allowed)}; got {value!r}")
    return value


def settings(
    job: Setting,
    attention: str = "flash",
    zero: int | None = None,
    ep: int | None = None,
    *,
    staged: bool = False,
) -> tuple[Plan, list[str]]:
    """What every plan of a job shares (precision, kernels, and what its stack does, as traces are
    read), and the assumptions behind it.

    Args:
      zero: ZeRO stage; None = open: what a recipe keeps under stage 1 alone is then not counted on.
      ep: ranks that hold different experts; None = several, how many is open.
      staged: what is kept and sent comes with each plan's stage (`choices_of`), so nothing is said
        of it.
    """
    import numpy as np

    from calibration.traces import recipes
    from calibration.traces.checkpoints import recomputes_last
    from calibration.traces.experts import (
        NARROW_CORE,
        busiest,
        dispatch,
        launches,
        narrow_attention,
    )
    from calibration.traces.kernels import attention_rates, logit_bytes
    from calibration.traces.rows import OPERAND_BYTES, SCALE_READS
    from calibration.traces.schema import base_precision
    from calibration.traces.sharding import GROWN, reduction
    from dmodel.records import Plan

    flash = choice("attention", attention, ("flash", "none")) == "flash"
    precision = choice("precision", base_precision(job.precision), tuple(OPERAND_BYTES))
    stages = [
        reduction(job.stack, stage, job.precision, job.model_name)
        for stage in ((1.0, 2.0) if zero is None else (float(zero),))
    ]
    reduced = max(stages, key=lambda r: (r.held, r.optimizer))
    names, experts = (
        (job.stack, job.model_name, job.accelerator, precision),
        float(job.model.n_experts),
    )
    last, ends = recomputes_last(job.stack, experts)
    exchange = dispatch(*names, 1.0 + (experts > 1.0) if ep is None else float(ep))
    started = launches(*names, experts, 0.0 if ep is None else float(ep))
    narrow = flash and narrow_attention(*names, experts)
    rates, kernels = attention_rates(job.stack, job.accelerator, flash)
    kept, after = _kept(job, reduced), recipes.reduces_after(job.stack, float(job.model.n_layers))
    tensor = recipes.tensor(job.stack, job.model_name, job.precision)
    told = (
        kept._asdict()
        | rates._asdict()
        | {name: value for name, value in tensor._asdict().items() if name != "said"}
    )
    held: dict[str, Any] = {name: np.float64(value) for name, value in told.items()}
    plan = Plan.of(
        dp=1.0,
        global_batch=1.0,
        flash=np.float64(flash),
        operand_bytes=np.float64(OPERAND_BYTES[precision]),
        attention_bytes=np.float64(1.0 if narrow else 2.0),
        scale_passes=np.float64(SCALE_READS.get(precision, 0.0)),
        **held,
        merge_copies=np.float64(exchange.merge_copies),
        route_bytes=np.float64(exchange.route),
        overlap_ep=np.float64(exchange.overlap),
        graphed=np.float64(started.graphed),
        looped_experts=np.float64(started.looped),
        fused_experts=np.float64(started.fused),
        split_rotary=np.float64(started.rotary),
        accumulate=np.float64(recipes.accumulates(job.stack)),
        fused_sums=np.float64(recipes.fuses_sums(job.stack)),
        overlap_replica=np.float64(not recipes.awaits_replicas(job.stack)),
        logit_bytes=np.float64(logit_bytes(job.stack, precision)),
        recompute_last=np.float64(last),
        cp_balanced=np.float64(not recipes.held_in_order(job.stack)),
    )
    states = (
        f", gradients in {reduced.held:g} bytes, master weight and two moments in "
        f"{reduced.optimizer:g}"
    )
    copy = {0.0: "no weights beside the master copy", 4.0: "fp32 weights"}.get(
        reduced.weights, "16-bit weights"
    )
    weights = copy + (
        "" if any("states of the optimizer" in said for said in reduced.assumed) else states
    )
    when = (
        [recipes.AFTER]
        if after
        else [GROWN]
        if kept.bucket_per_rank and (zero is None or zero <= 2)
        else []
    )
    awaited, padded = (
        recipes.AWAITED if recipes.awaits_replicas(job.stack) else "",
        busiest(job.stack, experts, float(job.model.top_k))[1],
    )
    when += [
        text
        for text in (awaited, recipes.further_tokens(job.stack, job.model_name, "")[1], padded)
        if text
    ]
    said = [
        *tensor.said,
        *exchange.said,
        *started.said,
        *([NARROW_CORE] if narrow else []),
        *kernels,
    ]
    open_end = [f"where layers are recomputed, {text}" for text in ends] if zero is None else []
    before, behind = ([], []) if staged else (reduced.assumed, [weights])
    return plan, [*before, *when, *said, *behind, *open_end]


def _kept(job: Setting, reduced: Reduction) -> Kept:
    """What a way to reduce gradients makes of a plan of the job's stack."""
    from calibration.traces.recipes import reduces_after
    from calibration.traces.sharding import bucket_per_rank
    from dmodel.design import Kept

    overlap = 0.0 if reduces_after(job.stack, float(job.model.n_layers)) else reduced.overlap
    per_rank = float(bucket_per_rank(job.stack, reduced.nbytes))
    return Kept(
        reduced.nbytes,
        reduced.held,
        reduced.gathered,
        reduced.optimizer,
        reduced.weights,
        per_rank,
        overlap,
    )


def choices_of(job: Setting, everything: bool = False) -> tuple[Choices, list[str]]:
    """What a search may choose for a job: with what its stack keeps and sends under each ZeRO stage
    where stages differ in that, without stages that it does not run, and with its own layouts of
    pipelines; and what is assumed for it, in words."""
    from calibration.traces.modules import layers_in_host_memory
    from calibration.traces.recipes import reduces_once
    from calibration.traces.schema import base_precision
    from calibration.traces.sharding import reduction
    from dmodel.design import EVERYTHING, Choices
    from dmodel.design.space import STAGES

    found = EVERYTHING if everything else Choices()
    kept = tuple(
        _kept(job, reduction(job.stack, float(stage), job.precision, job.model_name))
        for stage in range(STAGES)
    )
    run = tuple(stage for stage in found.zero if not reduces_once(job.stack, float(stage)))
    said = (
        []
        if run == found.zero
        else [f"ZeRO stages {', '.join(map(str, run))}: stage 2 is run as stage 1 by the stack"]
    )
    differ = len(set(kept)) > 1
    said += (
        ["bytes of gradients, gathers and states follow each plan's ZeRO stage, as the stack's do"]
        if differ
        else []
    )
    laid = _laid(job)
    said += ["layers lie on stages as the stack lays them out"] if laid else []
    precision = base_precision(job.precision) or "bf16"
    moved = layers_in_host_memory(
        job.stack, job.model_name, job.accelerator, precision, float(STAGES - 1)
    )
    said += (
        [
            (
                f"activations stay on the device; the stack's recipe has those of {moved:.0%} of "
                "the "
                "layers in host memory"
            )
        ]
        if moved
        else []
    )
    return found.replace(zero=run, kept=kept if differ else (), laid=laid), said


def _laid(job: Setting) -> tuple[Laid, ...]:
    """Stages of all pipelines of a job that its stack lays out in a way of its own."""
    from dmodel.design import Laid
    from dmodel.design.space import divisors
    from dmodel.stages import layout, short_by

    layers, heads, found = float(job.model.n_layers), float(job.model.n_mtp), []
    for pp in (n for n in divisors(job.devices)[1:] if n <= layers):
        for v in (v for v in range(1, int(layers) // pp + 2) if not short_by(layers, pp, v)):
            own = _stages(job, float(pp), float(v))
            usual = layout(layers, pp, v, heads)
            if (own.excess, own.displaced) != (
                float(usual["stage_excess"]),
                float(usual["head_displaces"]),
            ):
                found.append(Laid(pp, v, own.excess, own.displaced))
    return tuple(found)


def _stages(job: Setting, pp: float, interleave: float) -> Stages:
    """Stages of a pipeline as the job's stack lays them out."""
    from calibration.traces.stages import head_cost, stages

    layers, *head, heads = (
        float(x)
        for x in (
            job.model.n_layers,
            job.model.d_model,
            job.model.d_ff,
            job.model.vocab,
            job.model.n_mtp,
        )
    )
    return stages(job.stack, job.model_name, layers, head_cost(*head), pp, interleave, heads)


def plan(job: Setting, degrees: Degrees) -> tuple[Plan, list[str]]:
    """The plan of the options, and the assumptions that fill what they leave open.

    Raises:
      InputError: the degrees do not multiply to the devices, or do not divide what they split.
    """
    from calibration.traces.again import redone
    from calibration.traces.checkpoints import offloaded, recomputed, recomputes_last
    from calibration.traces.modules import by_modules, layers_in_host_memory
    from calibration.traces.recipes import ONCE, held_in_order, reduces_once
    from calibration.traces.schema import base_precision
    from dmodel.design import make_plan

    for name in ("micro_batch", "tp", "pp", "cp", "dp", "ep", "interleave", "shard"):
        check_count(name, getattr(degrees, name))
    if degrees.zero == 0 and degrees.shard not in (None, 1):
        raise InputError(
            f"--shard {degrees.shard}: ZeRO stage 0 shards nothing; choose --zero 1, 2 or 3"
        )
    if degrees.zero < 3 and not degrees.reshard:
        raise InputError(
            f"--no-reshard: ZeRO stage {degrees.zero} gathers no weights in a step; choose "
            "--zero "
            "3, or leave the option out"
        )
    once = reduces_once(job.stack, float(degrees.zero))
    degrees = degrees._replace(zero=1) if once else degrees
    base, assumed = settings(job, degrees.attention, degrees.zero, degrees.ep)
    assumed.extend([ONCE] if once else [])
    if degrees.offload is not None and not 0.0 <= degrees.offload <= 1.0:
        raise InputError(
            f"--offload {degrees.offload:g}: expected a share of the layers between 0 and 1"
        )
    others = ("attention", "offload")
    asked: dict[str, Any] = {k: v for k, v in degrees._asdict().items() if k not in others}
    asked["recompute"] = recompute_of(degrees.recompute or "none")
    found = make_plan(job.model, job.devices, global_batch=job.global_batch, base=base, **asked)
    experts = float(job.model.n_experts)
    share = asked["recompute"]
    at = job.stack, job.model_name, job.accelerator, base_precision(job.precision) or "bf16"
    again = recomputed(
        degrees.recompute, job.stack, experts=experts, fused=degrees.attention == "flash"
    )
    again = again._replace(layers=share) if isinstance(share, float) else again
    if not degrees.recompute:
        again = by_modules(*at, float(job.model.n_layers / found.layout.pp)) or again
    if degrees.offload is not None:
        again = again._replace(inputs=degrees.offload, others=degrees.offload)
    elif degrees.recompute in ("", "none"):
        again = offloaded(
            again, "", layers_in_host_memory(*at, float(degrees.zero), float(degrees.pp))
        )
    laid = _stages(job, float(found.layout.pp), float(found.layout.interleave))
    found = redone(
        again, job.model, found.having(stage_excess=laid.excess, head_displaces=laid.displaced)
    )
    assumed.extend(laid.said)
    assumed.extend(
        (*again.said, *recomputes_last(job.stack, experts)[1]) if again.ends else again.said
    )
    if degrees.cp > 1 and held_in_order(job.stack):
        assumed.append("cp: causal sequences held in order, all ranks wait for the last")
    if degrees.sp is None:
        assumed.append(
            f"sequence parallelism {'on' if found.layout.sp else 'off'}: "
            f"the default for tp = {degrees.tp}"
        )
    if degrees.zero and degrees.shard is None:
        assumed.append(
            f"ZeRO-{degrees.zero} over all {float(found.layout.dp):g} data-parallel ranks"
        )
    return found, assumed


def recompute_of(text: str) -> str | float:
    """A share of the layers as a number; words as they are."""
    try:
        return float(text)
    except ValueError:
        return text


def _recompute(plan: Plan) -> str:
    """What is done again, in words."""
    if plan.layout.recompute_elementwise:
        return "selective"
    pair = (float(plan.layout.recompute_layers), float(plan.layout.recompute_attention))
    if pair[0] == 0.0 and (plan.layout.recompute_products or plan.layout.recompute_bytes):
        return "parts of a layer"
    return {known: name for name, known in RECOMPUTE.items()}.get(
        pair, f"{pair[0]:.2f} of the layers"
    )


def plan_document(plan: Plan) -> dict[str, Any]:
    """A plan as numbers and words."""
    integers = (
        "dp",
        "tp",
        "cp",
        "pp",
        "ep",
        "zero",
        "shard",
        "interleave",
        "micro_batch",
        "global_batch",
    )
    numbers = {name: _integer(float(leaf(plan, name))) for name in integers}
    return {
        **numbers,
        "n_microbatches": _integer(float(plan.n_microbatches)),
        "sp": bool(plan.layout.sp),
        "recompute": _recompute(plan),
        "offload": float(plan.layout.offload),
        "etp": _integer(float(plan.layout.etp)),
        "reshard": bool(plan.layout.reshard),
        "placement": list(plan.layout.placement),
        "schedule": plan.layout.schedule,
        "attention": "flash" if plan.software.flash else "none",
    }


def title(d: dict[str, Any]) -> str:
    """A job in one line, from its document."""
    return (
        f"{d['model']}, {d['seq_len']} tokens, batch {d['global_batch']}, on {d['devices']} × "
        f"{d['accelerator']} ({d['system']})"
    )


def _integer(x: float) -> int | float:
    return int(x) if x == int(x) else x


def short(p: dict[str, Any]) -> str:
    """A plan in a few words: `tp 8 · pp 4 · dp 16 · b 1 · zero 1`."""
    degrees = [
        f"{name} {p[name]:.4g}"
        for name in ("tp", "cp", "ep", "pp", "dp")
        if p[name] != 1 or name in ("tp", "dp")
    ]
    extra = [f"v {p['interleave']:g}"] if p["interleave"] != 1 else []
    extra += [f"b {p['micro_batch']:.4g}", f"zero {p['zero']:g}"]
    extra += [f"shard {p['shard']:g}"] if p["zero"] and p["shard"] != p["dp"] else []
    extra += ["weights kept for the backward pass"] if p["zero"] == 3 and not p["reshard"] else []
    extra += [f"recompute {p['recompute']}"] if p["recompute"] != "none" else []
    extra += [f"{p['offload']:.0%} in host memory"] if p["offload"] else []
    extra += [p["schedule"]] if p["schedule"] in ("gpipe", "zero-bubble") and p["pp"] != 1 else []
    extra += ["-".join(p["placement"])] if tuple(p["placement"]) != PLACEMENT else []
    return " · ".join(degrees + extra)
