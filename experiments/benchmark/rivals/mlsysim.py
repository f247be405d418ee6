"""mlsysim (Reddi et al.), from the index: its `DistributedModel` and `TrainingMemoryModel`.

Its chips where it has them; the network is the row's. A model is its parameters, layers and width,
so every kind of layer can be expressed. Constant: the compute efficiency; without one its default,
0.5. The exchange of gradients overlaps as its default says (0.85). It has no context parallelism.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from pathlib import Path
from typing import Any

from experiments.benchmark.rivals.common import Answer, Job, require, serve

CHIPS = {
    "A100-80GB": "A100",
    "A100-40GB": "A100_40GB",
    "H100-80GB": "H100",
    "H200-141GB": "H200",
    "B200": "B200",
    "V100-32GB": "V100",
    "MI300X": "MI300X",
    "MI325X": "MI325X",
    "TPU-v4": "TPUv4",
    "TPU-v5p": "TPUv5p",
    "TPU-v6e": "TPUv6",
}
PRECISIONS = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "mxfp8": "fp8", "int8": "int8"}
OWN = 0.5
"""Default of its `efficiency`."""


def prepare(checkout: Path | None) -> tuple[Any, str]:
    """The adapter's model, and the version."""
    del checkout
    tool = importlib.import_module("mlsysim")
    parts = {
        name: importlib.import_module(f"mlsysim.{name}") for name in ("solvers", "models.types")
    }
    parts["systems"] = importlib.import_module("mlsysim.systems.types")
    time_model = parts["solvers"].DistributedModel()
    memory_model = parts["solvers"].TrainingMemoryModel()
    quantity = importlib.import_module("mlsysim.core.units").Q_

    def answer(job: Job, constant: float | None) -> Answer:
        chip = _chip(job, tool)
        precision = _precision(job, chip)
        model = _model(job, parts["models.types"], quantity)
        fleet = _fleet(job, chip, parts["systems"], quantity)
        degrees = {name: job.count(name[:2]) for name in ("tp_size", "pp_size", "ep_size")}
        found = time_model.solve(
            model,
            fleet,
            batch_size=job.count("global_batch"),
            precision=precision,
            efficiency=constant or OWN,
            **degrees,
            v_stages=job.count("interleave"),
            microbatch_count=job.micro_batches,
            zero_stage=job.count("zero_stage"),
            is_lora=job.flag("adapters"),
            activation_recomputation=job.text("recompute") == "full",
            overlap_comm=True,
            seq_len=job.count("seq_len"),
        )
        held = memory_model.solve(
            model,
            chip,
            batch_size=job.count("global_batch"),
            seq_len=job.count("seq_len"),
            precision="bf16",
            activation_checkpointing=job.text("recompute"),
            **degrees,
            dp_size=job.count("dp"),
            zero_stage=job.count("zero_stage"),
            gradient_accumulation_steps=max(job.micro_batches // job.count("pp"), 1),
            sequence_parallel=job.flag("sp"),
        )
        memory = None if job.flag("adapters") else held.total_memory.m_as("byte")
        return Answer(found.step_latency_total.m_as("second"), memory)

    return answer, importlib.metadata.version("mlsysim")


def _chip(job: Job, tool: Any) -> Any:
    require(job.count("cp") == 1, "context parallelism")
    name = CHIPS.get(job.text("accelerator"))
    require(name is not None, f"chip {job.text('accelerator')}")
    return getattr(tool.Hardware.Cloud, str(name))


def _precision(job: Job, chip: Any) -> str:
    name = PRECISIONS.get(job.text("precision").split("-")[0])
    require(name is not None, f"precision {job.text('precision')}")
    known = chip.compute.precision_flops
    require(str(name) in known or name in ("bf16", "fp16"), f"{name} on this chip")
    return str(name) if name in known else "fp16"


def _model(job: Job, types: Any, quantity: Any) -> Any:
    shape = {
        "name": "row",
        "architecture": "Transformer",
        "parameters": quantity(job.real("n_params"), "count"),
        "layers": job.count("n_layers"),
        "hidden_dim": job.count("d_model"),
        "heads": job.count("n_heads"),
        "kv_heads": job.count("n_kv_heads"),
        "vocab_size": job.count("vocab"),
    }
    if not job.experts:
        return types.TransformerWorkload(**shape)
    return types.SparseTransformerWorkload(
        **shape,
        active_parameters=quantity(job.real("active_params"), "count"),
        experts=job.count("n_experts"),
        active_experts_per_token=job.count("top_k"),
    )


def _fleet(job: Job, chip: Any, types: Any, quantity: Any) -> Any:
    """Nodes of the fast domain, which a job fills."""
    size = min(job.count("domain_size"), job.count("n_accel"))
    require(job.count("n_accel") % size == 0, "nodes that are not full")
    node = types.Node(
        name="row",
        accelerator=chip,
        accelerators_per_node=size,
        intra_node_bw=quantity(job.real("fast_bytes_per_s"), "byte/second"),
    )
    fabric = types.NetworkFabric(
        name="row", bandwidth=quantity(job.real("slow_bytes_per_s"), "byte/second")
    )
    return types.Fleet(name="row", node=node, count=job.count("n_accel") // size, fabric=fabric)


if __name__ == "__main__":
    serve(prepare)
