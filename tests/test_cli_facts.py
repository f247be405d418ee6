"""What the shell knows of software without being told: the same as a row of traces that says as
little."""

import numpy as np
import pytest
from calibration.traces.sharding import reduction

from dmodel.cli.options import Degrees, Job
from dmodel.cli.question import plan, setting
from dmodel.records import LEAVES, leaf
from tests.rows import one_case

STAGES = {"dp": 8, "tp": 4, "pp": 2, "micro_batch": 2}
EXPERTS = {"dp": 16, "pp": 4, "ep": 16}
SHARDED = {"dp": 64, "zero": 3}
AGAIN = {"dp": 8, "cp": 2, "tp": 2, "pp": 2, "recompute": "selective"}
ASKED = [
    ("megatron-bridge/26.02", "llama-3-8b", "H100-DGX", "bf16", STAGES),
    (
        "megatron-bridge/25.09",
        "llama-3.1-405b",
        "GB200-NVL72",
        "fp8",
        {"dp": 2, "tp": 4, "pp": 8, "interleave": 2},
    ),
    ("megatron-bridge/26.02", "llama-3.1-405b", "B300-DGX", "nvfp4", {"dp": 2, "tp": 4, "pp": 8}),
    ("megatron-bridge/26.06", "deepseek-v3", "GB200-NVL72", "mxfp8", EXPERTS),
    (
        "megatron-bridge/26.02",
        "deepseek-v3",
        "H100-DGX",
        "fp8",
        {"dp": 4, "tp": 2, "pp": 8, "ep": 8},
    ),
    ("megatron-bridge/26.04", "qwen3-235b-a22b", "B200-DGX", "bf16", {"dp": 8, "pp": 8, "ep": 8}),
    ("megatron-bridge/26.04", "gpt-oss-120b", "GB300-NVL72", "bf16", {"dp": 64, "ep": 64}),
    ("nemo/24.12", "llama-3-70b", "H100-DGX", "fp8", {"dp": 4, "tp": 4, "pp": 4, "interleave": 5}),
    ("nemo-launcher", "llama-2-70b", "H100-DGX", "bf16", {"dp": 4, "tp": 4, "pp": 4}),
    ("nemo-launcher", "mixtral-8x7b", "H100-DGX", "bf16", {"dp": 16, "pp": 4, "ep": 8}),
    ("torchtitan", "llama-3-8b", "H100-DGX", "bf16", SHARDED),
    ("torchtitan", "llama-3-8b", "H100-DGX", "bf16", STAGES | {"zero": 2}),
    ("torchtitan", "llama-3-8b", "H100-DGX", "fp8", {"dp": 8, "cp": 8, "zero": 3}),
    ("maxtext", "llama-2-70b", "TPU-v5p", "bf16", SHARDED),
    ("nanotron", "llama-3-8b", "H100-DGX", "bf16", STAGES),
    ("dmodel-collect/jax-0.10", "llama-3-8b", "H100-DGX", "bf16", STAGES),
    ("nanotron", "llama-2-7b", "H100-DGX", "bf16", AGAIN | {"zero": 1}),
    ("megatron-lm", "llama-2-7b", "H100-DGX", "fp16", AGAIN | {"zero": 2}),
    ("llm-foundry", "llama-2-7b", "H100-DGX", "bf16", AGAIN | {"zero": 3}),
    ("torchtitan", "llama-2-7b", "H100-DGX", "bf16", AGAIN | {"zero": 3}),
    ("megatron-bridge/26.04", "llama-2-7b", "H100-DGX", "fp8", AGAIN | {"zero": 1}),
    ("nemo-launcher", "llama-2-7b", "H100-DGX", "fp8", AGAIN | {"zero": 1}),
    ("vtrain", "llama-2-7b", "H100-DGX", "fp16", AGAIN | {"zero": 1}),
    ("megatron-deepspeed/bigscience-fp16", "llama-2-7b", "H100-DGX", "fp16", AGAIN | {"zero": 1}),
]


@pytest.mark.parametrize(("stack", "model", "system", "precision", "degrees"), ASKED)
def test_the_shell_and_a_row_of_traces_tell_the_same_plan(
    tmp_path, stack, model, system, precision, degrees
):
    """Every leaf of plan and model; columns that the shell has no option for are blank. Who has one
    replica awaits none."""
    asked = Degrees(**degrees)
    job = setting(
        Job(
            system=system,
            devices=_devices(asked),
            model=model,
            global_batch=512,
            precision=precision,
            stack=stack,
        )
    )
    found, said = plan(job, asked)
    blank = dict.fromkeys(("n_layers", "d_model", "n_heads", "n_kv_heads", "d_ff", "vocab"), "")
    told = {
        name: str(getattr(asked, name))
        for name in ("dp", "tp", "pp", "cp", "ep", "interleave", "micro_batch", "recompute")
    }
    told |= {
        "sp": str(int(asked.tp > 1)),
        "zero_stage": str(asked.zero),
        "n_accel": str(_devices(asked)),
        "global_batch": "512",
    }
    told |= {
        "domain_size": f"{float(job.system.network.size[0]):g}",
        "seq_len": f"{float(job.model.seq_len):g}",
    }
    row = one_case(
        tmp_path,
        **blank,
        **told,
        stack=stack,
        model=model,
        accelerator=job.accelerator,
        precision=precision,
    )
    both = {name: (leaf(found, name), leaf(row.plan, name)) for name in LEAVES}
    both |= {name: (value, getattr(row.model, name)) for name, value in vars(job.model).items()}
    if float(found.layout.dp) == float(found.layout.shard):
        del both["overlap_replica"]
    assert not {name: pair for name, pair in both.items() if not _same(*pair)}
    assert set(row.labels.assumptions[0]) & set(said) >= set(
        reduction(stack, float(asked.zero), precision).assumed
    )
    heads = float(job.model.n_mtp)
    assert (
        any("further tokens" in text for text in said) == (heads > 0.0) == (model == "deepseek-v3")
    )


def _devices(asked: Degrees) -> int:
    return asked.dp * asked.tp * asked.pp * asked.cp


def _same(a, b) -> bool:
    """A row's schedule is 1f1b, which is the interleaved one of as many chunks."""
    if isinstance(a, str | tuple):
        return a == b or {a, b} == {"1f1b", "interleaved"}
    return np.allclose(
        float(np.asarray(a)), float(np.asarray(b).reshape(-1)[0]), rtol=1e-12, atol=0.0
    )
