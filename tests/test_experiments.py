"""The studies run, in their quick mode: they print one JSON document, and write a table and a figure."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def study(name: str, out: Path, *more: str) -> dict:
    command = [sys.executable, "-m", f"experiments.{name}", "--quick", "--json", "--out", str(out), *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_held_out(tmp_path):
    document = study("held_out", tmp_path)
    fitted, held_out, middle = document["rows"]
    assert fitted["count"] > 3 * held_out["count"] > 60
    assert 0.0 < fitted["median"] < 5.0 and held_out["median"] == middle["median"] < 10.0
    assert (tmp_path / "held_out_by_group.csv").read_text().splitlines()[0] == "fit,rows,count,median,mean,p90"


def test_few_shot(tmp_path):
    document = study("few_shot", tmp_path, "--targets", "vtrain-multi")
    (line,) = document["rows"]
    assert line["rows_used"] == 12 and line["rows_judged"] == 24 and 0.0 < line["median"] < 15.0
    assert (tmp_path / "few_shot.png").stat().st_size > 10_000


def test_an_unknown_target_is_a_message(tmp_path):
    command = [sys.executable, "-m", "experiments.few_shot", "--targets", "nobody", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "nobody" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_bench(tmp_path):
    command = [sys.executable, "-m", "experiments.bench", "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) > 0
