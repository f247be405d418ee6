"""What one part of a layer adds to the tables of a step: rows of products, of cores, bytes that
stream, kernels, messages, parameters, bytes kept.

Numbers are of one layer with that part, per device and micro-batch. A kind of part is a record of
sizes with four methods: `parameters`, `work`, `keeps` and, for the answer to "what is it?", the
class attributes `KIND`, `COUNTED`, `SPLIT` and `COPIED`.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol

from dmodel.once import once
from dmodel.records import Layout, Model, Plan, Precision, Software
from dmodel.smooth import ramp
from dmodel.types import Array, larger

WORD = 2.0
"""Bytes of one activation element (bf16 or fp16) in memory and on the wire."""


class Passes(NamedTuple):
    """The forward and the backward pass of one thing: times [s], bytes [byte], or factors on them
    [1]."""

    forward: Array
    backward: Array

    @property
    def total(self) -> Array:
        """Of both passes."""
        return self.forward + self.backward


class Site(NamedTuple):
    """Where a part runs: what its rows depend on beside its own sizes.

    Attributes:
      t: tokens of a micro-batch on one device [token]. h: width of the model [count]. s: length of
        a sequence [token]. causal: 1 = a token sees those before it.
      split: ranks that share what is h wide between products [count]. several: 1 where there are
        several ranks of tp. operand: bytes of an operand that is kept [byte]. low: share of the
        products below 16 bits [1].
      layout, software, precision: of the plan.
    """

    t: Array
    h: Array
    s: Array
    causal: Array
    split: Array
    several: Array
    operand: Array
    low: Array
    layout: Layout
    software: Software
    precision: Precision


@once
def tokens(model: Model, plan: Plan) -> Array:
    """Tokens of one micro-batch on one device: b s / cp."""
    return plan.layout.micro_batch * model.seq_len / plan.layout.cp


@once
def split_ranks(plan: Plan) -> Array:
    """Ranks that share what is h wide between products [count]: tp with sequence parallelism, else
    1."""
    return 1.0 + plan.layout.sp * (plan.layout.tp - 1.0)


@once
def low_share(plan: Plan) -> Array:
    """Share of the layers' products that run below 16 bits [1]."""
    return plan.precision.low_precision * (1.0 - plan.precision.wide_layers)


@once
def site(model: Model, plan: Plan) -> Site:
    """Where the parts of a model run by a plan.

    Operands below 8 bits are kept with their scales, in both layouts; frozen weights need no
    operand kept for their gradient.
    """
    return Site(
        t=tokens(model, plan),
        h=model.d_model,
        s=model.seq_len,
        causal=model.causal,
        split=split_ranks(plan),
        several=ramp(plan.layout.tp - 1.0),
        operand=larger(plan.precision.operand_bytes, 1.0) * model.trainable,
        low=low_share(plan),
        layout=plan.layout,
        software=plan.software,
        precision=plan.precision,
    )


class Product(NamedTuple):
    """A row of products.

    Attributes:
      kind: one of `KINDS`. rows, columns, inner: M, N and K of one product [count]. copies: how
        many of that size run [count]. grouped: 1 where several run as one grouped kernel.
    """

    kind: str
    rows: Array
    columns: Array
    inner: Array
    copies: Array = 1.0
    grouped: Array = 0.0


KINDS = {
    "first": "of a mixer, reads h",
    "latents": "of a mixer, reads latents",
    "out": "of a mixer, returns h",
    "index": "scores keys for sparse attention, stays in 16 bits",
    "streams": "weighs residual streams, stays in 16 bits",
    "up": "into the MLP of a dense layer",
    "down": "out of it",
    "shared_up": "into what every token passes beside routed experts",
    "shared_down": "out of it",
    "expert_up": "into routed experts",
    "expert_down": "out of them",
    "narrowing": "to experts' latents and back",
    "router": "scores experts, stays in 16 bits",
    "head": "logits, stays in 16 bits",
}
"""Kinds of products."""

WIDE = ("index", "streams", "router", "head")
"""Products that stay in 16 bits whatever the precision of the layers."""

ROUTED = ("expert_up", "expert_down")
"""Products of routed experts."""

LAST = ("down", "shared_down", "expert_down")
"""Products that return a feed-forward part's result."""

SUMMED = ("out", "down", "shared_down")
"""Products whose results ranks of tp sum, and then hold a part of under sequence parallelism."""


class Core(NamedTuple):
    """A row of what mixes tokens.

    Attributes:
      flops: of the forward pass on matrix units [FLOP]. exponentials: of one pass, in the same
        kernels [count]. softmax_bytes: traffic of scores where they go through memory [byte].
        stretch: times as long as it would take with heads that fit the matrix units [1]. behind:
        FLOPs and traffic of the backward pass over what attention has for as much forward [1].
    """

    flops: Array
    exponentials: Array = 0.0
    softmax_bytes: Array = 0.0
    stretch: Array = 1.0
    behind: Array = 1.0


class Work(NamedTuple):
    """What a part does.

    Attributes:
      products, cores: rows. streams: least traffic of kernels that stream, by pass [byte]. added:
        of it, the residual addition behind a feed-forward part, forward [byte].
      kernels: of the forward pass that run in turn [count]. dense: products among them, experts'
        group as one [count]. looped: launches of experts one by one beside them [count]. casts:
        casts of experts one by one [count].
      mixed, passed: 1 where ranks of tp sum the result of a mixer, of a feed-forward part. routed:
        1 where tokens go to experts. ring: what goes round the ring of cp forward [byte]. sent: to
        experts, by a device [byte]. visits: experts that a token visits [count]. route: map of who
        visits whom [byte].
    """

    products: tuple[Product, ...] = ()
    cores: tuple[Core, ...] = ()
    streams: Passes = Passes(0.0, 0.0)
    added: Array = 0.0
    kernels: Array = 0.0
    dense: Array = 0.0
    looped: Array = 0.0
    casts: Array = 0.0
    mixed: Array = 0.0
    passed: Array = 0.0
    routed: Array = 0.0
    ring: Array = 0.0
    sent: Array = 0.0
    visits: Array = 1.0
    route: Array = 0.0
    returned: Array = 0.0


class Weights(NamedTuple):
    """Parameters of a part [count].

    Attributes:
      split: spread over ranks of tp. whole: on every rank of tp. shared: of what every token
        passes beside routed experts, spread over tp, too. routed: of routed experts. active: of
        those, what a token visits. core: sum over heads of the sizes of scores and values.
    """

    split: Array = 0.0
    whole: Array = 0.0
    shared: Array = 0.0
    routed: Array = 0.0
    active: Array = 0.0
    core: Array = 0.0

    @property
    def total(self) -> Array:
        """All of them."""
        return self.split + self.whole + self.shared + self.routed


class Kept(NamedTuple):
    """Bytes that a part keeps for the backward pass, by what they are [byte].

    Attributes:
      inputs: of norms and residuals, with masks of dropout. norms: their outputs, operands of
        products. latents: of queries, keys and values. queries: these, with keys and values. core:
        what the core returns, with scores where it is not fused. dense: inside the MLP of a dense
        layer. shared: inside what every token passes beside routed experts. experts: inputs of
        routed experts, what lies inside but for `activated`, and what comes back. activated:
        results of their activation, operands of the last product. adapters: what they read.
    """

    inputs: Array = 0.0
    norms: Array = 0.0
    latents: Array = 0.0
    queries: Array = 0.0
    core: Array = 0.0
    dense: Array = 0.0
    shared: Array = 0.0
    experts: Array = 0.0
    activated: Array = 0.0
    adapters: Array = 0.0

    @property
    def total(self) -> Array:
        """Sum of all."""
        first, *others = (x for x in self if not (isinstance(x, float) and x == 0.0))
        return sum(others, start=first)


class Part(Protocol):
    """A kind of mixer, or of feed-forward part: a record whose fields are its sizes.

    Attributes:
      KIND: its name, in files and answers. COUNTED: fields that are at least 1. SPLIT: fields that
        ranks of tp divide. COPIED: fields that they divide or, where there are more of them, copy.
    """

    KIND: ClassVar[str]
    COUNTED: ClassVar[tuple[str, ...]]
    SPLIT: ClassVar[tuple[str, ...]]
    COPIED: ClassVar[tuple[str, ...]]

    def parameters(self, h: Array) -> Weights:
        """Parameters beside a layer of width h."""
        ...

    def work(self, at: Site) -> Work:
        """Rows of the tables of work and messages."""
        ...

    def keeps(self, at: Site) -> Kept:
        """Rows of the table of residents: what is kept for the backward pass."""
        ...


ADDITION = 3.0
"""Touches of h by a residual addition, forward and backward [count]: two read, one written."""

HALF = Passes(2.0 + ADDITION, 3.0 + ADDITION)
"""Touches of h by a norm and a residual addition [count]. A norm reads and writes, an addition
reads two and writes one; backward a norm reads its input once more beside the gradient, and
gradients of both branches of a residual are added."""


def opened(at: Site) -> Array:
    """Elements that are h wide between products, which sequence parallelism splits [count]."""
    return at.t * at.h / at.split


def wrapped(at: Site, inside: Passes, times: Array = 1.0) -> Passes:
    """Traffic of a part with its norm and residual addition [byte]; inside: elements that its own
    kernels touch."""
    wide = opened(at) * times
    return Passes(*(WORD * (half * wide + own) for half, own in zip(HALF, inside, strict=True)))


def entered(at: Site) -> dict[str, Array]:
    """What every part keeps of its input, by field of `Kept` [byte].

    Eager norms keep their input in fp32, and what they normalized where their weights are trained
    (transformers' `LlamaRMSNorm`).
    """
    wide, eager = opened(at), at.software.eager
    return {"inputs": (3.0 + 4.0 * eager) * wide, "norms": at.operand * (1.0 + eager) * wide}
