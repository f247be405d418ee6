"""Clusters of Dask: the answers of one process, and a scheduler that dies."""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from functools import partial

import numpy as np
import pytest
from typer.testing import CliRunner

from calibration.fit import fit
from calibration.traces import published
from calibration.traces.writer import write
from dmodel.cli import app
from dmodel.errors import InputError
from dmodel.parts import opened, parts
from dmodel.profiles import load
from tests.fitting import synthetic
from tests.parts_cluster import ROOT, address_of, cluster_apart, cluster_here, free_port, killed
from tests.parts_tasks import blocks, kept, numbers, sum_of

pytest.importorskip("distributed")

JOB = "--system H100-DGX --devices 4 --model llama-3-8b --seq-len 4096 --global-batch 8"
ARGS = [*JOB.split(), "--stack", "torchtitan"]


@pytest.fixture(scope="module")
def cluster():
    """A scheduler of Dask on loopback, and two workers in processes of their own."""
    pytest.importorskip("distributed")
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        silence_logs=50,
    ) as found:
        yield found.scheduler_address


def test_a_cluster_gives_the_same_bits(tmp_path, cluster):
    assert cluster.startswith("tcp://127.0.0.1:")
    log = tmp_path / "log"
    with opened(cluster=cluster) as executor:
        found = list(parts(blocks(12, log=str(log)), executor, kept(tmp_path / "parts")))
    assert sum_of(found) == sum_of(list(parts(blocks(12)))) and sorted(numbers(log)) == list(
        range(12)
    )


def test_a_scheduler_that_is_killed_is_told_and_another_one_goes_on(tmp_path, cluster):
    """Twice: what was done is kept, and the same call computes the others on a new cluster."""
    log, folder = tmp_path / "log", kept(tmp_path / "parts")
    every = blocks(32, 0.05, str(log))
    for most in (3, 8):
        port = free_port()
        with cluster_here(port, 2) as scheduler, opened(cluster=address_of(port)) as executor:
            with pytest.raises(InputError, match="the cluster is gone.*kept"):
                list(parts(every, executor, folder, partial(_kill_at, most, scheduler)))
        assert most <= len(list(folder.place.glob("*.parquet"))) < len(every)
    with opened(cluster=cluster) as executor:
        found = list(parts(every, executor, folder))
    assert sum_of(found) == sum_of(list(parts(blocks(32))))
    assert set(numbers(log)) == set(range(32)) and len(numbers(log)) <= 32 + 2 * 4


def _kill_at(most, process, state):
    """Kill a process once so many blocks are there."""
    if state.done == most:
        killed(process)


def check_killed_scheduler(place, count, seconds, times, workers=2, seed=0):
    """Kill the scheduler of a run again and again, at the same port or at another one; each run
    says so and ends with 2, the last one ends with the bits of an undisturbed one, and no more is
    computed twice than what was in flight. Gives the number of deaths, and of those in a run."""
    log, draw, port = place / "log", random.Random(seed), free_port()
    words = [str(place / "parts"), str(log), str(count), str(seconds)]
    told: Counter[str] = Counter()
    for death in range(times + 1):
        port = port if death % 2 else free_port()
        with cluster_apart(port, workers) as scheduler:
            command = [sys.executable, "-m", "tests.parts_tasks", *words, address_of(port)]
            run = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            if death < times:
                if draw.random() < 0.8:
                    _wait_for_more(log, run)
                time.sleep(draw.uniform(0.0, 2.0))
                killed(scheduler)
            out, err = run.communicate(timeout=300.0)
        if death < times:
            assert run.returncode == 2 and "Traceback" not in err, err
            told[next(s for s in SAID if s in err)] += 1
    assert run.returncode == 0, err
    assert out.strip() == sum_of(list(parts(blocks(count))))
    done = numbers(log)
    assert set(done) == set(range(count)) and len(done) <= count + 2 * workers * told[SAID[0]]
    return told


def _wait_for_more(log, run):
    """Wait until a run has begun another block, or has ended."""
    before = log.stat().st_size if log.exists() else 0
    while run.poll() is None and (not log.exists() or log.stat().st_size == before):
        time.sleep(0.05)


SAID = ("the cluster is gone", "no scheduler answers", "it has no workers")
"""What a run says whose scheduler was killed: at work, before it was asked, before its workers."""


@pytest.mark.slow
def test_fifty_deaths_of_schedulers_change_nothing(tmp_path):
    told = check_killed_scheduler(tmp_path, 800, 0.2, 50)
    assert told.total() == 50 and told[SAID[0]] >= 25


def test_a_scheduler_that_does_not_answer_is_told(monkeypatch):
    monkeypatch.setattr("dmodel.parts.workers.TIMEOUT_S", 0.5)
    with (
        pytest.raises(InputError, match="no scheduler answers"),
        opened(cluster="tcp://127.0.0.1:1"),
    ):
        pass


def shell(*words):
    """The document of a command, without what it took."""
    found = CliRunner().invoke(app, [*words, "--json"])
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    return {name: value for name, value in document.items() if name not in ("seconds", "parts")}


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "plans.csv"
    path.write_text("tp,zero\n4,1\n2,1\n1,3\n")
    return path


def test_a_sweep_by_a_cluster_has_the_same_bits(cluster, plans, tmp_path):
    words = ["sweep", *ARGS, "--plans", str(plans), "--draws", "16", "--block", "16"]
    usual = shell(*words)
    assert shell(*words, "--cluster", cluster, "--out", str(tmp_path / "parts")) == usual
    assert len(list((tmp_path / "parts").glob("*.parquet"))) >= 3


@pytest.mark.slow
def test_a_design_by_a_cluster_is_the_same(cluster):
    assert shell("design", *ARGS, "--cluster", cluster) == shell("design", *ARGS)


def test_a_fit_by_a_cluster_has_the_same_bits(cluster):
    rows = synthetic().take(np.arange(12))
    base = load("held-out")
    usual = fit(rows, base, starts=3, polish=4)
    with opened(cluster=cluster) as executor:
        found = fit(rows, base, starts=3, polish=4, executor=executor)
    assert repr(found) == repr(usual)


@pytest.mark.slow
def test_the_fit_of_the_command_has_the_same_bits(cluster, tmp_path):
    path, table = tmp_path / "rows.csv", published()
    write(table._replace(rows=table.rows[:8]), path, aside=False)
    written = []
    for how in ([], ["--cluster", cluster]):
        out = tmp_path / f"fitted{len(how)}" / "profile.json"
        out.parent.mkdir()
        shell("fit", str(path), "--profile", "held-out", "--out", str(out), *how)
        written.append(out.read_text())
    assert written[0] == written[1]
