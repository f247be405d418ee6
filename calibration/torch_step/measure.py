"""Time a step, sum the device's own time by kernel, and read clock and energy beside it."""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from calibration.collect.profiler import length
from calibration.collect.sensors import Sensors
from calibration.torch_step import decoder
from calibration.torch_step.cases import Case

torch: Any = importlib.import_module("torch")

WARM, FEWEST, PROFILED = 3, 5, 2
"""Steps before the first that counts, least steps that are timed, steps under the profiler."""
NAME = 200
"""Letters kept of a kernel's name."""


def environment() -> dict[str, Any]:
    """Device, software and processor that every record of this process stands for."""
    p = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
    return {
        "device": p.name if p else "cpu",
        "memory_bytes": p.total_memory if p else 0,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }


def measured(case: Case, seconds: float) -> dict[str, Any]:
    """What a step takes: its time by the host's clock, every kernel's time and number per step,
    peak memory, readings of the device.

    Args:
      seconds: of timed steps.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    began = time.perf_counter()
    step, model = _step(case, device)
    with _backend(case):
        for _ in range(WARM):
            step()
        _wait(device)
        found: dict[str, Any] = {"case": case._asdict(), "prepared_s": time.perf_counter() - began}
        found |= _timed(step, device, seconds)
        found["kernels"] = _kernels(step, device) if device == "cuda" else {}
    found["parameters"] = sum(p.numel() for p in model.parameters())
    return found


def _step(case: Case, device: str) -> tuple[Callable[[], Any], Any]:
    """A training step as a function, and its model."""
    torch.manual_seed(0)
    with torch.device(device):
        standard = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        model = decoder.Decoder(case)
        torch.set_default_dtype(standard)
        shape = (case.micro_batch, case.seq_len)
        tokens, labels = (torch.randint(0, case.vocab, shape) for _ in range(2))
    rotary = decoder.table(case, device)
    trained = [p for p in model.parameters() if p.requires_grad]
    rule = torch.optim.AdamW(trained, lr=1e-4, fused=True) if trained else None

    def step() -> None:
        model(tokens, labels, rotary).backward()
        if rule is not None:
            rule.step()
            rule.zero_grad(set_to_none=True)

    return step, model


def _backend(case: Case) -> Any:
    """The fused kernel that a case asks for; where cuDNN refuses, the other (names of kernels
    tell)."""
    if case.attention == "none" or not torch.cuda.is_available():
        return contextlib.nullcontext()
    kinds = torch.nn.attention.SDPBackend
    wanted = (
        [kinds.CUDNN_ATTENTION, kinds.FLASH_ATTENTION]
        if case.attention == "cudnn"
        else [kinds.FLASH_ATTENTION]
    )
    return torch.nn.attention.sdpa_kernel(wanted, set_priority=True)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _timed(step: Callable[[], Any], device: str, seconds: float) -> dict[str, Any]:
    """Steps one after the other, nothing waited for between them; the host's time to launch a step;
    energy over the whole."""
    sensors = Sensors(0 if device == "cuda" else None)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    before, start, stamps, hosts = sensors.joules(), time.perf_counter(), [], []
    last = start
    while len(stamps) < FEWEST or last - start < seconds:
        step()
        hosts.append(time.perf_counter() - last)
        _wait(device)
        stamps.append(time.perf_counter() - last)
        last += stamps[-1]
        sensors.read()
        last = time.perf_counter()
    whole, after = time.perf_counter() - start, sensors.joules()
    return {
        "step_s": _unwaited(step, device, max(FEWEST, len(stamps) // 3)),
        "waited_s": [round(x, 7) for x in stamps[:200]],
        "host_s": sorted(hosts)[len(hosts) // 2],
        "watts": (after - before) / whole if before and after else None,
        "readings": sensors.readings[:400],
        **_memory(device),
    }


def _memory(device: str) -> dict[str, int]:
    """Peak of memory, used and reserved [byte]; a host does not tell."""
    if device != "cuda":
        return {}
    return {
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def _unwaited(step: Callable[[], Any], device: str, steps: int) -> float:
    """Mean time of a step when the host runs ahead, as trainers let it [s]."""
    began = time.perf_counter()
    for _ in range(steps):
        step()
    _wait(device)
    return (time.perf_counter() - began) / steps


def _kernels(step: Callable[[], Any], device: str) -> dict[str, list[float]]:
    """Number and time [s] of each kernel per step, by name; copies and fills of memory among them;
    "busy": of all, overlaps once."""
    profiler = torch.profiler
    with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(PROFILED):
            step()
        _wait(device)
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    spans = []
    for event in seen.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            begin, end = event.time_range.start * 1e-6, event.time_range.end * 1e-6
            one = sums[event.name[:NAME]]
            one[0] += 1.0 / PROFILED
            one[1] += (end - begin) / PROFILED
            spans.append((begin, end))
    return {name: [round(n, 2), round(t, 8)] for name, (n, t) in sums.items()} | {
        "busy": [len(spans) / PROFILED, length(spans) / PROFILED]
    }
