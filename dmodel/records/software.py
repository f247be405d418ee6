"""What the stack does, whatever the layout: which kernels it has, and what it lets overlap."""

from __future__ import annotations

from dmodel import struct
from dmodel.types import Array

BUCKET_GRADIENTS, BUCKET_GRADIENTS_PER_RANK = 4e7, 1e6
"""Gradients that a bucket of Megatron-Core's data parallelism holds: the first, or the second for
each rank where that is more (`DistributedDataParallelConfig.bucket_size`, v0.7 to today)."""


NEEDS = {"sparse_kernels": "index_top"}
"""Facts that say nothing of models without parts that have a size: fact → size."""


class Software(struct.PyTreeNode, kw_only=True):
    """Facts of a stack, as 0 and 1 where nothing else is said.

    Attributes:
      merge_copies: 1 = copies of a token for the experts of a node travel as one (DeepEP).
      route_bytes: of the map of who visits whom, per token and expert [byte]; 0 = counts alone.
      accumulate: 1 = ZeRO 2 and 3 reduce gradients once per step (`no_sync`); 0 = per micro-batch.
      recompute_last: 1 = a recomputed layer's last product is done again; 0 = it ends before.
      exchange_kept: 1 = what ranks of ep sent is kept where kernels that stream run again; 0 = not.
      last_kept: 1 = that product's result is kept, though nothing reads it; 0 = dropped.
      graphed: share of a layer's kernels, experts' aside, that Python does not launch [1].
      looped_experts: 1 = the host launches experts' products one by one; 0 = one kernel for all.
      fused_experts: 1 = experts' products have activation and casts in them; 0 = kernels apart.
      fused_sums: 1 = products add to the gradients held; 0 = a kernel of its own adds.
      flash: 1 = attention kernels are fused; 0 = scores go through memory.
      split_softmax: 1 = unfused scale, mask, fp32 softmax and cast are a kernel each; 0 = one.
      sparse_kernels: 1 = attention over picked keys is fused; 0 = all scores, in fp32, masked.
      split_rotary: 1 = several kernels rotate queries and keys; 0 = one does.
      unpadded_vocab: 1 = a rank's columns of logits are no multiple of 8; 0 = they are padded.
      whole_logits: 1 = ranks of tp hold all logits for the loss; 0 = their columns. Memory alone.
      whole_ends: 1 = ZeRO-3 keeps embedding and head gathered; 0 = as layers. Memory alone.
      boundary_copies: of a stage's input that it keeps for a micro-batch in flight [count].
      boundary_buffers: 1 = a stage has buffers to receive in for all of a step; 0 = as it goes.
      freed_gradients: 1 = gradients are freed after the update; 0 = they stay. Memory alone.
      eager: 1 = norms, activations and gates keep results of their own; 0 = fused. Memory alone.
      stream_ratio: traffic of norms, activations and additions over that of kernels apart [1].
      loss_ratio: traffic of the loss over that of kernels apart [1].
      cp_balanced: 1 = ranks of cp get equal work of a causal sequence; 0 = in order, last waits.
      overlap_tp: 1 = messages of tp may hide behind compute; 0 = never.
      overlap_cp: 1 = messages of cp may hide behind compute; 0 = never.
      overlap_ep: 1 = messages of ep may hide behind compute; 0 = never.
      overlap_dp: 1 = messages of dp may hide, and go in buckets; 0 = never, and all at once.
      overlap_pp: 1 = messages of pp may hide behind compute; 0 = never.
      overlap_replica: 1 = sums over HSDP's copies may hide behind compute; 0 = never.
      composed: 1 = a step is a sum of parts measured apart (vTrain): none waits; 0 = it is run.
      attention_rate: forward rate of fused attention over that of the chip's newest [1].
      attention_backward_rate: backward rate of fused attention over that of the newest [1].
      offload_optimizer: share of the optimizer's states that the host holds and updates [1].
      offload_weights: share of the stored weights that waits in host memory [1]; 0 = none.
      host_sums: 1 = gradients leave with each micro-batch and add up in the host; 0 = once a step.
      overlap_offload: 1 = copies to and from the host run beside passes and update; 0 = in turn.
      host_update: time of the host's update over its traffic's at full bandwidth [1].
      bucket_per_rank: least bytes of a bucket per rank of dp · cp [byte]; 0 = none.
    """

    CHOICES = frozenset(
        (
            "accumulate recompute_last exchange_kept last_kept flash cp_balanced "
            "unpadded_vocab graphed sparse_kernels whole_logits whole_ends boundary_buffers "
            "freed_gradients eager "
            "fused_sums split_rotary split_softmax route_bytes attention_rate "
            "attention_backward_rate stream_ratio loss_ratio "
            "overlap_tp overlap_cp overlap_ep overlap_dp overlap_pp overlap_replica composed "
            "offload_optimizer offload_weights host_sums overlap_offload"
        ).split()
    )
    """Fields that are choices, not sizes: no derivative is asked for."""

    OF_EXPERTS = frozenset(
        "merge_copies route_bytes looped_experts fused_experts exchange_kept".split()
    )
    """Fields that say nothing of a model without experts."""

    merge_copies: Array = 0.0
    route_bytes: Array = 0.0
    accumulate: Array = 0.0
    recompute_last: Array = 1.0
    exchange_kept: Array = 0.0
    last_kept: Array = 0.0
    graphed: Array = 0.0
    looped_experts: Array = 0.0
    fused_experts: Array = 0.0
    fused_sums: Array = 0.0
    flash: Array = 1.0
    split_softmax: Array = 0.0
    sparse_kernels: Array = 1.0
    split_rotary: Array = 0.0
    unpadded_vocab: Array = 0.0
    whole_logits: Array = 0.0
    whole_ends: Array = 0.0
    boundary_copies: Array = 0.0
    boundary_buffers: Array = 0.0
    freed_gradients: Array = 0.0
    eager: Array = 0.0
    stream_ratio: Array = 1.0
    loss_ratio: Array = 1.0
    cp_balanced: Array = 1.0
    overlap_tp: Array = 1.0
    overlap_cp: Array = 1.0
    overlap_ep: Array = 1.0
    overlap_dp: Array = 1.0
    overlap_pp: Array = 1.0
    overlap_replica: Array = 1.0
    composed: Array = 0.0
    attention_rate: Array = 1.0
    attention_backward_rate: Array = 1.0
    offload_optimizer: Array = 0.0
    offload_weights: Array = 0.0
    host_sums: Array = 0.0
    overlap_offload: Array = 1.0
    host_update: Array = 2.1
    bucket_per_rank: Array = 0.0
