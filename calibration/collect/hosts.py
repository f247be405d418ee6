"""Several hosts: find out how a job was launched, join its processes, and let process 0 decide for
all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from calibration.collect.runner import Job
from dmodel.errors import InputError

LAUNCHERS = ("auto", "none", "slurm", "tpu", "env", "torchrun")

PORT_SHIFT = 1
"""torchrun's own store listens on MASTER_PORT; jax takes the next one."""


class Launch(NamedTuple):
    """How to join the job. by: "slurm", "tpu" (jax asks the scheduler or the pod), "env" or
    "torchrun"; the rest where it is known."""

    by: str
    coordinator: str | None = None
    processes: int | None = None
    process: int | None = None
    local_devices: list[int] | None = None


def detect(environ: Mapping[str, str], launcher: str = "auto") -> Launch | None:
    """What the environment says of a job of several processes; None for one alone.

    Looked for in this order: JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID (set by
    hand or by a script); MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK (torchrun and its like); SLURM;
    a TPU pod (TPU_WORKER_HOSTNAMES, also on GKE).

    Raises:
      InputError: unknown launcher, or the one asked for has left no trace in the environment.

    >>> detect({"MASTER_ADDR": "n1", "MASTER_PORT": "29500", "WORLD_SIZE": "2", "RANK": "1"})
    Launch(by='torchrun', coordinator='n1:29501', processes=2, process=1, local_devices=None)
    """
    check(launcher)
    if launcher == "none":
        return None
    if launcher == "auto":
        return next(filter(None, (find(environ) for find in FINDERS.values())), None)
    found = FINDERS[launcher](environ)
    if launcher == "tpu":
        return found or Launch("tpu")
    if found is None:
        raise InputError(
            f"--launcher {launcher}: its variables are not set in this process; was it started by "
            f"{launcher}?"
        )
    return found


def check(launcher: str) -> None:
    """Refuse a launcher that there is not.

    Raises:
      InputError: unknown launcher; the message names those that exist.
    """
    if launcher not in LAUNCHERS:
        raise InputError(f"--launcher: expected one of {', '.join(LAUNCHERS)}, got {launcher!r}")


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except (KeyError, ValueError):
        got = environ.get(name)
        raise InputError(
            f"{name}: expected a whole number, got {got!r}; without it the processes cannot "
            "find "
            "each other"
        ) from None


def _by_hand(environ: Mapping[str, str]) -> Launch | None:
    if not environ.get("JAX_COORDINATOR_ADDRESS"):
        return None
    return Launch(
        "env",
        environ["JAX_COORDINATOR_ADDRESS"],
        _number(environ, "JAX_NUM_PROCESSES"),
        _number(environ, "JAX_PROCESS_ID"),
    )


def _torchrun(environ: Mapping[str, str]) -> Launch | None:
    if (
        not (environ.get("MASTER_ADDR") and environ.get("WORLD_SIZE"))
        or environ["WORLD_SIZE"] == "1"
    ):
        return None
    coordinator = f"{environ['MASTER_ADDR']}:{_number(environ, 'MASTER_PORT') + PORT_SHIFT}"
    local = (
        [_number(environ, "LOCAL_RANK")] if environ.get("LOCAL_WORLD_SIZE", "1") != "1" else None
    )
    return Launch(
        "torchrun", coordinator, _number(environ, "WORLD_SIZE"), _number(environ, "RANK"), local
    )


def _slurm(environ: Mapping[str, str]) -> Launch | None:
    tasks = environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS") or "1"
    return Launch("slurm") if "SLURM_PROCID" in environ and tasks != "1" else None


def _tpu(environ: Mapping[str, str]) -> Launch | None:
    several = (
        "," in environ.get("TPU_WORKER_HOSTNAMES", "") or "MEGASCALE_COORDINATOR_ADDRESS" in environ
    )
    return Launch("tpu") if several else None


FINDERS = {"env": _by_hand, "torchrun": _torchrun, "slurm": _slurm, "tpu": _tpu}
"""Launchers, in the order in which they are looked for."""


def join(launcher: str = "auto", environ: Mapping[str, str] | None = None) -> Job:
    """Join the job that this process belongs to; must come before any other use of jax's devices.

    Raises:
      InputError: the others cannot be reached, or the environment contradicts itself.
    """
    import jax

    launch = detect(os.environ if environ is None else environ, launcher)
    if launch is None:
        return Job()
    try:
        jax.distributed.initialize(**_arguments(launch))
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"the processes of the job ({launch.by}) cannot find each other: {error}"
        ) from None
    index, processes = jax.process_index(), jax.process_count()
    return Job(index, processes, agree) if processes > 1 else Job(index, processes)


def _arguments(launch: Launch) -> dict[str, Any]:
    """What jax is told; the rest it finds out."""
    known: dict[str, Any] = {
        "coordinator_address": launch.coordinator,
        "num_processes": launch.processes,
        "process_id": launch.process,
        "local_device_ids": launch.local_devices,
    }
    return {name: value for name, value in known.items() if value is not None}


def agree(value: int) -> int:
    """Process 0's value, on all processes; every process must ask at the same point."""
    import numpy as np
    from jax.experimental import multihost_utils

    return int(multihost_utils.broadcast_one_to_all(np.int32(value)))
