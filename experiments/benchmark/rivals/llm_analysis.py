"""llm-analysis (Cheng Li), from the index or from a checkout.

Its chips where it has them, else data sheets; the network between nodes is the row's. Constant: the
share of peak FLOP/s that is reached. Without one the shares of its own LLaMA example, 0.5 of peak
and 0.9 of the memory bandwidth. It has no interleaved pipelines, context parallelism, or operands
of 8 bits that are trained in.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
from pathlib import Path
from typing import Any

from experiments.benchmark.rivals.common import (
    Answer,
    Job,
    from_checkout,
    plain_decoder,
    require,
    serve,
)

OWN_FLOPS, OWN_MEMORY = 0.5, 0.9
"""Shares that its example of training LLaMA reaches (`examples/llama/run_train.sh`)."""

CHIPS = {
    "A100-80GB": "a100-sxm-80gb",
    "A100-40GB": "a100-sxm-40gb",
    "H100-80GB": "h100-sxm-80gb",
    "V100-32GB": "v100-sxm-32gb",
    "V100-16GB": "v100-sxm-16gb",
}
LATENCY = 8e-6
"""Shortest message in a node, as all its chips have it [s]."""

RECOMPUTATION = {"none": 0, "selective": 1, "full": 4}


def prepare(checkout: Path | None) -> tuple[Any, str]:
    """The adapter's model, and the version."""
    version = importlib.metadata.version("llm-analysis")
    if checkout is not None:
        from_checkout(checkout, "llm-analysis")
        version = "checkout"
    config = importlib.import_module("llm_analysis.config")
    analysis = importlib.import_module("llm_analysis.analysis")
    logger = importlib.import_module("llm_analysis.logger").logger
    logger.setLevel("CRITICAL")
    config.populate_model_and_gpu_configs()

    def answer(job: Job, constant: float | None) -> Answer:
        _check(job, config)
        found = analysis.LLMAnalysis(
            _model(job, config),
            _chip(job, config),
            config.DtypeConfig(),
            _layout(job, config),
            flops_efficiency=constant or OWN_FLOPS,
            hbm_memory_efficiency=OWN_MEMORY,
        ).training(
            batch_size_per_gpu=job.count("micro_batch"),
            gradient_accumulation_steps=job.micro_batches,
            global_batch_size=job.count("global_batch"),
            seq_len=job.count("seq_len"),
            activation_recomputation=analysis.ActivationRecomputation(
                _recomputation(job, analysis)
            ),
            ds_zero=analysis.DSZeRO(job.count("zero_stage")),
            **({"flash_attn": job.flag("flash")} if _has_flash(analysis) else {}),
        )
        return Answer(found["latency_per_iter"], _peak(found))

    return answer, version


def _has_flash(analysis: Any) -> bool:
    return "flash_attn" in analysis.LLMAnalysis.training.__code__.co_varnames


def _recomputation(job: Job, analysis: Any) -> int:
    """Number of the recomputation in this version, whose last one is full."""
    number = RECOMPUTATION[job.text("recompute")]
    return min(number, max(each.value for each in analysis.ActivationRecomputation))


def _peak(found: dict[str, Any]) -> float:
    """The peak that the version states, else the parts that it states [byte]."""
    if "estimated_peak_memory_per_gpu" in found:
        return found["estimated_peak_memory_per_gpu"]
    return found["(weight+op_state+grad+act)_memory_per_gpu"]


def _fields(record: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(record)}


def _check(job: Job, config: Any) -> None:
    plain_decoder(job, experts=True)
    require(job.count("interleave") == 1, "interleaved pipeline")
    require(job.count("cp") == 1, "context parallelism")
    require(job.count("etp") == 1, "tensor parallelism inside experts")
    require(
        job.count("n_heads") * job.count("head_dim") == job.count("d_model"),
        "heads that are not d_model / n_heads wide",
    )
    require(
        not job.flag("gated_mlp") or "mlp_gated_linear_units" in _fields(config.ModelConfig),
        "gated MLP",
    )
    sharded = job.count("shard") < job.count("dp") and job.count("zero_stage") > 0
    require(
        not sharded or "rdp_size" in _fields(config.ParallelismConfig), "sharding within replicas"
    )


def _model(job: Job, config: Any) -> Any:
    known = {
        "name": "row",
        "num_layers": job.count("n_layers"),
        "n_head": job.count("n_heads"),
        "hidden_dim": job.count("d_model"),
        "vocab_size": job.count("vocab"),
        "max_seq_len": job.count("seq_len"),
        "num_key_value_heads": job.count("n_kv_heads"),
        "ffn_embed_dim": job.count("d_ff"),
        "moe_num_experts": max(job.count("n_experts"), 1),
        "moe_top_k": max(job.count("top_k"), 1),
        "mlp_gated_linear_units": job.flag("gated_mlp"),
    }
    has = _fields(config.ModelConfig)
    require(
        "num_key_value_heads" in has or job.count("n_kv_heads") == job.count("n_heads"),
        "grouped queries",
    )
    return config.ModelConfig(**{name: value for name, value in known.items() if name in has})


def _chip(job: Job, config: Any) -> Any:
    between = job.real("slow_bytes_per_s") * float(job.cells["accel_per_node"] or 8) / 1e9
    name = CHIPS.get(job.text("accelerator"))
    if name is not None:
        known = config.get_gpu_config_by_name(name)
        return dataclasses.replace(known, inter_node_bandwidth_in_GB_per_sec=between)
    return config.GPUConfig(
        name=job.text("accelerator"),
        mem_per_GPU_in_GB=job.real("memory_bytes") / 1e9,
        hbm_bandwidth_in_GB_per_sec=job.real("memory_bytes_per_s") / 1e9,
        intra_node_bandwidth_in_GB_per_sec=job.real("fast_bytes_per_s") / 1e9,
        intra_node_min_message_latency=LATENCY,
        peak_fp16_TFLOPS=job.real("flops_per_s") / 1e12,
        inter_node_bandwidth_in_GB_per_sec=between,
    )


def _layout(job: Job, config: Any) -> Any:
    sharded = job.count("shard") if job.count("zero_stage") else job.count("dp")
    known = {
        "tp_size": job.count("tp"),
        "pp_size": job.count("pp"),
        "dp_size": sharded,
        "rdp_size": job.count("dp") // sharded,
        "ep_size": job.count("ep"),
        "sp_size": job.count("tp") if job.flag("sp") else 1,
    }
    has = _fields(config.ParallelismConfig)
    return config.ParallelismConfig(**{name: v for name, v in known.items() if name in has})


if __name__ == "__main__":
    serve(prepare)
