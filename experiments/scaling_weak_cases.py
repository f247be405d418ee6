"""Cases of weak scaling: the curve, and the two scales of the findings under other assumptions."""

from __future__ import annotations

from typing import Any

import numpy as np

from dmodel import catalog
from experiments import scaling as shared
from experiments.scaling import Answers, Cases, coefficients, fsdp

SYSTEM, CHIP, MODEL = "H100-DGX", "H100-80GB", "llama-2-7b"
LOW, HIGH = 128.0, 2048.0
"""Devices between which the findings compare."""

THROUGHPUT, POWER, EFFICIENCY, BOUND = -37.22, -5.87, -33.0, 128.0
"""Published: throughput per device, power per device, tokens per joule [%], and the scale at which
communication binds [count]."""


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
