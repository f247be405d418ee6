"""The benchmarks, one file per concept; `BENCHMARKS` holds them by name."""

from __future__ import annotations

from calibration.collect.kinds import attention, collectives, host, matmul, memory, overlap, steps
from calibration.collect.kinds.benchmark import Benchmark

BENCHMARKS: dict[str, Benchmark] = {
    "matmul": matmul.BENCHMARK,
    "attention": attention.BENCHMARK,
    "memory": memory.STREAMS,
    "elementwise": memory.ELEMENTWISE,
    "optimizer": memory.OPTIMIZER,
    "launch": host.LAUNCH,
    "dispatch": host.DISPATCH,
    "collectives": collectives.BENCHMARK,
    "overlap": overlap.BENCHMARK,
    "steps": steps.BENCHMARK,
}
