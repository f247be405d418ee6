"""What a measured training step is: shape, batch, precision, and the axes of its mesh; to and from
the records of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dmodel.catalog.shapes import decoder
from dmodel.counts import parameters
from dmodel.errors import InputError
from dmodel.records import Model, Plan

AXES = ("pipeline", "data", "fsdp", "expert", "context", "tensor")
"""Axes of the mesh, outermost first: neighbours on the innermost axis sit on the fastest links."""

REMAT = ("none", "selective", "full")
DTYPES = ("bf16", "fp32")
ATTENTION = ("none", "flash")


class WorkloadSpec(NamedTuple):
    """One training step (all counts; global unless said otherwise).

    Attributes:
      n_layers, d_model, d_ff, n_heads, n_kv_heads, head_dim, vocab, seq_len: shape, in the letters
      of the model L, h, f, a, g, e, V, s. gated: SwiGLU instead of GELU. tied: input and output
      embedding are one matrix.
      n_experts, top_k: routed experts of every layer and how many each token visits; 1 and 1 =
        dense.
      capacity_factor: places of all experts over the visits asked for, in groups of `expert_group`
        tokens of one sequence; tokens beyond an expert's places are dropped, whatever the mesh.
        `n_experts / top_k` drops none.
      expert_group: tokens that share out the places of the experts.
      micro_batch: sequences per data-parallel rank and micro-batch. n_microbatches: of one step.
      precision: of the matmuls and the activations; parameters, gradients and optimizer state are
        fp32.
      attention: "none" writes scores to memory; "flash" never holds more than a block of them (on
      GPU in bf16: the fused kernel of cuDNN). remat: "none" keeps what the backward pass reads of
      every product and elementwise function, "selective" all but the attention
        scores, "full" the input of each layer.
      sequence_parallel: activations between the tensor-parallel products are split over the
        sequence.
      zero: 0 or 3 = parameters, gradients and optimizer state sharded over fsdp · expert · context
        ranks.
      unroll: write the loops over layers and micro-batches out: slower to compile, for analyses
        that see the body of a loop once.
      pipeline, data, fsdp, expert, context, tensor: axes of the mesh. Rows of the batch are spread
        over data · fsdp · expert.
    """

    n_layers: int = 2
    d_model: int = 64
    d_ff: int = 256
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 16
    vocab: int = 256
    seq_len: int = 64
    gated: bool = True
    tied: bool = False
    n_experts: int = 1
    top_k: int = 1
    capacity_factor: float = 1.0
    expert_group: int = 16
    micro_batch: int = 1
    n_microbatches: int = 1
    precision: str = "bf16"
    attention: str = "none"
    remat: str = "none"
    sequence_parallel: bool = False
    zero: int = 0
    unroll: bool = False
    pipeline: int = 1
    data: int = 1
    fsdp: int = 1
    expert: int = 1
    context: int = 1
    tensor: int = 1

    def size(self, axes: str | tuple[str, ...]) -> int:
        """Ranks along one axis or the product of several."""
        product = 1
        for axis in (axes,) if isinstance(axes, str) else axes:
            product *= getattr(self, axis)
        return product

    @property
    def devices(self) -> int:
        """Product of all axes."""
        return self.size(AXES)

    @property
    def data_ranks(self) -> int:
        """dp: ranks that hold different rows of the batch."""
        return self.data * self.fsdp * self.expert

    @property
    def global_batch(self) -> int:
        """Sequences per step."""
        return self.micro_batch * self.n_microbatches * self.data_ranks

    @property
    def capacity(self) -> int:
        """Places of one expert for one group of tokens."""
        return -int(-self.expert_group * self.top_k * self.capacity_factor // self.n_experts)

    def on_one_device(self) -> WorkloadSpec:
        """The same model, unsharded: what parameters look like as a whole."""
        return self._replace(zero=0, sequence_parallel=False, **dict.fromkeys(AXES, 1))


Need = tuple[bool, str]
"""Whether something holds, and how to say that it does not."""


def _needs(spec: WorkloadSpec) -> list[Need]:
    """What must hold, and how to say that it does not."""
    return [
        *_counts(spec),
        _one_of("precision", spec.precision, DTYPES),
        _one_of("remat", spec.remat, REMAT),
        _one_of("attention", spec.attention, ATTENTION),
        *_shards(spec),
        *_heads(spec),
        *_splits(spec),
    ]


def _counts(spec: WorkloadSpec) -> list[Need]:
    """All but zero are 1 at least."""
    counts = {name: n for name, n in spec._asdict().items() if type(n) is int and name != "zero"}
    return [(n >= 1, f"{name}: expected 1 or more, got {n}") for name, n in counts.items()]


def _one_of(name: str, word: str, known: tuple[str, ...]) -> Need:
    return word in known, f"{name}: expected one of {', '.join(known)}, got {word!r}"


def _shards(s: WorkloadSpec) -> list[Need]:
    advice = f"but zero = {s.zero}: give zero = 3, or use the axis data"
    return [
        (s.zero in (0, 3), f"zero: expected 0 or 3, got {s.zero}"),
        (s.zero == 3 or s.fsdp == 1, f"fsdp = {s.fsdp} shards the parameters, {advice}"),
    ]


def _heads(s: WorkloadSpec) -> list[Need]:
    return [
        (s.head_dim % 2 == 0, f"head_dim: rotary embedding needs an even number, got {s.head_dim}"),
        (
            s.n_heads % s.n_kv_heads == 0,
            f"n_heads = {s.n_heads} is not a multiple of n_kv_heads = {s.n_kv_heads}",
        ),
    ]


def _splits(s: WorkloadSpec) -> list[Need]:
    """What the axes of the mesh must divide."""
    shards = s.fsdp * s.expert * s.context if s.zero else 1
    return [
        _split("n_kv_heads", s.n_kv_heads, "tensor", s.tensor),
        _split("d_ff", s.d_ff, "tensor", s.tensor),
        _split("vocab", s.vocab, "tensor", s.tensor),
        _split("d_model", s.d_model, "fsdp · expert · context", shards),
        _split("seq_len", s.seq_len, "context", s.context),
        *_tokens(s),
        _split("n_layers", s.n_layers, "pipeline", s.pipeline),
        (
            s.pipeline == 1 or s.n_microbatches % s.pipeline == 0,
            f"n_microbatches = {s.n_microbatches} is not a multiple of pipeline = {s.pipeline}: "
            "stages share the head by micro-batches",
        ),
    ]


def _split(name: str, value: int, axis: str, ranks: int) -> Need:
    return value % ranks == 0, f"{name} = {value} cannot be split over {axis} = {ranks}"


def _tokens(s: WorkloadSpec) -> list[Need]:
    """What tokens of a rank, and the experts that they visit, must divide into."""
    split, local = s.tensor if s.sequence_parallel else 1, s.seq_len // max(s.context, 1)
    own = local // split
    return [
        (
            local % split == 0,
            f"{local} tokens of a rank cannot be split over tensor = {s.tensor} as "
            "sequence_parallel asks",
        ),
        _split("n_experts", s.n_experts, "expert", s.expert),
        (s.top_k <= s.n_experts, f"top_k = {s.top_k} exceeds n_experts = {s.n_experts}"),
        (
            s.n_experts == 1 or own % s.expert_group == 0,
            f"groups of expert_group = {s.expert_group} do not fill the {own} tokens of a rank",
        ),
    ]


def check(spec: WorkloadSpec) -> WorkloadSpec:
    """The spec itself, if it can run.

    Raises:
      InputError: sizes that do not divide, or unknown words; all of them are named.
    """
    wrong = [text for holds, text in _needs(spec) if not holds]
    if wrong:
        raise InputError("this training step cannot be built: " + "; ".join(wrong))
    return spec


def transformer(spec: WorkloadSpec) -> Model:
    """The shape as the model's record; places per visit are its imbalance."""
    s = spec
    places = s.capacity * s.n_experts / (s.expert_group * s.top_k) if s.n_experts > 1 else 1.0
    return decoder(
        n_layers=float(s.n_layers),
        d_model=float(s.d_model),
        d_ff=float(s.d_ff),
        gated_mlp=float(s.gated),
        n_heads=float(s.n_heads),
        n_kv_heads=float(s.n_kv_heads),
        head_dim=float(s.head_dim),
        vocab=float(s.vocab),
        seq_len=float(s.seq_len),
        tied_embeddings=float(s.tied),
        n_experts=float(s.n_experts),
        top_k=float(s.top_k),
        **({"imbalance": places} if s.n_experts > 1 else {}),
    )


def plan(spec: WorkloadSpec) -> Plan:
    """The layout as the model's record.

    Weights: 4 bytes are the fp32 ones; in bf16 their 16-bit copy (2) counts as the weight and the
    fp32 ones as the master in the optimizer state. Gradients are reduced in fp32, under ZeRO-3 in
    the precision of the matmuls, which is the gather's.
    """
    s, half = spec, spec.precision == "bf16"
    return Plan.of(
        dp=float(s.data_ranks),
        tp=float(s.tensor),
        cp=float(s.context),
        pp=float(s.pipeline),
        ep=float(s.expert),
        etp=float(s.tensor),
        sp=float(s.sequence_parallel),
        zero=float(s.zero),
        shard=float(s.fsdp * s.expert) if s.zero else 1.0,
        micro_batch=float(s.micro_batch),
        global_batch=float(s.global_batch),
        recompute_layers=float(s.remat == "full"),
        recompute_attention=float(s.remat == "selective" and s.attention == "none"),
        recompute_last=float(s.n_experts > 1),
        flash=float(s.attention == "flash"),
        weight_bytes=2.0 if half else 4.0,
        gather_bytes=2.0 if half else 4.0,
        optimizer_bytes=12.0 if half else 8.0,
        reduce_bytes=2.0 if half and s.zero == 3 else 4.0,
        schedule="gpipe" if s.pipeline > 1 else "1f1b",
    )


def to_row(spec: WorkloadSpec) -> dict[str, Any]:
    """Cells of a row of traces: everything about the step but where it ran and how long it took."""
    s = spec
    sparse = s.n_experts > 1
    return {
        "n_params": int(parameters(transformer(s))),
        "n_layers": s.n_layers,
        "d_model": s.d_model,
        "d_ff": s.d_ff,
        "gated_mlp": int(s.gated),
        "n_heads": s.n_heads,
        "n_kv_heads": s.n_kv_heads,
        "head_dim": s.head_dim,
        "vocab": s.vocab,
        "n_experts": s.n_experts if sparse else "",
        "top_k": s.top_k if sparse else "",
        "seq_len": s.seq_len,
        "n_accel": s.devices,
        "precision": s.precision,
        "attention": s.attention,
        "recompute": s.remat,
        "dp": s.data_ranks,
        "zero_stage": s.zero,
        "shard": s.fsdp * s.expert if s.zero else "",
        "tp": s.tensor,
        "sp": int(s.sequence_parallel),
        "pp": s.pipeline,
        "interleave": 1,
        "cp": s.context,
        "ep": s.expert,
        "etp": s.tensor if sparse else "",
        "micro_batch": s.micro_batch,
        "global_batch": s.global_batch,
    }


def from_row(cells: dict[str, Any], **fixed: Any) -> WorkloadSpec:
    """The training step that a row of traces describes; what it leaves blank is 1, none or the
    spec's default.

    Args:
      cells: column → value, as `to_row` writes or as text. fixed: fields that a row does not say
        (`tied`, `capacity_factor`, …).
    Raises:
      InputError: the row asks for what the workload has not, or its degrees do not fit each other.
    """

    def number(name: str, blank: int) -> int:
        return int(float(word(name, str(blank))))

    def word(name: str, blank: str) -> str:
        return str(cells.get(name, "")).strip() or blank

    heads, width = number("n_heads", 1), number("d_model", 1)
    spec = WorkloadSpec(
        n_layers=number("n_layers", 1),
        d_model=width,
        d_ff=number("d_ff", 4 * width),
        gated=bool(number("gated_mlp", 1)),
        n_heads=heads,
        n_kv_heads=number("n_kv_heads", heads),
        head_dim=number("head_dim", width // heads),
        vocab=number("vocab", 1),
        n_experts=max(number("n_experts", 1), 1),
        top_k=max(number("top_k", 1), 1),
        seq_len=number("seq_len", 1),
        precision=word("precision", "bf16"),
        attention=word("attention", "flash"),
        remat=word("recompute", "none"),
        tensor=number("tp", 1),
        sequence_parallel=bool(number("sp", 0)),
        context=number("cp", 1),
        pipeline=number("pp", 1),
        **_batch(number),
    )
    return check(spec._replace(**fixed))


def _batch(number: Callable[[str, int], int]) -> dict[str, Any]:
    """Axes over which the batch is spread, and its parts; number: of a column, or what is blank."""
    dp, ep, zero = number("dp", 1), number("ep", 1), number("zero_stage", 0)
    b = number("micro_batch", 1)
    shard, rows = number("shard", dp) if zero else ep, dp * b
    batch = number("global_batch", rows)
    if dp % shard or shard % ep or batch % rows:
        raise InputError(
            f"degrees do not divide: dp = {dp}, shard = {shard}, ep = {ep}, micro_batch = {b}, "
            f"global_batch = {batch}; "
            "expected ep | shard | dp and dp · micro_batch | global_batch"
        )
    return {
        "zero": zero,
        "data": dp // shard,
        "fsdp": shard // ep,
        "expert": ep,
        "micro_batch": b,
        "n_microbatches": batch // rows,
    }
