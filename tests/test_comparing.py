"""Which of two plans is faster, on which machine, and how long a run takes: as people ask it."""

import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from dmodel.catalog.stack import stack as identify_stack
from dmodel.catalog.systems import machine_named
from dmodel.cli import app
from dmodel.cli.not_given import doubled
from dmodel.uncertainty import Gap, Uncertain, gap_apart, gap_between
from dmodel.units import tokens

JOB = "--devices 8 --model gpt-3-13b --seq-len 2048 --global-batch 8 --tp 8"


def run(words: str, code: int = 0):
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == code, done.output
    return done


def answer(words: str) -> dict:
    return json.loads(run(f"predict {words} --json").stdout)


@pytest.fixture(scope="module")
def narrow():
    """A model in 8 bits against 16, without a micro-batch."""
    return answer(f"--system H100-DGX {JOB} --against precision=fp8")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("15T", 15e12), ("15t", 15e12), ("1.5e12", 1.5e12), ("300B", 3e11), ("300G", 3e11)),
        *(("300 billion tokens", 3e11), ("10M tokens", 1e7), ("1,000", 1e3), ("5k", 5e3)),
        *(("", None), ("T", None), ("5Q", None), ("1e3B", 1e12), ("15 GB", None)),
    ],
)
def test_tokens_are_numbers_as_people_write_them(text, number):
    if number is None:
        with pytest.raises(ValueError, match="expected"):
            tokens(text)
    else:
        assert tokens(text) == number


@pytest.mark.parametrize("command", ["predict", "design --brief"])
def test_a_run_of_tokens_is_the_same_however_they_are_written(command):
    words = f"{command} --system H100-DGX {JOB.replace('--tp 8', '')} --json --tokens"
    days = [
        json.loads(run(f"{words} {text}").stdout)["run"]["days"] for text in ("2e12", "2T", "2000B")
    ]
    assert days[0] > 0.0 and days == [days[0]] * 3
    refused = run(f"{words} 2Q", code=2)
    assert "--tokens" in refused.stderr and "'2Q'" in refused.stderr


def test_a_chip_that_is_named_for_a_system_is_that_chip_in_its_own():
    assert machine_named("H100-DGX", "H200") == ("H100-DGX", "H200")
    assert machine_named("MI355X") == ("", "MI355X")
    assert machine_named("no such thing") == ("no such thing", "")
    chip, system = (answer(f"{how} {JOB}") for how in ("--chip MI300X", "--system MI300X"))
    assert chip == system and chip["accelerator"] == "MI300X"
    other = answer(f"--system B200 {JOB} --against system=MI355X")
    assert other["accelerator"] == "B200" and other["against"]["accelerator"] == "MI355X"
    refused = run(f"predict --system H100X {JOB}", code=2)
    assert "unknown system 'H100X'" in refused.stderr


def test_a_comparison_says_how_much_faster_and_how_sure_that_is(narrow):
    other = narrow["against"]
    rate = other["tokens_per_s"] / narrow["tokens_per_s"]
    assert other["speedup"] == pytest.approx(rate, rel=1e-6)
    assert other["speedup_low"] < rate < other["speedup_high"]
    # where the first is more likely the faster one, the second is slower in the middle
    assert (other["probability_first_is_faster"] > 0.5) == (rate < 1.0)
    shown = run(f"predict --system H100-DGX {JOB} --against precision=fp8").stdout
    assert f"The second trains on {rate:.3g} times as many tokens/s as the first" in shown


def test_a_plan_beside_itself_is_as_fast_and_what_is_common_does_not_count():
    found = Uncertain(
        np.array([1.0, 2.0]),
        np.array([0.5, 1.0]),
        np.array([2.0, 4.0]),
        np.array([0.3, 0.3]),
        np.array([0.1, 0.1]),
        np.log(np.array([[1.0, 2.0], [1.2, 2.4], [0.8, 1.6]])),
    )
    same = gap_between(found, 0, 0)
    assert same.value == 0.0 and same.probability == pytest.approx(0.5)
    slower = gap_between(found, 0, 1)
    assert slower.value == pytest.approx(math.log(2.0)) and slower.probability > 0.9
    # draws move both alike: only the misfit is left
    assert slower.scale < gap_apart(found, found).scale
    assert Gap(1.0, 2.0).beyond(-1.0) == Gap(0.0, 2.0)


def test_micro_batches_double_while_they_divide_what_a_replica_has():
    assert doubled(8.0) == [2, 4, 8] and doubled(12.0) == [2, 4] and doubled(3.0) == []


def test_a_micro_batch_that_nobody_said_is_told_where_another_is_much_faster(narrow):
    """Small kernels wait for their host, so that 8 bits seem slower than 16: the answer says with
    which micro-batch they are not."""
    told = narrow["faster"]
    said = answer(
        f"--system H100-DGX {JOB} --micro-batch {told['micro_batch']} --against precision=fp8"
    )
    assert "faster" not in said
    assert told["step_time_s"] == pytest.approx(said["step_time_s"], rel=1e-6)
    assert told["step_time_s"] < 0.9 * narrow["step_time_s"]
    assert told["second_step_time_s"] == pytest.approx(said["against"]["step_time_s"], rel=1e-6)
    assert told["speedup"] == pytest.approx(said["against"]["speedup"], rel=1e-6)
    assert told["speedup"] > 1.0 > narrow["against"]["speedup"]
    assert said["oom_probability"] == pytest.approx(told["risk"]) and told["risk"] <= 0.1


def test_days_of_a_run_are_told_with_that_micro_batch():
    words = "--system A100-DGX --devices 8 --model gpt-2 --seq-len 1024 --global-batch 512"
    shown = run(f"predict {words} --tokens 10B").stdout
    assert "--micro-batch is not given" in shown and "The run takes " in shown
    large = answer("--system H100-DGX --devices 8 --model llama-3-8b --global-batch 8 --zero 3")
    assert "faster" not in large


def test_servers_without_nvlink_cross_the_link_between_processors():
    """7B with ZeRO-1 on two servers with two HDR cards each: 2,105 tokens/s per device measured
    (InternLM's issue of July 2023), 4,234 with NVLink."""
    words = (
        "--system A100-DGX --devices 16 --model llama-1-7b --seq-len 2048 --global-batch 128 "
        "--micro-batch 2 --zero 1 --against system=A100-PCIe-Server,bandwidth.inter=6.25GB/s"
    )
    found = answer(words)
    assert found["tokens_per_s_per_device"] == pytest.approx(4234, rel=0.15)
    assert found["against"]["tokens_per_s_per_device"] == pytest.approx(2105, rel=0.15)


def test_devices_for_a_run_of_tokens_in_so_many_days():
    words = "solve --for devices --system H100-DGX --devices 512 --model llama-3-8b"
    words += " --seq-len 8192 --global-batch 4096 --zero 3 --json --such-that"
    root = json.loads(run(f"{words} days=30 --tokens 15T").stdout)["roots"][0]
    assert 15.0 < root["output"] < 60.0 and root["value"] in (256, 512, 1024)
    assert "mfu does not depend" in run(f"{words} mfu=30% --tokens 15T", code=2).stderr
    assert "positive" in run(f"{words} days=30 --tokens 0", code=2).stderr


@pytest.mark.parametrize(
    ("named", "known"),
    [
        *(("internlm", "internevo"), ("mosaicml", "llm-foundry"), ("nanoGPT", "nanogpt")),
        *(("llm.c", "llm-c"), ("pytorch fsdp", "fsdp"), ("GPT-NeoX", "gpt-neox")),
    ],
)
def test_software_of_published_runs_is_known_by_the_names_that_reports_use(named, known):
    assert identify_stack(named).name == known
    words = f"--system A100-DGX {JOB} --set zero=1 --json --stack"
    one, other = (
        json.loads(CliRunner().invoke(app, ["predict", *words.split(), name]).stdout)
        for name in (named, known)
    )
    assert one["step_time_s"] == other["step_time_s"]


def test_kernels_launched_from_c_wait_less_for_their_host():
    words = "--system A100-DGX --devices 8 --model gpt-2 --global-batch 64 --stack"
    c, python = (answer(f"{words} {name}") for name in ("llm.c", "nanogpt"))
    assert c["plan"]["zero"] == 1 and python["plan"]["zero"] == 0
    assert c["breakdown"]["launch_s"] < 0.5 * python["breakdown"]["launch_s"]


def test_chunks_that_nobody_said_are_told_where_a_pipeline_idles():
    words = "--system H100-DGX --devices 64 --model llama-3-70b --seq-len 4096 --global-batch 16"
    words += " --tp 8 --pp 8 --micro-batch 1"
    told = answer(words)["faster"]
    assert told["interleave"] > 1 and "micro_batch" not in told
    said = answer(f"{words} --interleave {told['interleave']}")
    assert said["step_time_s"] == pytest.approx(told["step_time_s"], rel=1e-6)
    assert "faster" not in said
    for closed in ("--schedule 1f1b", "--stack hai-llm", "--global-batch 12"):
        assert "interleave" not in answer(f"{words} {closed}").get("faster", {})
    many = "predict --system B200 --devices 256 --model deepseek-v3 --global-batch 256 --pp 8"
    refused = run(f"{many} --ep 32 --interleave 8", code=2)
    assert "64 chunks are more than the 61 layers" in refused.stderr


def test_sizes_that_the_stack_takes_are_not_called_1():
    words = "--system A100-DGX --devices 8 --model gpt-3-1.3b --seq-len 2048 --global-batch 512"
    taken = answer(f"{words} --stack megatron-sc21-t1")
    assert taken["plan"]["micro_batch"] > 1 and "micro_batch" not in taken.get("faster", {})
