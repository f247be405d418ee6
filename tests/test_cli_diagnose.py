"""`dmodel diagnose` and `dmodel solve` in the shell."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from calibration.traces.neighbours import neighbours
from dmodel.cli import app

PLAN = (
    "--system H100-DGX --devices 64 --model llama-3-8b --seq-len 8192 --global-batch 128 --tp 4 "
    "--pp 2 --stack nemo/25.02"
).split()


def run(*words: str, code: int = 0):
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, result.output + result.stderr
    assert "Traceback" not in result.output + result.stderr
    return result


def test_diagnose_prints_one_document():
    result = run("diagnose", *PLAN, "--measured", "5.0s", "--json")
    document = json.loads(result.stdout)
    assert {"causes", "neighbours", "verdict", "predicted", "interval", "percentile"} <= (
        document.keys()
    )
    for cause in document["causes"]:
        assert {"name", "probability", "seconds", "test"} <= cause.keys()
    assert len(document["neighbours"]) == 3 and all(n["url"] for n in document["neighbours"])
    assert document["mfu"]["peak_flops_per_s"] == pytest.approx(989.4e12)
    assert "profile" in result.stderr


def test_diagnose_says_it_to_people_and_draws(tmp_path):
    figure = tmp_path / "way.png"
    words = ["--measured", "5.0s", "--measured", "memory=60GB", "--figure", str(figure)]
    shown = run("diagnose", *PLAN, *words).stdout
    assert "SLOWER than such runs" in shown and "90 % of such runs take" in shown
    assert "dense peak of 989.4 TFLOP/s" in shown and "Memory: measured" in shown
    assert "each evaluated alone" in shown and "Next, for" in shown
    assert figure.stat().st_size > 10_000
    faster = run("diagnose", *PLAN, "--measured", "1.0s", "--neighbours", "0").stdout
    assert "FASTER than such runs" in faster and "Nearest published runs" not in faster


ROW = {
    "stack": "nemo/25.02",
    "model": "llama-3-8b",
    "accelerator": "H100-80GB",
    "n_accel": "64",
    "seq_len": "8192",
    "global_batch": "128",
    "micro_batch": "1",
    "tp": "4",
    "pp": "2",
    "step_time_s": "5.0",
    "peak_memory_gib": "50",
}


def test_a_row_of_a_file_is_the_same_run(tmp_path):
    path = tmp_path / "rows.csv"
    lines = [",".join(ROW), ",".join(ROW.values()), ",".join({**ROW, "pp": "4"}.values())]
    path.write_text("\n".join(lines) + "\n")
    document = json.loads(run("diagnose", str(path), "--line", "2", "--json").stdout)
    assert document["measured"] == 5.0 and document["plan"]["pp"] == 2
    assert document["parts"]["memory"]["measured"] == pytest.approx(50 * 2**30)
    plan = run("diagnose", *PLAN, "--measured", "5.0s", "--json").stdout
    assert document["predicted"] == pytest.approx(json.loads(plan)["predicted"])
    other = run("diagnose", str(path), "--line", "3", "--measured", "4s", "--json").stdout
    assert json.loads(other)["measured"] == 4.0 and json.loads(other)["plan"]["pp"] == 4
    for words, says in (
        ((), "expected --line N"),
        (("--line", "9"), "no usable row on line 9"),
        (("--line", "2", "--tp", "8"), "--tp: the file says this"),
    ):
        assert says in run("diagnose", str(path), *words, code=2).stderr


def test_a_log_is_diagnosed(tmp_path):
    """Lines as Megatron-LM prints them, with what they do not say said."""
    log = tmp_path / "run.log"
    lines = [
        f" iteration {i:8d}/ 500 | consumed samples: {128 * i} | elapsed time per iteration (ms): "
        f"{5000.0 + i:.1f} | learning rate: 1.0E-04 | global batch size: 128 | lm loss: 2.0E+00 |"
        for i in range(1, 40)
    ]
    log.write_text("\n".join(lines) + "\n")
    words = "model=llama-3-8b accelerator=H100-80GB n_accel=64 seq_len=8192 tp=4 pp=2 micro_batch=1"
    said = [part for word in words.split() for part in ("--set", word)]
    document = json.loads(run("diagnose", str(log), *said, "--json").stdout)
    assert document["measured"] == pytest.approx(5.02, rel=0.01)
    assert document["plan"]["tp"] == 4 and document["devices"] == 64
    missing = run("diagnose", str(log), code=2).stderr
    assert "does not say all that a plan needs" in missing and "--set" in missing


def test_a_shape_without_a_name_and_ratios_of_many_times_are_told_in_words():
    sizes = "n_layers=6 d_model=384 n_heads=6 d_ff=1536 vocab=65".split()
    shape = [part for size in sizes for part in ("--set", size)]
    job = ["--chip", "A100", "--devices", "1", *shape, "--seq-len", "256", "--global-batch", "64"]
    words = [*job, "--neighbours", "0", "--measured"]
    slow, fast, near = (run("diagnose", *words, x).stdout for x in ("99s", "1us", "600ms"))
    assert slow.startswith("own shape, 256 tokens")
    assert "times as long): SLOWER" in slow
    assert "times as fast): FASTER" in fast
    assert "times as" not in near.partition("90 %")[0] and " %): in the range" in near


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (PLAN, "nothing was measured"),
        ([*PLAN, "--measured", "5"], "with a unit"),
        ([*PLAN, "--measured", "5s", "--line", "3"], "--line is of a file"),
        ([*PLAN, "--measured", "5s", "--figure", "way.svg"], "name of a PNG"),
        ([*PLAN, "--measured", "5s", "--neighbours", "-1"], "expected an integer"),
        (["no such file.csv"], "no such file.csv"),
        ([*PLAN, "--measured", "5.2", "s"], "in quotes: --measured '5.2 s'"),
        ([*PLAN, "--measured", "MFU 40"], "such as 41%mfu"),
    ],
)
def test_mistakes_are_told(words, says):
    assert says in run("diagnose", *words, code=2).stderr


def test_solve_prints_roots_and_ends_with_one_where_there_is_none():
    words = ["--for", "bandwidth.inter", "--such-that"]
    document = json.loads(run("solve", *PLAN, *words, "mfu=30%", "--json").stdout)
    assert document["found"] and document["roots"][0]["output"] == pytest.approx(0.3)
    shown = run("solve", *PLAN, *words, "mfu=30%").stdout
    assert "Where mfu is 30.0 %" in shown and "elasticity" in shown
    none = run("solve", *PLAN, *words, "mfu=90%", code=1).stdout
    assert none.count("None: ") == 1 and "never 0.9" in none
    document = json.loads(run("solve", *PLAN, *words, "mfu=90%", "--json", code=1).stdout)
    assert not document["found"] and document["why_none"]
    shown = run("solve", *PLAN, "--for", "tp", "--such-that", "mfu=30%").stdout
    assert "Whole numbers only" in shown


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--for", "tpp", "--such-that", "mfu=30%"], "nearest: tp"),
        (["--for", "tp", "--such-that", "mfu"], "OUTPUT=VALUE"),
        (["--for", "seq_len", "--such-that", "mfu=30%", "--between", "9", "3"], "smaller first"),
    ],
)
def test_mistakes_of_solve_are_told(words, says):
    assert says in run("solve", *PLAN, *words, code=2).stderr


def test_neighbours_are_of_one_generation_and_nearest_first():
    columns = {"accelerator": "H100-80GB", "n_layers": 80, "d_model": 8192, "seq_len": 8192}
    columns |= {"n_accel": 512, "tp": 4, "pp": 4, "cp": 2, "micro_batch": 1, "global_batch": 1024}
    found = neighbours(columns, 5)
    assert [n.distance for n in found] == sorted(n.distance for n in found)
    assert "70b" in found[0].model and found[0].distance < 1.5
    assert len({(n.source, n.layout, n.model, n.devices) for n in found}) == 5
    assert neighbours({"accelerator": "no such chip"}) == [] == neighbours(columns, 0)


def test_a_figure_beyond_the_peak_is_said_to_be_one():
    words = ["diagnose", *PLAN, "--neighbours", "0"]
    beyond = run(*words, "--measured", "40k tok/s/gpu")
    assert "No such chip computes that fast" in beyond.stdout
    assert "No such chip" not in run(*words, "--measured", "10k tok/s/gpu").stdout
