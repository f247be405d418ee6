"""What explains the findings of weak scaling: terms that grow, a layer's gather, power by cause,
and the findings under other assumptions."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from dmodel import catalog, run
from dmodel.cost.collectives import fabric, gather_line
from dmodel.cost.power import WAITING_RANGE
from dmodel.counts import WORD, residents
from dmodel.step import Breakdown
from experiments import scaling as shared
from experiments import scaling_compared as compared
from experiments.scaling import Answers, coefficients, fsdp
from experiments.scaling_weak_cases import CHIP, HIGH, LOW, MODEL, SYSTEM, THROUGHPUT, change


def causes(found: Answers) -> list[dict[str, Any]]:
    """Points of throughput lost between the two scales, term by term: what each adds to the step
    over the step at the larger scale."""
    low, high = (shared.WEAK_SCALES.index(n) for n in (LOW, HIGH))
    lost = {
        name: 100.0 * float((x[high] - x[low]) / found.step_time_s[high])
        for name, x in found.terms.items()
    }
    return [
        {"cause": name, "points": x}
        for name, x in sorted(lost.items(), key=lambda kv: -abs(kv[1]))
        if abs(x) >= 0.05
    ]


def why(found: Answers, others: dict[str, Answers]) -> list[str]:
    """The step's growth by cause, and the findings under other assumptions."""
    text = ["Where the throughput goes, 128 → 2,048 [points lost]: "]
    text[0] += ", ".join(f"{c['cause']} {c['points']:.1f}" for c in causes(found))
    scales = shared.WEAK_SCALES
    at = {
        share: compared.crossing(scales, found.exposed_share, share) for share in (0.01, 0.05, 0.1)
    }
    text.append(
        "Exposed communication passes "
        + ", ".join(f"{100 * s:.0f} % of the step at {n:,.0f}" for s, n in at.items() if n)
    )
    text += gather_lines(found)
    text += power_lines(found)
    text.append("Findings 1, 2 and 3 under other assumptions [%]:")
    for name, each in others.items():
        t, p, e = change(each, 0, 1)
        text.append(f"  {name:<46} {t:+7.1f} {p:+7.1f} {e:+7.1f}")
    return text


def gather_lines(found: Answers) -> list[str]:
    """One layer's gather at both scales beside its compute, and the coefficients that decide what
    it costs."""
    system, model, c = (
        catalog.system(SYSTEM),
        catalog.transformer(MODEL, seq_len=shared.SEQ_LEN),
        coefficients(CHIP),
    )
    scales, inside = np.array([LOW, HIGH]), float(system.network.size[0])  # type: ignore[index]
    line = gather_line(jnp.stack([jnp.full(2, inside), scales / inside]), fabric(system.network, c))
    layers = float(model.n_layers)  # type: ignore[arg-type]
    nbytes = float(WORD * residents(model, fsdp(LOW)).layers) / layers
    flow = 1e3 * nbytes * np.asarray(line.seconds_per_byte)
    rest = 1e3 * np.asarray(line.time(nbytes)) - flow
    work = sum(
        1e3 * found.terms[name][0] / layers for name in ("matmul", "attention", "elementwise")
    )
    within, between = (
        1e6
        * np.asarray(system.network.latency_s)
        * (float(c.net_latency_inner), float(c.net_latency_outer))
    )
    node = between + (inside - 1.0) * within
    return [
        f"A layer's gather, 128 → 2,048 [ms]: hops and starts {rest[0]:.2f} → {rest[1]:.2f}, "
        f"bytes {flow[0]:.2f} → {flow[1]:.2f}; "
        f"three such messages beside {work:.1f} of compute, forward and backward",
        f"  a ring pays {node:.1f} µs for each node, {between:.1f} of it between nodes; messages "
        f"hide behind {float(c.overlap_fsdp):.2f} "
        f"of the compute beside them, and lengthen it by {float(c.contention):.2f} of what is "
        "hidden",
    ]


def power_lines(found: Answers) -> list[str]:
    """Power by cause at both scales, and finding 2 by what a waiting device draws, which two
    measurements bracket."""
    low, high = (shared.WEAK_SCALES.index(n) for n in (LOW, HIGH))
    text = [
        "Power by cause, 128 → 2,048 [W]: "
        + ", ".join(f"{k} {x[low]:.0f} → {x[high]:.0f}" for k, x in found.draw.items())
    ]
    system, step = catalog.system(SYSTEM), Breakdown(**found.terms)
    fallen = 1.0 - found.tokens_per_s_per_device / found.tokens_per_s_per_device[low]
    when = compared.crossing(shared.WEAK_SCALES, fallen, -THROUGHPUT / 100.0)
    if when is not None:
        there = float(np.interp(np.log(when), np.log(shared.WEAK_SCALES), found.device_watts))
        text.append(
            f"  where throughput has fallen as published: {there:.0f} W, "
            f"{100.0 * (there / found.device_watts[low] - 1.0):+.1f} %"
        )
    for share in WAITING_RANGE:
        watts = np.asarray(run.device_draw(system, step, coefficients(CHIP), share).total)
        fall = 100.0 * (watts[high] / watts[low] - 1.0)
        text.append(
            f"  if waiting draws {share:.2f} of idle to peak: {watts[low]:.0f} → "
            f"{watts[high]:.0f} W, {fall:+.1f} %"
        )
    return text
