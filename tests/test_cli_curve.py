"""`dmodel design` of a list of values: each line is the answer of its value alone; table, figure,
refusals, exit codes."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from dmodel.cli import app
from dmodel.report.curve import Point, curve

JOB = "--system H100-DGX --model llama-2-7b --seq-len 4096 --profile prior --brief"
BATCHED = f"{JOB} --global-batch 32"
AT_8 = f"{BATCHED} --devices 8"


def run(words: str, code: int = 0):
    result = CliRunner().invoke(app, ["design", *words.split()])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(
        result.exception
    )
    assert result.exit_code == code, result.stderr
    return result


def document(words: str, code: int = 0):
    return json.loads(run(f"{words} --json", code).stdout)


@pytest.fixture(scope="module")
def by_devices():
    return document(f"{BATCHED} --devices 16,1,8 --tokens 1e12")


def test_every_line_is_the_answer_of_its_value_alone(by_devices):
    assert by_devices["varies"] == "devices"
    assert [line["value"] for line in by_devices["by"]] == [16, 1, 8]
    alone = document(f"{BATCHED} --devices 16 --tokens 1e12")
    line, best = by_devices["by"][0], alone["exact"][0]
    for name in ("label", "plan", "step_time_s", "mfu", "tokens_per_s", "oom_probability", "days"):
        assert line[name] == best[name], name
    for name in ("devices", "certificate", "considered", "feasible", "memory_limit", "profile"):
        assert line[name] == alone[name], name
    assert line["tokens_per_s_per_device"] == pytest.approx(best["tokens_per_s"] / 16)


def test_efficiency_is_against_the_smallest_value_that_has_a_plan(by_devices):
    most, none, least = by_devices["by"]
    assert by_devices["reference"] == 8 and least["efficiency"] == 1.0
    each = [line["tokens_per_s"] / line["value"] for line in (most, least)]
    assert most["efficiency"] == pytest.approx(each[0] / each[1])
    assert "efficiency" not in none


def test_a_value_without_a_plan_is_a_line_that_says_why(by_devices):
    none = by_devices["by"][1]
    assert none["label"] is None and none["binding"]["name"] == "memory"
    assert "step_time_s" not in none and none["remedies"]
    shown = run(f"{BATCHED} --devices 1,8,13 --tokens 1e12 --until 2099-01-01").stdout
    assert "no plan fits" in shown and "devices 1: no plan fits: memory" in shown
    assert "devices 13: no valid plan" in shown and "would fit" in shown
    for column in ("step", "tokens/s/device", "MFU", "risk", "efficiency", "days", "dollars"):
        assert column in shown, column
    assert "in time" in shown and "done by 2099-01-01" in shown


def test_where_no_value_has_a_plan_the_answer_is_no():
    result = run(f"{BATCHED} --devices 1,2", code=1)
    assert "no value has a plan that fits" in result.stderr
    d = document(f"{BATCHED} --devices 1,2", code=1)
    assert d["reference"] is None and [line["label"] for line in d["by"]] == [None, None]


def test_where_every_value_is_beyond_sense_the_answer_is_no():
    words = f"{JOB} --devices 8 --vary global_batch=4000000,8000000"
    assert "no sane run" in run(words, code=1).stderr
    assert "unusual: " in run(f"{words} --anyway").stdout


VARIED = {
    "model": ("model=llama-2-7b,llama-3-8b", JOB.replace("--model llama-2-7b", "")),
    "system": ("system=H100-DGX,A100-DGX", JOB.replace("--system H100-DGX", "")),
    "stack": ("stack=megatron,torchtitan", JOB),
    "seq_len": ("--seq-len=2048,4096", JOB.replace("--seq-len 4096", "")),
    "global_batch": ("global-batch=16,32", JOB),
    "memory": ("memory=60GB,141GB", JOB),
    "devices": ("n_accel=8,16", JOB),
}


@pytest.mark.parametrize("name", VARIED)
def test_any_option_or_setting_varies(name):
    text, rest = VARIED[name]
    words = f"{rest} --vary {text}"
    words += "" if name == "devices" else " --devices 8"
    words += "" if name == "global_batch" else " --global-batch 16"
    d = document(words)
    assert d["varies"] == name and len(d["by"]) == 2
    assert [str(line["value"]) for line in d["by"]] == text.partition("=")[2].split(",")
    one, other = ({k: v for k, v in line.items() if k != "value"} for line in d["by"])
    assert one != other
    assert d["by"][0].get(name, d["by"][0]["value"]) == d["by"][0]["value"]


def test_one_value_is_one_answer():
    asked = document(AT_8)
    assert document(f"{BATCHED} --vary devices=8") == asked
    assert document(f"{AT_8} --vary precision=bf16") == document(f"{AT_8} --precision bf16")


def test_intervals_are_in_the_lines():
    d = document(f"{AT_8} --vary precision=bf16,fp8".replace("--profile prior --brief", ""))
    for line in d["by"]:
        assert line["step_time_s_low"] < line["step_time_s"] < line["step_time_s_high"]


@pytest.mark.parametrize("varied", ["--devices 8,16", "--devices 8 --vary precision=bf16,fp8"])
def test_a_figure_is_drawn(varied, tmp_path):
    figure = tmp_path / "curve.png"
    assert f"wrote {figure}" in run(f"{BATCHED} {varied} --figure {figure}").stderr
    assert figure.read_bytes().startswith(b"\x89PNG") and figure.stat().st_size > 10_000


def test_without_a_plan_there_is_nothing_to_draw(tmp_path):
    figure = tmp_path / "curve.png"
    said = run(f"{BATCHED} --devices 1,2 --figure {figure}", code=1).stderr
    assert "is not written" in said and not figure.exists()


def test_numbers_are_lines_in_order_and_words_are_bars():
    numbers = [Point(64, 600.0, 9.4, (0.5, 2.0)), Point(8, 80.0, 10.0, (0.5, 2.0))]
    left, right = curve("devices", numbers).axes
    np.testing.assert_array_equal(left.lines[0].get_xdata(), [8.0, 64.0])
    np.testing.assert_array_equal(left.lines[1].get_ydata(), [80.0, 640.0])
    np.testing.assert_array_equal(right.lines[0].get_ydata(), [10.0, 9.4])
    assert left.get_ylim()[0] > 10.0 and right.get_ylim()[0] == 0.0
    assert (left.get_xscale(), left.get_yscale(), right.get_yscale()) == ("log", "log", "linear")
    bars, _ = curve("stack", [Point("a", 3.0, 1.0, None), Point("b", 6.0, 2.0, None)]).axes
    shown = [patch.get_path().get_extents(patch.get_patch_transform()) for patch in bars.patches]
    assert [box.width for box in shown] == pytest.approx([3.0, 6.0])


RUN = f"{JOB} --tokens 1e11 --free batch --starts 1"


@pytest.mark.slow
def test_sizes_of_a_run_are_free_for_each_value():
    d = document(f"{RUN} --devices 8,16 --anyway")
    alone = document(f"{RUN} --devices 16 --anyway")
    line = d["by"][1]
    assert [each["value"] for each in d["by"]] == ["8", "16"] and d["varies"] == "devices"
    for name in ("label", "plan", "step_time_s", "mfu", "sizes"):
        assert line[name] == alone["best"][name], name
    for name in ("quantities", "free", "limits", "certificate"):
        assert line[name] == alone[name], name
    assert line["sizes"]["devices"] == 16.0
    batch = line["sizes"]["global_batch"] * 4096
    assert line["tokens_per_s"] == pytest.approx(batch / line["step_time_s"])
    shown = run(f"{RUN} --devices 8,16 --anyway").stdout
    assert "free are batch, the plan" in shown and "dollars" in shown


@pytest.mark.slow
def test_a_run_without_an_answer_is_a_line_that_says_why():
    words = f"{RUN} --devices 1,8 --budget-days 0.001"
    assert "no value has a run that keeps the limits" in run(words, code=1).stderr
    d = document(words, code=1)
    assert [line["label"] for line in d["by"]] == [None, None]
    assert all(line["binding"]["message"] for line in d["by"])


BAD = {
    "two lists": (f"{BATCHED} --devices 8,16 --vary precision=bf16,fp8", "expected one list"),
    "two of --vary": (f"{AT_8} --vary precision=bf16,fp8 --vary tp=1,2", "expected one list"),
    "no values": (f"{AT_8} --vary precision", "expected NAME=VALUE"),
    "an empty value": (f"{BATCHED} --devices 8,", "values with commas between"),
    "a value twice": (f"{BATCHED} --devices 8,8", "got 8 several times"),
    "no count": (f"{BATCHED} --devices 8,many", "--devices: expected an integer"),
    "no integer": (f"{AT_8} --vary seq_len=1k,2k".replace("--seq-len 4096", ""), "'1k'"),
    "given besides": (f"{AT_8} --vary devices=8,16", "got a list and --devices besides"),
    "set besides": (f"{BATCHED} --devices 8,16 --set n_accel=8", "--set n_accel besides"),
    "unknown model": (
        f"{AT_8} --vary model=llama-2-7b,lama-9".replace("--model llama-2-7b", ""),
        "model lama-9: ",
    ),
    "unknown name": (f"{AT_8} --vary color=red,blue", "color red: "),
    "chosen by the search": (f"{AT_8} --vary tp=1,2", "the search chooses this"),
    "a range in a list": (f"{BATCHED} --devices 8:16,32", "ask for the two kinds apart"),
    "some free": (f"{JOB} --devices 8 --vary global_batch=free,32", "ask for the two kinds apart"),
    "plans of runs": (f"{BATCHED} --devices 8,16 --loss 2.5 --top 3", "--top"),
    "figure of one": (f"{AT_8} --figure x.png", "expected several values to draw"),
    "figure of no kind": (f"{BATCHED} --devices 8,16 --figure x.svg", "name of a PNG file"),
    "figure in no folder": (f"{BATCHED} --devices 8,16 --figure nowhere/x.png", "no folder"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_lists_end_with_2_and_say_what_to_do(case):
    words, says = BAD[case]
    result = run(f"{words} --json", code=2)
    assert result.stdout == "" and says in result.stderr and "Traceback" not in result.stderr
