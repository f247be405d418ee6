"""How much slower kernels run beside one that holds processors and copies, as the channels of a collective do."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any

torch: Any = importlib.import_module("torch")

CHANNELS = (0, 4, 8, 16, 24, 32)
"""Processors that are held."""
THREADS, SHARED = 512, 100_000
"""Of a channel: threads, and shared memory [byte], which leaves no room for a tile of a product beside it."""
WORK_S, LONGER, REST, TIMES = 10e-3, 1.5, 3.0, 5
"""Length of the work that is timed [s], of the channels over it, of the pause behind it, and how often it is timed."""

SOURCE = r"""
extern "C" __global__ void channel(const float4* from, float4* to, long long each, long long passes) {
  const long long begin = blockIdx.x * each;
  for (long long p = 0; p < passes; ++p)
    for (long long i = threadIdx.x; i < each; i += 4 * blockDim.x) {
      float4 held[4];
      #pragma unroll
      for (int u = 0; u < 4; ++u) if (i + u * blockDim.x < each) held[u] = from[begin + i + u * blockDim.x];
      #pragma unroll
      for (int u = 0; u < 4; ++u) if (i + u * blockDim.x < each) to[begin + i + u * blockDim.x] = held[u];
    }
}
"""
EACH = 2**20
"""Elements of 16 bytes that a channel copies in a pass."""


def measured() -> Iterator[dict[str, Any]]:
    """Each work beside each number of channels: its time [s], and what the channels copy meanwhile [byte/s]."""
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
        alone = _once(work)
        count = max(round(WORK_S / alone), 1)
        for channels in CHANNELS:
            yield {"channels": channels, "work": name} | _beside(work, count, hold, channels, side, alone)


def _works() -> dict[str, Callable[[], Any]]:
    """Products of random matrices by precision and width, the attention core, and a kernel that streams."""
    made: dict[str, Callable[[], Any]] = {}
    for rows, n in ((8192, 8192), (8192, 4096), (4096, 4096), (4096, 2048)):
        a, w = (torch.randn(m, n, device="cuda", dtype=torch.bfloat16) for m in (rows, n))
        made[f"bf16-{rows}-{n}"] = lambda a=a, w=w: a @ w
    one = torch.ones((), device="cuda")
    for n in (8192, 4096):
        x, y = (torch.randn(8192, n, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
        y = y[:n]
        made[f"fp8-8192-{n}"] = lambda x=x, y=y: torch._scaled_mm(x, y.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    q, k = (torch.randn(1, 32, 8192, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def attention() -> Any:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, q, is_causal=True)

    made["attention-128"] = attention
    big = torch.randn(2**28, device="cuda", dtype=torch.bfloat16)
    made["streaming"] = lambda: big.mul_(1.0)
    return made


def _beside(
    work: Callable[[], Any], count: int, hold: Callable[[int, int], None], channels: int, side: Any, alone: float
) -> dict[str, Any]:
    """Middle time of one piece of work while channels are held."""
    event = torch.cuda.Event
    passes = 1
    if channels:
        with torch.cuda.stream(side):
            hold(channels, 1)
            side.synchronize()
            begin, end = event(enable_timing=True), event(enable_timing=True)
            begin.record(side)
            hold(channels, 8)
            end.record(side)
            end.synchronize()
        passes = max(int(LONGER * count * alone * (1.0 + 0.03 * channels) / (1.25e-4 * begin.elapsed_time(end))), 1)
    found, rates, lasted = [], [], []
    for _ in range(TIMES):
        held, free, begin, end = (event(enable_timing=True) for _ in range(4))
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
    middle = TIMES // 2
    copied = {"copied_bytes_per_s": sorted(rates)[middle], "covered": sorted(lasted)[middle]} if channels else {}
    return {"work_s": sorted(found)[middle]} | copied


def _once(work: Callable[[], Any]) -> float:
    """Time of one piece of work after a first one [s]."""
    for _ in range(3):
        work()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(4):
        work()
    end.record()
    end.synchronize()
    return 2.5e-4 * begin.elapsed_time(end)
