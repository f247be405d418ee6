"""The formulas of the data-movement study (arXiv 2411.01137), written anew in plain Python for one
whole-number case: an oracle.

Bandwidths are bidirectional here, shares of idle time are shares, and every pair of a pipeline and
an expert level is visited.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod, sqrt

from dmodel.records import Cluster

WORD = 2


def _tile(m: int, n: int, capacity: float) -> tuple[float, float]:
    count = ceil(m * n * WORD / capacity)
    words = m * n / count
    rows = max(min(m, sqrt(words)), words / n)
    return m / rows, n / (words / rows)


def _io(
    capacity: float,
    units: int,
    distributed: bool,
    d1: int,
    d2: int,
    b: int,
    gradient: bool,
    revised: bool,
) -> tuple[float, float]:
    weights, left, right = d1 * d2 * WORD, d1 * b * WORD, d2 * b * WORD
    r, c = _tile(d1, d2, capacity * units if distributed else capacity)
    rows, columns = _tile(d1, d2, capacity) if distributed else (1.0, 1.0)
    above = 0.0 if 2 * weights <= capacity * units else 2 * weights if gradient else weights
    above += r * right + (c if gradient else 2 * c - 1) * left
    if revised:
        return above, 2 * ((rows - 1) * right + (columns - 1) * left)
    among = rows * right if rows > 1 else 0.0
    if gradient:
        among += columns * left if columns > 1 else 0.0
    else:
        among += 2 * (columns - 1) * left
    return above, among


def matmul_time(
    system: Cluster, d1: int, d2: int, b: int, gradient: bool = False, revised: bool = False
) -> float:
    """Seconds of one product; `revised` for the later revision of the code."""
    g = system.chip
    registers, processors = float(g.register_bytes), int(g.processors)
    sizes = (d1, d2, b, gradient, revised)
    cache = float(g.l2_bytes) if revised else max(float(g.l2_bytes), 4 * registers)
    to_cache, _ = _io(cache, 1, False, *sizes)
    to_units, among = _io(4 * registers, processors, bool(g.distributed_shared_memory), *sizes)
    to_registers, _ = _io(registers, 4 * processors, False, *sizes)
    pad = 16 if revised else 8
    flop = 2 * prod(-(-x // pad) * pad for x in (d1, d2, b))
    return float(g.kernel_latency_s) + max(
        to_cache / g.hbm_bytes_per_s,
        (to_cache + to_units) / g.l2_bytes_per_s,
        (to_units + among + to_registers) / g.shared_bytes_per_s,
        flop / (g.flops_per_s * g.sustained),
    )


def _above(levels: Sequence[int], level: int) -> int:
    return prod(levels[level + 1 :])


def _top(levels: Sequence[int]) -> int:
    return max((i for i, p in enumerate(levels) if p > 1), default=-1)


def _transfers(
    system: Cluster, n: dict, d: dict[str, tuple[int, ...]], devices: int
) -> tuple[float, float]:
    """Seconds of bytes and of hops between stages and to experts, over all pairs of levels."""
    pp, ep, v, layers = d["pp"], d["ep"], n["v"], n["layers"]
    flow = hops = 0.0
    for a in range(-1, _top(pp) + 1):
        moved = v * (prod(pp) if a == -1 else _above(pp, a) * (pp[a] - 1))
        count = layers - moved if a == -1 else moved + (v - 1 if a == _top(pp) else 0)
        for e in range(-1, _top(ep) + 1):
            frequency = 1 / prod(ep) if e == -1 else 1 / _above(ep, e) - 1 / (ep[e] * _above(ep, e))
            level = max(a, e)
            if level >= 0:
                rate = 2 * system.network.bytes_per_s[level]
                flow += (
                    n["d_model"] * 2 * count * frequency * n["tokens"] * WORD / (devices * rate / 2)
                )
                hops += 2 * count * (e == _top(ep)) * system.network.latency_s[level]
    return flow, hops


def _all_reduces(
    system: Cluster, kinds: list[tuple[float, Sequence[int], float, float]], devices: int
) -> tuple[float, float]:
    """Seconds of bytes, the slowest level, and of hops, of all-reduces (words, levels, in sequence,
    in parallel)."""
    flow, hops = [0.0] * len(system.network.size), 0.0
    for words, levels, s, q in kinds:
        for level, p in enumerate(levels):
            rate = 2 * system.network.bytes_per_s[level]
            flow[level] += (
                2 * (p - 1) * words * s * q * _above(levels, level) * WORD / (devices * rate / 2)
            )
            hops += 2 * s * system.network.latency_s[level] if p > 1 else 0.0
    return max(flow), hops


def train_time(system: Cluster, n: dict, d: dict[str, tuple[int, ...]]) -> float:
    """Seconds of a whole run.

    Args:
      n: d_model, d_ff, layers, experts, tokens (of a batch), m, v, zb, over_tp, over_dp, over_pp,
        recompute.
      d: levels of dp, tp_model, tp_ff, pp, ep.
    """
    devices, size = prod(prod(x) for x in d.values()), {kind: prod(x) for kind, x in d.items()}
    dm, df, b = (
        n["d_model"] // size["tp_model"],
        n["d_ff"] // size["tp_ff"],
        n["tokens"] // (size["dp"] * n["m"] * n["experts"]),
    )
    six = 2 * (matmul_time(system, df, dm, b) + matmul_time(system, dm, df, b))
    six += matmul_time(system, df, dm, b, True) + matmul_time(system, dm, df, b, True)
    work = (n["layers"] // size["pp"]) * (n["experts"] // size["ep"]) * n["m"] * six
    tokens, passes = n["tokens"], 2 * n["layers"]
    tp, tp_hops = _all_reduces(
        system,
        [(n["d_ff"], d["tp_model"], passes, tokens), (n["d_model"], d["tp_ff"], passes, tokens)],
        devices,
    )
    parameters = 2 * n["d_model"] * n["d_ff"] * n["layers"] * n["experts"]
    dp, dp_hops = _all_reduces(system, [(parameters, d["dp"], 1, 1)], devices)
    moved, moved_hops = _transfers(system, n, d, devices)
    if n["recompute"]:
        work, tp, tp_hops, moved, moved_hops = (
            work * 4 / 3,
            tp * 1.5,
            tp_hops * 1.5,
            moved * 1.5,
            moved_hops * 1.5,
        )
    over = (tp if n["over_tp"] else 0.0) + (moved if n["over_pp"] else 0.0)
    z = (n["v"] - 1) * max(0, size["pp"] - n["m"])
    fill = z + size["pp"] - 1
    idle = 0.0 if n["zb"] else fill / (fill + n["v"] * n["m"])
    pipeline = (max(work, over) + tp + moved - over) / (1 - idle) + (
        0.0 if n["zb"] else tp_hops + moved_hops
    )
    step = (max(pipeline, dp) if n["over_dp"] else pipeline + dp) + dp_hops
    return 20 * parameters / tokens * step
