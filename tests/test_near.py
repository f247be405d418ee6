"""Published runs near a plan, and what is said where none is."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from calibration.traces.neighbours import NEAR, neighbours
from dmodel import catalog
from dmodel.cli import app
from dmodel.cli.near import columns_of, far_line, published_of

PLAN = {"tp": 1, "pp": 8, "cp": 1, "ep": 32, "interleave": 4, "micro_batch": 1}


def document(words: str):
    result = CliRunner().invoke(app, [*words.split(), "--json"])
    assert result.exit_code in (0, 1), result.stderr
    return json.loads(result.stdout)


def test_experts_of_a_model_by_name_are_near_those_of_others():
    model = catalog.transformer("qwen3-235b-a22b", 4096.0)
    columns = columns_of({"global_batch": 2048.0}, model, PLAN, 256.0, "H100-80GB")
    assert columns["n_experts"] == 128.0 and columns["n_layers"] == 94.0
    assert neighbours(columns, 1)[0].model == "qwen3-235b-a22b"


def test_the_nearest_of_several_plans_counts():
    model = catalog.transformer("llama-3-8b", 8192.0)
    runs = [
        columns_of({"global_batch": 128.0}, model, PLAN | {"ep": 1, "pp": pp}, 64.0, "H100-80GB")
        for pp in (1, 32)
    ]
    each = [published_of([run])["distance"] for run in runs]
    assert published_of(runs)["distance"] == min(each) < max(each)
    assert published_of(runs)["near"] == (min(each) <= NEAR)


def test_a_design_far_from_all_that_was_measured_says_so_first():
    job = "design --system H100-DGX --devices 64 --model llama-3-8b --brief"
    far = f"{job} --seq-len 1048576 --global-batch 8"
    found = document(far)["published"]
    assert not found["near"] and found["distance"] > NEAR and found["url"]
    assert "Outside of what was measured" in CliRunner().invoke(app, far.split()).stdout[:600]
    near = f"{job} --seq-len 8192 --global-batch 128"
    assert document(near)["published"]["near"]
    assert "Outside" not in CliRunner().invoke(app, near.split()).stdout


def test_a_chip_that_nobody_has_published_a_run_on_is_said():
    assert published_of([{"accelerator": "Ascend-910B", "n_layers": 32.0}]) is None
    assert "guess" in far_line(None)[0]
