"""The shell: one JSON document on stdout, exit codes 0 / 1 / 2, one clear message for every
mistake, answers that agree with each other."""

import csv
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dmodel import profiles
from dmodel.breakdown import TERMS
from dmodel.cli import app
from dmodel.counts import CONVENTIONS
from tests.rows import GOOD

ROOT = Path(__file__).parents[1]
JOB = (
    "--system H100-DGX --devices 64 --model llama-2-7b --seq-len 4096 --global-batch 128 "
    "--profile prior"
)
PLAN = f"{JOB} --micro-batch 2 --tp 4 --pp 2"
TOO_LARGE = (
    "--system A100-DGX --devices 8 --model gpt-3-175b --global-batch 8 --tp 8 --profile prior"
)
OPEN = {"domain_size", "sp", "interleave", "cp", "ep", "tokens_per_s_per_accel", "flag", "note"}
"""Columns that the row leaves open."""

ROW = {name: value for name, value in GOOD.items() if name not in OPEN}


def table(folder: Path, *changes: dict[str, str], drop: str = "") -> Path:
    """A trace file: the good row, changed by each dict."""
    path = folder / "traces.csv"
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, [c for c in ROW if c != drop], extrasaction="ignore")
        out.writeheader()
        out.writerows({**ROW, **change} for change in changes)
    return path


def run(*parts: object, code: int = 0):
    """Run a command in this process; words of a string are arguments of their own."""
    words = [w for part in parts for w in (part.split() if isinstance(part, str) else [str(part)])]
    result = CliRunner().invoke(app, words)
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(
        result.exception
    )
    assert result.exit_code == code, result.stderr
    return result


def document(*parts: object, code: int = 0):
    """The JSON document of a command: all of stdout, and strict (no NaN, no infinity)."""

    def refuse(constant: str):
        raise AssertionError(f"{constant} in the document")

    return json.loads(run(*parts, "--json", code=code).stdout, parse_constant=refuse)


BAD = {
    "unknown system": (f"{PLAN} --system H100-DGY", "H100-DGX"),
    "unknown model": (f"{PLAN} --model llama-3-71b", "llama-3-70b"),
    "unknown profile": (f"{PLAN} --profile priors", "prior"),
    "unknown precision": (f"{PLAN} --precision fp7", "bf16"),
    "precision the chip lacks": (f"{PLAN} --system A100-DGX --precision fp8", "bf16"),
    "missing options": ("--system H100-DGX --tp 2", "--devices, --model, --global-batch"),
    "degrees do not multiply": (f"{PLAN} --dp 4", "64"),
    "degrees do not divide the devices": (f"{JOB} --tp 4 --pp 3", "divides the devices"),
    "tp does not divide the heads": (f"{JOB} --tp 64", "tp = 64 does not divide n_heads = 32"),
    "pp does not divide the layers": (f"{JOB} --pp 64", "a stage would have no layer"),
    "dp does not divide the batch": (f"{JOB} --micro-batch 3", "no whole number of micro-batches"),
    "zero devices": (f"{PLAN} --devices 0", "--devices: expected an integer from 1"),
    "negative batch": (f"{PLAN} --global-batch -8", "--global-batch: expected an integer from 1"),
    "zero tp": (f"{PLAN} --tp 0", "--tp: expected an integer from 1"),
    "not a number": (f"{PLAN} --tp nan", "--tp"),
    "text": (f"{PLAN} --devices many", "--devices"),
    "unknown recompute": (f"{PLAN} --recompute some", "none, selective, full"),
    "more than all offloaded": (
        f"{PLAN} --offload 2",
        "--offload 2: expected a share of the layers between 0 and 1",
    ),
    "offloaded by no number": (
        f"{PLAN} --offload nan",
        "--offload nan: expected a share of the layers between 0 and 1",
    ),
    "unknown schedule": (f"{PLAN} --schedule zigzag", "1f1b"),
    "stage out of range": (f"{PLAN} --zero 4", "zero_stage: expected 0 or 1 or 2 or 3"),
    "sharding nothing": (f"{PLAN} --zero 0 --shard 4", "ZeRO stage 0"),
    "out without a file": (f"{PLAN} --out x.csv", "trace file"),
    "unknown option": (f"{PLAN} --typo 1", "--typo"),
}


@pytest.mark.parametrize("command", ["predict", "sensitivity"])
@pytest.mark.parametrize("case", BAD)
def test_bad_plans_end_with_2_and_say_what_to_do(command, case):
    options, says = BAD[case]
    if command == "sensitivity" and case == "out without a file":
        pytest.skip("sensitivity has no --out")
    result = run(command, options, "--json", code=2)
    assert result.stdout == ""
    assert says in result.stderr.replace("\n", " ")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("design --method guess " + JOB, "exact, gradient, both"),
        ("design --top 0 " + JOB, "at least 1"),
        ("design " + JOB.replace("64", "0"), "expected an integer from 1"),
        ("sensitivity --output speed " + PLAN, "step_time"),
        ("catalog planets", "chips, systems, models, stacks, settings, profiles"),
        ("catalog chips H101", "H100"),
        ("catalog profiles best", "prior"),
        ("fit nowhere.csv --out p.json", "no such file"),
        ("evaluate nowhere.csv", "no such file"),
        ("predict nowhere.csv", "no such file"),
        ("fit", "TRACES"),
        ("conquer", "conquer"),
    ],
)
def test_other_bad_usage_ends_with_2(options, says):
    result = run(options, "--json", code=2)
    assert result.stdout == ""
    assert says in result.stderr
    assert "Traceback" not in result.stderr


BAD_FILES = {
    "empty": ("", "the file is empty"),
    "header only": (",".join(ROW) + "\n", "no rows"),
    "missing columns": ("model,step_time_s\nx,1\n", "missing columns: accelerator"),
    "binary": ("a,b\0\n", "not a text file"),
}


@pytest.mark.parametrize("command", ["predict", "evaluate", "fit"])
@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_end_with_2(tmp_path, command, case):
    content, says = BAD_FILES[case]
    path = tmp_path / "traces.csv"
    path.write_text(content)
    out = f"--out {tmp_path / 'p.json'}" if command == "fit" else ""
    result = run(command, path, out, "--json", code=2)
    assert result.stdout == "" and says in result.stderr and str(path) in result.stderr


BAD_CELLS = {
    "zero": ({"n_layers": "0"}, "n_layers: expected 1 or more, got 0"),
    "negative": ({"step_time_s": "-1"}, "step_time_s: expected a positive number"),
    "NaN": ({"step_time_s": "nan"}, "step_time_s: expected a finite number"),
    "text": ({"global_batch": "many"}, "global_batch: expected a plain number, got 'many'"),
    "unknown accelerator": ({"accelerator": "H101-80GB"}, "H100-80GB"),
    "degrees": ({"dp": "4"}, "degrees do not multiply"),
    "heads": ({"tp": "64", "dp": "1", "pp": "1"}, "does not divide n_heads"),
    "batch": ({"global_batch": "100"}, "not divisible by dp·micro_batch"),
}


@pytest.mark.parametrize("case", BAD_CELLS)
def test_unusable_rows_are_reported_with_file_line_and_reason(tmp_path, case):
    change, says = BAD_CELLS[case]
    path = table(tmp_path, {}, change)
    result = run("evaluate --profile prior", path)
    assert (
        f"{path}:3: " in result.stderr
        and says in result.stderr
        and "1 of 2 rows set aside" in result.stderr
    )
    run("evaluate --profile prior --strict", path, code=1)


def test_no_usable_row_is_bad_input(tmp_path):
    result = run("evaluate --json", table(tmp_path, {"n_layers": "0"}), code=2)
    assert result.stdout == "" and "no usable row" in result.stderr


@pytest.mark.parametrize("damage", ["truncated", "version", "missing", "nan", "not a profile"])
def test_damaged_profiles_end_with_2(tmp_path, damage):
    path = tmp_path / "p.json"
    profiles.save(profiles.load("prior"), path)
    content = json.loads(path.read_text())
    if damage == "truncated":
        path.write_text(path.read_text()[:500])
    else:
        content |= (
            {"version": 99}
            if damage == "version"
            else {"format": "x"}
            if damage == "not a profile"
            else {}
        )
        if damage == "missing":
            del content["center"]
        if damage == "nan":
            content["center"]["launch"] = math.nan
        path.write_text(json.dumps(content))
    result = run("predict", PLAN.replace("prior", str(path)), "--json", code=2)
    assert result.stdout == "" and str(path) in result.stderr


def test_one_plan_adds_up():
    d = document("predict", PLAN)
    assert list(d["breakdown"]) == [f"{term}_s" for term in TERMS]
    assert sum(d["breakdown"].values()) == pytest.approx(d["step_time_s"], rel=1e-12)
    assert sum(d["memory"].values()) == pytest.approx(d["memory_bytes_per_device"], rel=1e-12)
    assert d["headroom_bytes"] == pytest.approx(
        d["device_memory_bytes"] - d["memory_bytes_per_device"]
    )
    assert d["tokens_per_s"] == pytest.approx(128 * 4096 / d["step_time_s"])
    assert list(d["mfu"]) == list(CONVENTIONS)
    assert d["mfu"]["6N"] < d["mfu"]["6N+6Lhs"] < d["mfu"]["6N+12Lhs"] < 1.0
    assert d["plan"]["dp"] == 8 and d["plan"]["sp"] is True and d["profile"]["name"] == "prior"


def test_options_change_the_answer_the_right_way():
    base, full, unfused = (
        document("predict", PLAN, more) for more in ("", "--recompute full", "--attention none")
    )
    assert (
        full["step_time_s"] > base["step_time_s"]
        and full["memory_bytes_per_device"] < base["memory_bytes_per_device"]
    )
    assert full["breakdown"]["recompute_s"] > 0.0 == base["breakdown"]["recompute_s"]
    assert unfused["breakdown"]["attention_s"] > base["breakdown"]["attention_s"]
    moved = document("predict", PLAN, "--offload 0.5")
    assert (
        moved["memory_bytes_per_device"] < base["memory_bytes_per_device"]
        and moved["step_time_s"] > base["step_time_s"]
    )
    assert moved["plan"]["offload"] == 0.5 and base["plan"]["offload"] == 0.0


def test_a_second_plan_that_offloads_needs_less_memory():
    d = document("predict", PLAN, "--against offload=0.5")
    assert d["against"]["plan"]["offload"] == 0.5 and d["plan"]["offload"] == 0.0
    assert d["against"]["memory_bytes_per_device"] < d["memory_bytes_per_device"]
    assert (
        d["against"]["memory_bytes_per_device"]
        == document("predict", PLAN, "--offload 0.5")["memory_bytes_per_device"]
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("x", "offload: expected a finite number, got 'x'"),
        ("nan", "offload: expected a finite number"),
        ("inf", "offload: expected a finite number"),
        ("-1", "offload: expected a number from 0 on"),
        ("2", "offload: expected a number from 0 to 1"),
    ],
)
def test_a_second_plan_that_offloads_no_share_ends_with_2(given, says):
    result = run("predict", PLAN, f"--against offload={given}", "--json", code=2)
    assert (
        result.stdout == ""
        and says in result.stderr.replace("\n", " ")
        and "Traceback" not in result.stderr
    )


@pytest.mark.parametrize("zero", ["1", "3"])
def test_a_row_and_the_same_plan_by_options_agree(tmp_path, zero):
    row = document("predict --profile prior", table(tmp_path, {"zero_stage": zero}))["rows"][0]
    plan = document("predict", PLAN, "--stack megatron-lm --zero", zero)
    assert row["predicted_step_time_s"] == pytest.approx(plan["step_time_s"], rel=1e-9)
    assert row["memory_bytes_per_device"] == pytest.approx(
        plan["memory_bytes_per_device"], rel=1e-9
    )
    assert row["mfu"] == pytest.approx(plan["mfu"]["6N+12Lhs"], rel=1e-9)


def test_the_answer_says_which_stage_is_the_fullest_and_when():
    """Most activations are on the first stage; with a vocabulary as large as it takes, the last
    stage is the fuller one, at the loss; an optimizer with copies of its own, at the update."""
    for more, stage, moment, said in (
        ("", 0, "backward", "stage 1 of 2, in the backward pass"),
        ("--set vocab=4000000", 1, "loss", "stage 2 of 2, at the loss"),
        ("--set update_bytes=200", 0, "update", "stage 1 of 2, at the update"),
    ):
        d = document("predict", f"{PLAN} {more} --anyway")
        assert d["fullest"] == {"stage": stage, "stages": 2, "moment": moment}, more
        assert max(d["memory_by_moment"].values()) == d["memory_bytes_per_device"]
        assert d["memory_by_moment"][f"{moment}_bytes"] == d["memory_bytes_per_device"]
        assert d["memory_by_stage"][stage]["moment"] == moment
        assert said in run("predict", f"{PLAN} {more} --anyway").stdout


def test_a_plan_that_does_not_fit_is_an_answer_and_1_under_strict():
    d = document("predict", TOO_LARGE)
    assert d["headroom_bytes"] < 0.0 and not d["fits"]
    assert document("predict --strict", TOO_LARGE, code=1) == d
    assert "does not fit" in run("predict --strict", TOO_LARGE, code=1).stderr
    run("predict --strict", PLAN)


def test_a_config_of_the_hub_stands_for_a_model(tmp_path):
    config = {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_attention_heads": 32,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert (
        document("predict", PLAN.replace("llama-2-7b", str(path)))["step_time_s"]
        == document("predict", PLAN)["step_time_s"]
    )


def test_predicted_rows_are_written_with_all_columns(tmp_path):
    path, out = table(tmp_path, {}, {"tp": "3"}, {"step_time_s": ""}), tmp_path / "pred.csv"
    d = document("predict --profile prior --out", out, path)
    assert (d["rows_read"], d["rows_used"], len(d["set_aside"])) == (3, 2, 1)
    assert d["set_aside"][0]["line"] == 3
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert len(rows) == 3 and rows[1]["predicted_step_time_s"] == "" and rows[1]["tp"] == "3"
    assert rows[0]["step_time_s"] == "3.5" and rows[0]["profile"] == "prior"
    for row in (rows[0], rows[2]):
        terms = [float(row[f"{term}_s"]) for term in TERMS]
        assert sum(terms) == pytest.approx(float(row["predicted_step_time_s"]), rel=1e-12)
        assert {"memory_bytes_per_device", "headroom_bytes", "mfu"} <= set(row)
    run("predict --strict --profile prior", path, code=1)


def test_options_of_a_plan_beside_a_file_are_refused(tmp_path):
    assert "--tp" in run("predict --tp 2", table(tmp_path, {}), code=2).stderr


def test_without_a_profile_the_nearest_is_taken_and_named(tmp_path):
    result = run("predict --json", table(tmp_path, {}))
    nearest, reason = profiles.nearest("H100-80GB", "megatron-lm")
    assert json.loads(result.stdout)["rows"][0]["profile"] == nearest.name
    assert f"profile {nearest.name}: 1 rows; {reason}" in result.stderr


def test_predict_has_the_kernels_of_attention_that_a_stack_has():
    """On Hopper PyTorch's FSDP has older ones, Megatron-Bridge the chip's newest; and predictions
    say so."""
    older, newest = (
        document(f"predict --profile prior --stack {stack}", PLAN)
        for stack in ("fsdp", "megatron-bridge")
    )
    assert any(
        text.startswith("FlashAttention-2, at 0.58 and 0.62") for text in older["assumptions"]
    )
    assert not any("FlashAttention" in text for text in newest["assumptions"])
    # two sevenths of the work are forward, the rest backward
    assert (
        1.62
        < older["breakdown"]["attention_s"] / newest["breakdown"]["attention_s"]
        < 0.6 * 1.62 + 0.4 * 1.73
    )


def test_predict_tells_the_risk_of_running_out_of_memory(tmp_path):
    """Near nothing for a plan with room, near certainty for one without; rows of a file say it
    too."""
    assert document("predict", PLAN)["oom_probability"] < 1e-3
    assert document("predict", TOO_LARGE)["oom_probability"] > 0.99
    (row,) = document("predict --profile prior", table(tmp_path, {}))["rows"]
    assert 0.0 <= row["oom_probability"] < 1e-3


def test_evaluate_judges_by_source(tmp_path):
    path = table(tmp_path, {}, {"step_time_s": "7"}, {"source": "other"})
    d = document("evaluate --profile prior", path)
    predicted = document("predict --profile prior", path)["rows"][0]["predicted_step_time_s"]
    assert list(d["by_source"]) == ["test", "other"]
    assert d["overall"]["held_out"]["rows"] == 3 and d["overall"]["fitted"] is None
    assert d["by_source"]["other"]["median"] == pytest.approx(abs(predicted / 3.5 - 1.0), rel=1e-9)
    assert d["overall"]["max"] == pytest.approx(
        max(abs(predicted / t - 1.0) for t in (3.5, 7.0)), rel=1e-9
    )


def test_evaluate_says_how_well_it_chooses(tmp_path):
    """Two plans for one job: one of them is predicted faster; the other rows leave nothing to
    choose."""
    plans = (
        {"tp": "4", "dp": "8", "step_time_s": "3.5"},
        {"tp": "2", "dp": "16", "step_time_s": "7"},
    )
    path = table(tmp_path, *plans, {"source": "other", "model": "another", "n_layers": "16"})
    d = document("evaluate --profile prior", path)
    first, second, _ = (
        row["predicted_step_time_s"] for row in document("predict --profile prior", path)["rows"]
    )
    line, other = d["by_source"]["test"], d["by_source"]["other"]
    assert line["choices"] == line["pairs"] == 1
    assert (
        line["regret_percent"]
        == pytest.approx(0.0 if first < second else 100.0)
        == line["worst_regret_percent"]
    )
    assert line["order_accuracy"] == float(first < second)
    assert (
        other["choices"] == 0
        and other["regret_percent"] is None
        and other["order_accuracy"] is None
    )
    assert d["overall"]["choices"] == 1


def test_evaluate_judges_peak_memory_where_it_was_measured(tmp_path):
    path = table(tmp_path, {}, {"source": "other"})
    used = document("predict --profile prior", path)["rows"][0]["memory_bytes_per_device"]
    header, first, second = path.read_text().splitlines()
    path.write_text(f"{header},peak_memory_gib\n{first},{used / 2**30 / 0.8}\n{second},\n")
    d = document("evaluate --profile prior", path)
    assert d["by_source"]["other"]["memory"] is None
    assert (
        d["by_source"]["test"]["memory"]["median"] == pytest.approx(0.2)
        and d["overall"]["memory"]["rows"] == 1
    )
    assert "peak memory" in run("evaluate --profile prior", path).stdout


def test_experiments_are_listed_and_a_wrong_one_is_named():
    names = json.loads(run("experiment --json").stdout)
    assert {"accuracy", "bench", "few_shot", "kinds"} <= set(names) and "study" not in names
    table = run("experiment").stdout
    assert all(name in table for name in names)
    assert "uncertainty_nuts" not in names and "dmodel-jax[sampling]" in table
    assert "accuracy" in run("experiment nobody", code=2).stderr


def test_experiments_need_a_checkout(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "dmodel.cli.experiment.dmodel.__file__",
        str(tmp_path / "site-packages" / "dmodel" / "__init__.py"),
    )
    assert "part of a checkout" in run("experiment", code=2).stderr


def test_evaluate_without_files_takes_the_shipped_table():
    d = document("evaluate --profile prior")
    assert d["rows_used"] > 300 and d["rows_read"] == d["rows_used"] + len(d["set_aside"])
    assert sum(r["rows"] for r in d["reasons"]) == len(d["set_aside"])
    assert d["dense_16_bit_gpu_without_flags"]["rows"] > 100


def test_sensitivities_of_what_does_not_fit():
    """Of one plan they are told with a word of it; around the best plan the answer is no, which is
    no bad input."""
    assert (
        "does not fit" in run("sensitivity", TOO_LARGE).stderr
        and "does not fit" not in run("sensitivity", PLAN).stderr
    )
    nothing = (
        "sensitivity --reoptimize --system A100-DGX --devices 2 --model gpt-3-175b --global-batch "
        "2 --profile prior"
    )
    d = document(nothing, "--output cost", code=1)
    assert (
        d["plan"] is None and "memory binds" in d["message"] and d["output"] == "dollars_per_token"
    )


def test_sensitivity_is_sorted_and_adds_up():
    d = document("sensitivity", PLAN)
    sizes = [abs(e["elasticity"]) for e in d["elasticities"]]
    assert sizes == sorted(sizes, reverse=True)
    assert d["sum_rates_minus_sum_times"] == pytest.approx(-1.0, abs=1e-9)
    assert {e["group"] for e in d["elasticities"]} == {
        "hardware",
        "workload",
        "plan",
        "coefficient",
    }
    assert d["value"] == pytest.approx(document("predict", PLAN)["step_time_s"], rel=1e-9)
    assert document("sensitivity --output memory", PLAN)["output"] == "memory"


def test_design_agrees_with_predict():
    d = document("design --top 3", JOB)
    times = [p["step_time_s"] for p in d["exact"]]
    assert times == sorted(times) and len(times) == 3
    assert all(p["headroom_bytes"] >= 0.0 for p in d["exact"])
    p = d["exact"][0]["plan"]
    names = ("micro_batch", "tp", "pp", "cp", "dp", "zero", "interleave")
    options = " ".join(f"--{n.replace('_', '-')} {p[n]}" for n in names) + (
        f" --shard {p['shard']}" if p["zero"] else ""
    )
    options += "" if p["reshard"] else " --no-reshard"
    assert p["recompute"] == "none", "the options below say nothing of recomputation"
    assert document("predict", JOB, options)["step_time_s"] == pytest.approx(times[0], rel=1e-9)


def test_no_feasible_plan_ends_with_1_and_names_the_limit():
    job = (
        "--system A100-DGX --devices 8 --model gpt-3-175b --global-batch 8 --profile prior "
        "--method exact"
    )
    d = document("design", job, code=1)
    assert d["exact"] == [] and d["binding"]["name"] == "memory" and d["binding"]["amount"] > 0.0
    limit = d["memory_limit"]
    spared = limit["device_bytes"] - limit["usable_bytes"]
    assert d["closest"]["headroom_bytes"] == pytest.approx(spared - d["binding"]["amount"])
    assert "memory binds" in run("design", job, code=1).stderr


def test_catalog_has_a_source_and_a_date_for_every_number():
    names = document("catalog")
    assert {"H100-DGX", "GB200-NVL72", "TPU-v5p"} <= set(
        names["systems"]
    ) and "llama-3-70b" in names["models"]
    for kind in ("chips", "systems", "models"):
        [entries] = document("catalog", kind).values()
        assert [e["name"] for e in entries] == names[kind]
        assert all(f["source"] and f["date"] for e in entries for f in e["fields"])
    assert document("catalog chips h100")["name"] == "H100-80GB"
    assert len(document("catalog profiles prior")["fields"]) == len(
        profiles.load("prior").describe()
    )


@pytest.mark.parametrize(
    "words",
    [
        "catalog",
        *(
            f"catalog {what}"
            for what in (
                "chips",
                "systems",
                "models",
                "profiles",
                "systems H100-DGX",
                "profiles prior",
            )
        ),
    ],
)
def test_catalog_prints_for_people(words):
    assert run(words).stdout.strip()


def test_tables_for_people_show_the_numbers():
    text = run("predict", PLAN).stdout
    d = document("predict", PLAN)
    assert "headroom" in text and "MFU" in text and f"{100 * d['mfu']['6N']:.1f} %" in text
    assert "elasticity" in run("sensitivity", PLAN).stdout


def test_titles_are_one_line_and_a_design_without_plans_has_no_table():
    title = "Memory of the fullest device: stage 1 of 2, in the backward pass\n"
    assert title in run("predict", PLAN).stdout
    text = run("design --method exact", JOB.replace("--devices 64", "--devices 97"), code=1).stdout
    assert "No plan to show" in text and "headroom" not in text


def shell(words: str, tmp_path: Path, **more: str) -> subprocess.CompletedProcess:
    """Run the program as the shell does, and list on stderr which heavy packages it loaded."""
    heavy = (
        "print('LOADED', *[m for m in ('matplotlib', 'pyarrow', 'scipy.optimize') if m in "
        "sys.modules], file=sys.stderr)"
    )
    code = (
        f"import sys, atexit\natexit.register(lambda: {heavy})\nfrom dmodel.cli import main\nmain()"
    )
    env = {**os.environ, "DMODEL_CACHE": str(tmp_path / "cache"), **more}
    return subprocess.run(
        [sys.executable, "-c", code, *words.split()],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_program_starts_light_and_keeps_compiled_code(tmp_path):
    done = shell(f"predict {PLAN} --json", tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["step_time_s"] > 0.0
    assert done.stderr.splitlines()[-1] == "LOADED"
    assert any((tmp_path / "cache").rglob("*.entry"))


def test_the_program_never_shows_a_traceback_for_a_mistake(tmp_path):
    done = shell(f"predict {PLAN} --model nothing", tmp_path)
    assert (
        done.returncode == 2
        and done.stdout == ""
        and "Traceback" not in done.stderr
        and "unknown model" in done.stderr
    )


def test_a_terminal_of_few_letters_still_gets_its_answer(tmp_path):
    done = shell("catalog models gpt-2", tmp_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "50,257" in done.stdout, done.stderr


@pytest.mark.skipif(os.name != "posix", reason="streams are closed by a shell of POSIX")
def test_closed_streams_drop_what_is_said():
    done = subprocess.run(
        f'"{sys.executable}" -m dmodel catalog --json >&-',
        cwd=ROOT,
        shell=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_said_in_one_line():
    code = "from dmodel.cli import main; main()"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, "catalog", "--json"],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (
        done.returncode != 0
        and "no space left" in done.stderr.lower()
        and "Traceback" not in done.stderr
    )


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A profile fitted to a few rows of a stack that is 1.3 times as slow as the prior says, and
    what `fit` said."""
    folder = tmp_path_factory.mktemp("fit")
    shapes = [
        {"micro_batch": b, "global_batch": g}
        for b in ("1", "2")
        for g in ("64", "128", "256", "512")
    ]
    path = table(folder, *shapes)
    times = [
        row["predicted_step_time_s"] * 1.3
        for row in document("predict --profile prior", path)["rows"]
    ]
    path = table(
        folder,
        *({**shape, "step_time_s": f"{t:.6g}"} for shape, t in zip(shapes, times, strict=True)),
    )
    profile = folder / "mine.json"
    return path, profile, document("fit --profile prior --seed 3 --out", profile, path)


def test_fit_writes_a_profile_that_the_others_take(fitted):
    path, profile, said = fitted
    assert said["rows_fitted"] == 8 and said["base"]["name"] == "prior"
    before, after = (
        document(f"evaluate --profile {p}", path)["overall"]["median"] for p in ("prior", profile)
    )
    assert after < 0.05 < before
    assert document(f"evaluate --profile {profile}", path)["overall"]["fitted"]["rows"] == 8
    assert (
        document("predict", PLAN.replace("prior", str(profile)), "--stack megatron-lm")["profile"][
            "name"
        ]
        == "mine"
    )


def test_fit_finds_an_unwritable_place_before_it_fits(fitted, tmp_path):
    result = run("fit", fitted[0], "--out", tmp_path / "no" / "p.json", code=2)
    assert "cannot write" in result.stderr
    run("fit", fitted[0], "--out", tmp_path / "p.json", "--profile nobody", code=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", ["-1", "99999999999999999999"])
def test_seeds_beyond_32_bits_are_refused(tmp_path, seed):
    assert (
        "--seed"
        in run(
            "fit", table(tmp_path, {}), "--out", tmp_path / "p.json", "--seed", seed, code=2
        ).stderr
    )


def test_fit_strict_stops_at_unusable_rows(tmp_path):
    run("fit --strict", table(tmp_path, {}, {"tp": "3"}), "--out", tmp_path / "p.json", code=1)
    assert not (tmp_path / "p.json").exists()


@pytest.mark.slow
def test_demo_end_to_end(tmp_path):
    out = tmp_path / "out"
    d = document("demo --quick --out", out)
    assert all(Path(name).is_file() for name in d["files"]) and (out / "report.html").is_file()
    assert d["data"]["rows_read"] == d["data"]["rows_used"] + len(d["data"]["set_aside"])
    held_out = d["shipped"]["overall"]["held_out"]["rows"]
    assert held_out == sum(p["held_out"] for p in d["points"]) > 10
    fit = d["fit"]
    assert fit["rows_fitted"] == 12 and fit["rows_held_out"] >= 10
    assert fit["after"]["median"] < 0.5 * fit["before"]["median"]
    assert "gap" not in d["design"] and "gradient" not in d["design"]
    listed = [*d["design"]["exact"], *d["design"]["compared"]]
    assert all(x["step_time_s_low"] < x["step_time_s"] < x["step_time_s_high"] for x in listed)
    assert all(0.0 <= x["oom_probability"] <= 0.5 for x in listed)
    most = d["design"]["memory_limit"]["max_risk"] + 1e-9
    assert all(x["oom_probability"] <= most for x in d["design"]["exact"])
    assert d["sensitivity"]["sum_rates_minus_sum_times"] == pytest.approx(-1.0, abs=1e-9)
    assert (
        document(f"predict {PLAN.replace('prior', str(out / 'profile.json'))}")["step_time_s"] > 0.0
    )


def test_what_a_command_reads_is_not_written_over(tmp_path):
    """Measurements are what a user cannot make again."""
    path = table(tmp_path, {}, {"global_batch": "256"})
    before = path.read_bytes()
    for asked in (("fit",), ("predict",), ("next-measurements", "--budget-minutes 100")):
        said = run(asked[0], path, *asked[1:], "--out", path, code=2).stderr
        assert "is one of the files to read" in said and path.read_bytes() == before


def test_a_column_that_looks_misspelled_is_said_and_fails_strict(tmp_path):
    path = tmp_path / "traces.csv"
    header, row = table(tmp_path, {}).read_text().splitlines()
    path.write_text(f"{header.replace('recompute', 'recomputation')},site\n{row},here\n")
    found = run("predict", path)
    assert (
        "column 'recomputation' is none of the format" in found.stderr
        and "recompute" in found.stderr
        and "site" not in found.stderr
    )
    assert "1 columns that are not read" in run("predict", path, "--strict", code=1).stderr
    assert any(
        "recomputation" in note["reason"] for note in document("evaluate", path, "--json")["notes"]
    )
    assert run("evaluate", path).stderr.count("recomputation") == 1
    assert (
        run("fit", path, "--out", tmp_path / "p.json", "--strict", code=1)
        and not (tmp_path / "p.json").exists()
    )


def test_of_an_unknown_stack_the_nearest_are_said():
    plan = (
        "predict --system H100-DGX --devices 64 --model llama-2-7b --seq-len 4096 --global-batch "
        "128"
    )
    said = run(plan, "--stack", "megatron-bridgge").stderr
    assert "no rows of megatron-bridgge" in said and "nearest megatron-bridge" in said
    assert "no rows of" not in run(plan, "--stack", "megatron-bridge").stderr


def test_where_no_row_is_left_all_reasons_are_said(tmp_path):
    said = run("evaluate", table(tmp_path, *[{"tp": "3"}] * 12), code=2).stderr
    assert said.count("set aside: ") == 12 and "--json lists all" not in said
