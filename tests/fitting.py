"""Synthetic measurements: configurations whose times the model itself makes, under coefficients
that the fit is not told."""

from __future__ import annotations

import numpy as np

from calibration.traces import Cases, Labels
from dmodel import catalog
from dmodel.coefficients import Coefficients
from dmodel.records import Plan
from dmodel.step import step_time
from tests.points import COEFFICIENTS, batch, quick

TRUTH = {
    "megatron-test": COEFFICIENTS.replace(
        matmul_efficiency=0.62, elementwise_traffic=1.9, net_efficiency_outer=0.6, overlap_dp=0.2
    ),
    "fsdp-test": COEFFICIENTS.replace(
        matmul_efficiency=0.70, elementwise_traffic=1.0, net_efficiency_outer=0.45, overlap_fsdp=0.6
    ),
}
CHIPS = ("A100-80GB", "H100-80GB")
NOISE = 0.01


def plans(stack: str) -> list[tuple[str, Plan]]:
    """(model, plan) of one stack: compute-bound, memory-bound and network-bound ones."""
    if stack.startswith("fsdp"):
        return [
            (
                model,
                Plan.of(
                    dp=dp,
                    shard=dp,
                    zero=3.0,
                    micro_batch=b,
                    global_batch=dp * b,
                    recompute_layers=full,
                ),
            )
            for model, b, full in (
                ("gpt-3-1.3b", 4.0, 0.0),
                ("llama-2-7b", 2.0, 1.0),
                ("llama-2-13b", 1.0, 0.0),
            )
            for dp in (8.0, 32.0, 128.0)
        ]
    return [
        (
            model,
            Plan.of(
                dp=dp,
                tp=tp,
                sp=1.0,
                pp=pp,
                zero=1.0,
                shard=dp,
                micro_batch=b,
                global_batch=dp * b * 8.0,
            ),
        )
        for model, tp, pp, b in (
            ("gpt-3-1.3b", 1.0, 1.0, 8.0),
            ("llama-2-13b", 2.0, 4.0, 2.0),
            ("gpt-3-175b", 8.0, 8.0, 1.0),
        )
        for dp in (1.0, 4.0, 16.0)
    ]


def labels(found: list[tuple[str, str, str, Plan]], seconds: np.ndarray) -> Labels:
    """Labels of rows (chip, stack, model, plan)."""
    n = len(found)
    texts = {
        "accelerator": [r[0] for r in found],
        "stack": [r[1] for r in found],
        "model": [r[2] for r in found],
    }
    names = np.array([f"{chip}|{stack}|{i}" for i, (chip, stack, _, _) in enumerate(found)])
    return Labels(
        step_time_s=seconds,
        peak_memory_bytes=np.full(n, np.nan),
        source=np.array(texts["stack"]),
        flag=np.full(n, "", dtype="U16"),
        precision=np.full(n, "bf16"),
        peak_kind=np.full(n, "", dtype="U16"),
        n_accel=np.array([float(r[3].devices) for r in found]),
        file=np.full(n, "synthetic"),
        line=np.arange(n),
        fingerprint=names,
        group=names,
        repeats=np.ones(n, int),
        variance=np.zeros(n),
        assumptions=np.empty(n, dtype=object),
        **{name: np.array(value) for name, value in texts.items()},
    )


def synthetic(
    seed: int = 0,
    truth: dict[str, Coefficients] = TRUTH,
    noise: float = NOISE,
    chips: tuple[str, ...] = CHIPS,
) -> Cases:
    """All configurations on both chips, 36 rows: times of the model under the truth, with
    log-normal noise."""
    found = [
        (chip, stack, model, plan)
        for stack in truth
        for chip in chips
        for model, plan in plans(stack)
    ]
    system = batch([catalog.system_for(chip) for chip, *_ in found])
    model = batch([catalog.transformer(name, 2048.0) for _, _, name, _ in found])
    plan = batch([plan for *_, plan in found])
    coefficients = batch([truth[stack] for _, stack, _, _ in found])
    exact = np.asarray(quick(step_time)(system, model, plan, coefficients).total)
    seconds = exact * np.exp(noise * np.random.default_rng(seed).standard_normal(len(found)))
    return Cases(system=system, model=model, plan=plan, labels=labels(found, seconds))


def retimed(cases: Cases, seconds: np.ndarray) -> Cases:
    """The same rows with other times."""
    return cases.replace(labels=cases.labels._replace(step_time_s=seconds))


def held_out(cases: Cases) -> np.ndarray:
    """Every sixth row, 6 of 36."""
    return np.arange(len(cases)) % 6 == 4
