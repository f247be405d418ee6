"""The documented formulas of the parts of a layer once more, in plain Python floats: what each kind
of mixer and of feed-forward part holds, multiplies, mixes, moves, launches, sends and keeps.

Numbers are of one layer with the part, per device and micro-batch. Only sizes are read of a part,
and its `KIND`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dmodel.records import NONE, Model, Plan

LATENTS = ("latent", "sparse")
"""Kinds of mixers that project from latents."""

Part = Any
"""A record of `dmodel.blocks`."""


def layers_of(m: Model) -> list[tuple[float, Part | None, Part | None]]:
    """(how many, mixer, feed) of the kinds of layers, those of heads of further tokens with
    them."""
    found = []
    for (i, j), share, further in zip(m.pairs, m.shares, m.further, strict=True):
        count = float(m.n_layers * share + m.n_mtp * further)
        mixer, feed = (None if i == NONE else m.mixers[i]), (None if j == NONE else m.feeds[j])
        if count:
            found.append((count, mixer, feed))
    return found


def all_layers(m: Model) -> float:
    """Layers, those of heads of further tokens among them."""
    return sum(count for count, _, _ in layers_of(m))


def parts_of(m: Model) -> list[tuple[float, Part]]:
    """(share of all layers, part) of every mixer and feed."""
    whole = all_layers(m)
    return [(n / whole, x) for n, *both in layers_of(m) for x in both if x is not None]


def experts_of(m: Model) -> list[tuple[float, Part]]:
    """Those of the parts that route tokens to experts."""
    return [(share, part) for share, part in parts_of(m) if part.KIND == "experts"]


def tokens(m: Model, p: Plan) -> float:
    """Of a micro-batch on one device."""
    return float(p.layout.micro_batch * m.seq_len / p.layout.cp)


def split_of(p: Plan) -> float:
    """Ranks that share what is h wide between products."""
    return float(p.layout.tp) if p.layout.sp else 1.0


def gates(part: Part) -> float:
    """Matrices into an MLP."""
    return 2.0 if part.gated_mlp else 1.0


def expert_reads(part: Part, h: float) -> float:
    """Width of what routed experts read."""
    return part.expert_rank or h


def narrow(p: Plan) -> float:
    """Share of the layers' products below 16 bits."""
    return 1.0 - p.precision.wide_layers if p.precision.low_precision else 0.0


class Matrix(NamedTuple):
    """split: ranks of tp have a part of it each. apart: it is a product of its own that stays in 16
    bits."""

    inputs: float
    outputs: float
    split: bool = True
    apart: bool = False


def matrices(part: Part, h: float) -> list[Matrix]:
    """Of a part, but for routed experts; of a mixer the last one returns h."""
    return {
        "attention": _of_attention,
        "latent": _of_latents,
        "sparse": _of_latents,
        "mamba2": _of_mamba,
        "linear": lambda x, h: [Matrix(h, h)] * int(x.linears),
        "dense": lambda x, h: [*[Matrix(h, x.d_ff)] * int(gates(x)), Matrix(x.d_ff, h)],
        "experts": _of_experts,
    }[part.KIND](part, h)


def _of_attention(x: Part, h: float) -> list[Matrix]:
    qk, e = x.head_dim + x.qk_extra, x.head_dim
    found = [Matrix(h, x.n_heads * qk)]
    found += [Matrix(h, x.n_heads * e)] if x.output_gate else []
    found += [Matrix(h, x.n_kv_heads * qk)] if x.own_keys else []
    found += [Matrix(h, x.n_kv_heads * e)] if x.own_values else []
    return [*found, Matrix(x.n_heads * e, h)]


def picks(x: Part) -> bool:
    """Whether it has an indexer that picks keys."""
    return x.KIND == "sparse" and bool(x.index_heads)


def index_width(x: Part) -> float:
    """Of all heads of an indexer."""
    return x.index_heads * x.index_dim if picks(x) else 0.0


def _of_latents(x: Part, h: float) -> list[Matrix]:
    a, e, qk = x.n_heads, x.head_dim, x.head_dim + x.qk_extra
    queries = (
        [Matrix(h, x.q_rank, False), Matrix(x.q_rank, a * qk)] if x.q_rank else [Matrix(h, a * qk)]
    )
    pairs = [
        Matrix(h, x.kv_rank + x.rope_dim, False),
        Matrix(x.kv_rank, a * (qk - x.rope_dim)),
        Matrix(x.kv_rank, a * e),
    ]
    if not picks(x):
        return [*queries, *pairs, Matrix(a * e, h)]
    index = [
        Matrix(x.q_rank, index_width(x), False, True),
        Matrix(h, x.index_dim + x.index_heads, False, True),
    ]
    return [*queries, *pairs, *index, Matrix(a * e, h)]


def _of_mamba(x: Part, h: float) -> list[Matrix]:
    """Of z, x, what goes into states and out of them with steps, and the output."""
    i = x.mamba_inner
    between = 2 * x.mamba_groups * x.mamba_state + x.mamba_heads
    return [Matrix(h, i), Matrix(h, i), Matrix(h, between), Matrix(i, h)]


def _of_experts(x: Part, h: float) -> list[Matrix]:
    router = [Matrix(h, x.n_experts)]
    shared = [*[Matrix(h, x.shared_ff)] * int(gates(x)), Matrix(x.shared_ff, h)]
    latents = [Matrix(h, x.expert_rank, False), Matrix(x.expert_rank, h, False)]
    return router + (shared if x.shared_ff else []) + (latents if x.expert_rank else [])


def vectors(part: Part, h: float) -> float:
    """Parameters of a part that are in no matrix: its norm, others, biases."""
    own = 0.0
    if part.KIND in LATENTS:
        # norms of latents, and a layer norm of an indexer's key
        own = part.q_rank + part.kv_rank + (2.0 * part.index_dim if picks(part) else 0.0)
    if part.KIND == "mamba2":
        # taps over what a convolution reads, a gated norm, three scales of each head
        read = part.mamba_inner + 2 * part.mamba_groups * part.mamba_state
        own = part.taps * read + part.mamba_inner + 3 * part.mamba_heads
    return h + own + part.small


def one_expert(x: Part, h: float) -> float:
    """Parameters of a routed expert."""
    r = expert_reads(x, h)
    biases = gates(x) * x.d_ff + r if x.expert_biases else 0.0
    return (gates(x) + 1.0) * r * x.d_ff + biases


class Shape(NamedTuple):
    """A row of products, of some kind."""

    kind: str
    rows: float
    columns: float
    inner: float
    copies: float = 1.0
    several: bool = False


def products(part: Part, m: Model, p: Plan) -> list[Shape]:
    """Forward products; those that read the same are one, those from latents one of their mean
    inner size."""
    t, h, tp = tokens(m, p), m.d_model, p.layout.tp
    if part.KIND == "linear":
        return [Shape("out", t, h, h / tp, float(part.linears))]
    if part.KIND == "dense":
        return _mlp(t, h, part.d_ff / tp, gates(part), ("up", "down"))
    if part.KIND == "experts":
        return _expert_products(part, m, p)
    *into, out = matrices(part, h)
    own = lambda x: x.outputs / (tp if x.split else 1.0)  # noqa: E731
    found = [
        Shape("first", t, sum(own(x) for x in into if x.inputs == h and not x.apart), h),
        Shape("out", t, h, out.inputs / tp),
    ]
    later = [x for x in into if x.inputs != h and not x.apart]
    if later:
        whole, weights = (sum(f(x) for x in later) for f in (own, lambda x: x.inputs * own(x)))
        found.append(Shape("latents", t, whole, weights / whole))
    return found + [Shape("index", t, x.outputs, x.inputs) for x in into if x.apart]


def _mlp(t: float, h: float, width: float, up: float, kinds: tuple[str, str]) -> list[Shape]:
    return [Shape(kinds[0], t, up * width, h), Shape(kinds[1], t, h, width)]


def visits(x: Part, m: Model, p: Plan) -> float:
    """Tokens that a device computes for its experts: ranks of tp share them out, those of etp work
    on the same ones."""
    return tokens(m, p) * x.top_k * x.imbalance * p.layout.etp / p.layout.tp


def _expert_products(x: Part, m: Model, p: Plan) -> list[Shape]:
    t, h, tp = tokens(m, p), m.d_model, p.layout.tp
    found = []
    if x.shared_ff:
        found += _mlp(t, h, x.shared_ff / tp, gates(x), ("shared_up", "shared_down"))
    if x.expert_rank:
        found.append(Shape("narrowing", t / tp, x.expert_rank, h, 2.0))
    # tokens that reach one of the experts from the ep · etp ranks that share them
    rows, own = p.layout.ep * visits(x, m, p) / x.n_experts, x.n_experts / p.layout.ep
    f, r = x.d_ff / p.layout.etp, expert_reads(x, h)
    return [
        *found,
        Shape("expert_up", rows, gates(x) * f, r, own, own >= 2),
        Shape("expert_down", rows, r, f, own, own >= 2),
        Shape("router", t / tp, x.n_experts, h),
    ]


class Mixing(NamedTuple):
    """A row of what mixes tokens: forward FLOPs and exponentials, traffic of scores, how many times
    as long its products take, and what the backward pass has of products and traffic over what
    attention has."""

    flops: float
    exponentials: float = 0.0
    scores: float = 0.0
    times: float = 1.0
    behind: float = 1.0


def keys_seen(m: Model, p: Plan, window: float, chunk: float) -> float:
    """Keys that a query goes through on average, on the rank that decides."""
    s = m.seq_len
    if not p.software.flash:
        return s
    n = min(chunk, s)
    w = min(window, n)
    if not m.causal:
        return w
    # token i sees the last w of its i predecessors: of all tokens, or of those of the last rank
    # that holds a chunk when they are held in order
    ranks = 1.0 if p.software.cp_balanced else max(n / s * p.layout.cp, 1.0)
    first = n - n / ranks
    grown = max(w, first)
    if first >= w:
        return w
    return ((grown**2 - first**2) / 2.0 + w * (n - grown)) / (n - first)


def cores(part: Part, m: Model, p: Plan) -> list[Mixing]:
    """Rows of what mixes tokens."""
    t, tp, flash = tokens(m, p), p.layout.tp, bool(p.software.flash)
    if part.KIND == "mamba2":
        i, n = part.mamba_inner, part.mamba_state
        scan = 2.0 * 128.0 * (part.mamba_groups * n + i) + 4.0 * i * n
        # as attention with heads of 128
        return [Mixing(t * scan / tp, t * scan / tp / 512.0 if flash else 0.0)]
    if part.KIND == "sparse":
        return _sparse_cores(part, m, p)
    if part.KIND not in ("attention", "latent"):
        return []
    sizes = 2.0 * part.head_dim + part.qk_extra
    window = (part.window, part.chunk) if part.KIND == "attention" else (m.seq_len, m.seq_len)
    scores = t * keys_seen(m, p, *window) * part.n_heads / tp
    moved = 24.0 if p.software.split_softmax else 13.0
    unfused = 0.0 if flash else moved * t * m.seq_len * part.n_heads / tp
    times = 16.0 if part.head_dim % 8 and not flash else 1.0
    return [Mixing(2.0 * scores * sizes, scores if flash else 0.0, unfused, times)]


def _sparse_cores(x: Part, m: Model, p: Plan) -> list[Mixing]:
    """Scores of latents and sums of them over what is picked, since a gathered latent serves all
    heads; without kernels for it over all keys, in fp32 and off the matrix units. Every rank of tp
    scores every pair to pick, written and read in fp32."""
    t, tp = tokens(m, p), p.layout.tp
    fused, flash = bool(p.software.sparse_kernels), bool(p.software.flash)
    picked = keys_seen(m, p, x.index_top, m.seq_len)
    scores = t * (picked if fused else m.seq_len) * x.n_heads / tp
    pairs = t * m.seq_len * x.n_heads / tp
    each = 24.0 if p.software.split_softmax else 13.0
    moved = (0.0 if flash else each * pairs) if fused else 2.0 * 13.0 * pairs
    times = (16.0 if x.head_dim % 8 and not flash else 1.0) * (1.0 if fused else 16.0)
    powers = scores if fused and flash else 0.0
    main = Mixing(2.0 * scores * (2.0 * x.kv_rank + x.rope_dim), powers, moved, times)
    if not picks(x):
        return [main]
    every = keys_seen(m, p, m.seq_len, m.seq_len)
    pairs = t * every
    # three products over picked keys for one over all, where attention has five for two
    learnt = 3.0 / 2.5 * picked / every
    return [main, Mixing(2.0 * pairs * index_width(x), 0.0, 8.0 * pairs, 1.0, learnt)]


def activated(part: Part) -> tuple[float, float]:
    """Touches of an MLP's width by its activation, forward and backward."""
    return (3.0, 5.0) if part.gated_mlp else (2.0, 3.0)


def streams(part: Part, m: Model, p: Plan) -> tuple[float, float]:
    """Bytes of memory-bound kernels, forward and backward."""
    # forward: a norm reads and writes, an addition reads two and writes one; backward: a norm reads
    # two, gradients of both branches add up
    wide = tokens(m, p) * m.d_model / split_of(p)
    inside: dict[str, Callable] = {
        "attention": _turned,
        "latent": _turned,
        "sparse": _turned,
        "mamba2": _scanned,
        "linear": lambda x, m, p: (0.0, 0.0),
        "dense": lambda x, m, p: tuple(
            n * tokens(m, p) * x.d_ff / p.layout.tp for n in activated(x)
        ),
        "experts": _moved,
    }
    forward, backward = inside[part.KIND](part, m, p)
    return 2.0 * (5.0 * wide + forward), 2.0 * (6.0 * wide + backward)


def _turned(x: Part, m: Model, p: Plan) -> tuple[float, float]:
    """Elements that rotary embeddings, and a gate of the output, touch."""
    turns = (12.0, 10.0) if p.software.split_rotary else (2.0, 2.0)
    latent = x.KIND in LATENTS
    heads = x.n_heads + (x.n_heads if latent else x.n_kv_heads if x.own_keys else 0.0)
    width = tokens(m, p) * heads * (x.head_dim + x.qk_extra) / p.layout.tp
    gate = 0.0
    if not latent and x.output_gate:
        gate = tokens(m, p) * x.n_heads * x.head_dim / p.layout.tp
    # an indexer's queries, on every rank, turned in one kernel
    index = 2.0 * tokens(m, p) * index_width(x)
    # output and gate read, product written; both and the gradient read, two written
    return turns[0] * width + 3.0 * gate + index, turns[1] * width + 5.0 * gate + index


def _scanned(x: Part, m: Model, p: Plan) -> tuple[float, float]:
    """x, B and C through the convolution; x read for states and for outputs, y written, and normed
    with z; states in 12 bytes."""
    passed = 2.0 + 1.0 + 2.0 + 3.0, 2.0 * 2.0 + 1.0 + 2.0
    states = 12.0 / 2.0 * x.mamba_inner * x.mamba_state / 128.0
    one = (
        tokens(m, p)
        * (passed[0] * x.mamba_inner + states + passed[1] * x.mamba_groups * x.mamba_state)
        / p.layout.tp
    )
    return one, 2.0 * one


def moves(p: Plan) -> float:
    """Kernels that move tokens to experts, or from them: parted behind an exchange that brings one
    copy for several experts, padded for narrow products."""
    if p.software.route_bytes:
        return 1.0
    parted = p.software.merge_copies if p.layout.ep > 1 else 0.0
    return 1.0 + parted + (2.0 * narrow(p) if p.software.looped_experts else 0.0)


def _moved(x: Part, m: Model, p: Plan) -> tuple[float, float]:
    """Elements that copies of tokens, scores of experts, and activations touch; weights of routes:
    a product of what the activation makes, out of all it read, with the gradient behind it, summed
    over the width."""
    t, seen, r, found = tokens(m, p), visits(x, m, p), expert_reads(x, m.d_model), []
    biased = x.expert_biases and p.software.looped_experts
    for active, routes, biases in zip(
        activated(x), (0.0, gates(x) + 1.0), (28.0, 40.0), strict=True
    ):
        own = 0.0 if p.software.fused_experts else (active + routes) * x.d_ff / p.layout.etp
        one = moves(p) * 2.0 * r + own + (r * biases / 2.0 if biased else 0.0)
        routing = t * p.layout.etp / p.layout.tp * (2.0 * r + 6.0 * x.n_experts)
        found.append(active * t * x.shared_ff / p.layout.tp + routing + seen * one)
    return found[0], found[1]


def kernels(part: Part, p: Plan) -> float:
    """Kernels forward, one after the other."""
    core = 6.0 + (0 if p.software.flash else 5) + (11 if p.software.split_rotary else 0)
    several = 1.0 if p.layout.tp > 1 else 0.0
    each: dict[str, Callable[[Part], float]] = {
        "attention": lambda x: core + (1 if x.output_gate else 0),
        "latent": lambda x: core + 5,
        "sparse": lambda x: core + 5 + (11 if picks(x) else 0),
        "mamba2": lambda x: 10.0,
        "linear": lambda x: 3.0,
        "dense": lambda x: 5.0,
        "experts": lambda x: 11.0 + (3 if x.shared_ff else 0) + (2 if x.expert_rank else 0),
    }
    return several + each[part.KIND](part)


def launched_products(part: Part) -> float:
    """Products that a host launches one by one, experts' groups as one."""
    if part.KIND == "linear":
        return float(part.linears)
    return 4.0 if part.KIND in LATENTS else 2.0


def summed(part: Part) -> bool:
    """Whether ranks of tp sum its result."""
    return part.KIND != "experts" or bool(part.shared_ff)


def is_mixer(part: Part) -> bool:
    """Whether its messages count as a mixer's."""
    return part.KIND not in ("dense", "experts")


def ring(part: Part, m: Model, p: Plan) -> float:
    """Bytes that go round among ranks of cp: keys and values, or states in fp32, of all ranks."""
    if part.KIND == "mamba2":
        state = part.mamba_inner * part.mamba_state
        return 4.0 * p.layout.micro_batch * p.layout.cp * state / p.layout.tp
    if part.KIND == "sparse":
        # latents and an indexer's keys, which ranks of tp do not split
        sizes = part.kv_rank + part.rope_dim + (part.index_dim if picks(part) else 0.0)
        return 2.0 * tokens(m, p) * p.layout.cp * sizes
    heads = {"attention": "n_kv_heads", "latent": "n_heads"}.get(part.KIND)
    if heads is None:
        return 0.0
    sizes = getattr(part, heads) * (2.0 * part.head_dim + part.qk_extra)
    return 2.0 * tokens(m, p) * p.layout.cp * sizes / p.layout.tp


def kept(part: Part, m: Model, p: Plan) -> float:
    """Bytes kept for the backward pass where only the core of attention may be done again: inputs
    of norm and residual with a mask (5 in 16 bits with the norm's output), and what is inside."""
    t, w = tokens(m, p), max(p.precision.operand_bytes, 1.0) if m.trainable else 0.0
    inside: dict[str, Callable] = {
        "attention": _kept_by_attention,
        "latent": _kept_by_attention,
        "sparse": _kept_by_attention,
        "mamba2": lambda x, w, m, p: (
            2.0 * (3.0 * x.mamba_inner + 2.0 * x.mamba_groups * x.mamba_state) + w * x.mamba_inner
        ),
        "linear": lambda x, w, m, p: 0.0,
        "dense": lambda x, w, m, p: x.d_ff * (2.0 * gates(x) + w),
        "experts": _kept_by_experts,
    }
    own = inside[part.KIND](part, w, m, p) / p.layout.tp
    if part.KIND in LATENTS:
        own += w * (part.q_rank + part.kv_rank)
    if picks(part):
        # its queries, key and weights; indices of what it picks in 4 bytes
        own += 2.0 * ((part.index_heads + 1) * part.index_dim + part.index_heads)
        own += 4.0 * min(part.index_top, m.seq_len)
    return t * ((3.0 + w) * m.d_model / split_of(p) + own)


def _kept_by_attention(x: Part, w: float, m: Model, p: Plan) -> float:
    qk, e, a = x.head_dim + x.qk_extra, x.head_dim, x.n_heads
    if x.KIND == "latent":
        queries = a * (2.0 * qk + e)
    elif x.KIND == "sparse":
        # before and behind what turns them into latents; and what the core sums of these
        queries = a * (qk + x.kv_rank + x.rope_dim + x.kv_rank)
    else:
        # values projected as keys are stand beside them; a gate, and the output before it
        own = (qk if x.own_keys else 0.0) + (e if x.own_keys or x.own_values else 0.0)
        queries = a * qk + x.n_kv_heads * own + (2.0 * a * e if x.output_gate else 0.0)
    unfused = not p.software.flash and not p.layout.recompute_attention
    held = 6.0 if p.software.split_softmax else 5.0
    return 2.0 * queries + w * a * e + (held * m.seq_len * a if unfused else 0.0)


def _kept_by_experts(x: Part, w: float, m: Model, p: Plan) -> float:
    """Of all tokens, which ranks of tp share out."""
    seen, r = x.top_k * x.imbalance * p.layout.etp, expert_reads(x, m.d_model)
    width = 2.0 * gates(x) + w
    latents = w * x.expert_rank if x.expert_rank else 0.0
    return x.shared_ff * width + seen * (w * r + width * x.d_ff / p.layout.etp) + latents
