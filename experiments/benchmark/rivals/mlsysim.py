"""mlsysim (Reddi et al.), from the index: its `DistributedModel` and `TrainingMemoryModel`.

Its chips; on others it is asked about memory alone. The network is the row's. A model is its
parameters, layers and width, so every kind of layer can be expressed. Constant: the compute
efficiency; without one its default, 0.5. The exchange of gradients overlaps as its default says
(0.85). It has no context parallelism.
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
ANY = "H100"
"""The chip of jobs on others, of which only memory is asked."""

OWN = 0.5
"""Default of its `efficiency`."""


def prepare(checkout: Path | None) -> tuple[Any, str]:
    """The adapter's model, and the version."""
    del checkout
    tool = importlib.import_module("mlsysim")
    quantity = importlib.import_module("mlsysim.core.units").Q_
    solvers = importlib.import_module("mlsysim.solvers")
    models = importlib.import_module("mlsysim.models.types")
    systems = importlib.import_module("mlsysim.systems.types")

    def answer(job: Job, constant: float | None) -> Answer:
        require(job.count("cp") == 1, "context parallelism")
        name = CHIPS.get(job.text("accelerator"))
        chip = getattr(tool.Hardware.Cloud, name or ANY)
        model = _model(job, models, quantity)
        memory = None if job.flag("adapters") else _memory(job, solvers, model, chip)
        if name is None:
            require(memory is not None, f"chip {job.text('accelerator')}")
            return Answer(None, memory)
        fleet = _fleet(job, chip, systems, quantity)
        return Answer(_seconds(job, solvers, model, fleet, constant or OWN), memory)

    return answer, importlib.metadata.version("mlsysim")


def _seconds(job: Job, solvers: Any, model: Any, fleet: Any, efficiency: float) -> float:
    """Step time [s]."""
    found = solvers.DistributedModel().solve(
        model,
        fleet,
        batch_size=job.count("global_batch"),
        precision=_precision(job, fleet.node.accelerator),
        efficiency=efficiency,
        tp_size=job.count("tp"),
        pp_size=job.count("pp"),
        ep_size=job.count("ep"),
        v_stages=job.count("interleave"),
        microbatch_count=job.micro_batches,
        zero_stage=job.count("zero_stage"),
        is_lora=job.flag("adapters"),
        activation_recomputation=job.text("recompute") == "full",
        overlap_comm=True,
        seq_len=job.count("seq_len"),
    )
    return found.step_latency_total.m_as("second")


def _memory(job: Job, solvers: Any, model: Any, chip: Any) -> float:
    """Peak memory of a device [byte], with the micro-batches that a stage holds at once."""
    found = solvers.TrainingMemoryModel().solve(
        model,
        chip,
        batch_size=job.count("global_batch"),
        seq_len=job.count("seq_len"),
        precision="bf16",
        activation_checkpointing=job.text("recompute"),
        tp_size=job.count("tp"),
        pp_size=job.count("pp"),
        ep_size=job.count("ep"),
        dp_size=job.count("dp"),
        zero_stage=job.count("zero_stage"),
        gradient_accumulation_steps=max(job.micro_batches // job.count("pp"), 1),
        sequence_parallel=job.flag("sp"),
    )
    return found.total_memory.m_as("byte")


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
