"""The documented formulas once more: plain Python floats, whole numbers, hard maxima, groups found
by listing devices.

An oracle for the model: nothing is shared with it but the records and the published constants.
"""

from __future__ import annotations

from itertools import product
from math import log, log2, prod, sqrt
from typing import Any

from dmodel.coefficients import Coefficients
from dmodel.records import Cluster, Model, Plan
from tests.reference_parts import (
    all_layers,
    cores,
    expert_reads,
    experts_of,
    is_mixer,
    launched_products,
    matrices,
    narrow,
    one_expert,
    parts_of,
    products,
    split_of,
    summed,
    tokens,
    vectors,
    visits,
)
from tests.reference_parts import kernels as part_kernels
from tests.reference_parts import ring as ring_bytes
from tests.reference_parts import streams as part_streams

Level = list[float]

ROUTED = ("expert_up", "expert_down")
LAST = ("down", "shared_down", "expert_down")
WIDE = ("index", "router")
"""Kinds of products: of routed experts, those that return a layer's result, and those that stay in
16 bits."""


def domains(network_size: list[float]) -> list[float]:
    """Devices of one domain of each level."""
    return [prod(network_size[: k + 1]) for k in range(len(network_size))]


def groups(plan: Plan, network_size: list[float]) -> dict[str, Level]:
    """Members of each group that every level joins, by listing the devices of the group that holds
    device 0.

    Devices are numbered with the first group of the placement running fastest. The ranks of tp, cp
    and dp in that order, whatever they are for, are dealt out to experts: etp fastest, then the
    different experts, then those that hold the same ones (`ep` before `dp`).
    """
    degree = {name: int(getattr(plan.layout, name)) for name in ("tp", "cp", "dp", "pp")}
    order = [name for name in plan.layout.placement if name != "ep"]
    stride, reached = {}, 1
    for name in order:
        stride[name], reached = reached, reached * degree[name]
    inner = max(1, min(int(plan.layout.shard), degree["dp"]))

    def factors(devices: list[int]) -> Level:
        """How many domains of the level below each domain of a level brings together."""
        touched = [len({int(d // size) for d in devices}) for size in [1.0, *domains(network_size)]]
        return [below / above for below, above in zip(touched, touched[1:], strict=False)]

    def members(**ranks: range) -> list[int]:
        return [
            sum(i * stride[name] for name, i in zip(ranks, at, strict=True))
            for at in product(*ranks.values())
        ]

    def whole(*names: str) -> dict[str, range]:
        return {name: range(degree[name]) for name in names}

    # ranks of one pipeline stage, the first of the placement fastest
    block = [name for name in order if name != "pp"]
    stage = [
        sum(i * stride[n] for n, i in zip(block, at[::-1], strict=True))
        for at in product(*[range(degree[n]) for n in block[::-1]])
    ]
    etp, ep = min(int(plan.layout.etp), degree["tp"]), int(plan.layout.ep)
    sharing = max(1, degree["tp"] * degree["cp"] * inner // (etp * ep))
    same = len(stage) // (etp * ep)
    near = plan.layout.placement.index("ep") < plan.layout.placement.index("dp")
    # distance between neighbours of ep, and between ranks that hold the same experts, in the stage
    far, copy = (etp, etp * ep) if near else (etp * same, etp)
    return {
        **{name: factors(members(**whole(name))) for name in ("tp", "cp", "pp")},
        "shard": factors(members(**whole("cp"), dp=range(inner))),
        "replica": factors(members(dp=range(0, degree["dp"], inner))),
        "data": factors(members(**whole("cp", "dp"))),
        "etp": factors(stage[:etp]),
        "ep": factors([stage[i * far] for i in range(ep)]),
        "expert_shard": factors([stage[i * copy] for i in range(min(sharing, same))]),
        "expert_data": factors([stage[i * copy] for i in range(same)]),
        "all": factors(members(**whole(*order))),
    }


class Net:
    """Derated rates [byte/s] and latencies [s] of each level."""

    def __init__(self, system: Cluster, c: Coefficients, run: Level, tensor_parallel: bool = False):
        n, levels = system.network, range(len(system.network.size))
        share = [c.net_efficiency_inner if k == 0 else c.net_efficiency_outer for k in levels]
        across = [c.net_efficiency_tp_outer if tensor_parallel and k > 0 else 1.0 for k in levels]
        self.rate = [float(n.bytes_per_s[k]) * share[k] * across[k] for k in levels]
        self.latency = [
            float(n.latency_s[k]) * (c.net_latency_outer if k else c.net_latency_inner)
            for k in levels
        ]
        self.gamma = [0.0 if k == 0 else c.net_contention for k in levels]
        self.run = run
        self.axes = [float(x) for x in n.torus_axes]
        self.reduces = [bool(x) for x in n.in_network_reduction]
        self.first = float(c.collective_start)
        self.bucket = float(c.bucket)

    def begin(self, group: Level) -> float:
        return self.first if prod(group) > 1.0 else 0.0

    def reach(self, group: Level) -> Level:
        """Whose traffic a level carries: outer levels are tiers, and that of all above climbs
        through them."""
        return [g if k == 0 else prod(group[k:]) for k, g in enumerate(group)]

    def flow(self, group: Level, share_of_level: Level) -> float:
        """Seconds of the slowest level, given what share of the volume each level carries."""
        found = 0.0
        for k, (s, g, r) in enumerate(zip(share_of_level, group, self.reach(group), strict=True)):
            # a group of a torus has the links of the axes along which it lies
            axes, run = self.axes[k], self.run[k]
            links = min(1.0, max(log(g) / log(run), 1.0 / axes)) if axes > 1 and run > 1 else 1.0
            found = max(found, s * r ** self.gamma[k] / (self.rate[k] * links))
        return found

    def ring_latency(self, group: Level) -> float:
        passed = [prod(group[k + 1 :]) if d == 1.0 else 1.0 for k, d in enumerate(self.axes)]
        return sum(
            a * d * (g ** (1.0 / d) - 1.0) * n
            for a, d, g, n in zip(self.latency, self.axes, group, passed, strict=True)
        )

    def parts_handed_on(self, group: Level, times: float = 1.0, own: float = 0.4) -> Level:
        """Of the volume left at a level, what a ring sends through it: all parts but one, as often
        as it goes round, and once what its own costs. A torus, and slices above it, go one by one,
        and hand on what is not theirs."""
        if self.axes[0] > 1.0:
            return [times * (r - 1.0) / r for r in self.reach(group)]
        n = prod(group)
        reach = self.reach(group)
        return [
            (times * (n - 1.0) + own) / n if g > 1.0 else times * (r - 1.0) / r
            for g, r in zip(group, reach, strict=True)
        ]

    def gather(
        self, nbytes: float, group: Level, calls: float = 1.0, hop: float = 1.0, own: float = 0.4
    ) -> float:
        left = [nbytes / prod(group[:k]) for k in range(len(group))]
        flow = self.flow(
            group, [v * p for v, p in zip(left, self.parts_handed_on(group, 1.0, own), strict=True)]
        )
        return flow + calls * (self.begin(group) + hop * self.ring_latency(group))

    def calls(self, nbytes: float, p: Plan) -> float:
        return (
            1.0 + nbytes / max(self.bucket, p.layout.dp * p.layout.cp * p.software.bucket_per_rank)
            if p.software.overlap_dp
            else 1.0
        )

    def all_reduce(self, nbytes: float, group: Level, calls: float = 1.0) -> float:
        left = [nbytes / prod(group[:k]) for k in range(len(group))]
        ring = self.parts_handed_on(group, 2.0)
        # a domain is in the middle of one tree and a leaf of the other, of two domains each is the
        # top of one
        tree = [ring[0], *[min(max(r - 1.0, 0.0), 2.0) for r in self.reach(group)[1:]]]
        once = [bool(r) and g > 1.0 for r, g in zip(self.reduces, self.reach(group), strict=True)]
        switched = [min(1.3 * (1.0 + 1.0 / group[0]), ring[0]), *[1.0] * (len(group) - 1)]
        ring, tree = (
            [s if o else t for s, t, o in zip(switched, times, once, strict=True)]
            for times in (ring, tree)
        )
        by_ring = 2.0 * calls * self.ring_latency(group) + self.flow(
            group, [v * t for v, t in zip(left, ring, strict=True)]
        )
        hops = sum(
            a * log2(g) * (1.0 if k == 0 else 8.5 / 4.0)
            for k, (a, g) in enumerate(zip(self.latency, group, strict=True))
        )
        by_tree = (
            2.0 * calls * hops
            + self.flow(group, [v * t for v, t in zip(left, tree, strict=True)]) / 0.92
        )
        # trees are NCCL's
        return calls * self.begin(group) + (
            by_ring if self.axes[0] > 1.0 else min(by_ring, by_tree)
        )

    def all_to_all(
        self, nbytes: float, group: Level, copies: float = 1.0, merged: bool = False
    ) -> float:
        n, shares = prod(group), []
        for k, (g, axes, reach) in enumerate(zip(group, self.axes, self.reach(group), strict=True)):
            domains = n / prod(group[:k])
            sent = domains * (1.0 - (1.0 - 1.0 / domains) ** copies) / copies if merged else 1.0
            ring = g ** (1.0 / axes)
            passed = max(
                (reach - 1.0) / reach, axes * (ring - 1.0 / ring) / 4.0 if axes > 1 else 0.0
            )
            shares.append(nbytes * sent * passed * prod(group[:k]) * reach / n)
        hops = [a if g > 1.0 else 0.0 for a, g in zip(self.latency, group, strict=True)]
        return self.begin(group) + self.flow(group, shares) + hops[0] + max(hops[1:], default=0.0)

    def send(self, nbytes: float, group: Level) -> float:
        joined = [k for k, g in enumerate(group) if g > 1.0]
        flow = max((nbytes / self.rate[k] for k in joined), default=0.0)
        return self.begin(group) + flow + max((self.latency[k] for k in joined), default=0.0)


def parameters(m: Model, p: Plan) -> dict[str, float]:
    """Parameters of the fullest device before sharding."""
    h, layers = m.d_model, all_layers(m) / p.layout.pp
    dense = routed = 0.0
    for share, part in parts_of(m):
        dense += share * vectors(part, h) / p.layout.tp
        for x in matrices(part, h):
            dense += share * x.inputs * x.outputs / (p.layout.tp if x.split else 1.0)
        if part.KIND == "experts":
            routed += share * part.n_experts * one_expert(part, h)
    routed /= p.layout.etp * p.layout.ep
    head = h + (0 if m.tied_embeddings else m.vocab * h) + m.n_mtp * (2 * h * h + 3 * h) + m.small
    head += m.learned_positions * m.seq_len * h
    return {
        "dense": layers * dense + (m.vocab * h + (head if p.layout.pp == 1 else 0)) / p.layout.tp,
        "experts": layers * routed,
        "dense_per_layer": dense,
        "experts_per_layer": routed,
        "cast": layers * dense,
    }


def matmul(
    shape: tuple[float, ...],
    peak: float,
    operand: float,
    system: Cluster,
    c: Coefficients,
    grouped: bool = False,
) -> float:
    """Seconds of one product and its copies: arithmetic or memory, whichever takes longer."""
    rows, columns, inner, copies = shape
    eta = c.matmul_efficiency * (c.grouped_efficiency if grouped else 1.0)
    for x, half in ((rows, c.matmul_half_rows), (columns, c.matmul_half_columns)):
        eta *= x / (x + half)
    # before its first and behind its last product a tile takes as long as so many of 16 bits, twice
    # as long with operands of 8
    inner_time = (
        inner / peak + 2.0 / operand * c.matmul_half_inner / system.chip.attention_flops_per_s
    )
    moved = copies * (operand * (rows * inner + inner * columns) + 2.0 * rows * columns)
    stream = system.chip.hbm_bytes_per_s * c.memory_efficiency
    return max(copies * 2.0 * rows * columns * inner_time / eta, moved / stream)


def product_times(
    system: Cluster, m: Model, p: Plan, c: Coefficients, peak: float, operand: float
) -> dict[str, float]:
    """Seconds of the forward products of the mean layer, by kind; those that stay in 16 bits are
    asked of half a peak."""
    half, found = system.chip.attention_flops_per_s, dict.fromkeys(("", *LAST, *ROUTED), 0.0)
    for share, part in parts_of(m):
        for kind, *shape, several in products(part, m, p):
            rate, width = (half, 2.0) if kind in WIDE else (peak, operand)
            name = kind if kind in found else ""
            found[name] += share * matmul(tuple(shape), rate, width, system, c, several)
    return found


def streams(m: Model, p: Plan) -> tuple[float, float]:
    """Bytes of the memory-bound kernels of the mean layer, forward and backward."""
    both = [(share, *part_streams(part, m, p)) for share, part in parts_of(m)]
    return sum(n * x for n, x, _ in both), sum(n * x for n, _, x in both)


def adapted(m: Model, p: Plan) -> tuple[float, float]:
    """Bytes that a layer's adapters move, forward and backward, kernel by kernel; `read`, `made`:
    elements that they read and return."""
    t = p.layout.micro_batch * m.seq_len / p.layout.cp
    read = t * (m.first_adapters * m.d_model + m.last_adapted / p.layout.tp)
    made = t * (
        m.first_adapted / p.layout.tp
        + m.last_adapters * m.d_model / (p.layout.tp if p.layout.sp else 1.0)
    )
    # dropout reads, writes and masks; then A reads, B writes, a scale does both, an addition reads
    # two and writes one
    drop = 5.0 * read if m.adapter_dropout else 0.0
    forward = drop + 2.0 * (read + made) + 4.0 * made + 6.0 * made
    # the scale's gradient, B's two, A's two, and that of what was read added to the frozen
    # product's
    backward = drop + 4.0 * made + 2.0 * made + 2.0 * made + 2.0 * read + 2.0 * read + 6.0 * read
    return forward, backward


def kernels(m: Model, p: Plan) -> float:
    """Kernels of the mean layer, forward."""
    several = 1 if p.layout.tp > 1 else 0
    of_adapters = m.first_adapters * (5 + several) + m.last_adapters * (5 + 2 * several)
    of_adapters += (m.first_adapters + m.last_adapters) * (1 if m.adapter_dropout else 0)
    return of_adapters + sum(share * part_kernels(part, p) for share, part in parts_of(m))


def core(system: Cluster, m: Model, p: Plan, c: Coefficients, times: float, rate: float) -> float:
    """Seconds of a pass of what mixes tokens with some times the products of the forward one, by
    kernels of a rate where they fuse it."""
    chip, flash = system.chip, bool(p.software.flash)
    faster = 2.0 if flash and p.precision.attention_bytes == 1 else 1.0
    share = c.attention_efficiency * (rate if flash else 1.0)
    stream, seconds = chip.hbm_bytes_per_s * c.memory_efficiency, 0.0
    for often, part in parts_of(m):
        for row in cores(part, m, p):
            # fused kernels exponentiate each score beside its products, once in each pass
            powers = c.attention_exponentials * row.exponentials / chip.exponentials_per_s
            more = times * (row.behind if times > 1.0 else 1.0)
            arithmetic = more * row.flops * row.times / (faster * chip.attention_flops_per_s)
            through = more * c.softmax_traffic * row.scores / stream
            seconds += often * (max(arithmetic, powers) / share + through)
    return seconds


def done_again(
    m: Model, p: Plan, c: Coefficients, forward: dict[str, float], downs: float, stream: float
) -> float:
    """Seconds of what of a layer is done again: all of it, or parts; `downs`: the last products."""
    # where it ends before the last product, what that returns is not added either: two read, one
    # written
    ending = sum(share for share, part in parts_of(m) if not is_mixer(part))
    added = ending * 3.0 * 2.0 * tokens(m, p) * m.d_model / split_of(p)
    moved = c.elementwise_traffic * p.software.stream_ratio * added
    spared = 0.0 if p.software.recompute_last else moved / stream
    if p.layout.recompute_layers:
        return forward["all"] - spared - (0.0 if p.software.recompute_last else downs)
    parts = (
        forward["products"] * p.layout.recompute_products
        + forward["attention"] * p.layout.recompute_attention
    )
    return parts + p.layout.recompute_elementwise * (forward["streams"] - spared)


def starts(system: Cluster, m: Model, p: Plan, c: Coefficients) -> tuple[float, float]:
    """Seconds that kernels of a layer and micro-batch take to fill the device, and that its host
    takes to launch them."""
    passes = 2.0 + m.trainable + p.layout.recompute_layers
    begun = kernels(m, p) * passes
    # two casts, and what keeps their scales, for each product
    narrowed = narrow(p) * sum(share * launched_products(part) for share, part in parts_of(m))
    # of every layer with experts two products, two casts and a bias weighted and added, for each
    # that the rank holds
    looped = in_turn = 0.0
    for share, x in experts_of(m):
        held, cast = share * x.n_experts / p.layout.ep, 2.0 * narrow(p)
        looped += 0.25 * held * (2.0 + (2.0 if x.expert_biases else 0.0) + cast)
        in_turn += passes * held * cast
    if not p.software.looped_experts:
        looped = in_turn = 0.0
    launched = passes * looped
    # of a backward pass one cast of the gradient, for both of its products
    casts = (3.0 * (1.0 + p.layout.recompute_layers) + 1.0) * narrowed
    # a weight, its constants and their mean, before each product of each pass
    brought = sum(share * launched_products(part) for share, part in parts_of(m))
    brought *= 3.0 * min(p.precision.dequantize, 1.0) * (2.0 + p.layout.recompute_layers)
    launched += 0.0 if p.software.graphed else begun + casts + brought
    # every rank meets the others in four collectives, in six (or five) under full recomputation,
    # when stages lie on several nodes
    several = prod(groups(p, list(system.network.size))["pp"][1:]) > 1.0
    met = (
        ((6.0 if p.software.recompute_last else 5.0) if p.layout.recompute_layers else 4.0)
        * p.layout.tp
        if p.layout.tp > 1 and several
        else 0.0
    )
    latency = system.chip.kernel_latency_s
    return latency * (begun + in_turn + brought) * c.kernel_fill, latency * (
        launched * c.launch + met * c.rendezvous
    )


def cast_bytes(m: Model, p: Plan) -> float:
    """Bytes of casts forward and backward of the mean layer: what products read forward, and what
    they get backward, in one layout or two, with a pass that finds scales."""
    layouts = 2.0 if m.trainable else 1.0
    read = 2.0 * (1.0 + p.precision.scale_passes)
    found = 0.0
    for share, part in parts_of(m):
        for kind, rows, columns, inner, copies, _ in products(part, m, p):
            left, result = copies * rows * inner, copies * rows * columns
            if kind not in WIDE:
                found += share * (read + layouts * p.precision.operand_bytes) * (left + result)
            # what lies between a fused expert's products is written, not read
            between = {"expert_up": result, "expert_down": left}.get(kind, 0.0)
            found -= share * read * between if p.software.fused_experts else 0.0
    return found


def added_up(m: Model, p: Plan, c: Coefficients, others: float, stream: float) -> float:
    """Seconds in which a layer adds its gradients to what is held, beside forward products that
    take `others` seconds without experts'."""
    held, moved = parameters(m, p), 2.0 * p.precision.gradient_bytes
    dense, routed = (
        m.trainable * held[f"{part}_per_layer"] / stream for part in ("dense", "experts")
    )
    if p.software.fused_sums and p.layout.zero < 2:
        # but for what any product writes: experts have too few tokens each to hide it
        return max(moved * dense - others, 0.0) + max(moved - 2.0, 0.0) * routed
    return c.elementwise_traffic * moved * (dense + routed)


def work(system: Cluster, m: Model, p: Plan, c: Coefficients) -> dict[str, float]:
    """Seconds of one layer and of the head, per micro-batch."""
    chip, t, h = system.chip, tokens(m, p), m.d_model
    stream, half = chip.hbm_bytes_per_s * c.memory_efficiency, chip.attention_flops_per_s
    peak, operand, wide = chip.flops_per_s, p.precision.operand_bytes, p.precision.wide_layers
    if p.precision.low_precision:
        kept = c.low_precision_efficiency * (
            c.four_bit_efficiency if p.precision.operand_bytes < 1.0 else 1.0
        )
        peak = 1.0 / ((1.0 - wide) / (peak * kept) + wide / half)
        operand = (1.0 - wide) * operand + wide * 2.0
    times = product_times(system, m, p, c, peak, operand)
    products = sum(times.values())
    others, downs = (
        products - sum(times[kind] for kind in ROUTED),
        sum(times[kind] for kind in LAST),
    )
    casts = narrow(p) * c.cast_traffic * cast_bytes(m, p) / stream
    attention = core(system, m, p, c, 1.0, p.software.attention_rate)
    behind = core(
        system, m, p, c, 2.5 if p.software.flash else 2.0, p.software.attention_backward_rate
    )
    behind *= c.attention_backward if p.software.flash else 1.0
    streaming, back = (
        (c.elementwise_traffic * p.software.stream_ratio * n + more) / stream
        for n, more in zip(streams(m, p), adapted(m, p), strict=True)
    )
    accumulate = added_up(m, p, c, others, stream)
    held = parameters(m, p)
    brought = (held["dense_per_layer"] + held["experts_per_layer"]) / stream
    brought *= p.precision.dequantize * (p.precision.weight_bytes + 2.0)
    forward = products + attention + streaming + 0.5 * casts + brought
    weights = m.trainable * products
    backward = products + weights + behind + back + accumulate + 0.5 * casts + brought
    again = done_again(
        m,
        p,
        c,
        {
            "all": forward,
            "products": products + brought,
            "attention": attention,
            "streams": streaming,
        },
        downs,
        stream,
    )
    fill, host = starts(system, m, p, c)
    # a head of further tokens reads its layer's input beside the next token's embedding: both h
    # wide, h out
    columns = m.vocab + m.n_mtp * 2.0 * h / (1.0 + m.n_mtp)
    logits = (
        (2.0 + m.trainable)
        * matmul((t, columns / p.layout.tp, h, 1.0), half, 2.0, system, c)
        * (2.0 if p.software.unpadded_vocab else 1.0)
    )
    read = p.software.loss_ratio * 20.0 * t * m.vocab / p.layout.tp
    head = logits + c.loss_traffic * read / stream
    spared = 0.0 if p.software.recompute_last else downs
    parts = p.layout.recompute_products * products + p.layout.recompute_attention * attention
    return {
        "redone": products + attention - spared if p.layout.recompute_layers else parts,
        "logits": (1.0 + m.n_mtp) * logits,
        "matmul": 2.0 * products + weights,
        "matmul_forward": products,
        "matmul_backward": products + weights,
        "attention": attention + behind,
        "attention_forward": attention,
        "attention_backward": behind,
        "elementwise": streaming + back + accumulate + casts + 2.0 * brought,
        "recompute": again,
        "fill": fill,
        "host": host,
        "head": (1.0 + m.n_mtp) * head,
        "forward": forward,
        "backward": backward + again,
    }


def throttled(w: dict[str, float], whole: float, c: Coefficients) -> dict[str, float]:
    """The work at the clock that power leaves: products and attention draw, streaming kernels a
    little; the first two get slower."""
    drawn = (
        c.power_demand
        * (w["matmul"] + w["redone"] + 0.87 * w["attention"] + 0.38 * w["elementwise"])
        / whole
    )
    slow = max(1.0, drawn) ** (1.0 / 2.6)
    more = slow - 1.0
    hot = {
        which: w["matmul_" + which] + w["attention_" + which] for which in ("forward", "backward")
    }
    return w | {k: slow * w[k] for k in w if k.startswith(("matmul", "attention"))} | {
        "wanders": 0.25 * (1.0 - 1.0 / slow),
        "recompute": w["recompute"] + more * w["redone"],
        "head": w["head"] + more * w["logits"],
        "forward": w["forward"] + more * hot["forward"],
        "backward": w["backward"] + more * (hot["backward"] + w["redone"]),
    }  # fmt: skip


def half_layer(
    m: Model, p: Plan, c: Coefficients, net: Net, group: Level
) -> tuple[float, float, float]:
    """Seconds of tensor parallelism's messages for the mixer, or for the MLP, in the forward and in
    the backward pass; and of the gather before its products."""
    wire = 2.0 * tokens(m, p) * m.d_model
    late = c.collective_skew if p.layout.tp > 1 and not p.software.composed else 0.0
    # gathered in the bytes of what the products read, summed in 16 bits
    kept = narrow(p)
    if not p.layout.sp:
        return net.all_reduce(wire, group) + late, net.all_reduce(wire, group) + late, 0.0
    fewer = (kept * p.precision.operand_bytes / 2.0 + 1.0 - kept) * wire
    before = net.gather(fewer if p.precision.narrow_gathers else wire, group)
    return (
        before + net.gather(fewer if p.precision.narrow_sums else wire, group) + late,
        before + net.gather(wire, group) + late,
        before,
    )


def repeated(p: Plan, ahead: float, before: float, mixers: float, lone: float) -> float:
    """Seconds of tensor parallelism's messages that recomputation sends again, for mixers and MLPs
    of so many layers."""
    if p.layout.recompute_layers:
        # of the MLP, only what comes before it where recomputation ends before its last product: a
        # gather, or nothing
        return mixers * ahead + lone * (ahead if p.software.recompute_last else before)
    # before elementwise kernels that run again, gathers alone
    return before * (mixers + lone) if p.layout.recompute_elementwise else 0.0


def messages(system: Cluster, m: Model, p: Plan, c: Coefficients) -> dict[str, float]:
    """Seconds of each kind of communication when nothing hides it."""
    g = groups(p, [float(x) for x in system.network.size])
    net, tp_net = Net(system, c, g["all"]), Net(system, c, g["all"], tensor_parallel=True)
    layers, n = all_layers(m) / p.layout.pp, parameters(m, p)
    wire, split = 2.0 * tokens(m, p) * m.d_model, split_of(p)
    mixers, lone = (
        sum(share for share, part in parts_of(m) if summed(part) and is_mixer(part) == mixing)
        for mixing in (True, False)
    )
    again = 1.0 if p.layout.recompute_layers else 0.0
    both = again * (1.0 + float(p.software.recompute_last))
    own = {"dense": ("shard", "data"), "experts": ("expert_shard", "expert_data")}

    def gather(bytes_per_parameter: float, in_buckets: bool = False) -> float:
        found = 0.0
        for part, (shard, _) in own.items():
            size = bytes_per_parameter * n[part]
            if size:
                found += net.gather(size, g[shard], net.calls(size, p) if in_buckets else 1.0)
        return found

    def reduce(bytes_per_parameter: float) -> float:
        sizes = {data: bytes_per_parameter * n[part] for part, (_, data) in own.items() if n[part]}
        return sum(
            net.all_reduce(size, g[data], net.calls(size, p)) for data, size in sizes.items()
        )

    shares = sum(n[part] / prod(g[shard]) for part, (shard, _) in own.items())
    units = layers if p.layout.zero == 3 else net.calls(p.precision.reduce_bytes * shares, p)
    across = net.all_reduce(p.precision.reduce_bytes * shares, g["replica"], units)
    hidden, awaited = (across, 0.0) if p.software.overlap_replica else (0.0, across)
    once = {0: reduce(p.precision.reduce_bytes), 1: gather(p.precision.reduce_bytes, True) + hidden}
    # the embedding and the head stay in 16 bits
    wide = p.having(operand_bytes=2.0)
    ahead, half, before = half_layer(m, p, c, tp_net, g["tp"])
    embedding = (
        p.precision.reduce_bytes * m.vocab * m.d_model / p.layout.tp if m.tied_embeddings else 0.0
    )
    scatter = m.trainable * gather(p.precision.reduce_bytes / layers) if p.layout.zero >= 2 else 0.0
    late = c.collective_skew if p.layout.etp > 1 and not p.software.composed else 0.0
    split_experts = exchange = asked = 0.0
    for share, x in experts_of(m):
        sent = 2.0 * expert_reads(x, m.d_model) * visits(x, m, p)
        split_experts += share * (tp_net.gather(sent, g["etp"]) + late)
        exchange += share * net.all_to_all(
            sent / p.layout.etp, g["ep"], x.top_k, bool(p.software.merge_copies)
        )
        # counts of tokens go in lines, with hops of a third
        asked += share * net.gather(
            p.software.route_bytes * tokens(m, p) / p.layout.tp * p.layout.ep * x.n_experts,
            g["ep"],
            hop=1.0 if p.software.route_bytes else 1.0 / 3.0,
        )
    handed = [(share, ring_bytes(part, m, p)) for share, part in parts_of(m)]
    ring = sum(share * net.gather(size, g["cp"], own=0.0) for share, size in handed if size)
    joined = (m.first_adapters + m.last_adapters) * tp_net.gather(
        0.0, g["tp"]
    ) + m.last_adapters * tp_net.gather(wire / p.layout.tp, g["tp"])
    return {
        "tp_forward": (mixers + lone) * ahead + 2.0 * split_experts + joined,
        "tp_backward": (mixers + lone) * half
        + (2.0 + both) * split_experts
        + (1.0 + again) * joined
        + repeated(p, ahead, before, mixers, lone),
        "cp_forward": ring,
        "cp_backward": (2.0 + (again or float(p.layout.recompute_attention))) * ring,
        "ep_forward": 2.0 * exchange + asked,
        "ep_backward": (2.0 + both) * exchange + again * asked,
        "gather": gather(p.precision.gather_bytes / layers) if p.layout.zero == 3 else 0.0,
        "scatter": 0.0 if p.software.accumulate else scatter,
        "dp": m.trainable * once.get(int(p.layout.zero), hidden)
        + (layers * scatter if p.software.accumulate else 0.0),
        "updated": m.trainable * gather(p.precision.gather_bytes, True)
        if p.layout.zero in (1, 2)
        else 0.0,
        "ends": half_layer(m, wide, c, tp_net, g["tp"])[1] * (2.0 if p.layout.pp == 1 else 1.0),
        "awaited": m.trainable
        * (net.send(embedding, g["pp"]) + (awaited if p.layout.zero >= 1 else 0.0)),
        "pp": 2.0 * p.layout.interleave * net.send(wire / split, g["pp"]),
    }


Exposed = tuple[dict[str, float], dict[str, float], float, float, float]


def exposed(
    system: Cluster, m: Model, p: Plan, c: Coefficients
) -> tuple[dict[str, float], Exposed]:
    """The work at the clock that power leaves, and what of messages shows beside it."""
    cool, v = work(system, m, p, c), messages(system, m, p, c)
    w = throttled(cool, beside(v, cool, m, p, c)[1] + cool["fill"], c)
    return w, beside(v, w, m, p, c)[0]


def beside(
    v: dict[str, float], w: dict[str, float], m: Model, p: Plan, c: Coefficients
) -> tuple[Exposed, float]:
    """(exposed, hidden) seconds of each kind, what a layer takes beyond its work and messages for
    filling kernels or for its host, and what of the head passes meanwhile on the last stage and on
    the others; and how long a layer with its messages has the device."""
    out, hidden = {}, {}

    def hide(kind: str, seconds: float, share: float, window: float, slowed: float) -> float:
        """What messages add to what they hide in."""
        # hidden seconds lengthen the window that they hide in: the series ω (W + κ ω (W + ...)), up
        # to κ ω = 0.9
        hidden[kind] = min(seconds, share * window / (1.0 - min(slowed * share, 0.9)))
        out[kind] = seconds - hidden[kind]
        return out[kind] + slowed * hidden[kind]

    passes = {}
    for which, gathered in (
        ("forward", v["gather"]),
        ("backward", v["gather"] * p.layout.reshard + v["scatter"]),
    ):
        # a share of tensor parallelism hides, if products last as long
        able = c.overlap_tp * p.software.overlap_tp
        tp, cp = v["tp_" + which], v["cp_" + which]
        time = w[which] + (1.0 - able) * tp
        time += hide("tp_" + which, able * tp, 1.0, w["matmul_" + which], c.contention)
        # the slowest of the ranks, where the limit of power sets their clocks; rows of sums that
        # nobody ran know no ranks
        several = 0.0 if p.software.composed else 2.0 * log(p.layout.tp)
        wait = (
            w.get("wanders", 0.0)
            * several
            / sqrt(1.0 + several)
            * (w["matmul_" + which] + w["attention_" + which])
        )
        out["tp_" + which] += (1.0 - able) * tp + wait
        time += wait
        time += hide(
            "cp_" + which,
            cp,
            c.overlap_cp * p.software.overlap_cp,
            w["attention_" + which],
            c.contention,
        )
        # a pass with what of these is exposed hides what FSDP sends
        time += hide(
            "fsdp_" + which, gathered, c.overlap_fsdp * p.software.overlap_dp, time, c.contention
        )
        passes[which] = time
    both = passes["forward"] + passes["backward"]
    device = both + hide(
        "ep",
        v["ep_forward"] + v["ep_backward"],
        c.overlap_ep * p.software.overlap_ep,
        both,
        c.contention,
    )
    # each pass with what it sends, less its share of what both hide
    passes = {
        k: t + v["ep_" + k] - (1.0 - c.contention) * hidden["ep"] * t / both
        for k, t in passes.items()
    }
    launch = max(device + w["fill"], w["host"]) - device
    # the host is ahead of the device, but where it waits to know what experts get: what all layers
    # of a stage leave idle, the head may use
    idle = 0.0 if p.software.composed or experts_of(m) else max(w["host"] - device - w["fill"], 0.0)
    shared, ended = (
        c.head_balance * w["head"] / p.layout.pp,
        fullest(m, p) - p.layout.head_displaces,
    )
    passed, shared = (
        min(shared + (1.0 - c.head_balance) * w["head"], ended * idle),
        min(shared, fullest(m, p) * idle),
    )
    # messages of the step go on while the device of the last stage waits for its host, where
    # kernels are launched
    waits, opening = ended * launch - passed, 1.0 / (2.0 + m.trainable + p.layout.recompute_layers)
    stage = {"forward": opening * waits, "backward": (1.0 - opening) * waits}
    stage = {which: fullest(m, p) * t + stage[which] for which, t in passes.items()}
    whole = sum(stage.values())
    # of pp micro-batches in a group, each chunk is done for good once all have passed it: the
    # others' time is left, and its last pass
    group = min(p.layout.pp, p.global_batch / (p.layout.dp * p.layout.micro_batch))
    later = group * (p.layout.interleave - 1.0) / p.layout.interleave + 1.0 / p.layout.interleave
    # transfers wait for nobody; what they leave exposed hides gradients, too
    hide("pp", v["pp"], c.overlap_pp * p.software.overlap_pp, whole, 0.0)
    for kind, share, which in (
        ("dp", c.overlap_dp, "backward"),
        ("updated", c.overlap_gather, "forward"),
    ):
        micro_batch = stage[which] + 0.5 * v["pp"] - hidden["pp"] * stage[which] / whole
        hide(kind, v[kind], share * p.software.overlap_dp, later * micro_batch, c.contention)
    out["stage_forward"], out["stage_backward"] = stage["forward"], stage["backward"]
    return (out, hidden, launch, passed, shared), device


def hosted(
    system: Cluster, m: Model, p: Plan, updated: float, forward: float, backward: float
) -> float:
    """Seconds of a step that a device waits for its host, with weights whole on it: copies that
    outlast the passes of a stage and micro-batch, and the update of `updated` parameters."""
    s, bits, micro = p.software, p.precision, p.global_batch / (p.layout.dp * p.layout.micro_batch)
    link, memory = 0.82 * system.chip.host_bytes_per_s, system.chip.host_memory_bytes_per_s
    ratio = s.overlap_offload
    there = m.trainable * s.offload_optimizer * updated
    sums = s.host_sums * there * bits.reduce_bytes / link
    once = (1.0 - s.host_sums) * there * bits.gradient_bytes / link
    state = 2.0 * bits.optimizer_bytes + bits.gradient_bytes + bits.weight_bytes
    update = s.host_update * there * state / memory
    back = (1.0 - s.offload_weights) * there * bits.weight_bytes / link
    found = micro * max(sums - ratio * backward, 0.0) + max(once - ratio * backward, 0.0)
    return found + update + max(back - ratio * update, 0.0)


def fullest(m: Model, p: Plan) -> float:
    """Layers of the fullest stage."""
    return all_layers(m) / p.layout.pp + p.layout.stage_excess


def step(system: Cluster, m: Model, p: Plan, c: Coefficients) -> dict[str, float]:
    """Seconds of one step by term: interleaved 1F1B."""
    w, (out, hid, launch, passed, shared) = exposed(system, m, p, c)
    w["launch"] = launch
    micro, layers = p.global_batch / (p.layout.dp * p.layout.micro_batch), fullest(m, p)
    n, ranks, v = parameters(m, p), p.layout.shard * p.layout.cp, messages(system, m, p, c)
    kinds = {kind: (f"{kind}_forward", f"{kind}_backward") for kind in ("tp", "cp", "fsdp")}
    tp, cp, fsdp = (sum(out[which] for which in both) for both in kinds.values())
    hidden = hid["ep"] + sum(hid[which] for kind in ("tp", "cp", "fsdp") for which in kinds[kind])
    layer = sum(w[k] for k in ("matmul", "attention", "elementwise", "recompute", "launch"))
    alone = layer + tp + cp + out["ep"] + fsdp
    layer, even = alone + c.contention * hidden, c.head_balance * w["head"] / p.layout.pp
    # seconds of stages: of the fullest one, of the one with the head, and what the slowest of them
    # takes for the head
    full = layers * layer + even - shared
    last = (
        (layers - p.layout.head_displaces) * layer
        + even
        + (1.0 - c.head_balance) * w["head"]
        - passed
    )
    head = max(full, last) - layers * layer
    slots = (
        (p.layout.interleave - 1.0) * max(p.layout.pp - micro, 0.0) + p.layout.pp - 1.0
    ) / p.layout.interleave
    # what of it passes while its stage waits counts as head where that stage is the slowest
    beyond = last - full + p.layout.head_displaces * layer
    slowest = (
        1.0
        if not p.layout.head_displaces
        else max(last - full, 0.0) / beyond
        if beyond > 0.0
        else 0.0
    )
    shown = shared + (passed - shared) * slowest
    # all stages but the slowest, a micro-batch each: those of the middle have their share of the
    # layers and of what is carried alike
    inner = (
        (all_layers(m) - layers - (layers - p.layout.head_displaces)) / (p.layout.pp - 2.0)
        if p.layout.pp > 2
        else 0.0
    )
    rest = (
        full
        + last
        - max(full, last)
        + (p.layout.pp - 2.0) * (inner * (layer - shared / layers) + even)
        if p.layout.pp > 1
        else 0.0
    )
    updated = (
        n["dense"] / ranks
        + n["experts"] / max(ranks * p.layout.tp / (p.layout.ep * p.layout.etp), 1.0)
        if p.layout.zero >= 1
        else n["dense"] + n["experts"]
    )
    state = (
        2.0 * p.precision.optimizer_bytes + p.precision.gradient_bytes + p.precision.weight_bytes
    )
    stream = system.chip.hbm_bytes_per_s * c.memory_efficiency
    cast = (
        c.cast_traffic
        * (1.0 - p.precision.wide_layers)
        * (2.0 + 2.0 * p.precision.operand_bytes)
        * (n["cast"] + n["experts"])
        if p.precision.low_precision
        else 0.0
    )
    terms: dict[str, Any] = {
        k: micro * layers * w[k]
        for k in ("matmul", "attention", "elementwise", "recompute", "launch")
    }
    terms["launch"] -= micro * shown
    terms |= {
        "head": micro * (head + shown),
        "tensor_parallel": micro * (layers * tp + v["ends"]),
        "context_parallel": micro * layers * cp,
        "expert_parallel": micro * layers * out["ep"],
        "fsdp": micro * (layers * fsdp + hid["fsdp_forward"]),
        "data_parallel": out["dp"] + out["updated"] + v["awaited"],
        "pipeline_transfer": micro * out["pp"],
        "bubble": c.bubble * slots * (rest / (p.layout.pp - 1.0) + out["pp"])
        if p.layout.pp > 1
        else 0.0,
        "optimizer": (m.trainable * c.optimizer_traffic * updated * state + cast) / stream,
        "contention": c.contention * (micro * layers * hidden + hid["dp"] + hid["updated"]),
    }
    waits = hosted(system, m, p, updated, out["stage_forward"], out["stage_backward"])
    terms["optimizer"] -= (
        p.software.offload_optimizer
        * m.trainable
        * (c.optimizer_traffic * updated * state / stream)
    )
    terms["offload"] = waits
    x = 2.0 * log(p.layout.dp * p.layout.tp * p.layout.cp * p.layout.pp)
    waiting = c.straggler * x / sqrt(1.0 + x)
    run = 0.0 if p.software.composed else 1.0
    return {**terms, "straggler": run * waiting * sum(terms.values()), "overhead": run * c.overhead}
