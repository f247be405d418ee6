"""Training steps that the model is compared with XLA on: small ones for products and collectives,
large ones for memory, some with their loops written out for XLA's own count."""

from __future__ import annotations

from calibration.collect.workload import WorkloadSpec

SMALL = WorkloadSpec(
    n_layers=4,
    d_model=128,
    d_ff=512,
    n_heads=8,
    n_kv_heads=4,
    head_dim=16,
    vocab=256,
    seq_len=64,
    micro_batch=2,
    precision="fp32",
)
SPARSE = SMALL._replace(
    n_layers=2, n_experts=8, top_k=2, capacity_factor=1.5, d_ff=256, micro_batch=4
)
CASES: dict[str, WorkloadSpec] = {
    "one device": SMALL,
    "one device, selective": SMALL._replace(remat="selective", micro_batch=4),
    "one device, full": SMALL._replace(remat="full", micro_batch=8),
    "data 8": SMALL._replace(data=8),
    "fsdp 8": SMALL._replace(fsdp=8, zero=3, micro_batch=4),
    "data 2 · fsdp 4": SMALL._replace(data=2, fsdp=4, zero=3, n_microbatches=2),
    "tensor 4": SMALL._replace(tensor=4, micro_batch=4),
    "tensor 4, full": SMALL._replace(tensor=4, remat="full", micro_batch=8, sequence_parallel=True),
    "context 4": SMALL._replace(context=4, data=2, micro_batch=4),
    "fsdp 2 · tensor 2 · context 2": SMALL._replace(
        fsdp=2, tensor=2, context=2, zero=3, micro_batch=4, sequence_parallel=True, n_microbatches=2
    ),
    "expert 4 · data 2": SPARSE._replace(expert=4, data=2),
    "fsdp 2 · expert 2 · tensor 2": SPARSE._replace(
        fsdp=2, expert=2, tensor=2, zero=3, sequence_parallel=True
    ),
    "expert 2 · tensor 4, sequence whole": SPARSE._replace(expert=2, tensor=4),
    "pipeline 2 · data 2 · tensor 2": SMALL._replace(
        pipeline=2, data=2, tensor=2, n_microbatches=4
    ),
    "pipeline 4 · fsdp 2": SMALL._replace(pipeline=4, fsdp=2, zero=3, n_microbatches=8),
}
LARGE = WorkloadSpec(
    n_layers=24,
    d_model=2048,
    d_ff=5632,
    n_heads=16,
    n_kv_heads=8,
    head_dim=128,
    vocab=32000,
    seq_len=2048,
    micro_batch=2,
    precision="fp32",
    attention="flash",
)
LARGE_SPARSE = LARGE._replace(
    n_experts=8, top_k=2, capacity_factor=1.25, expert_group=64, d_ff=2048
)
MEMORY: dict[str, WorkloadSpec] = {
    "one device": LARGE,
    "one device, scores written": LARGE._replace(attention="none", seq_len=512, micro_batch=8),
    "one device, selective": LARGE._replace(attention="none", remat="selective"),
    "one device, full": LARGE._replace(remat="full", micro_batch=8),
    "data 8": LARGE._replace(data=8, micro_batch=1),
    "fsdp 8": LARGE._replace(fsdp=8, zero=3),
    "fsdp 8, full": LARGE._replace(fsdp=8, zero=3, remat="full", micro_batch=4, n_microbatches=2),
    "tensor 4": LARGE._replace(tensor=4),
    "tensor 4, sequence split": LARGE._replace(tensor=4, sequence_parallel=True),
    "context 4": LARGE._replace(context=4, micro_batch=4),
    "fsdp 2 · tensor 2 · context 2": LARGE._replace(
        fsdp=2, tensor=2, context=2, zero=3, sequence_parallel=True, n_microbatches=2
    ),
    "expert 4 · data 2": LARGE_SPARSE._replace(expert=4, data=2),
    "fsdp 2 · expert 2 · tensor 2": LARGE_SPARSE._replace(
        fsdp=2, expert=2, tensor=2, zero=3, sequence_parallel=True
    ),
    "pipeline 2 · data 2 · tensor 2": LARGE._replace(
        pipeline=2, data=2, tensor=2, n_microbatches=16, micro_batch=1
    ),
    "pipeline 2, full": LARGE._replace(
        pipeline=2, data=4, n_microbatches=16, micro_batch=1, remat="full"
    ),
    "pipeline 4 · fsdp 2": LARGE._replace(
        pipeline=4, fsdp=2, zero=3, n_microbatches=32, micro_batch=1
    ),
}
"""Of 1.3 billion parameters (or experts of as many), so that the state, many layers and one layer
weigh what they do in practice."""

WIDE = SMALL._replace(
    d_model=512, d_ff=2048, head_dim=64, vocab=1024, seq_len=256, n_layers=2, unroll=True
)
UNROLLED: dict[str, WorkloadSpec] = {
    "one device": WIDE,
    "two micro-batches": WIDE._replace(n_microbatches=2, micro_batch=1),
    "fsdp 2 · tensor 2 · context 2": WIDE._replace(fsdp=2, tensor=2, context=2, zero=3),
    "experts": WIDE._replace(n_experts=4, top_k=2, d_ff=1024, capacity_factor=1.25, expert=2),
}
"""Loops written out, so that XLA's cost analysis sees each layer; wide, because it counts
elementwise arithmetic too."""
