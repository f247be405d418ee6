"""How fast matrix products run when they have the device for a share of the time only: what power leaves of the clock."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from calibration.collect.sensors import Sensors

torch: Any = importlib.import_module("torch")

SHARES = (1.0, 0.85, 0.7, 0.55, 0.4, 0.25)
"""Of the time in which products run."""
BESIDE = ("copy", "wait")
"""What runs in the rest: copies in memory, or kernels that only wait."""


def measured(seconds: float) -> Iterator[dict[str, Any]]:
    """Each product at each share, beside each companion, one after the other: middle time of one product [s], power, readings.

    Args:
      seconds: of each.
    """
    for kind, product in _products().items():
        for beside in BESIDE:
            for share in SHARES if kind == "bf16-8192" else SHARES[::2]:
                if share == 1.0 and beside != BESIDE[0]:
                    continue
                yield {"duty": kind, "beside": beside, "share": share} | _rate(product, beside, share, seconds)


def _products() -> dict[str, Callable[[], Any]]:
    """Products of random matrices, by precision and width."""
    made: dict[str, Callable[[], Any]] = {}
    for n in (8192, 4096):
        a, w = (torch.randn(rows, n, device="cuda", dtype=torch.bfloat16) for rows in (8192, n))
        made[f"bf16-{n}"] = lambda a=a, w=w: a @ w
    x, y = (torch.randn(8192, 8192, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device="cuda")
    made["fp8-8192"] = lambda: torch._scaled_mm(x, y.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    q, k = (torch.randn(1, 32, 8192, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def attention() -> Any:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, q, is_causal=True)

    made["attention-128"] = attention
    return made


def _rate(product: Callable[[], Any], beside: str, share: float, seconds: float) -> dict[str, Any]:
    """Blocks of products and companions in turn, each block 4 products long."""
    event, source = torch.cuda.Event, torch.empty(2**27, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    fill = (lambda n: torch.cuda._sleep(n)) if beside == "wait" else (lambda n: [target.copy_(source) for _ in range(n)])
    unit = 1_000_000 if beside == "wait" else 1
    block = _once(lambda: [product() for _ in range(4)])
    rest = block * (1.0 - share) / share
    count = round(rest / _once(lambda: fill(unit))) * unit
    sensors, pairs = Sensors(0), []
    start, before = time.perf_counter(), sensors.joules()
    half = None
    while time.perf_counter() - start < seconds:
        for _ in range(max(int(0.02 / (block + rest)), 1)):
            ends = [event(enable_timing=True) for _ in range(2)]
            ends[0].record()
            for _ in range(4):
                product()
            ends[1].record()
            if count:
                fill(count)
            pairs.append(ends)
        torch.cuda.synchronize()
        sensors.read()
        if half is None and time.perf_counter() - start > 0.4 * seconds:
            half = len(pairs)
    after = sensors.joules()
    watts = None if before is None or after is None else (after - before) / (time.perf_counter() - start)
    times = sorted(a.elapsed_time(b) / 4e3 for a, b in pairs[half:])
    return {"product_s": times[len(times) // 2], "watts": watts, "readings": sensors.readings}


def _once(work: Callable[[], Any]) -> float:
    """Time of one call after a first one [s]."""
    work()
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began
