"""What the shell knows of software without being told: the same as a row of traces that says as
little."""

import json

import pytest
from typer.testing import CliRunner

from dmodel.catalog.loader import table
from dmodel.cli import app
from dmodel.cli.options import Degrees, Job
from dmodel.cli.question import question_of
from dmodel.left_blank import never_recompute
from dmodel.named_shape import FROM_MODEL
from dmodel.records import LEAVES, leaf
from dmodel.resolve import resolve
from tests.rows import answered, told

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
    ("gpt-neox", "gpt-neox-20b", "A100-DGX", "fp16", STAGES),
]


COLUMNS = ("dp", "tp", "pp", "cp", "ep", "interleave", "micro_batch", "recompute")
BLANK = dict.fromkeys((*FROM_MODEL, "seq_len", "sp", "domain_size", "attention"), "")


@pytest.mark.parametrize(("stack", "model", "system", "precision", "degrees"), ASKED)
def test_the_shell_and_a_row_of_traces_tell_the_same_plan(stack, model, system, precision, degrees):
    """Every leaf of plan and model, and all that facts assume; what is not said is blank."""
    sizes = {n: degrees.get(n, 1) for n in ("dp", "tp", "pp", "cp")}
    devices = sizes["dp"] * sizes["tp"] * sizes["pp"] * sizes["cp"]
    job = Job(system, devices, model, None, 512, precision, stack=stack)
    chip = table("systems")[system]["chip"]
    question = question_of(job._replace(settings=[f"accelerator={chip}"]), Degrees(**degrees))
    found = resolve(question, never_recompute)
    cells = {n: str(degrees.get(n, "")) for n in COLUMNS}
    cells |= {"zero_stage": str(degrees.get("zero", "")), "global_batch": "512"}
    cells |= {"stack": stack, "model": model, "accelerator": chip, "precision": precision}
    row = answered(**BLANK | cells | {"n_accel": str(devices)})
    plans = {name: (leaf(found.plan, name), leaf(row.plan, name)) for name in LEAVES}
    both = plans | {n: (x, getattr(row.model, n)) for n, x in vars(found.model).items()}
    assert not {name: pair for name, pair in both.items() if pair[0] != pair[1]}
    facts = {str(each) for each in row.assumptions if each.source}
    assert facts and facts == {str(each) for each in found.assumptions if each.source}
    assert ("blank: " in told(found)) == ("blank: " in told(row))


@pytest.mark.parametrize(("words", "flavor"), [("", "8B"), ("--set n_layers=8", None)])
def test_a_preset_of_a_launcher_is_named_for_a_model_of_its_sizes_alone(words, flavor):
    job = "predict --system H100-DGX --devices 8 --model llama-3-8b --seq-len 4096 --global-batch 8"
    found = CliRunner().invoke(app, f"{job} {words} --emit torchtitan --json".split())
    emitted = json.loads(found.stdout)["emit"]
    assert emitted["settings"].get("model.flavor") == flavor
    assert ("flavors" in str(emitted["left_out"])) == (flavor is None)
