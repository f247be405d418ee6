"""SimuMax (MooreThreads/SimuMax), from a checkout: its `PerfLLM`.

Its B200 as it comes. It advises to copy the nearest of its systems for another machine: A100-80GB
is its A100 PCIe with the links of its B200 at the row's bandwidths; H100-80GB is that with H100's
rates and its template's shares of peak (0.75). On other chips it is asked about memory alone, which
needs no rates, and so of interleaved pipelines, whose times it simulates micro-batch by micro-batch
in up to minutes a row. Fused attention is causal, by its `attention_sparse_ratio`. Constant: a
factor on all rates of products. It has no ZeRO above stage 1 and, on these systems, no operands of
8 bits.
"""

from __future__ import annotations

import copy
import importlib
import json
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

GIGA, TERA = 1e9, 1e12
OWN = {"B200": "b200_bf16_ceperm"}
NEAREST = "a100_pcie"
LINKS = "b200_bf16_ceperm"
COPIED = ("A100-80GB", "H100-80GB")
SHARE = 0.75
"""Share of peak in its template of a system (`docs/system.md`)."""

CAUSAL = 0.5
"""Share of the scores that causal attention leaves out (`docs/strategy.md`)."""

RECOMPUTATION = {"none": None, "selective": "sdp_only", "full": "full_block"}
MILLI = 1e-3


def prepare(checkout: Path | None) -> tuple[Any, str]:
    """The adapter's model, and the version."""
    folder = from_checkout(checkout, "SimuMax")
    config = importlib.import_module("simumax.core.config")
    perf = importlib.import_module("simumax.core.perf_llm")
    version = getattr(importlib.import_module("simumax.version"), "__version__", "checkout")
    systems = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in (folder / "configs" / "system").glob("*.json")
    }

    def answer(job: Job, constant: float | None) -> Answer:
        _check(job)
        tool = perf.PerfLLM()
        tool.configure(
            strategy_config=config.StrategyConfig.init_from_dict(_strategy(job)),
            model_config=config.ModelConfig.init_from_dict(_model(job)),
            system_config=config.SystemConfig.init_from_dict(_system(job, systems, constant)),
        )
        tool.run_estimate()
        timed = job.text("accelerator") in (*OWN, *COPIED) and job.count("interleave") == 1
        return Answer(_seconds(tool) if timed else None, _peak(tool))

    return answer, str(version)


def _check(job: Job) -> None:
    plain_decoder(job, experts=True)
    require(job.count("zero_stage") <= 1, f"ZeRO stage {job.count('zero_stage')}")
    require(
        not job.count("zero_stage") or job.count("shard") == job.count("dp"),
        "sharding within replicas",
    )
    require(job.count("n_layers") % job.count("pp") == 0, "stages that are not alike")


def _strategy(job: Job) -> dict[str, Any]:
    again = RECOMPUTATION[job.text("recompute")]
    return {
        "seq_len": job.count("seq_len"),
        "micro_batch_size": job.count("micro_batch"),
        "micro_batch_num": job.micro_batches,
        "dtype": "bf16",
        "world_size": job.count("n_accel"),
        "tp_size": job.count("tp"),
        "cp_size": job.count("cp"),
        "pp_size": job.count("pp"),
        "ep_size": job.count("ep"),
        "etp_size": job.count("etp"),
        "enable_sequence_parallel": job.flag("sp"),
        "interleaving_size": job.count("interleave"),
        "attention_sparse_ratio": CAUSAL if job.flag("flash") else 0.0,
        "zero_state": job.count("zero_stage"),
        "use_flash_sdp": job.flag("flash"),
        "enable_recompute": again is not None,
        "recompute_granularity": again,
        "recompute_layer_num": job.count("n_layers") // job.count("pp") if again else 0,
    }


def _model(job: Job) -> dict[str, Any]:
    known = {
        "model_type": "moe" if job.experts else "dense",
        "model_name": "row",
        "hidden_size": job.count("d_model"),
        "head_num": job.count("n_heads"),
        "kv_head_num": job.count("n_kv_heads"),
        "head_size": job.count("head_dim"),
        "intermediate_size": job.count("d_ff"),
        "layer_num": job.count("n_layers"),
        "vocab_size": job.count("vocab"),
        "use_swiglu": job.flag("gated_mlp"),
    }
    if job.experts:
        known |= {
            "expert_num": job.count("n_experts"),
            "topk": job.count("top_k"),
            "moe_ffn_hidden_size": job.count("d_ff"),
        }
    return known


def _system(job: Job, systems: dict[str, Any], constant: float | None) -> dict[str, Any]:
    chip = job.text("accelerator")
    found = copy.deepcopy(systems[OWN.get(chip, NEAREST)])
    if chip not in OWN:
        _copied(job, found, systems[LINKS])
    for operation in found["accelerator"]["op"].values():
        operation["tflops"] *= constant or 1.0
    return found


def _copied(job: Job, system: dict[str, Any], links: dict[str, Any]) -> None:
    """Make a copy of the nearest system the row's machine."""
    system["networks"] = copy.deepcopy(links["networks"])
    for name, network in system["networks"].items():
        if isinstance(network, dict):
            fast = "intra" in name
            rate = job.real("fast_bytes_per_s" if fast else "slow_bytes_per_s")
            # between nodes it is the bandwidth of a node, which its devices share
            shared = 1 if fast else job.count("domain_size")
            network["bandwidth"]["gbps"] = shared * rate / GIGA
    system["networks"]["intra_with_pcie"] = False
    system["num_per_node"] = job.count("domain_size")
    if job.text("accelerator") != "A100-80GB":
        rates = system["accelerator"]
        for operation in rates["op"].values():
            operation["tflops"] = job.real("flops_per_s") / TERA
            operation["efficient_factor"] = SHARE
            operation.pop("accurate_efficient_factor", None)
        for bandwidth in rates["bandwidth"].values():
            bandwidth["gbps"] = job.real("memory_bytes_per_s") / GIGA


def _seconds(tool: Any) -> float:
    """Step time [s]; the tool states it in words with a unit."""
    found = tool.analysis_cost().data["duration_time_per_iter"]
    return _number(found, {"ms": MILLI, "s": 1.0, "us": MILLI**2, "min": 60.0, "h": 3600.0})


def _peak(tool: Any) -> float:
    """The peak of the fullest stage [byte]."""
    found = tool.analysis_mem().data
    stages = [found] if "peak_mem" in found else list(found.values())
    units = {"B": 1.0, "KB": 2.0**10, "MB": 2.0**20, "GB": 2.0**30, "TB": 2.0**40}
    return max(_number(stage["peak_mem"], units) for stage in stages)


def _number(said: Any, units: dict[str, float]) -> float:
    if not isinstance(said, str):
        return float(said)
    value, unit = said.split()
    return float(value) * units[unit]


if __name__ == "__main__":
    serve(prepare)
