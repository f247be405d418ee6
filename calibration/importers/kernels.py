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

    >>> group("ncclDevKernel_AllReduce_Sum_bf16_RING_LL"), group("sm90_xmma_gemm_bf16"), group("flash_fwd_kernel"), group("k_17")
    ('communication', 'matmul', 'attention', 'other')
    """
    return next((kind for kind, pattern in GROUPS if pattern.search(name)), "other")


def split(found: Sequence[Event], begin: float, end: float, steps: int) -> Split | None:
    """Split the window of some whole steps [ns] into what devices did; None when they did nothing
    in it."""
    inside = [
        e._replace(start=max(e.start, begin), end=min(e.end, end))
        for e in found
        if e.end > begin and e.start < end
    ]
    if not inside or end <= begin or steps < 1:
        return None
    kinds = {name: group(name) for name in {e.name for e in inside}}
    devices: dict[str, tuple[list[tuple[float, float]], list[tuple[float, float]]]] = defaultdict(
        lambda: ([], [])
    )
    groups: dict[str, float] = defaultdict(float)
    kernels: dict[str, float] = defaultdict(float)
    for e in inside:
        devices[e.device][kinds[e.name] == "communication"].append((e.start, e.end))
        groups[kinds[e.name]] += e.end - e.start
        kernels[re.sub(r"\.\d+$", "", e.name[:120])] += e.end - e.start
    scale = 1e-9 / (steps * len(devices))
    computing = sum(length(compute) for compute, _ in devices.values())
    talking = sum(length(talk) for _, talk in devices.values())
    busy = sum(length(compute + talk) for compute, talk in devices.values())
    largest = sorted(kernels.items(), key=lambda item: -item[1])[:LARGEST]
    return Split(
        compute_s=computing * scale,
        communication_s=talking * scale,
        exposed_communication_s=max(busy - computing, 0.0) * scale,
        idle_s=max((end - begin) * len(devices) - busy, 0.0) * scale,
        devices=len(devices),
        groups={
            name: seconds * scale
            for name, seconds in sorted(groups.items(), key=lambda item: -item[1])
        },
        kernels={name: seconds * scale for name, seconds in largest},
    )


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
