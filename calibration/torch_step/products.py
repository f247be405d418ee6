"""What single matrix products take, by precision, shape and how those of several experts are
launched, and how steady one device is."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from typing import Any, NamedTuple

from calibration.collect.sensors import Sensors
from calibration.torch_step.work import device_seconds, narrow

torch: Any = importlib.import_module("torch")

ROWS, WIDTHS = (256, 1024, 4096, 16384), (512, 1024, 2048, 4096, 8192, 16384)
"""Rows, and columns and inner sizes, of products that run alone."""
EXPERTS = ((2048, 768), (4096, 2048), (7168, 2048), (4096, 14336))
"""Width of a model and of its experts."""
SUMMED, TOKENS = (1024, 2048, 4096, 8192), (512, 1024, 2048, 4096, 8192, 16384)
"""Sizes of a weight whose gradient is taken, and tokens that it is summed over."""
GROUPS, EACH, MOST = (2, 8, 32, 128), (64, 256, 1024, 4096), 131072
"""Experts of a device, rows of each, most rows of all."""
STREAMS = 4
"""Beside each other, as Transformer Engine launches the products of experts."""
BURST_S, BUSY, TIMES = 4e-3, 0.3, 7
"""Length of what is timed [s], its share of the time, so that power leaves the full clock, and how
often it is timed."""
FEWEST, MOST_CALLS = 2, 64
"""Calls that are timed together."""
POOL = 2**31
"""Elements that operands are cut from: several times the cache, so that each call finds its own in
memory."""


class Shape(NamedTuple):
    """Products `[rows, inner] · [inner, columns]`, as many as groups; `how` they run: "one" after
    the other, on several "streams", as one "grouped" kernel; layout by the operands that are
    transposed in memory: "forward" (the right), "input" (none), "weight" (the left);
    bits of the result, and whether it is added to what is there."""

    dtype: str
    rows: int
    columns: int
    inner: int
    groups: int = 1
    how: str = "one"
    layout: str = "forward"
    bits: int = 16
    adds: bool = False


def shapes() -> list[Shape]:
    """Everything that is measured."""
    alone = [
        Shape(dtype, *sizes) for sizes in product(ROWS, WIDTHS, WIDTHS) for dtype in ("bf16", "fp8")
    ]
    few = WIDTHS[::2]
    turned = [
        Shape("bf16", 4096, *sizes, layout=layout)
        for sizes in product(few, few)
        for layout in ("input", "weight")
    ]
    sizes = [(n, k, t) for n, k, t in product(SUMMED, SUMMED, TOKENS) if n >= k]
    sums = [
        Shape("bf16", n, k, t, layout="weight", bits=bits, adds=adds)
        for (n, k, t), bits, adds in product(sizes, (16, 32), (False, True))
    ]
    narrow = [Shape("fp8", n, k, t, bits=32) for n, k, t in sizes]
    return alone + turned + _of_experts() + sums + narrow


WAYS = (("bf16", "grouped"), ("bf16", "one"), ("bf16", "streams"), ("fp8", "streams"))
"""Precision of products of experts, and how they run."""


def _of_experts() -> list[Shape]:
    """Both products of experts, as many and as large as the pool of operands holds."""
    found = []
    for (width, hidden), groups, each in product(EXPERTS, GROUPS, EACH):
        if groups * each <= MOST and 2 * groups * width * hidden <= POOL:
            sizes = ((2 * hidden, width), (width, hidden))
            for (dtype, how), (columns, inner) in product(WAYS, sizes):
                found.append(Shape(dtype, each, columns, inner, groups, how))
    return found


def measured(seconds: float) -> Iterator[dict[str, Any]]:
    """The middle time of each shape [s], one after the other, then how steady a device is that
    never rests.

    Args:
      seconds: of the latter, at each width.
    """
    pool = torch.randn(POOL, device="cuda", dtype=torch.bfloat16)
    pools = {"bf16": pool, "fp8": pool.to(torch.float8_e4m3fn)}
    for shape in shapes():
        yield {"product": shape._asdict()} | _found(
            lambda shape=shape: {"product_s": _time(shape, pools[shape.dtype])}
        )
    for width in (8192, 4096, 2048):
        yield {"steady": width} | _found(lambda width=width: _blocks(width, pool, seconds))


def _found(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What it finds, or why it failed."""
    try:
        return work()
    except (RuntimeError, AttributeError, torch.cuda.OutOfMemoryError) as error:
        return {"failed": str(error).splitlines()[0][:300]}


def _time(shape: Shape, pool: Any) -> float:
    """Middle time of the products of a shape [s], from a graph of several, each with operands of
    its own."""
    calls, at = [], 0
    while len(calls) < FEWEST:
        call, at = _call(shape, pool, at)
        call()
        calls.append(call)
    once = min(device_seconds(call) for call in calls)
    for _ in range(min(int(BURST_S / once), MOST_CALLS) - FEWEST):
        call, at = _call(shape, pool, at)
        calls.append(call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    found = []
    for _ in range(TIMES):
        taken = device_seconds(graph.replay)
        time.sleep(taken * (1.0 / BUSY - 1.0))
        found.append(taken / len(calls))
    return sorted(found)[TIMES // 2]


def _call(shape: Shape, pool: Any, at: int) -> tuple[Callable[[], Any], int]:
    """The products of a shape with operands from the pool, and where the next begins."""
    cut = _Cut(pool, at)
    g, m, n, k = shape.groups, shape.rows, shape.columns, shape.inner
    if shape.how == "grouped":
        left, right = cut(g * m, k), cut(g, n, k).transpose(1, 2)
        ends = torch.arange(1, g + 1, device="cuda", dtype=torch.int32) * m
        return lambda: torch._grouped_mm(left, right, offs=ends), cut.at
    lefts = [cut(k, m).t() if shape.layout == "weight" else cut(m, k) for _ in range(g)]
    rights = [cut(n, k).t() if shape.layout == "forward" else cut(k, n) for _ in range(g)]
    multiply = _multiply(shape)
    if shape.how == "one":
        return lambda: [multiply(a, b) for a, b in zip(lefts, rights, strict=True)], cut.at
    return lambda: _beside(multiply, lefts, rights), cut.at


class _Cut:
    """Operands out of the pool, one behind the other. at: where the next begins."""

    def __init__(self, pool: Any, at: int) -> None:
        self.pool, self.at = pool, at

    def __call__(self, *sizes: int) -> Any:
        n = math.prod(sizes)
        begin = self.at if self.at + n <= POOL else 0
        self.at = begin + n
        return self.pool[begin : begin + n].view(*sizes)


def _multiply(shape: Shape) -> Callable[[Any, Any], Any]:
    """What multiplies two operands of a shape: in 8 bits with one scale for each operand."""
    result = torch.float32 if shape.bits == 32 else torch.bfloat16
    if shape.dtype == "fp8":
        return lambda a, b: narrow(a, b, result, fast=shape.bits == 16)
    if shape.adds:
        held = torch.zeros(shape.rows, shape.columns, device="cuda", dtype=result)
        if shape.bits == 16:
            return lambda a, b: torch.addmm(held, a, b, out=held)
        return lambda a, b: torch.ops.aten.addmm.dtype_out(held, a, b, result, out=held)
    return torch.matmul if shape.bits == 16 else lambda a, b: torch.mm(a, b, out_dtype=result)


@cache
def _streams() -> list[Any]:
    return [torch.cuda.Stream() for _ in range(STREAMS)]


def _beside(multiply: Callable[[Any, Any], Any], lefts: list[Any], rights: list[Any]) -> None:
    """Products on several streams in turn, between two meetings with the current one."""
    main, streams = torch.cuda.current_stream(), _streams()
    for stream in streams:
        stream.wait_stream(main)
    for i, (a, b) in enumerate(zip(lefts, rights, strict=True)):
        with torch.cuda.stream(streams[i % STREAMS]):
            multiply(a, b)
    for stream in streams:
        main.wait_stream(stream)


def _blocks(width: int, pool: Any, seconds: float) -> dict[str, Any]:
    """Times [s] of blocks alike, as the half of a layer: products of 8192 rows and what streams
    beside them; in order, with readings."""
    a, w = pool[: 8192 * width].view(8192, width), pool[-4 * width * width :].view(width, 4 * width)
    back = pool[: 4 * width * width].view(4 * width, width)
    event, sensors, stamps = torch.cuda.Event, Sensors(0), []
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        for _ in range(64):
            stamps.append(event(enable_timing=True))
            stamps[-1].record()
            wide = a @ w
            (wide.relu() @ back).add_(a)
        torch.cuda.synchronize()
        sensors.read()
    times = [1e-3 * x.elapsed_time(y) for x, y in zip(stamps[:-1], stamps[1:], strict=True)]
    # a meeting with the host after each 64
    return {
        "blocks_s": [round(t, 8) for i, t in enumerate(times) if i % 64 != 63],
        "readings": sensors.readings,
    }
