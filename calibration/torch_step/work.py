"""Single pieces of work for a device, and what they take by its own clock."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

torch: Any = importlib.import_module("torch")

Work = Callable[[], Any]


def device_seconds(work: Work) -> float:
    """Time of one piece of work by the device's clock [s]."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return 1e-3 * begin.elapsed_time(end)


def warm_seconds(work: Work) -> float:
    """The same after it has run once [s]."""
    work()
    return device_seconds(work)


def narrow(left: Any, right: Any, result: Any = torch.bfloat16, fast: bool = True) -> Any:
    """A product in 8 bits with one scale for each operand; fast: sums in fewer bits."""
    return torch._scaled_mm(
        left, right, scale_a=_one(), scale_b=_one(), out_dtype=result, use_fast_accum=fast
    )


@cache
def _one() -> Any:
    return torch.ones((), device="cuda")


def product(rows: int, width: int, bits: int = 16) -> Work:
    """A product of random matrices, `[rows, width] · [width, width]`."""
    left, right = (
        torch.randn(n, width, device="cuda", dtype=torch.bfloat16) for n in (rows, width)
    )
    if bits == 16:
        return lambda: left @ right
    left, right = (x.to(torch.float8_e4m3fn) for x in (left, right))
    return lambda: narrow(left, right.t())


def attention() -> Work:
    """Fused causal attention over 8192 tokens, 32 heads of 128."""
    q, k = (torch.randn(1, 32, 8192, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def core() -> Any:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, q, is_causal=True)

    return core
