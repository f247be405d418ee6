"""How much slower kernels run beside one that holds processors and copies, as the channels of a
collective do."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from calibration.torch_step.work import Work, attention, product, warm_seconds

torch: Any = importlib.import_module("torch")

CHANNELS = (0, 4, 8, 16, 24, 32)
"""Processors that are held."""
THREADS, SHARED = 512, 100_000
"""Of a channel: threads, and shared memory [byte], which leaves no room for a tile of a product
beside it."""
WORK_S, LONGER, REST, TIMES = 10e-3, 1.5, 3.0, 5
"""Length of the work that is timed [s], of the channels over it, of the pause behind it, and how
often it is timed."""
SLOWER = 0.03
"""By how much longer work is taken to last for each channel, so that they outlast it: twice what
products were slowed."""

SOURCE = r"""
extern "C" __global__ void channel(
    const float4* from, float4* to, long long each, long long passes) {
  const long long begin = blockIdx.x * each;
  for (long long p = 0; p < passes; ++p)
    for (long long i = threadIdx.x; i < each; i += 4 * blockDim.x) {
      float4 held[4];
      #pragma unroll
      for (int u = 0; u < 4; ++u)
        if (i + u * blockDim.x < each) held[u] = from[begin + i + u * blockDim.x];
      #pragma unroll
      for (int u = 0; u < 4; ++u)
        if (i + u * blockDim.x < each) to[begin + i + u * blockDim.x] = held[u];
    }
}
"""
EACH = 2**20
"""Elements of 16 bytes that a channel copies in a pass."""


def measured() -> Iterator[dict[str, Any]]:
    """Each work beside each number of channels: its time [s], and what the channels copy meanwhile
    [byte/s]."""
    cupy: Any = importlib.import_module("cupy")
    kernel = cupy.RawKernel(SOURCE, "channel")
    kernel.max_dynamic_shared_size_bytes = SHARED
    source, target = (cupy.zeros(4 * EACH * max(CHANNELS), dtype=cupy.float32) for _ in range(2))
    side = torch.cuda.Stream()
    outer = cupy.cuda.ExternalStream(side.cuda_stream)

    def hold(channels: int, passes: int) -> None:
        with outer:
            kernel((channels,), (THREADS,), (source, target, EACH, passes), shared_mem=SHARED)

    for name, work in _works().items():
        alone = min(warm_seconds(work) for _ in range(4))
        count = max(round(WORK_S / alone), 1)
        for channels in CHANNELS:
            yield {"channels": channels, "work": name} | _beside(
                work, count, hold, channels, side, alone
            )


def _works() -> dict[str, Work]:
    """Products by precision, rows and width, the attention core, and a kernel that streams."""
    big = torch.randn(2**28, device="cuda", dtype=torch.bfloat16)
    made = {
        f"bf16-{rows}-{n}": product(rows, n)
        for rows, n in ((8192, 8192), (8192, 4096), (4096, 4096), (4096, 2048))
    }
    made |= {f"fp8-8192-{n}": product(8192, n, bits=8) for n in (8192, 4096)}
    return made | {"attention-128": attention(), "streaming": lambda: big.mul_(1.0)}


def _beside(
    work: Work, count: int, hold: Callable[[int, int], None], channels: int, side: Any, alone: float
) -> dict[str, Any]:
    """Middle time of one piece of work while channels are held."""
    passes = _passes(hold, channels, side, LONGER * count * alone) if channels else 1
    found, rates, lasted = [], [], []
    for _ in range(TIMES):
        held, free, begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(4))
        if channels:
            held.record(side)
            hold(channels, passes)
            free.record(side)
            time.sleep(1e-3)
        begin.record()
        for _ in range(count):
            work()
        end.record()
        torch.cuda.synchronize()
        found.append(1e-3 * begin.elapsed_time(end) / count)
        if channels:
            rates.append(2.0 * 16.0 * EACH * channels * passes / (1e-3 * held.elapsed_time(free)))
            # the part of the work that had channels beside it
            lasted.append(min(1.0, begin.elapsed_time(free) / begin.elapsed_time(end)))
        time.sleep(REST * count * found[-1])
    copied = {"copied_bytes_per_s": _middle(rates), "covered": _middle(lasted)} if channels else {}
    return {"work_s": _middle(found)} | copied


def _passes(hold: Callable[[int, int], None], channels: int, side: Any, seconds: float) -> int:
    """How often channels copy to be held for some time, by how much each slows the work down."""
    with torch.cuda.stream(side):
        one = warm_seconds(lambda: hold(channels, 8)) / 8
    return max(int(seconds * (1.0 + SLOWER * channels) / one), 1)


def _middle(values: list[float]) -> float:
    return sorted(values)[TIMES // 2]
