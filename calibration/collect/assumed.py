"""A machine that the catalog does not have: what is assumed of it before any measurement, to plan
them with."""

from __future__ import annotations

import numpy as np

from calibration.collect.machine import Machine, cores
from dmodel import catalog
from dmodel.errors import InputError
from dmodel.records import Chip, Cluster, Network

CORE_FLOPS_PER_S = 5e10
"""Of one core in fp32: 16 multiply-adds at 1.6 GHz; a server's core does between half and twice of
that."""

CORE_BYTES_PER_S = 8e9
"""Memory bandwidth of one core of a loaded server."""

ACCELERATOR = "A100-80GB"
"""What stands for an accelerator that the catalog does not know."""


def system_at(machine: Machine, precision: str) -> Cluster:
    """The machine at a precision: the catalog's, or a guess within a factor of a few."""
    if machine.is_cpu:
        return _host(machine, 2.0 if precision in ("fp32", "tf32") else 1.0)
    name = machine.accelerator if machine.known else ACCELERATOR
    wide = {"fp32": 0.1, "tf32": 0.5}.get(precision, 1.0)
    try:
        found = catalog.system_for(name, "", None, precision)
    except InputError:  # the catalog has no rate at this precision
        found = catalog.system_for(name)
        found = found.replace(chip=found.chip.replace(flops_per_s=found.chip.flops_per_s * wide))
    return found


def _host(machine: Machine, share: float) -> Cluster:
    """A processor as a chip; its devices share its cores, and its memory is the network between
    them."""
    devices = max(machine.n_local, 1)
    rate, memory = (
        0.5 * share * CORE_FLOPS_PER_S * cores() / devices,
        CORE_BYTES_PER_S * cores() / devices,
    )
    chip = Chip(
        flops_per_s=np.float64(rate),
        attention_flops_per_s=np.float64(rate),
        # a vector library's polynomial takes two dozen operations for each
        exponentials_per_s=np.float64(rate / 24.0),
        hbm_bytes=np.float64(machine.memory_bytes),
        hbm_bytes_per_s=np.float64(memory),
        kernel_latency_s=np.float64(5e-6),
        idle_watts=np.float64(0.0),
        peak_watts=np.float64(0.0),
        price_per_s=np.float64(0.0),
    )
    network = Network(
        size=np.array([float(devices), np.inf]),
        bytes_per_s=np.array([0.5 * memory, 1e9]),
        latency_s=np.array([2e-5, 1e-4]),
        torus_axes=np.ones(2),
        in_network_reduction=np.zeros(2),
    )
    return Cluster(chip=chip, network=network)
