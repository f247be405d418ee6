"""Megatron-LM's own estimate of memory (`megatron/training/theoretical_memory_usage.py`).

From a checkout; the file is run by itself, with the arguments that it reads. It says no times, and
knows no full recomputation, ZeRO above stage 1, or context parallelism. Attention's scores are not
kept by its formulas, so they are fused or recomputed.
"""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from experiments.benchmark.rivals.common import Answer, Job, plain_decoder, require, serve

FILE = Path("megatron", "training", "theoretical_memory_usage.py")
RELATIVE = "from .utils import is_hybrid_model, print_rank_0\n"
"""The import of what is not needed here: two helpers of the package around it."""

PADDED = 128
"""Vocabularies are padded to a multiple of this times tp (`--make-vocab-size-divisible-by`)."""

MEGA = 2**20


def prepare(checkout: Path | None) -> tuple[Any, str]:
    """The adapter's model, and the version."""
    if checkout is None or not (checkout / FILE).is_file():
        raise SystemExit(f"Megatron-LM: expected --checkout, a folder with {FILE}; got {checkout}")
    source = (checkout / FILE).read_text(encoding="utf-8")
    tool: Any = ModuleType("theoretical_memory_usage")
    tool.is_hybrid_model = lambda args: False
    tool.print_rank_0 = print
    exec(compile(source.replace(RELATIVE, ""), str(FILE), "exec"), vars(tool))  # noqa: S102

    def answer(job: Job, constant: float | None) -> Answer:
        require(constant is None, "no constant")
        _check(job)
        *_, total = tool.report_theoretical_memory(_arguments(job), job.micro_batches)
        return Answer(None, total * MEGA)

    return answer, "checkout"


def _check(job: Job) -> None:
    plain_decoder(job, experts=True)
    require(job.text("recompute") != "full", "full recomputation")
    require(job.flag("flash") or job.text("recompute") == "selective", "scores of attention kept")
    require(job.count("zero_stage") <= 1, f"ZeRO stage {job.count('zero_stage')}")
    require(job.count("cp") == 1, "context parallelism")


def _arguments(job: Job) -> SimpleNamespace:
    tp, interleave = job.count("tp"), job.count("interleave")
    multiple = PADDED * tp
    return SimpleNamespace(
        kv_channels=job.count("head_dim"),
        num_attention_heads=job.count("n_heads"),
        hidden_size=job.count("d_model"),
        ffn_hidden_size=job.count("d_ff"),
        num_layers=job.count("n_layers"),
        seq_length=job.count("seq_len"),
        micro_batch_size=job.count("micro_batch"),
        group_query_attention=job.count("n_kv_heads") != job.count("n_heads"),
        num_query_groups=job.count("n_kv_heads"),
        num_experts=job.count("n_experts") if job.experts else None,
        moe_router_topk=job.count("top_k"),
        moe_ffn_hidden_size=job.count("d_ff"),
        moe_shared_expert_intermediate_size=None,
        moe_layer_freq=1,
        moe_latent_size=None,
        mtp_num_layers=None,
        multi_latent_attention=False,
        swiglu=job.flag("gated_mlp"),
        normalization="RMSNorm" if job.flag("gated_mlp") else "LayerNorm",
        add_bias_linear=not job.flag("gated_mlp"),
        padded_vocab_size=math.ceil(job.count("vocab") / multiple) * multiple,
        untie_embeddings_and_output_weights=job.flag("gated_mlp"),
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=job.count("pp"),
        virtual_pipeline_model_parallel_size=interleave if interleave > 1 else None,
        expert_model_parallel_size=job.count("ep"),
        expert_tensor_parallel_size=job.count("etp"),
        data_parallel_size=job.count("dp"),
        world_size=job.count("n_accel"),
        use_distributed_optimizer=job.count("zero_stage") >= 1,
        sequence_parallel=job.flag("sp"),
        # without recomputation fused attention keeps what selective recomputation does
        recompute_granularity="selective",
    )


if __name__ == "__main__":
    serve(prepare)
