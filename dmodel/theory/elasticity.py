"""Elasticities of the frontier by name: by how many percent the largest run grows for one percent
more of an input."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from dmodel.theory.frontier import Frontier, largest_run, slopes
from dmodel.theory.gpus import Gpu
from dmodel.theory.program import Case
from dmodel.types import Array

EXPONENTS = ("batch exponent", "batch exponent of sparsity", "depth exponent")
"""Inputs whose figure is ∂ ln C / ∂ exponent: per unit of the exponent, not per cent of it."""


def inputs(case: Case) -> dict[str, Array]:
    """Inputs of a case by name; those of the network also for all levels together."""
    chip: Gpu = case.system.chip  # type: ignore[assignment]
    network, laws = case.system.network, case.laws
    levels = range(len(np.asarray(network.size)))
    by_level = {(f"bandwidth of level {i}"): network.bytes_per_s[i] for i in levels}  # type: ignore
    latency = network.latency_s
    by_level |= {f"network latency of level {i}": latency[i] for i in levels}  # type: ignore
    return by_level | {
        "matmul latency": chip.kernel_latency_s,
        "HBM bandwidth": chip.hbm_bytes_per_s,
        "HBM capacity": chip.hbm_bytes,
        "L2 bandwidth": chip.l2_bytes_per_s,
        "L2 capacity": chip.l2_bytes,
        "shared memory bandwidth": chip.shared_bytes_per_s,
        "register capacity": chip.register_bytes,
        "FLOP/s": chip.flops_per_s,
        "training time": case.deadline_s,
        "utilization threshold": case.threshold,
        "batch constant": laws.batch.tokens,
        "batch exponent": laws.batch.by_flop,
        "batch exponent of sparsity": laws.batch.by_sparsity,
        "depth constant": laws.depth,
        "depth exponent": laws.depth_exponent,
        "experts": laws.experts,
        "tokens per parameter": laws.tokens_per_parameter,
    }


def elasticities(case: Case, found: Frontier | None = None) -> dict[str, float]:
    """∂ ln C_max / ∂ ln input at the re-optimized layout, by implicit differentiation; exponents as
    `EXPONENTS` says.

    "network bandwidth" and "network latency" are the sums over levels.

    Args:
      case: of `frontier.case`. found: its frontier where it is known; None searches for it. Where
        it is not `smooth`, figures are those of one side.
    """
    found = largest_run(case) if found is None else found
    at, slope = inputs(jax.tree.map(jnp.asarray, case)), inputs(slopes(case, found))
    known = {
        name: float(slope[name] * (1.0 if name in EXPONENTS or not np.isfinite(x) else x))
        for name, x in at.items()
    }
    for kind in ("bandwidth", "network latency"):
        total = sum(value for name, value in known.items() if name.startswith(f"{kind} of level"))
        known["network bandwidth" if kind == "bandwidth" else kind] = total
    return known
