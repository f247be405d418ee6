"""Runs that are followed: changes of level, files that grow, the profile's word, `dmodel watch`."""

from __future__ import annotations

import csv
import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from calibration.traces.published import published
from calibration.watching.changes import FASTER, KNOWS, LEARNS, RECOVERED, SLOWER, Detector
from calibration.watching.growing import Log
from calibration.watching.runs import Folder, Known
from dmodel.cli import app
from dmodel.errors import InputError
from experiments.watching import NOISES, false_alarms, line
from tests.studies import quick_study

SPREAD = 0.03


def logs(n: int, seed: int = 0) -> np.ndarray:
    return SPREAD * np.random.default_rng(seed).standard_normal(n)


def changes(values: np.ndarray, least: float = 0.02) -> list:
    detector = Detector(least)
    told = (detector.take(i, float(np.exp(x))) for i, x in enumerate(values))
    return [each for each in told if each is not None]


@pytest.mark.parametrize(("slower", "within"), [(0.05, 50), (0.1, 20), (0.2, 5)])
def test_a_slow_down_is_told_with_its_size_and_begin(slower, within):
    values = logs(400)
    values[200:] += np.log1p(slower)
    (found,) = changes(values)
    assert found.kind == SLOWER and 200 <= found.step < 200 + within
    assert abs(found.since - 200) <= 15
    assert found.factor == pytest.approx(1.0 + slower, abs=5 * found.doubt)
    assert found.spread == pytest.approx(SPREAD, rel=0.3)


def test_a_faster_level_and_a_return_have_their_own_kinds():
    values = logs(600)
    values[200:400] -= 0.2
    assert [each.kind for each in changes(values)] == [FASTER, SLOWER]
    values = logs(600)
    values[200:400] += 0.2
    assert [each.kind for each in changes(values)] == [SLOWER, RECOVERED]
    values[400:] += 0.5
    assert [each.kind for each in changes(values)] == [SLOWER, SLOWER]


def test_a_short_slow_down_is_over_soon():
    values = logs(400)
    values[200:212] += 0.3
    found = changes(values)
    assert [each.kind for each in found] == [SLOWER, RECOVERED] and found[1].step < 280


def test_single_slow_steps_and_warm_up_are_no_change():
    values = logs(1000)
    values[::50] += np.log(5.0)
    values[:6] += np.log(20.0)
    assert not changes(values)


def test_a_slow_drift_is_told_since_the_level_is_held():
    values = logs(2000)
    values[KNOWS:] += np.linspace(0.0, 0.3, 2000 - KNOWS)
    assert changes(values)[0].kind == SLOWER


def test_what_does_not_matter_is_not_told():
    quiet = 0.001 * np.random.default_rng(1).standard_normal(400)
    quiet[200:] += np.log1p(0.01)
    assert not changes(quiet, least=0.05)
    assert [each.kind for each in changes(quiet, least=0.002)] == [SLOWER]


def test_equal_steps_have_no_spread_and_no_change():
    assert not changes(np.zeros(500))
    still = np.zeros(500)
    still[300:] = 0.1
    assert [each.kind for each in changes(still)] == [SLOWER]


@pytest.mark.parametrize("name", NOISES)
def test_false_alarms_are_rare(name):
    assert false_alarms(NOISES[name], 10_000, np.random.default_rng(3)) <= 1.0


def test_the_study_counts_what_is_found(tmp_path):
    found = line("normal", NOISES["normal"], 0.1, 20, np.random.default_rng(0))
    assert found["found within [%]"] == 100.0
    assert len(quick_study("watching", tmp_path)["rows"]) == 12


HEAD = (
    "CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory",
    "Building llama3 8B with TransformerModelArgs(dim=4096, n_layers=32, n_heads=32, n_kv_heads=8, "
    "vocab_size=128256, multiple_of=1024, ffn_dim_multiplier=1.3)",
    "Training starts at step 1, with local batch size 1, global batch size 64, "
    "sequence length 8192",
)


def step_line(i: int, seconds: float) -> str:
    rate = f"{8192 / seconds:,.1f}"
    return f"[rank0]: step: {i}  loss: 7.1  memory: 40.00GiB(50.5%)  tps: {rate}  mfu: 40.1%"


def text(seconds, first: int = 1) -> str:
    return "".join(f"{step_line(first + i, s)}\n" for i, s in enumerate(seconds))


def write_log(path: Path, seconds, first: int = 1) -> Path:
    path.write_text("\n".join(HEAD) + "\n" + text(seconds, first))
    return path


def seen(log: Log, to_end: bool = False) -> list[tuple[int, int]]:
    return [(added.run, step.number) for added in log.read(to_end) for step in added.steps]


def test_pieces_of_a_log_give_each_step_once(tmp_path):
    whole = "\n".join(HEAD) + "\n" + text(1.4 * np.exp(logs(60)))
    path = tmp_path / "run.log"
    path.write_text("")
    log, found, rng, at = Log(path), [], np.random.default_rng(0), 0
    while at < len(whole):
        piece = whole[at : at + int(rng.integers(1, 700))]
        with path.open("a") as file:
            file.write(piece)
        at += len(piece)
        found += seen(log)
    assert found == [(0, i) for i in range(1, 61)]
    assert log.format == "torchtitan" and not seen(log)


def test_a_last_line_waits_for_its_end(tmp_path):
    path = write_log(tmp_path / "run.log", [1.4] * 5)
    path.write_text(path.read_text()[:-1])
    log = Log(path)
    assert seen(log) == [(0, i) for i in range(1, 5)]
    assert seen(log, to_end=True) == [(0, 5)]


def test_a_run_that_begins_again_is_another_one(tmp_path):
    path = write_log(tmp_path / "run.log", [1.4] * 30)
    log = Log(path)
    seen(log)
    with path.open("a") as file:
        file.write(text([2.0] * 4))
    assert seen(log) == [(1, i) for i in range(1, 5)]
    write_log(path, [1.4] * 3)  # shorter: the file was written anew
    assert seen(log) == [(0, 1), (0, 2), (0, 3)]


def test_what_tells_no_steps_is_refused(tmp_path):
    path = tmp_path / "golden.json"
    path.write_text(json.dumps({"iteration-time": {"values": {"1": 1.0, "2": 1.1, "3": 1.2}}}))
    with pytest.raises(InputError, match="does not tell single steps"):
        Log(path).read(to_end=True)


def run(*words: str, code: int = 0):
    result = CliRunner().invoke(app, ["watch", *words])
    assert result.exit_code == code, result.output + result.stderr
    assert "Traceback" not in result.output + result.stderr
    return result


ENOUGH = "--set n_accel=64 --set dp=64 --set zero_stage=3".split()


def slowed(factor: float = 1.2, n: int = 120, at: int = 80) -> np.ndarray:
    values = logs(n)
    values[at:] += np.log(factor)
    return 1.2 * np.exp(values)


def test_watch_prints_a_document_a_line(tmp_path):
    path = write_log(tmp_path / "run.log", slowed())
    result = run(str(path), "--once", "--json", *ENOUGH, code=1)
    level, change = map(json.loads, result.stdout.splitlines())
    assert level["kind"] == "level" and level["verdict"] in ("inside", "slower", "faster")
    assert level["seconds"] == pytest.approx(1.2, rel=0.03) and len(level["interval"]) == 2
    assert change["kind"] == "slower" and change["alarm"] and change["factor"] > 1.15
    assert change["causes"] and change["causes"][0]["test"]["does"]
    names = {cause["name"] for cause in change["causes"]}
    assert not names & {"full-recomputation", "other-release", "other-chip", "no-overlap-data"}
    assert sum(cause["probability"] for cause in change["causes"]) <= 1.0 + 1e-9
    assert "120 steps" in result.stderr


def test_watch_says_it_to_people_and_what_it_lacks(tmp_path):
    path = write_log(tmp_path / "run.log", slowed())
    result = run(str(path), "--once", code=1)
    assert "SLOWER since step" in result.stdout and "its level is known" in result.stdout
    assert "--set n_accel=…" in result.stderr
    calm = write_log(tmp_path / "calm.log", 1.2 * np.exp(logs(50)))
    assert "alarm" in run(str(calm), "--once").stderr


def test_watch_follows_until_nothing_grows(tmp_path):
    path = write_log(tmp_path / "run.log", slowed()[:60])

    def grow() -> None:
        for i, seconds in enumerate(slowed()[60:]):
            with path.open("a") as file:
                file.write(text([seconds], 61 + i))
            time.sleep(0.005)

    writer = threading.Thread(target=grow)
    writer.start()
    result = run(str(path), "--every", "0.05", "--idle", "2", "--json", code=1)
    writer.join()
    assert [json.loads(each)["kind"] for each in result.stdout.splitlines()] == ["level", "slower"]
    assert "120 steps" in result.stderr
    first = run(str(path), "--every", "0.05", "--first", "--json", code=1)
    assert json.loads(first.stdout.splitlines()[-1])["kind"] == "slower"


def test_a_folder_is_all_its_files_and_names_others(tmp_path):
    write_log(tmp_path / "a.log", slowed())
    write_log(tmp_path / "b.log", 1.2 * np.exp(logs(40)))
    (tmp_path / "notes.txt").write_text("nothing of interest\n" * 3)
    result = run(str(tmp_path), "--once", "--json", code=1)
    runs = {json.loads(each)["run"] for each in result.stdout.splitlines()}
    assert runs == {str(tmp_path / "a.log"), str(tmp_path / "b.log")}
    assert "2 alarms" not in result.stderr and "160 steps" in result.stderr


def test_a_table_is_a_run_for_each_configuration(tmp_path):
    rows = [row.cells for row in published().rows if row.text("step_time_s")][:2]
    path = tmp_path / "rows.csv"
    names = list(rows[0])
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, names, extrasaction="ignore")
        out.writeheader()
        for i in range(60):
            for j, row in enumerate(rows):
                factor = 1.25 if j and i >= 40 else 1.0
                seconds = (
                    float(row["step_time_s"]) * factor * np.exp(SPREAD * rng.standard_normal())
                )
                out.writerow(row | {"step_time_s": f"{seconds:.6g}"})
    result = run(str(path), "--once", "--json", code=1)
    told = [json.loads(each) for each in result.stdout.splitlines()]
    assert [each["kind"] for each in told].count("slower") == 1
    assert {each["run"].rpartition(" ")[2] for each in told if each["kind"] == "level"} == {
        "2",
        "3",
    }


def test_a_run_that_stands_still_is_told_once(tmp_path):
    now = [0.0]
    path = write_log(tmp_path / "run.log", [1.4] * 5)
    folder = Folder(path, Known({}, (), None, 0.02), clock=lambda: now[0])
    list(folder.read())
    for i in range(3):
        now[0] += 60.0
        with path.open("a") as file:
            file.write(text([1.4], 6 + i))
        list(folder.read())
    now[0] += 290.0
    assert not list(folder.stalled())
    now[0] += 20.0
    assert [(each, waited) for each, waited in folder.stalled()] == [(path, 310.0)]
    assert not list(folder.stalled())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere.log", "--once"], "no such file or folder"),
        ([".", "--once", "--idle", "3"], "leave --idle and --every out"),
        ([".", "--least", "7"], "from 0.001 to 1"),
        ([".", "--every", "0"], "0.05 to 3600"),
        ([".", "--idle", "-1"], "positive number"),
    ],
)
def test_mistakes_are_named(words, says):
    assert says in run(*words, code=2).stderr


def test_short_runs_tell_their_level_at_the_end(tmp_path):
    path = write_log(tmp_path / "run.log", [1.2] * (LEARNS // 2))
    (told,) = map(json.loads, run(str(path), "--once", "--json", *ENOUGH).stdout.splitlines())
    assert told["kind"] == "level" and told["seconds"] == pytest.approx(1.2, rel=1e-3)
