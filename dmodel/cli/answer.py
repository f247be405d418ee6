"""The model's answer about one plan: time by cause, memory by purpose, utilization, energy, money;
as a document and as tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from dmodel.cli.output import Document, digits, gib, percent, seconds, show_lines, show_table

if TYPE_CHECKING:
    from dmodel.cli.question import Setting
    from dmodel.records import Plan

CONVENTION_NAMES = {
    "6N": "weights only",
    "6N+12Lhs": "and full attention",
    "6N+6Lhs": "and its causal half",
}


def _outcome(system: Any, model: Any, plan: Any, coefficients: Any, fitted: Any) -> dict[str, Any]:
    """Everything that is said of one plan, in one compiled call. Memory is the fullest device's,
    with all that it holds (`design` too)."""
    from dmodel import run, step
    from dmodel.breakdown import TERMS
    from dmodel.cost.memory import out_of_memory_probability
    from dmodel.counts import CONVENTIONS
    from dmodel.footprint import whole

    breakdown, footprint = (
        step.step_time(system, model, plan, coefficients),
        whole(fitted.footprint),
    )
    memory = step.memory_use(model, plan, footprint=footprint)
    return {
        "breakdown": {f"{term}_s": getattr(breakdown, term) for term in TERMS},
        "memory": {f"{name}_bytes": value for name, value in vars(memory).items()},
        "oom_probability": out_of_memory_probability(
            memory.total, system.chip.hbm_bytes, fitted.spread
        ),
        "outputs": vars(
            run.outputs(system, model, plan, breakdown, coefficients, footprint=footprint)
        ),
        "mfu": {name: run.mfu(system, model, plan, breakdown, name) for name in CONVENTIONS},
    }


@cache
def _compiled() -> Callable[..., dict[str, Any]]:
    """Run a few times at most: compiling costs a hundred thousand times the answer, so on a CPU the
    compiler shall not try hard."""
    import jax

    from dmodel.sweep import quick_to_compile

    return jax.jit(_outcome, compiler_options=quick_to_compile())


def answer(job: Setting, plan: Plan) -> Document:
    """The document about one plan; `fits` is False when it needs more memory than the device has,
    `headroom_bytes` is signed."""
    from dataclasses import fields

    import jax
    import jax.numpy as jnp

    from dmodel.breakdown import TERMS
    from dmodel.cost.memory import Memory
    from dmodel.counts import CONVENTIONS
    from dmodel.energy import GRID_KG

    asked = (job.system, job.model, plan, job.coefficients, job.profile.footprint_for(job.stack))
    leaves = jax.tree.map(lambda x: jnp.asarray(x, float), asked)
    found = jax.tree.map(float, _compiled()(*leaves))
    out, ends = found["outputs"], _ends(job, plan, leaves, found)
    # a compiled function gives dictionaries back by alphabet; people read causes and purposes in
    # their own order
    breakdown = {f"{term}_s": found["breakdown"][f"{term}_s"] for term in TERMS}
    memory = {
        f"{field.name}_bytes": found["memory"][f"{field.name}_bytes"] for field in fields(Memory)
    }
    return {
        "step_time_s": out["step_time_s"],
        "breakdown": breakdown,
        "memory_bytes_per_device": out["memory_bytes"],
        "device_memory_bytes": float(job.system.chip.hbm_bytes),
        "headroom_bytes": out["headroom_bytes"],
        "fits": out["headroom_bytes"] >= 0.0,
        "oom_probability": found["oom_probability"],
        "memory": memory,
        "mfu": {name: found["mfu"][name] for name in CONVENTIONS},
        "exposed_communication_share": out["exposed_share"],
        "tokens_per_s": out["tokens_per_s"],
        "tokens_per_s_per_device": out["tokens_per_s_per_device"],
        "watts_per_device": out["device_watts"],
        "joules_per_token": out["joules_per_token"],
        "kg_co2_per_million_tokens": 1e6 * out["joules_per_token"] * GRID_KG,
        "dollars_per_million_tokens": 1e6 * out["dollars_per_token"],
        **ends,
    }


CARRIED = (
    "step_time_s",
    "tokens_per_s",
    "tokens_per_s_per_device",
    "joules_per_token",
    "dollars_per_token",
)
"""Outputs that get an interval; MFU follows the step time."""


def _ends(job: Setting, plan: Plan, leaves: tuple[Any, ...], found: dict[str, Any]) -> Document:
    """Ends of the 90 % intervals, `*_low` and `*_high`; none where the profile carries no
    covariance."""
    import jax
    import numpy as np

    from dmodel import uncertainty
    from dmodel.cli.rows import SIDE
    from dmodel.coefficients import from_unconstrained

    sigma = uncertainty.covariance(job.profile, job.accelerator, job.stack)
    if sigma is None:
        return {}
    points = uncertainty.points(job.profile.unconstrained(job.accelerator, job.stack), sigma).T
    draws = [
        _compiled()(*leaves[:3], jax.tree.map(np.asarray, from_unconstrained(z)), leaves[4])[
            "outputs"
        ]
        for z in points
    ]
    far = uncertainty.distance(
        job.profile, job.stack, uncertainty.features(job.system, job.model, plan)
    )[0]
    rest, result = uncertainty.misfit(uncertainty.scatter_of(job.profile, job.stack), far), {}
    for name in CARRIED:
        sd = uncertainty.parameter_sd(np.log(np.array([draw[name] for draw in draws], float)))
        low, high = uncertainty.band(found["outputs"][name], np.hypot(sd, rest))
        shown, unit = (
            ("dollars_per_million_tokens", 1e6) if name == "dollars_per_token" else (name, 1.0)
        )
        result |= {f"{shown}_low": unit * float(low), f"{shown}_high": unit * float(high)}
    slowest, fastest = (
        found["outputs"]["step_time_s"] / result[f"step_time_s_{end}"] for end in ("high", "low")
    )
    memory, spread = (
        found["outputs"]["memory_bytes"],
        float(np.exp(SIDE * job.profile.footprint_for(job.stack).spread)),
    )
    return {
        **result,
        "mfu_low": {name: x * slowest for name, x in found["mfu"].items()},
        "mfu_high": {name: x * fastest for name, x in found["mfu"].items()},
        "memory_bytes_per_device_low": memory / spread,
        "memory_bytes_per_device_high": memory * spread,
    }


def _between(d: Document, name: str, show: Callable[[float], str]) -> str:
    """The interval of a number in brackets; blank where there is none."""
    return f" ({show(d[f'{name}_low'])} to {show(d[f'{name}_high'])})" if f"{name}_low" in d else ""


def show_answer(d: Document) -> None:
    """Tables of one plan's answer."""
    total = d["step_time_s"]
    rows = [
        (name[:-2].replace("_", " "), seconds(x), percent(x / total))
        for name, x in d["breakdown"].items()
        if x > 0.0
    ]
    show_table(
        "Step time by cause",
        ("cause", "time", "share"),
        [*rows, ("step", seconds(total), percent(1.0))],
    )
    if "step_time_s_low" in d:
        show_lines(
            (
                f"90 % of such runs take {seconds(d['step_time_s_low'])} to "
                f"{seconds(d['step_time_s_high'])}."
            ),
            "",
        )
    memory = [(name[:-6].replace("_", " "), gib(x)) for name, x in d["memory"].items() if x > 0.0]
    memory += [
        ("sum", gib(d["memory_bytes_per_device"])),
        ("device has", gib(d["device_memory_bytes"])),
        ("headroom", gib(d["headroom_bytes"])),
        ("risk that it is not enough", percent(d["oom_probability"])),
    ]
    show_table("Memory of the fullest device", ("purpose", "bytes"), memory)
    if not d["fits"]:
        show_lines(
            (
                f"DOES NOT FIT: {gib(-d['headroom_bytes'])} more than the device has; the time is "
                "what it would take if it did."
            ),
            "",
        )
    mfu = ", ".join(
        f"{percent(x)} ({name}: {CONVENTION_NAMES[name]})" for name, x in d["mfu"].items()
    )
    show_lines(
        f"MFU: {mfu}",
        f"Throughput: {digits(d['tokens_per_s'], 4)} tokens/s, "
        f"{digits(d['tokens_per_s_per_device'], 4)} per device; "
        f"{percent(d['exposed_communication_share'])} of the step waits for communication",
        f"Energy: {digits(d['watts_per_device'])} W per device, {digits(d['joules_per_token'])} "
        "J/token with hosts and cooling, "
        f"{digits(d['kg_co2_per_million_tokens'])} kg of CO2 per million tokens on the mean grid "
        "of the United States",
        f"Cost: {digits(d['dollars_per_million_tokens'])} dollars per million tokens"
        f"{_between(d, 'dollars_per_million_tokens', digits)}, rent of the accelerators",
    )
