"""Calculon (calculon-ai/calculon), from a checkout: its `Llm` on its A100-80GB and H100-80GB.

Networks have the row's bandwidths and the system's own efficiencies. On other chips it is asked
about memory alone, which needs no rates. Constant: a factor on the rate
of the matrix units, whose own efficiencies stay. It has no fused attention, gated MLP, grouped
queries, embedding or head, experts, context parallelism, or ZeRO above stage 1. As in its own
examples operations are fused and gradients are not overlapped.
"""

from __future__ import annotations

import copy
import importlib
import json
import logging
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

SYSTEMS = {"A100-80GB": "a100_80g", "H100-80GB": "h100_80g_nvl8"}
ANY = "A100-80GB"
"""The system of jobs on other chips, of which only memory is asked."""

RECOMPUTATION = {"none": "none", "selective": "attn_only", "full": "full"}
GIGA = 1e9


def prepare(checkout: Path | None) -> tuple[Any, str]:
    """The adapter's model, and the version."""
    folder = from_checkout(checkout, "Calculon")
    tool = importlib.import_module("calculon")
    llm = importlib.import_module("calculon.llm")
    systems = {
        chip: json.loads((folder / "systems" / f"{name}.json").read_text(encoding="utf-8"))
        for chip, name in SYSTEMS.items()
    }
    logger = logging.getLogger("calculon")

    def answer(job: Job, constant: float | None) -> Answer:
        _check(job)
        timed = job.text("accelerator") in SYSTEMS
        known = systems[job.text("accelerator") if timed else ANY]
        system = llm.System(_system(job, known, constant or 1.0))
        model = llm.Llm(llm.Llm.Application(_application(job)), logger)
        model.compile(system, llm.Llm.Execution.from_json(_execution(job)))
        model.run(system)
        found = model.get_stats_json(False)
        return Answer(found["total_time"] if timed else None, found["proc_mem_tier1_cap_req"])

    return answer, str(getattr(tool, "__version__", "checkout"))


def _check(job: Job) -> None:
    plain_decoder(job)
    require(not job.flag("flash"), "fused attention")
    require(not job.flag("gated_mlp"), "gated MLP")
    require(job.count("n_kv_heads") == job.count("n_heads"), "grouped queries")
    require(job.count("cp") == 1, "context parallelism")
    require(job.count("zero_stage") <= 1, f"ZeRO stage {job.count('zero_stage')}")
    require(
        not job.count("zero_stage") or job.count("shard") == job.count("dp"),
        "sharding within replicas",
    )


def _application(job: Job) -> dict[str, int]:
    return {
        "hidden": job.count("d_model"),
        "feedforward": job.count("d_ff"),
        "seq_size": job.count("seq_len"),
        "attn_heads": job.count("n_heads"),
        "attn_size": job.count("head_dim"),
        "num_blocks": job.count("n_layers"),
    }


def _execution(job: Job) -> dict[str, Any]:
    tp, pp, dp = (job.count(name) for name in ("tp", "pp", "dp"))
    node = job.count("domain_size")
    sequence = job.flag("sp") and tp > 1
    again = job.text("recompute")
    return {
        "num_procs": tp * pp * dp,
        "tensor_par": tp,
        "pipeline_par": pp,
        "data_par": dp,
        "tensor_par_net": int(tp > node),
        "pipeline_par_net": int(tp * pp * dp > node),
        "data_par_net": int(tp * dp > node),
        "batch_size": job.count("global_batch"),
        "microbatch_size": job.count("micro_batch"),
        "datatype": "float16",
        "fused_activation": True,
        "attention_type": "multihead",
        "activation_recompute": RECOMPUTATION[again],
        "pipeline_interleaving": job.count("interleave"),
        "optimizer_sharding": job.count("zero_stage") == 1 and dp > 1,
        "tensor_par_comm_type": "rs_ag" if sequence else "ar",
        "tensor_par_overlap": "none",
        "seq_par_ag_redo": sequence and again != "full",
        "data_par_overlap": False,
        "weight_offload": False,
        "activations_offload": False,
        "optimizer_offload": False,
        "training": True,
    }


def _system(job: Job, known: dict[str, Any], constant: float) -> dict[str, Any]:
    """The tool's system with the row's bandwidths, and its matrix units times the constant."""
    found = copy.deepcopy(known)
    for units in found["matrix"].values():
        units["tflops"] *= constant
    fast, slow = found["networks"]
    fast["bandwidth"] = job.real("fast_bytes_per_s") / GIGA
    fast["size"] = job.count("domain_size")
    slow["bandwidth"] = job.real("slow_bytes_per_s") / GIGA
    return found


if __name__ == "__main__":
    serve(prepare)
