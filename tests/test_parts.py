"""Blocks by any executor: the same bits in the same order, kept once, gone on with after any
death."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from dmodel.errors import InputError
from dmodel.parts import Block, Processes, opened, parts
from tests.parts_tasks import blocks, dying, failing, kept, numbers, sum_of, waiting

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def usual():
    return sum_of(list(parts(blocks(12))))


def test_the_name_of_a_block_is_that_of_its_arguments():
    def name(**arguments):
        return Block(waiting, arguments).name

    one = name(number=1, seconds=0.0, log="")
    assert one == name(log="", seconds=0.0, number=1)
    others = [
        name(number=2, seconds=0.0, log=""),
        name(number=1, seconds=-0.0, log=""),
        name(number=1.0, seconds=0.0, log=""),
        name(number=np.array(1), seconds=0.0, log=""),
        name(number=np.array([1]), seconds=0.0, log=""),
        name(number=(1,), seconds=0.0, log=""),
        name(number={"a": 1}, seconds=0.0, log=""),
        Block(failing, {"number": 1, "seconds": 0.0, "log": ""}).name,
    ]
    assert len({one, *others}) == 1 + len(others)


def test_a_block_of_what_has_no_name_is_refused():
    with pytest.raises(TypeError, match="object"):
        assert Block(waiting, {"number": object()}).name


def test_parts_come_in_the_order_of_the_blocks_whatever_is_done_first():
    every = [Block(waiting, {"number": i, "seconds": 0.02 * (5 - i), "log": ""}) for i in range(5)]
    with ThreadPoolExecutor(5) as pool:
        found = list(parts(every, pool))
    assert sum_of(found) == sum_of(list(parts(blocks(5))))


def test_blocks_are_asked_for_as_they_are_needed():
    asked = []

    def endless():
        for block in blocks(10_000):
            asked.append(block)
            yield block

    with ThreadPoolExecutor(2) as pool:
        found = parts(endless(), pool)
        next(found)
        found.close()
    assert len(asked) <= 20


def test_what_is_kept_is_not_computed_again(tmp_path, usual):
    log = tmp_path / "log"
    every = blocks(12, log=str(log))
    states = []
    first = sum_of(list(parts(every, folder=kept(tmp_path / "parts"))))
    again = sum_of(list(parts(every, folder=kept(tmp_path / "parts"), progress=states.append)))
    assert first == again == usual
    assert sorted(numbers(log)) == list(range(12))
    assert (states[-1].done, states[-1].found, states[-1].computed) == (12, 12, 0)


@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "other", "foreign"])
def test_damaged_parts_are_computed_again_with_a_word(tmp_path, usual, damage):
    every, said = blocks(12), []
    folder = kept(tmp_path, said)
    list(parts(every, folder=folder))
    path, other = folder.path(every[3].name), folder.path(every[4].name)
    content = path.read_bytes()
    at = content.index(b"PAR1") + len(content) // 3
    path.write_bytes(
        {
            "cut": content[: len(content) // 2],
            "bit": content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :],
            "empty": b"",
            "other": other.read_bytes(),
            "foreign": b"number,seconds\n",
        }[damage]
    )
    assert sum_of(list(parts(every, folder=folder))) == usual
    assert len(said) == 1 and str(path) in said[0] and "computed again" in said[0]
    list(parts(every, folder=folder))
    assert len(said) == 1


def test_a_defect_of_a_block_is_told_as_it_is():
    every = [Block(failing, {"number": 7})]
    with pytest.raises(ArithmeticError, match="block 7"), ThreadPoolExecutor(1) as pool:
        list(parts(every, pool))


@pytest.mark.parametrize("workers", [0, -1, 5000])
def test_a_number_of_processes_that_is_none_is_refused(workers):
    with pytest.raises(InputError, match="workers"), opened(workers):
        pass


def test_processes_and_a_cluster_together_are_refused():
    with pytest.raises(InputError, match="one of the two"), opened(1, "tcp://127.0.0.1:1"):
        pass


def _killed(found, kill, times):
    """Parts, while a thread kills something now and then; how often it did."""
    done, count, draw = threading.Event(), [0], random.Random(0)

    def killer():
        while count[0] < times and not done.wait(draw.uniform(0.3, 0.8)):
            count[0] += kill(draw)

    thread = threading.Thread(target=killer)
    thread.start()
    try:
        return list(found), count[0]
    finally:
        done.set()
        thread.join()


def _kill_a_worker(draw):
    alive = [p.pid for p in multiprocessing.active_children() if p.pid is not None]
    if not alive:
        return 0
    try:
        os.kill(draw.choice(alive), signal.SIGKILL)
    except ProcessLookupError:
        return 0
    return 1


def check_killed_workers(place, count, seconds, times, workers=2):
    """Kill workers; the bits are those of an undisturbed run, and of each death no more than what
    was in flight is computed twice. Gives the number of deaths."""
    log = place / "log"
    every = blocks(count, seconds, str(log))
    with opened(workers) as executor:
        found, deaths = _killed(
            parts(every, executor, kept(place / "parts")), _kill_a_worker, times
        )
    assert sum_of(found) == sum_of(list(parts(blocks(count))))
    done = numbers(log)
    assert set(done) == set(range(count)) and len(done) <= count + workers * deaths
    assert len(list((place / "parts").glob("*.parquet"))) == count
    return deaths


def test_processes_that_are_killed_are_replaced_and_the_bits_are_the_same(tmp_path):
    assert check_killed_workers(tmp_path, 40, 0.15, 2) >= 1


@pytest.mark.slow
def test_work_that_kills_its_workers_ends_in_a_clear_message():
    with pytest.raises(InputError, match="died"), opened(1) as executor:
        list(parts([Block(dying, {"number": 3})], executor))


def check_killed_driver(place, count, seconds, times, workers=2, seed=0):
    """Kill a whole run again and again; the last one ends with the bits of an undisturbed one, and
    no more is computed twice than what was in flight. Gives the number of deaths."""
    log, folder, draw = place / "log", place / "parts", random.Random(seed)
    words = [str(folder), str(log), str(count), str(seconds), str(workers)]
    command = [sys.executable, "-m", "tests.parts_tasks", *words]
    flags = {**os.environ, "PYTHONPATH": str(ROOT)}
    deaths, out = 0, ""
    while True:
        run = subprocess.Popen(
            command, cwd=ROOT, env=flags, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            wait = draw.uniform(0.5, 6.0) if deaths < times else 300.0
            out, _ = run.communicate(timeout=wait)
            break
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            run.communicate()
            deaths += 1
    assert run.returncode == 0
    log.touch()
    assert out.strip() == sum_of(list(parts(blocks(count))))
    done = numbers(log)
    assert set(done) == set(range(count)) and len(done) <= count + 2 * workers * deaths
    return deaths


def test_a_run_that_is_killed_goes_on_where_it_was(tmp_path):
    # killed after 3.9 s, in the middle: its parts alone take 6 s
    assert check_killed_driver(tmp_path, 60, 0.2, 1, seed=5) == 1


@pytest.mark.slow
def test_fifty_deaths_of_workers_change_nothing(tmp_path):
    assert check_killed_workers(tmp_path, 700, 0.1, 50) == 50


@pytest.mark.slow
def test_fifty_deaths_of_runs_change_nothing(tmp_path):
    assert check_killed_driver(tmp_path, 1500, 0.2, 50) == 50


def test_processes_have_one_thread_each():
    with Processes(1) as pool:
        assert pool.submit(os.getenv, "NPROC").result(60) == "1"
        assert pool.submit(os.getenv, "OPENBLAS_NUM_THREADS").result(60) == "1"


@pytest.mark.slow
def test_a_process_that_dies_idle_is_replaced():
    with Processes(1) as pool:
        first = pool.submit(os.getpid).result(60)
        os.kill(first, signal.SIGKILL)
        time.sleep(0.3)
        assert pool.submit(os.getpid).result(60) != first
