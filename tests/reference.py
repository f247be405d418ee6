"""The documented formulas once more: plain Python floats, whole numbers, hard maxima, groups found by listing devices.

An oracle for the model: nothing is shared with it but the records and the published constants.
"""

from __future__ import annotations

from itertools import product
from math import log, log2, prod, sqrt
from typing import Any

from dmodel.coefficients import Coefficients
from dmodel.hardware import System
from dmodel.plan import Plan
from dmodel.workload import Transformer

Level = list[float]


def domains(network_size: list[float]) -> list[float]:
    """Devices of one domain of each level."""
    return [prod(network_size[: k + 1]) for k in range(len(network_size))]


def groups(plan: Plan, network_size: list[float]) -> dict[str, Level]:
    """Members of each group that every level joins, by listing the devices of the group that holds device 0.

    Devices are numbered with the first group of the placement running fastest; `dp` stands for what is left of it beside ep.
    """
    degree = {"tp": plan.tp, "cp": plan.cp, "ep": plan.ep, "dp": plan.dp / plan.ep, "pp": plan.pp}
    stride, reached = {}, 1
    for name in plan.placement:
        stride[name], reached = reached, reached * int(degree[name])
    inner = max(1, min(int(plan.shard / plan.ep), int(degree["dp"])))
    replica = {"dp": range(0, int(degree["dp"]), inner)}

    def factors(**members: range) -> Level:
        """How many domains of the level below each domain of a level brings together."""
        devices = [sum(i * stride[name] for name, i in zip(members, at, strict=True)) for at in product(*members.values())]
        touched = [len({int(d // size) for d in devices}) for size in [1.0, *domains(network_size)]]
        return [below / above for below, above in zip(touched, touched[1:], strict=False)]

    def whole(*names: str) -> dict[str, range]:
        return {name: range(int(degree[name])) for name in names}

    return {
        **{name: factors(**whole(name)) for name in ("tp", "cp", "ep", "pp")},
        "shard": factors(**whole("cp", "ep"), dp=range(inner)),
        "replica": factors(**replica),
        "data": factors(**whole("cp", "ep", "dp")),
        "expert_shard": factors(**whole("cp"), dp=range(inner)),
        "expert_data": factors(**whole("cp", "dp")),
    }


class Net:
    """Derated rates [byte/s] and latencies [s] of each level."""

    def __init__(self, system: System, c: Coefficients, tensor_parallel: bool = False):
        n, levels = system.network, range(len(system.network.size))
        share = [c.net_efficiency_inner if k == 0 else c.net_efficiency_outer for k in levels]
        across = [c.net_efficiency_tp_outer if tensor_parallel and k > 0 else 1.0 for k in levels]
        self.rate = [float(n.bytes_per_s[k]) * share[k] * across[k] for k in levels]
        self.latency = [float(n.latency_s[k]) * (c.net_latency_outer if k else c.net_latency_inner) for k in levels]
        self.gamma = [0.0 if k == 0 else c.net_contention for k in levels]
        self.axes = [float(x) for x in n.torus_axes]
        self.reduces = [bool(x) for x in n.in_network_reduction]

    def flow(self, group: Level, share_of_level: Level) -> float:
        """Seconds of the slowest level, given what share of the volume each level carries."""
        return max(s * g**gamma / rate for s, g, gamma, rate in zip(share_of_level, group, self.gamma, self.rate, strict=True))

    def ring_latency(self, group: Level) -> float:
        return sum(a * d * (g ** (1.0 / d) - 1.0) for a, d, g in zip(self.latency, self.axes, group, strict=True))

    def gather(self, nbytes: float, group: Level) -> float:
        left = [nbytes / prod(group[:k]) for k in range(len(group))]
        return self.flow(group, [v * (g - 1.0) / g for v, g in zip(left, group, strict=True)]) + self.ring_latency(group)

    def all_reduce(self, nbytes: float, group: Level) -> float:
        left = [nbytes / prod(group[:k]) for k in range(len(group))]
        times = [(1.0 if r else 2.0 * (g - 1.0) / g) if g > 1.0 else 0.0 for g, r in zip(group, self.reduces, strict=True)]
        flow = self.flow(group, [v * t for v, t in zip(left, times, strict=True)])
        tree = 2.0 * sum(a * log2(g) for a, g in zip(self.latency, group, strict=True)) + flow / 0.92
        return min(2.0 * self.ring_latency(group) + flow, tree)

    def all_to_all(self, nbytes: float, group: Level) -> float:
        n = prod(group)
        shares = [nbytes * (prod(group[: k + 1]) - prod(group[:k])) / n for k in range(len(group))]
        return self.flow(group, shares) + sum(a for a, g in zip(self.latency, group, strict=True) if g > 1.0)

    def send(self, nbytes: float, group: Level) -> float:
        joined = [k for k, g in enumerate(group) if g > 1.0]
        return max((nbytes / self.rate[k] for k in joined), default=0.0) + max((self.latency[k] for k in joined), default=0.0)


def parameters(m: Transformer, p: Plan) -> dict[str, float]:
    """Parameters of the fullest device before sharding."""
    router = m.d_model * m.n_experts if m.n_experts > 1 else 0
    attention = 2 * m.d_model * (m.n_heads + m.n_kv_heads) * m.head_dim + 2 * m.d_model + router
    mlp = (3 if m.gated_mlp else 2) * m.d_model * m.d_ff
    head = m.d_model + (0 if m.tied_embeddings else m.vocab * m.d_model)
    layers, routed = m.n_layers / p.pp, mlp * m.n_experts if m.n_experts > 1 else 0.0
    attention += mlp * (m.n_shared_experts + m.n_experts) - routed
    return {
        "dense": (layers * attention + m.vocab * m.d_model + (head if p.pp == 1 else 0)) / p.tp,
        "experts": layers * routed / (p.tp * p.ep),
        "per_layer": attention / p.tp + routed / (p.tp * p.ep),
    }


def matmul(rows: float, columns: float, inner: float, copies: float, peak: float, operand: float, system: System, c: Coefficients) -> float:
    """Seconds of one product and its copies: arithmetic or memory, whichever takes longer."""
    eta = c.matmul_efficiency * (c.grouped_efficiency if copies >= 2 else 1.0)
    for x, half in ((rows, c.matmul_half_rows), (columns, c.matmul_half_width), (inner, c.matmul_half_width)):
        eta *= x / (x + half)
    moved = copies * (operand * (rows * inner + inner * columns) + 2.0 * rows * columns)
    stream = system.chip.hbm_bytes_per_s * c.memory_efficiency
    return max(copies * 2.0 * rows * columns * inner / (peak * eta), moved / stream)


def work(system: System, m: Transformer, p: Plan, c: Coefficients) -> dict[str, float]:
    """Seconds of one layer and of the head, per micro-batch."""
    chip, t, h, e = system.chip, p.micro_batch * m.seq_len / p.cp, m.d_model, m.head_dim
    stream = chip.hbm_bytes_per_s * c.memory_efficiency
    peak = chip.flops_per_s * (c.low_precision_efficiency if p.low_precision else 1.0)
    up, local = (2 if m.gated_mlp else 1) * m.d_ff / p.tp, m.n_experts / p.ep
    visits = t * (m.top_k * m.imbalance + m.n_shared_experts) / local
    qkv, proj = (m.n_heads + 2 * m.n_kv_heads) * e / p.tp, m.n_heads * e / p.tp
    shapes = [(t, qkv, h, 1.0), (t, h, proj, 1.0), (visits, up, h, local), (visits, h, m.d_ff / p.tp, local)]
    products = sum(matmul(*shape, peak, p.operand_bytes, system, c) for shape in shapes)
    cast = sum((2.0 + p.operand_bytes) * n * (r * k + r * w) for r, w, k, n in shapes)
    casts = c.cast_traffic * cast / stream if p.low_precision else 0.0
    scores = 4.0 * t * m.seq_len * m.n_heads * e / p.tp * (0.5 if m.causal and p.flash else 1.0)
    unfused = 0.0 if p.flash else 13.0 * t * m.seq_len * m.n_heads / p.tp
    saturation = e / (e + c.attention_half_head)
    attention = scores / (chip.attention_flops_per_s * c.attention_efficiency * saturation) + c.softmax_traffic * unfused / stream
    split = p.tp if p.sp else 1.0
    passes = 2.0 * (m.n_heads + m.n_kv_heads) * e + (3 if m.gated_mlp else 2) * m.d_ff * (m.top_k + m.n_shared_experts)
    streaming = c.elementwise_traffic * 2.0 * t * (10.0 * h / split + passes / p.tp) / stream
    accumulate = 2.0 * p.gradient_bytes * m.trainable * parameters(m, p)["per_layer"] / stream
    forward = products + attention + streaming + 0.5 * casts
    behind = attention * (2.5 if p.flash else 2.0)
    backward = (1.0 + m.trainable) * products + behind + 2.0 * streaming + accumulate + 0.5 * casts
    again = forward if p.recompute_layers else attention if p.recompute_attention and not p.flash else 0.0
    kernels = 11.0 + (0 if p.flash else 5) + (2 if p.tp > 1 else 0) + (6 if m.n_experts > 1 else 0)
    launches = kernels * (2.0 + m.trainable + p.recompute_layers) * c.launch * chip.kernel_latency_s
    logits = matmul(t, m.vocab / p.tp, h, 1.0, chip.attention_flops_per_s, 2.0, system, c)
    return {
        "matmul": (2.0 + m.trainable) * products,
        "attention": attention + behind,
        "elementwise": 3.0 * streaming + accumulate + casts,
        "recompute": again,
        "launch": max(launches - (forward + backward + again), 0.0),
        "head": (2.0 + m.trainable) * logits + c.loss_traffic * 20.0 * t * m.vocab / p.tp / stream,
        "forward": forward,
        "backward": backward + again,
    }


def messages(system: System, m: Transformer, p: Plan, c: Coefficients) -> dict[str, float]:
    """Seconds of each kind of communication when nothing hides it."""
    g, net, tp_net = groups(p, [float(x) for x in system.network.size]), Net(system, c), Net(system, c, tensor_parallel=True)
    t, layers, n = p.micro_batch * m.seq_len / p.cp, m.n_layers / p.pp, parameters(m, p)
    wire = 2.0 * t * m.d_model
    split = p.tp if p.sp else 1.0
    again = 1.0 if p.recompute_layers else 0.0
    own = {"dense": ("shard", "data"), "experts": ("expert_shard", "expert_data")}

    def gather(bytes_per_parameter: float) -> float:
        return sum(net.gather(bytes_per_parameter * n[part], g[shard]) for part, (shard, _) in own.items() if n[part])

    def reduce(bytes_per_parameter: float) -> float:
        return sum(net.all_reduce(bytes_per_parameter * n[part], g[data]) for part, (_, data) in own.items() if n[part])

    shares = sum(n[part] / prod(g[shard]) for part, (shard, _) in own.items())
    across = net.all_reduce(p.reduce_bytes * shares, g["replica"])
    step = {0: reduce(p.reduce_bytes), 1: gather(p.weight_bytes) + gather(p.reduce_bytes) + across, 3: across}
    sharded = p.zero == 3
    return {
        "tp": (4.0 + 2.0 * again) * (2.0 * tp_net.gather(wire, g["tp"]) if p.sp else tp_net.all_reduce(wire, g["tp"])),
        "cp": (3.0 + again) * net.gather(2.0 * (wire / m.d_model) * p.cp * m.n_kv_heads * m.head_dim / p.tp, g["cp"]),
        "ep": (4.0 + 2.0 * again) * net.all_to_all(wire * m.top_k * m.imbalance / split, g["ep"]),
        "gather": gather(p.weight_bytes / layers) if sharded else 0.0,
        "scatter": m.trainable * gather(p.reduce_bytes / layers) if sharded else 0.0,
        "dp": m.trainable * step[{0: 0, 1: 1, 2: 1, 3: 3}[int(p.zero)]],
        "pp": 2.0 * p.interleave * net.send(wire / split, g["pp"]),
    }


def exposed(system: System, m: Transformer, p: Plan, c: Coefficients) -> tuple[dict[str, float], dict[str, float]]:
    """(exposed, hidden) seconds of each kind."""
    w, v = work(system, m, p, c), messages(system, m, p, c)
    stage = m.n_layers / p.pp * (w["forward"] + w["backward"])
    windows = {
        "tp": (v["tp"], c.overlap_tp * p.overlap_tp * w["matmul"]),
        "cp": (v["cp"], c.overlap_cp * p.overlap_cp * w["attention"]),
        "ep": (v["ep"], c.overlap_ep * p.overlap_ep * w["matmul"]),
        "first": (v["gather"], c.overlap_fsdp * p.overlap_dp * w["forward"]),
        "second": (v["gather"] * p.reshard + v["scatter"], c.overlap_fsdp * p.overlap_dp * w["backward"]),
        "dp": (v["dp"], c.overlap_dp * p.overlap_dp * stage),
        "pp": (v["pp"], c.overlap_pp * p.overlap_pp * stage),
    }
    return {k: max(a - b, 0.0) for k, (a, b) in windows.items()}, {k: min(a, b) for k, (a, b) in windows.items()}


def step(system: System, m: Transformer, p: Plan, c: Coefficients) -> dict[str, float]:
    """Seconds of one step by term: interleaved 1F1B."""
    w, (out, hid) = work(system, m, p, c), exposed(system, m, p, c)
    micro, layers = p.global_batch / (p.dp * p.micro_batch), m.n_layers / p.pp
    n, ranks = parameters(m, p), p.shard * p.cp
    kept = (1.0 - c.head_balance) + c.head_balance / p.pp
    hidden = hid["tp"] + hid["cp"] + hid["ep"] + hid["first"] + hid["second"]
    layer = sum(w[k] for k in ("matmul", "attention", "elementwise", "recompute", "launch"))
    layer += out["tp"] + out["cp"] + out["ep"] + out["first"] + out["second"] + c.contention * hidden
    slots = ((p.interleave - 1.0) * max(p.pp - micro, 0.0) + p.pp - 1.0) / p.interleave
    updated = n["dense"] / ranks + n["experts"] / max(ranks / p.ep, 1.0) if p.zero >= 1 else n["dense"] + n["experts"]
    state = 2.0 * p.optimizer_bytes + p.gradient_bytes + p.weight_bytes
    terms: dict[str, Any] = {k: micro * layers * w[k] for k in ("matmul", "attention", "elementwise", "recompute", "launch")}
    terms |= {
        "head": micro * w["head"] * kept,
        "tensor_parallel": micro * layers * out["tp"],
        "context_parallel": micro * layers * out["cp"],
        "expert_parallel": micro * layers * out["ep"],
        "fsdp": micro * (layers * (out["first"] + out["second"]) + hid["first"]),
        "data_parallel": out["dp"],
        "pipeline_transfer": micro * out["pp"],
        "bubble": c.bubble * slots * (layers * layer + out["pp"] + w["head"] * c.head_balance / p.pp),
        "optimizer": m.trainable * c.optimizer_traffic * updated * state / (system.chip.hbm_bytes_per_s * c.memory_efficiency),
        "contention": c.contention * (micro * layers * hidden + hid["dp"]),
    }
    x = 2.0 * log(p.dp * p.tp * p.cp * p.pp)
    waiting = c.straggler * x / sqrt(1.0 + x)
    return {**terms, "straggler": waiting * sum(terms.values()), "overhead": c.overhead}
