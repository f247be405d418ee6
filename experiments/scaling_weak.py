"""Weak scaling of FSDP on 8 to 2,048 H100: throughput falls by a third from 128 on, power hardly
does (findings 1, 2, 3, 6).

Assumed in advance: Llama-2 7B, sequences of 4,096 tokens, 2 per device in one micro-batch, bf16,
ZeRO-3 over all devices with weights gathered again for the backward pass, gathers prefetched behind
the layer before, DGX H100 with 400 Gb/s InfiniBand per device. Coefficients of the shipped generic
profile for H100 and FSDP; the network between nodes as the study's own all-reduce curves have it,
nearly all of them trees, of which a ring's hops follow by the ratios of NCCL's tuning table.
"Communication-bound": the messages of a step take as long as its compute, which is what the study
says of its collectives; two other readings stand beside it, unjudged: messages no longer hide, and
what they cost, exposed or by slowing compute, is a tenth of the step. `python -m
experiments.scaling_weak [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from dmodel import catalog, run
from dmodel.breakdown import Breakdown
from dmodel.cost.collectives import fabric, gather_line
from dmodel.cost.power import WAITING_RANGE
from dmodel.counts import WORD, residents
from dmodel.report import style
from experiments import scaling as shared
from experiments.scaling import Answers, Cases, coefficients, fsdp
from experiments.study import run as run_study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SYSTEM, CHIP, MODEL = "H100-DGX", "H100-80GB", "llama-2-7b"
LOW, HIGH = 128.0, 2048.0
"""Devices between which the findings compare."""

THROUGHPUT, POWER, EFFICIENCY, BOUND = -37.22, -5.87, -33.0, 128.0
"""Published: throughput per device, power per device, tokens per joule [%], and the scale at which
communication binds [count]."""

WATTS = {LOW: 658.0, HIGH: 620.0}
"""Published power of one device [W]."""

ASSUMPTIONS = {
    "model and batch": "Llama-2 7B, 4,096 tokens, 2 sequences per device in one micro-batch",
    "sharding": (
        "ZeRO-3 over all devices, weights gathered again for the backward pass, next layer "
        "prefetched, gradients reduced in bf16"
    ),
    "precision": "bf16, flash attention, no recomputation",
    "communication-bound": (
        "messages of a step take as long as compute; other readings beside it, not judged"
    ),
}


def base() -> dict[str, Cases]:
    """The curve, 8 to 2,048 devices, and the same with nothing hidden."""
    plan, c = fsdp(np.array(shared.WEAK_SCALES)), coefficients(CHIP)
    given = catalog.system(SYSTEM), catalog.transformer(MODEL, seq_len=shared.SEQ_LEN)
    return {
        "curve": shared.cases(*given, plan, c),
        "nothing hidden": shared.cases(*given, shared.unhidden(plan), c),
    }


def variants() -> dict[str, Cases]:
    """The two scales of the findings under one other assumption each."""
    scales = np.array([LOW, HIGH])
    system, model, plan, c = (
        catalog.system(SYSTEM),
        catalog.transformer(MODEL, seq_len=shared.SEQ_LEN),
        fsdp(scales),
        coefficients(CHIP),
    )
    net = system.network

    def network(**changed: Any) -> Any:
        return system.replace(network=net.replace(**changed))

    def with_kernels(stack: str) -> Any:
        return fsdp(scales, **shared.kernels(CHIP, stack))

    others = {
        "as assumed": (system, plan, c),
        "weights kept for the backward pass": (system, fsdp(scales, reshard=0.0), c),
        "1 sequence per device": (system, fsdp(scales, 1.0), c),
        "4 sequences per device": (system, fsdp(scales, 4.0), c),
        "gradients reduced in fp32": (system, fsdp(scales, reduce_bytes=4.0), c),
        "HSDP: sharded over 64, copied beyond": (system, fsdp(scales, shard=64.0), c),
        "hops as in NCCL's table: 1.9 µs inside, 4 between": (
            system,
            plan,
            c.replace(**table_hops(net)),
        ),
        "hop latency a half": (network(latency_s=0.5 * net.latency_s), plan, c),
        "hop latency double": (network(latency_s=2.0 * net.latency_s), plan, c),
        "bandwidth between nodes − 25 %": (
            network(bytes_per_s=net.bytes_per_s * np.array([1.0, 0.75])),
            plan,
            c,
        ),
        "everything else 10 % faster": (system.replace(chip=_faster(system.chip, 1.1)), plan, c),
        "between nodes as the profile's rows have it": (
            system,
            plan,
            coefficients(CHIP, curves=False),
        ),
        "software of LLM Foundry": (
            system,
            with_kernels("llm-foundry"),
            coefficients(CHIP, "llm-foundry"),
        ),
        "software of Megatron-Bridge": (
            system,
            with_kernels("megatron-bridge"),
            coefficients(CHIP, "megatron-bridge"),
        ),
        "the newest kernels of attention": (
            system,
            fsdp(scales, attention_rate=1.0, attention_backward_rate=1.0),
            c,
        ),
        "prior, fitted to nothing": (system, plan, coefficients(CHIP, "", "prior", curves=False)),
    }
    return {name: shared.cases(s, model, p, k) for name, (s, p, k) in others.items()}


HOPS = {"net_latency_inner": 1.9e-6, "net_latency_outer": 4e-6}
"""A ring's hops in lines of 128 bytes over NVLink and over a network, as NCCL's tuning table has
them itself [s]."""


def table_hops(net: Any) -> dict[str, float]:
    """NCCL's own hops over the catalog's [1]."""
    return {
        name: seconds / float(catalogued)
        for (name, seconds), catalogued in zip(HOPS.items(), net.latency_s, strict=True)
    }


def _faster(chip: Any, by: float) -> Any:
    rates = ("flops_per_s", "attention_flops_per_s", "exponentials_per_s", "hbm_bytes_per_s")
    return chip.replace(**{name: by * getattr(chip, name) for name in rates})


def change(found: Answers, low: int, high: int) -> tuple[float, float, float]:
    """Throughput and power per device, and tokens per joule of the device, from one case to another
    [%]."""
    rate, watts = found.tokens_per_s_per_device, found.device_watts
    r, w = rate[high] / rate[low], watts[high] / watts[low]
    return 100.0 * (r - 1.0), 100.0 * (w - 1.0), 100.0 * (r / w - 1.0)


def bound(bare: Answers) -> np.ndarray:
    """Time of all messages over that of compute, by scale, from the cases with nothing hidden
    [1]."""
    return bare.exposed_s / shared.grouped(bare)["compute"]


def burden(found: Answers) -> np.ndarray:
    """Share of the step that communication costs, exposed or by slowing compute [1]."""
    parts = shared.grouped(found)
    return (parts["exposed communication"] + parts["slowed by communication"]) / found.step_time_s


def readings(found: Answers) -> list[dict[str, Any]]:
    """Finding 6 as it may also be read: where 1 % of the step is exposed, and where a tenth is lost
    to communication."""
    scales = shared.WEAK_SCALES
    named = {
        "1 % of the step is exposed": (found.exposed_share, 0.01),
        "exposed or slowed, a tenth of the step": (burden(found), 0.1),
    }
    crossings = {what: shared.crossing(scales, *share) for what, share in named.items()}
    return [
        shared.ratio(f"6 read otherwise: {what}", "H100", BOUND, x, None, "not judged")
        for what, x in crossings.items()
    ]


def findings(found: Answers, binding: np.ndarray) -> list[dict[str, Any]]:
    """Every finding beside its prediction."""
    scales = shared.WEAK_SCALES
    low, high = scales.index(LOW), scales.index(HIGH)
    throughput, power, efficiency = change(found, low, high)
    watts = found.device_watts
    more = 16.0 * (1.0 + throughput / 100.0)
    there = (
        f"order of magnitude; at {HIGH:,.0f} messages take {binding[high]:.3f} of the time of "
        "compute"
    )
    return [
        shared.points("1 throughput per device, 128 → 2,048 H100", THROUGHPUT, throughput, 5.0),
        shared.points("2 power per device, 128 → 2,048 H100", POWER, power, 5.0),
        shared.points("3 tokens per joule, 128 → 2,048 H100", EFFICIENCY, efficiency, 5.0),
        shared.ratio(
            "3 throughput of 16 times the devices", "×", 10.0, more, None, "arithmetic from 1"
        ),
        shared.ratio(
            "6 communication binds from",
            "H100",
            BOUND,
            shared.crossing(scales, binding, 1.0),
            10.0,
            there,
        ),
        *readings(found),
        *(
            shared.ratio(
                f"power of one H100 at {n:,.0f} devices",
                "W",
                published,
                float(watts[scales.index(n)]),
                0.05,
            )
            for n, published in WATTS.items()
        ),
    ]


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
    at = {share: shared.crossing(scales, found.exposed_share, share) for share in (0.01, 0.05, 0.1)}
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
    when = shared.crossing(shared.WEAK_SCALES, fallen, -THROUGHPUT / 100.0)
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


def table(found: Answers, binding: np.ndarray) -> list[dict[str, Any]]:
    """One line per scale."""
    share = shared.shares(found)
    return [
        {
            "devices": int(scale),
            "tokens_per_s_per_device": float(found.tokens_per_s_per_device[i]),
            "mfu": float(found.mfu[i]),
            "device_watts": float(found.device_watts[i]),
            "tokens_per_device_joule": float(found.tokens_per_device_joule[i]),
            "exposed_share": float(found.exposed_share[i]),
            "messages_over_compute": float(binding[i]),
            "lost_to_communication": float(burden(found)[i]),
            **{f"share_{name}": float(x[i]) for name, x in share.items()},
        }
        for i, scale in enumerate(shared.WEAK_SCALES)
    ]


def draw(found: Answers) -> Any:
    """Throughput and power against scale beside the published ends; and where the step's time
    goes."""
    figure = style.new_figure(12.6, 3.9)
    left, middle, right = figure.subplots(1, 3)
    scales, watts = shared.WEAK_SCALES, found.device_watts
    _relative(left, found, scales.index(LOW))
    middle.plot(scales, watts, color=style.BLUE, linewidth=1.8, label="predicted")
    shared.published_points(middle, list(WATTS), list(WATTS.values()))
    middle.set_title("Power of one device")
    middle.set_ylabel("W")
    middle.set_ylim(0.0, 1.1 * max(*watts, *WATTS.values()))
    middle.legend(frameon=False, loc="lower left")
    shared.draw_shares(right, scales, found)
    right.set_title("Where the step goes")
    right.legend(frameon=True, framealpha=0.9, edgecolor="none", loc="lower left", fontsize=7.5)
    for axes in (left, middle, right):
        shared.scale_axis(axes, scales, "H100")
    return figure


def _relative(axes: Axes, found: Answers, at: int) -> None:
    scales, rate = shared.WEAK_SCALES, found.tokens_per_s_per_device
    efficiency = found.tokens_per_device_joule
    axes.plot(
        scales,
        100.0 * rate / rate[at],
        color=style.BLUE,
        linewidth=1.8,
        label="tokens/s per device",
    )
    axes.plot(
        scales,
        100.0 * efficiency / efficiency[at],
        color=style.ORANGE,
        linewidth=1.8,
        label="tokens per joule",
    )
    shared.published_points(axes, [LOW, HIGH], [100.0, 100.0 + THROUGHPUT], "published: tokens/s")
    axes.plot(
        [HIGH],
        [100.0 + EFFICIENCY],
        "s",
        color=style.ORANGE,
        markerfacecolor="white",
        label="published: per joule",
        zorder=5,
    )
    axes.set_title("Relative to 128 devices")
    axes.set_ylabel("%")
    axes.set_ylim(0.0, 125.0)
    axes.legend(frameon=False, loc="lower left")


def main() -> None:
    """Evaluate all cases at once, compare, explain, draw."""
    args = shared.options(__doc__ or "")
    found = shared.answers(base() | ({} if args.quick else variants()))
    first, bare = found.pop("curve"), found.pop("nothing hidden")
    assumed = ASSUMPTIONS | {
        "network": shared.catalog_line(SYSTEM),
        "coefficients": shared.coefficients_line(CHIP),
    }
    binding = bound(bare)
    shared.deliver(
        "scaling_weak",
        assumed,
        findings(first, binding),
        table(first, binding),
        draw(first),
        args,
        why(first, found),
    )


if __name__ == "__main__":
    run_study(main)
