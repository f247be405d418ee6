"""How fast matrix products run when they have the device for a share of the time only: what power
leaves of the clock."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from calibration.collect.sensors import Sensors
from calibration.torch_step.work import Work, attention, product, warm_seconds

torch: Any = importlib.import_module("torch")

SHARES = (1.0, 0.85, 0.7, 0.55, 0.4, 0.25)
"""Of the time in which products run."""
BESIDE = ("copy", "wait")
"""What runs in the rest: copies in memory, or kernels that only wait."""


def measured(seconds: float) -> Iterator[dict[str, Any]]:
    """Each product at each share, beside each companion, one after the other: middle time of one
    product [s], power, readings.

    Args:
      seconds: of each.
    """
    for kind, work in _products().items():
        for beside in BESIDE:
            shares = SHARES if kind == "bf16-8192" else SHARES[::2]
            if beside != BESIDE[0]:
                shares = [share for share in shares if share < 1.0]
            for share in shares:
                about = {"duty": kind, "beside": beside, "share": share}
                yield about | _rate(work, beside, share, seconds)


def _products() -> dict[str, Work]:
    """Products by precision and width, and the attention core."""
    wide = {
        "bf16-8192": product(8192, 8192),
        "bf16-4096": product(8192, 4096),
        "fp8-8192": product(8192, 8192, bits=8),
    }
    return wide | {"attention-128": attention()}


def _rate(work: Work, beside: str, share: float, seconds: float) -> dict[str, Any]:
    """Blocks of products and companions in turn, each block 4 products long."""
    fill, unit = _companion(beside)
    block = warm_seconds(lambda: [work() for _ in range(4)])
    rest = block * (1.0 - share) / share
    count = round(rest / warm_seconds(lambda: fill(unit))) * unit
    blocks = max(int(0.02 / (block + rest)), 1)
    sensors, pairs = Sensors(0), []
    start, before = time.perf_counter(), sensors.joules()
    half = None
    while time.perf_counter() - start < seconds:
        pairs += [_block(work, fill, count) for _ in range(blocks)]
        torch.cuda.synchronize()
        sensors.read()
        if half is None and time.perf_counter() - start > 0.4 * seconds:
            half = len(pairs)
    after, took = sensors.joules(), time.perf_counter() - start
    watts = None if before is None or after is None else (after - before) / took
    times = sorted(a.elapsed_time(b) / 4e3 for a, b in pairs[half:])
    return {"product_s": times[len(times) // 2], "watts": watts, "readings": sensors.readings}


def _companion(beside: str) -> tuple[Callable[[int], Any], int]:
    """What runs beside products, some number of times, and the least number of it."""
    if beside == "wait":
        return torch.cuda._sleep, 1_000_000
    source = torch.empty(2**27, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    return (lambda n: [target.copy_(source) for _ in range(n)]), 1


def _block(work: Work, fill: Callable[[int], Any], count: int) -> list[Any]:
    """Start 4 products and what runs beside them; the events around the products."""
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    ends[0].record()
    for _ in range(4):
        work()
    ends[1].record()
    if count:
        fill(count)
    return ends
