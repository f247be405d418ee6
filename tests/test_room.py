"""What an answer says of a plan that is too large: changes that make it fit, as they are typed, and
blanks that decide whether it does."""

from __future__ import annotations

import pytest

from dmodel.footprint import RISK
from tests.test_cli import document, run

MICRO = "--system H100-DGX --devices 8 --model llama-3-8b --seq-len 8192 --global-batch 64"
LARGE = f"{MICRO} --stack fsdp --micro-batch 8 --recompute none"
TUNED = (
    "--system RTX-4090-PCIe --devices 1 --model llama-2-7b --seq-len 1024 --global-batch 8 "
    "--stack huggingface --recompute full --set tuning=sft"
)
TWO_STAGES = (
    "--system H100-DGX --devices 32 --model llama-2-70b --seq-len 4096 --global-batch 32 "
    "--tp 8 --pp 2 --recompute none --stack megatron"
)
STAGED = (
    "--system H100-DGX --devices 32 --model llama-3-70b --seq-len 1024 --global-batch 128 "
    "--pp 8 --micro-batch 2 --recompute full"
)


def changes(*parts: str) -> list[str]:
    return [each["change"] for each in document("predict", *parts)["would_fit"]]


@pytest.mark.parametrize("plan", [LARGE, STAGED])
def test_a_change_that_would_fit_does_when_it_is_typed(plan):
    found = document("predict", plan)["would_fit"]
    assert found
    for each in found:
        typed = document("predict", plan, each["change"])
        assert typed["oom_probability"] == pytest.approx(each["oom_probability"], rel=1e-9)
        assert typed["oom_probability"] <= RISK
        assert typed["step_time_s"] == pytest.approx(each["step_time_s"], rel=1e-9)


def test_the_cheapest_token_comes_first_and_other_training_last():
    for plan in (LARGE, TUNED):
        found = document("predict", plan)["would_fit"]
        other = ["tuning" in each["change"] or "seq-len" in each["change"] for each in found]
        assert other == sorted(other)
        pace = [each["tokens_per_s_per_device"] for each in found[: other.count(False)]]
        assert pace == sorted(pace, reverse=True)
    assert any("tuning" in name for name in changes(TUNED))


def test_a_stack_is_offered_what_it_runs():
    assert not any(name in each for each in changes(LARGE) for name in ("--tp", "--pp", "--ep"))
    assert any(name in each for each in changes(STAGED) for name in ("--tp", "--zero"))


def test_more_devices_go_to_stages_and_tp_where_the_batch_has_no_more_replicas():
    """One sequence a step cannot divide among replicas; 64 can."""
    few = (
        "--system H200-DGX --devices 2 --model gpt-neox-20b --seq-len 2048 --tp 2 --zero 1 "
        "--precision fp16 --recompute full --stack gpt-neox"
    )
    one, many = (changes(few, f"--global-batch {n}") for n in (1, 64))
    assert {"--devices 8 --pp 4", "--devices 8 --tp 8"} <= set(one)
    typed = document("predict", few, "--global-batch 1 --devices 8 --pp 4")
    assert typed["oom_probability"] <= RISK
    assert "--devices 8" in many and "--devices 8" not in one
    assert not any("--devices" in each and ("--pp" in each or "--tp" in each) for each in many)


def test_pretraining_is_not_told_to_train_adapters():
    assert not any("tuning" in each for each in changes(LARGE))


def test_what_fits_is_told_nothing():
    said = document("predict", MICRO, "--stack fsdp --recompute full")
    assert said["oom_probability"] <= RISK
    assert "would_fit" not in said and "blanks_that_decide" not in said


def test_a_loss_of_whole_logits_is_told_of_one_by_chunks():
    """QLoRA of 8B with 52,000 tokens ran out of memory on one H100, logits held whole."""
    long = (
        "--system H100-DGX --devices 1 --model llama-3.1-8b --seq-len 51974 --global-batch 8 "
        "--stack llama-factory --set tuning=qlora"
    )
    assert not document("predict", long)["fits"]
    assert changes(long)[0] == "--set logit_bytes=0"
    assert "a loss that goes chunk by chunk" in run("predict", long).stdout


def test_where_no_change_is_enough_the_answer_says_so():
    whole = "--system RTX-4090-PCIe --devices 1 --model gpt-3-175b --global-batch 1 --stack fsdp"
    assert changes(whole) == []
    assert "No change of one option" in run("predict", whole).stdout


def test_a_blank_that_decides_is_named():
    """70B with TP 8, PP 2, DP 2 fits with sequence parallelism, and not without it."""
    found = document("predict", TWO_STAGES)
    assert found["fits"]
    said = {each["change"]: each["memory_bytes_per_device"] for each in found["blanks_that_decide"]}
    assert said["--no-sp"] > found["device_memory_bytes"]
    assert "A blank decides: with --no-sp" in run("predict", TWO_STAGES).stdout
    for typed in ("--sp", "--no-sp"):
        more = document("predict", TWO_STAGES, typed).get("blanks_that_decide", [])
        assert "--no-sp" not in [each["change"] for each in more]
