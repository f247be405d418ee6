"""The machine that is measured: its devices as jax shows them, their name in the catalog, and the
environment of every record."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import socket
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax

from calibration.collect.tasks import digest
from dmodel.catalog.chips import of_device, trait

MIB = 2**20

LARGEST_CACHE = 256 * MIB
"""What is assumed of an unknown accelerator: larger than any."""

FLAGS = re.compile(
    r"XLA_FLAGS|LIBTPU_INIT_ARGS|(NCCL|RCCL|TPU|MEGASCALE|OMP)_\w+|CUDA_(VISIBLE_DEVICES|"
    r"DEVICE_MAX_CONNECTIONS)|JAX_(ENABLE|DEFAULT)_\w+"
)
"""Environment variables that change what is measured; no others are stored, because they may hold
secrets."""

PATHS = re.compile(r"/[\w.\-]+(?:/[\w.\-]+)+")


class Machine(NamedTuple):
    """What benchmarks need to know of the machine.

    Attributes:
      platform: cpu, gpu or tpu. kind: of its devices, as jax calls them. accelerator: in traces:
      the catalog's name, else made of the kind. known: the catalog has it. n_devices, n_local: of
      the job and of this process. hosts: processes of the job.
      cache_bytes: last-level cache, which rotating inputs must exceed. memory_bytes: of one device.
      precisions: of matmuls that are worth measuring here.
    """

    platform: str
    kind: str
    accelerator: str
    known: bool
    n_devices: int
    n_local: int
    hosts: int
    cache_bytes: int
    memory_bytes: int
    precisions: tuple[str, ...]

    @property
    def is_cpu(self) -> bool:
        """Whether its devices are the host's own processor."""
        return self.platform == "cpu"


def machine() -> Machine:
    """The machine that this process runs on."""
    device = jax.local_devices()[0]
    kind = processor() if device.platform == "cpu" else device.device_kind
    name, known = accelerator_name(kind, device.platform)
    return Machine(
        platform=device.platform,
        kind=kind,
        accelerator=name,
        known=known,
        n_devices=jax.device_count(),
        n_local=jax.local_device_count(),
        hosts=jax.process_count(),
        cache_bytes=_cache(name, device.platform),
        memory_bytes=_memory(device),
        precisions=_precisions(device),
    )


def accelerator_name(kind: str, platform_name: str) -> tuple[str, bool]:
    """Name of a kind of device in traces, and whether the catalog has it.

    >>> accelerator_name("NVIDIA H100 80GB HBM3", "gpu"), accelerator_name("TPU v5 lite", "tpu")
    (('H100-80GB', True), ('TPU-v5e', True))
    >>> accelerator_name("AMD EPYC", "cpu")
    ('cpu-amd-epyc', False)
    """
    name = of_device(kind) if platform_name != "cpu" else None
    if name is not None:
        return name, True
    words = re.sub(r"[^a-z0-9]+", "-", kind.lower()).strip("-")
    return (f"cpu-{words}" if platform_name == "cpu" else words or "unknown"), False


@lru_cache(maxsize=1)
def processor() -> str:
    """Model and cores of the host's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [
        line.partition(":")[2].strip()
        for line in lines
        if line.startswith(("model name", "Model", "CPU part"))
    ]
    return f"{names[0] if names else platform.machine()} {cores()} cores"


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _cache(name: str, platform_name: str) -> int:
    """Last-level cache [byte]."""
    if platform_name != "cpu":
        known = trait(name, "last_level_cache")
        return LARGEST_CACHE if known is None else int(known)
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        found = re.fullmatch(r"(\d+)([KMG])", path.read_text().strip())
        sizes += [int(found[1]) * 1024 ** ("KMG".index(found[2]) + 1)] if found else []
    return max(sizes, default=32 * MIB)


def _memory(device: Any) -> int:
    """Memory of one device [byte]; of a CPU its share of the host's."""
    stats = device.memory_stats() if device.platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    return (
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // max(jax.local_device_count(), 1)
    )


def _precisions(device: Any) -> tuple[str, ...]:
    """Precisions of matmuls that devices of this kind have units for."""
    if device.platform == "cpu":
        return ("fp32", "bf16")
    if device.platform == "tpu":
        return ("bf16", "int8", "fp32")
    capability = float(
        re.sub(r"[^\d.]", "", str(getattr(device, "compute_capability", "8.0"))) or 8.0
    )
    return ("bf16", "fp16", "tf32", "fp32", "int8", *(("fp8",) if capability >= 8.9 else ()))


def environment(m: Machine) -> dict[str, Any]:
    """What every record of this process refers to: devices, topology, versions, flags.

    `identity` holds what makes a measurement another one (machine and software), so that the same
    host with a newer jax measures anew and one that crashed does not; `id` holds the host as well.
    """
    versions = {
        name: _version(name) for name in ("jax", "jaxlib", "flax", "optax", "numpy", "dmodel")
    }
    flags = _flags()
    same = {
        "platform": m.platform,
        "device_kind": m.kind,
        "n_devices": m.n_devices,
        "n_local": m.n_local,
        "hosts": m.hosts,
        "versions": {name: versions[name] for name in ("jax", "jaxlib")},
        "flags": {name: flags[name] for name in flags if name in OF_COMPILER},
    }
    whole = same | {
        "accelerator": m.accelerator,
        "in_catalog": m.known,
        "host": socket.gethostname(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": processor(),
        "python": platform.python_version(),
        "platform_version": PATHS.sub(
            "<path>", str(jax.local_devices()[0].client.platform_version)
        )[:500],
        "versions": versions,
        "flags": flags,
        "memory_bytes": m.memory_bytes,
        "cache_bytes": m.cache_bytes,
        "topology": {"devices_per_process": m.n_local, **_topology(jax.devices())},
    }
    return {"id": digest(whole), "identity": digest(same), **whole}


OF_COMPILER = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


def _flags() -> dict[str, str]:
    """Variables of the environment that change what is measured, by name."""
    named = {name: value for name, value in os.environ.items() if FLAGS.fullmatch(name)}
    return {name: PATHS.sub("<path>", named[name]) for name in sorted(named)}


def _topology(devices: Sequence[Any]) -> dict[str, Any]:
    """Where the devices stand, as far as they know: coordinates and slices of a TPU."""
    found: dict[str, Any] = {}
    if hasattr(devices[0], "coords"):
        found["coordinates"] = [list(d.coords) for d in devices[:4096]]
    if getattr(devices[0], "slice_index", None) is not None:
        found["slices"] = len({d.slice_index for d in devices})
    return found


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "source"
