"""How fast matrix products run when they have the device for a share of the time only: what power
leaves of the clock."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
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
            for share in SHARES if kind == "bf16-8192" else SHARES[::2]:
                if share == 1.0 and beside != BESIDE[0]:
                    continue
                yield {"duty": kind, "beside": beside, "share": share} | _rate(
                    work, beside, share, seconds
                )


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
    event, source = torch.cuda.Event, torch.empty(2**27, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    fill = (
        (lambda n: torch.cuda._sleep(n))
        if beside == "wait"
        else (lambda n: [target.copy_(source) for _ in range(n)])
    )
    unit = 1_000_000 if beside == "wait" else 1
    block = warm_seconds(lambda: [work() for _ in range(4)])
    rest = block * (1.0 - share) / share
    count = round(rest / warm_seconds(lambda: fill(unit))) * unit
    sensors, pairs = Sensors(0), []
    start, before = time.perf_counter(), sensors.joules()
    half = None
    while time.perf_counter() - start < seconds:
        for _ in range(max(int(0.02 / (block + rest)), 1)):
            ends = [event(enable_timing=True) for _ in range(2)]
            ends[0].record()
            for _ in range(4):
                work()
            ends[1].record()
            if count:
                fill(count)
            pairs.append(ends)
        torch.cuda.synchronize()
        sensors.read()
        if half is None and time.perf_counter() - start > 0.4 * seconds:
            half = len(pairs)
    after = sensors.joules()
    watts = (
        None
        if before is None or after is None
        else (after - before) / (time.perf_counter() - start)
    )
    times = sorted(a.elapsed_time(b) / 4e3 for a, b in pairs[half:])
    return {"product_s": times[len(times) // 2], "watts": watts, "readings": sensors.readings}
