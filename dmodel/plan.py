"""How the work is spread: degrees of parallelism, batch, recompute, precision, placement. Numbers
only."""

from __future__ import annotations

from flax import struct

from dmodel.types import Array

PLACEMENT = ("tp", "cp", "ep", "dp", "pp")
"""Default order of the groups on the network, innermost first. Experts are laid over the ranks of
tp, cp and dp in this order, whatever those are for: `ep` before `dp` makes the ranks that share a
layer's experts neighbours, after it the ranks that hold the same ones."""

BUCKET_GRADIENTS, BUCKET_GRADIENTS_PER_RANK = 4e7, 1e6
"""Gradients that a bucket of Megatron-Core's data parallelism holds: the first, or the second for
each rank where that is more (`DistributedDataParallelConfig.bucket_size`, v0.7 to today)."""

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")


class Plan(struct.PyTreeNode, kw_only=True):
    """One way to run a training step. Degrees and sizes are float leaves, so that they can be
    differentiated.

    Attributes:
      dp, tp, cp, pp: data-, tensor-, context-, pipeline-parallel degree; their product is the
        device count.
      ep: expert-parallel degree, ranks of tp · cp · dp that hold different experts (it multiplies
        nothing). etp: tensor-parallel degree inside an expert (1 = experts are whole, whatever tp
        is); ep · etp divides tp · cp · dp. merge_copies: 1 when the copies of a
        token for the experts of one node travel there as one (DeepEP). route_bytes: for each token
        and expert, of the map that ranks of ep gather to know who visits whom (HybridEP: 1; 0 where
        they gather counts alone, in lines). sp: 1 = sequence parallelism beside tp.
      zero: ZeRO stage 0–3 (3 = FSDP); between two stages the costs interpolate linearly.
      shard: ranks over which ZeRO shards, ≤ dp; shard < dp is HSDP: sharded inside, replicated
        across.
      reshard: 1 = parameters gathered again for the backward pass (ZeRO-3), 0 = kept after the
        forward.
      prefetch: layers whose weights ZeRO-3 gathers ahead of their use; 0 = each is waited for. More
        than 1 takes memory, and no time off layers that are alike. accumulate: 1 = gradients of
        ZeRO 2 and 3 are added up whole and reduced once per step (FSDP's `no_sync`),
        0 = reduced behind every micro-batch. Of a single micro-batch neither is whole.
      interleave: v, model chunks per pipeline stage.
      stage_excess: layers that the fullest stage of the pipeline holds beyond the mean one.
        head_displaces: layers that the stage
        with the head holds fewer than the fullest. Both 0 where stages hold the same and the last
        one the head besides.
      micro_batch: b, sequences per data-parallel rank and micro-batch. global_batch: B, sequences
        per step.
      recompute_layers: share of the layers recomputed in full in the backward pass (1 = "full").
      recompute_attention: share of the other layers whose attention core is recomputed ("selective"
      = 1 for this core alone). recompute_products, recompute_elementwise: in the layers that are
      not recomputed in full, share of the products, and of the kernels
        that stream, that are done again all the same (PyTorch's checkpoints with a policy by
        operator, XLA's by name).
      recompute_bytes: share of what a layer would keep for the backward pass that modules which are
        done again by name do not (Megatron-Core's `recompute_modules`); memory alone.
      recompute_last: 1 = the last product of a recomputed layer, the down projection of its MLP or
        experts, the addition of its result and what is sent after it are done again like the rest
        (checkpoints of Megatron-LM and DeepSpeed); 0 = recomputation ends once the backward pass
        has what it needs, which that product's result is not (PyTorch's non-reentrant checkpoints
        from 2.1 on, compilers).
      last_kept: 1 = where parts of a layer are done again, the last product's result is kept
        although nothing reads it (PyTorch's checkpoints with a policy by operator), 0 = it is
        dropped (compilers).
      offload: share of what layers keep for the backward pass that waits for it in the host's
        memory (Megatron-Core's `cpu_offloading_num_layers`, MaxText's policies of that name);
        moving it takes no time here.
      graphed: share of the kernels of a layer, but for the products of its experts, that no program
        in Python launches: CUDA graphs, XLA
        on a TPU (on a GPU its C++ launches each for `counts.LOOP` of what Python takes).
        looped_experts: 1 where the
        host launches the products of a rank's experts one after the other, 0 where one kernel is
        for all, or a graph launches them.
      fused_experts: 1 where the kernel of experts' first products has their activation and, below
        16 bits, the cast of its result, and that of the second ones' gradients likewise
        (Transformer Engine's grouped MLP in CuTe DSL).
      fused_sums: 1 where the products of weight gradients add to what is held (Megatron-LM's
        gradient accumulation fusion), 0 where the
        sum is a kernel of its own, as it is for gradients that ZeRO 2 and 3 shard.
      flash: 1 = fused attention kernels, 0 = scores written to memory.
      split_rotary: 1 where several kernels rotate queries and keys, 0 where one does.
      narrow_gathers, narrow_sums: 1 where tensor ranks gather what products read, and send what
        they sum in the forward pass, in the
        bytes of the products' operands, 0 in 16 bits (Transformer Engine quantizes before it
        gathers; its `fp8_buf`).
      unpadded_vocab: 1 where a rank's columns of the logits are no multiple of 8 elements, as
        nobody pads the vocabulary.
      overlap_tp, overlap_cp, overlap_ep, overlap_dp, overlap_pp: 1 lets that communication hide
        behind compute, 0 forbids it; without overlap_dp what is sent once per step goes at once, in
        no buckets. overlap_replica: the same for the sum of HSDP's shards over their copies, which
        otherwise hides like other gradients.
      composed: 1 where the step is not run but added up from parts measured apart, kernels of a
        layer on one device and single collectives (vTrain's predictor): no rank waits for another,
        the head follows the layers, nothing is late, and a step has no fixed time.
        That its messages hide nowhere is said by the overlaps above.
      operand_bytes: bytes of one matmul operand (2 = bf16, 1 = fp8). low_precision: 1 when the
        matmuls run below 16 bits.
      attention_bytes: of one operand of the attention core (2 = bf16, 1 = fp8), where kernels fuse
        it.
      attention_rate, attention_backward_rate: rate of the stack's kernels of fused attention over
        that of the newest for the chip, forward and backward; above 0, below 1 for older ones.
      wide_layers: share of the layers' matmuls kept in 16 bits all the same. wide_gradient: 1 when
      those of weight gradients are. scale_passes: times that a tensor is read beside its cast, for
      its scales or its other direction (0 = scales known before). gather_bytes: bytes per parameter
      when weights are gathered.
      weight_bytes, gradient_bytes, optimizer_bytes: stored bytes per parameter (bf16 weights, fp32
        gradients, fp32
        master weight and two moments by default).
      logit_bytes: bytes alive per logit: by default the 16-bit product (2), the fp32 copy that the
        loss is taken of (4), its 16-bit gradient (2); 4 where the loss reads the product as it is,
        2 where the gradient takes its place.
      reduce_bytes: bytes per gradient element on the wire.
      bucket_per_rank: least bytes for each of the dp · cp ranks in a message of gradients or
        parameters once per step (Megatron-Core: those of a million gradients, experts' too), 0
        where messages do not grow with the group.
      cp_balanced: 1 when ranks of cp get parts of a causal sequence that cost the same (its first
        with its last), 0 when they get it in order, and all wait for the last.
      schedule: one of `SCHEDULES` (static). placement: order of the groups, innermost first
        (static).
    """

    dp: Array
    tp: Array = 1.0
    cp: Array = 1.0
    pp: Array = 1.0
    ep: Array = 1.0
    etp: Array = 1.0
    merge_copies: Array = 0.0
    route_bytes: Array = 0.0
    sp: Array = 0.0
    zero: Array = 0.0
    shard: Array = 1.0
    cp_balanced: Array = 1.0
    reshard: Array = 1.0
    prefetch: Array = 1.0
    accumulate: Array = 0.0
    interleave: Array = 1.0
    stage_excess: Array = 0.0
    head_displaces: Array = 0.0
    micro_batch: Array = 1.0
    global_batch: Array
    recompute_layers: Array = 0.0
    recompute_attention: Array = 0.0
    recompute_products: Array = 0.0
    recompute_elementwise: Array = 0.0
    recompute_bytes: Array = 0.0
    recompute_last: Array = 1.0
    last_kept: Array = 0.0
    offload: Array = 0.0
    graphed: Array = 0.0
    looped_experts: Array = 0.0
    fused_experts: Array = 0.0
    fused_sums: Array = 0.0
    flash: Array = 1.0
    split_rotary: Array = 0.0
    unpadded_vocab: Array = 0.0
    narrow_gathers: Array = 1.0
    narrow_sums: Array = 0.0
    overlap_tp: Array = 1.0
    overlap_cp: Array = 1.0
    overlap_ep: Array = 1.0
    overlap_dp: Array = 1.0
    overlap_pp: Array = 1.0
    overlap_replica: Array = 1.0
    composed: Array = 0.0
    operand_bytes: Array = 2.0
    low_precision: Array = 0.0
    attention_bytes: Array = 2.0
    attention_rate: Array = 1.0
    attention_backward_rate: Array = 1.0
    wide_layers: Array = 0.0
    wide_gradient: Array = 0.0
    scale_passes: Array = 0.0
    gather_bytes: Array = 2.0
    weight_bytes: Array = 2.0
    gradient_bytes: Array = 4.0
    optimizer_bytes: Array = 12.0
    logit_bytes: Array = 8.0
    reduce_bytes: Array = 2.0
    bucket_per_rank: Array = 0.0
    schedule: str = struct.field(pytree_node=False, default="1f1b")
    placement: tuple[str, ...] = struct.field(pytree_node=False, default=PLACEMENT)

    def alike(self) -> Plan:
        """The plan with stages that hold the same: a layout is that of some degrees, and does not
        go on to others."""
        return self.replace(stage_excess=0.0, head_displaces=0.0)

    @property
    def devices(self) -> Array:
        """dp · tp · cp · pp."""
        return self.dp * self.tp * self.cp * self.pp

    @property
    def n_microbatches(self) -> Array:
        """m = B / (dp · b), micro-batches per pipeline and step."""
        return self.global_batch / (self.dp * self.micro_batch)
