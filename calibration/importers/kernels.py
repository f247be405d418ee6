"""Operations of a device in a profile: what kind of work each is, and how a step's time splits into
them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from calibration.collect.profiler import COMMUNICATION, Event, length

GROUPS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("communication", COMMUNICATION.pattern + r"|c10d|deep_?ep|nvshmem|all2all"),
        ("loss", r"log_?softmax|nll_?loss|cross_?entropy"),
        ("attention", r"flash|fmha|attention|attn|softmax|sdpa|\bfa[23]\b|cudnn::fusion"),
        (
            "matmul",
            (
                r"gemm|matmul|cublas|cutlass|nvjet|wgmma|\bdot(?![a-z])|convolution|Cijk_|"
                r"sm\d+_xmma|"
                r"splitk|bmm"
            ),
        ),
        ("optimizer", r"adam|multi_tensor|optimizer|foreach"),
        ("normalization", r"norm|rms"),
        ("copy", r"memcpy|memset|\bcopy|transpose|CatArray|gather|scatter|slice"),
        (
            "elementwise",
            (
                r"elementwise|vectorized|triton|fusion|silu|gelu|swiglu|rope|rotary|add|mul|cast|"
                r"convert|reduce|index|embedding"
            ),
        ),
    )
)
"""Groups of kernels in the order in which a name is tried; what fits none is `other`."""

LARGEST = 12
"""Kernels that are named in the details."""


class Split(NamedTuple):
    """Seconds of one step and the mean device. exposed: communication while nothing computes; idle:
    neither of both."""

    compute_s: float
    communication_s: float
    exposed_communication_s: float
    idle_s: float
    devices: int
    groups: dict[str, float]
    kernels: dict[str, float]

    def document(self) -> dict[str, Any]:
        """As plain data."""
        return self._asdict()


def group(name: str) -> str:
    """What kind of work a kernel does, by its name.

    >>> group("ncclDevKernel_AllReduce_Sum_bf16_RING_LL"), group("sm90_xmma_gemm_bf16")
    ('communication', 'matmul')
    >>> group("flash_fwd_kernel"), group("k_17")
    ('attention', 'other')
    """
    return next((kind for kind, pattern in GROUPS if pattern.search(name)), "other")


def split(found: Sequence[Event], begin: float, end: float, steps: int) -> Split | None:
    """Split the window of some whole steps [ns] into what devices did; None when they did nothing
    in it."""
    inside = _inside(found, begin, end)
    if not inside or end <= begin or steps < 1:
        return None
    devices, groups, kernels = _tallied(inside)
    scale = 1e-9 / (steps * len(devices))
    computing = sum(length(device.compute) for device in devices)
    talking = sum(length(device.talk) for device in devices)
    busy = sum(length(device.compute + device.talk) for device in devices)
    return Split(
        compute_s=computing * scale,
        communication_s=talking * scale,
        exposed_communication_s=max(busy - computing, 0.0) * scale,
        idle_s=max((end - begin) * len(devices) - busy, 0.0) * scale,
        devices=len(devices),
        groups=_largest(groups, len(groups), scale),
        kernels=_largest(kernels, LARGEST, scale),
    )


class _Device(NamedTuple):
    """When a device computed, and when it communicated: (start, end) [ns]."""

    compute: list[tuple[float, float]]
    talk: list[tuple[float, float]]


def _inside(found: Sequence[Event], begin: float, end: float) -> list[Event]:
    """Events of a window, cut off at its ends."""
    return [
        e._replace(start=max(e.start, begin), end=min(e.end, end))
        for e in found
        if e.end > begin and e.start < end
    ]


def _tallied(events: list[Event]) -> tuple[list[_Device], dict[str, float], dict[str, float]]:
    """Devices, and time [ns] by group of kernels and by kernel."""
    kinds = {name: group(name) for name in {e.name for e in events}}
    devices: dict[str, _Device] = defaultdict(lambda: _Device([], []))
    groups: dict[str, float] = defaultdict(float)
    kernels: dict[str, float] = defaultdict(float)
    for e in events:
        kind = kinds[e.name]
        device = devices[e.device]
        (device.talk if kind == "communication" else device.compute).append((e.start, e.end))
        groups[kind] += e.end - e.start
        kernels[re.sub(r"\.\d+$", "", e.name[:120])] += e.end - e.start
    return list(devices.values()), groups, kernels


def _largest(times: dict[str, float], n: int, scale: float) -> dict[str, float]:
    """The largest of some times, the largest first, scaled."""
    ordered = sorted(times.items(), key=lambda item: -item[1])
    return {name: time * scale for name, time in ordered[:n]}


def cells(found: Split | None) -> dict[str, float]:
    """The split as cells of a row of traces."""
    if found is None:
        return {}
    return {
        name: getattr(found, name)
        for name in ("compute_s", "communication_s", "exposed_communication_s", "idle_s")
    }


def words(found: Split | None) -> str:
    """The groups for the note: milliseconds of device time in a step."""
    if found is None:
        return "no work of a device in the steps"
    return "device ms per step: " + ", ".join(
        f"{name} {1e3 * seconds:.3g}" for name, seconds in found.groups.items()
    )
