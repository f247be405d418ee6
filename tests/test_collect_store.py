"""The store of measurements: nothing finished is lost, whatever happens to a file's end or to a
process."""

import json
import multiprocessing
import os

import pytest

from calibration.collect import runner, store, tasks
from calibration.collect.tasks import Task
from calibration.collect.torture import FOLDER, collect, torture
from calibration.collect.torture import tasks as tasks_of
from dmodel.errors import InputError

ENVIRONMENT = {"id": "here", "identity": "cpu"}


def measurement(key, started="2026-01-01", process=0, run="a", median=1.0, status="ok"):
    record = {
        "type": "measurement",
        "kind": "invented",
        "parameters": {},
        "key": key,
        "status": status,
        "started": started,
    }
    return record | {
        "process": process,
        "run": run,
        "wall_s": 0.1,
        **({"time": {"median_s": median}} if status == "ok" else {}),
    }


def written(folder, *records, name="host-p0"):
    with store.Writer(folder, name) as writer:
        for record in records:
            writer.append(record)
        return writer.path


def test_what_is_written_is_read(tmp_path):
    one, other = measurement("1", median=0.1 + 0.2), measurement("2")
    written(tmp_path, {"type": "environment", "id": "e"}, one, other)
    found = store.read(tmp_path)
    assert found.measurements == {"1": one, "2": other} and list(found.environments) == ["e"]
    assert not found.damage and not found.duplicates


def test_a_file_cut_anywhere_keeps_every_whole_line(tmp_path):
    path = written(tmp_path, *(measurement(str(i)) for i in range(3)))
    whole = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    near = {
        min(end + d, len(whole))
        for end in (0, *ends)
        for d in (-3, -2, -1, 0, 1, 2)
        if end + d >= 0
    }
    for size in sorted({*range(0, len(whole), 9), *near}):
        path.write_bytes(whole[:size])
        kept = sum(size >= end - 1 for end in ends)  # a record without its newline is whole, too
        assert len(store.read(tmp_path).measurements) == kept
        written(tmp_path, measurement("new"))
        found = store.read(tmp_path)
        assert len(found.measurements) == kept + 1 and not found.damage
    torn = path.with_name(path.name + ".torn").read_bytes()
    assert torn and whole[:1] == torn[:1]


def test_a_damaged_line_is_named_and_the_others_are_kept(tmp_path):
    path = written(tmp_path, *(measurement(str(i)) for i in range(3)))
    content = bytearray(path.read_bytes())
    at = content.index(b"\n") + 100
    content[at] ^= 1
    path.write_bytes(content)
    found = store.read(tmp_path)
    assert sorted(found.measurements) == ["0", "2"]
    assert [(d.line, d.torn) for d in found.damage] == [(2, False)] and "checksum" in str(
        found.damage[0]
    )


def test_every_changed_byte_of_a_record_is_noticed():
    line = store.encode(measurement("1"))[:-1]
    for i in range(len(b'{"schema":1,'), len(line)):
        changed = bytearray(line)
        changed[i] ^= 4
        with pytest.raises(ValueError, match="checksum|not a record"):
            store.decode(bytes(changed))


def test_a_newer_schema_is_refused_by_name():
    line = store.encode(measurement("1"))[:-1].replace(b'"schema":1', b'"schema":9')
    with pytest.raises(ValueError, match="newer dmodel"):
        store.decode(line)


def test_numbers_that_are_not_finite_never_reach_the_disk(tmp_path):
    with store.Writer(tmp_path, "x") as writer, pytest.raises(ValueError):
        writer.append(measurement("1", median=float("nan")))
    assert not store.read(tmp_path).measurements


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    with store.Writer(tmp_path, "x") as writer:
        writer.append(measurement("1"))
        monkeypatch.setattr(store, "_write", _half_written)
        with pytest.raises(OSError):
            writer.append(measurement("2"))
        monkeypatch.undo()
        writer.append(measurement("3"))
    found = store.read(tmp_path)
    assert sorted(found.measurements) == ["1", "3"] and not found.damage


def _half_written(file, data):
    os.write(file, bytes(data[:20]))
    raise OSError(28, "No space left on device")


def test_two_writers_of_one_name_get_two_files(tmp_path):
    with store.Writer(tmp_path, "x") as one, store.Writer(tmp_path, "x") as other:
        assert one.path != other.path
        one.append(measurement("1"))
        other.append(measurement("2"))
    assert sorted(store.read(tmp_path).measurements) == ["1", "2"]


@pytest.mark.parametrize(
    ("one", "other", "wins"),
    [
        (measurement("k", "1"), measurement("k", "2", run="b"), 0),
        (measurement("k", "2", run="b"), measurement("k", "1"), 1),
        (measurement("k", "1", status="failed"), measurement("k", "2"), 1),
        (
            measurement("k", "1", process=0, median=1.0),
            measurement("k", "2", process=1, median=3.0),
            1,
        ),
    ],
)
def test_duplicates_are_resolved_alike_in_any_order(one, other, wins):
    chosen = (one, other)[wins]
    assert store.better(one, other) == chosen == store.better(other, one)


def test_a_folder_that_is_none_is_the_users_mistake(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        store.read(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        store.Writer(tmp_path / "file" / "sub", "x")


def invented(n):
    return [Task("invented", {"number": i}) for i in range(n)]


def test_finished_tasks_are_not_run_again(tmp_path):
    ran = []

    def measure(task):
        ran.append(task.parameters["number"])
        if task.parameters["number"] == 2:
            raise runner.Unavailable("no such thing here")
        if task.parameters["number"] == 3:
            raise RuntimeError("out of memory")
        return {"time": {"median_s": 1.0}}

    first = runner.run(invented(3), tmp_path, ENVIRONMENT, measure)
    second = runner.run(invented(5), tmp_path, ENVIRONMENT, measure)
    assert ran == [0, 1, 2, 3, 4] and len(first.measured) == 3 and len(second.measured) == 2
    assert len(second.finished) == 5 and len(second.failed) == 2
    runner.run(invented(5), tmp_path, ENVIRONMENT, measure, retry=True)
    assert ran[5:] == [2, 3]
    reasons = {
        r["parameters"]["number"]: r.get("reason")
        for r in store.read(tmp_path).measurements.values()
    }
    assert reasons[2] == "no such thing here" and "out of memory" in reasons[3]


def test_what_another_process_finishes_meanwhile_is_not_repeated(tmp_path):
    ran = []

    def measure(task):
        ran.append(task.parameters["number"])
        if task.parameters["number"] == 0:  # meanwhile another one does the next
            other = Task("invented", {"number": 1})
            written(tmp_path, measurement(other.key("cpu")), name="elsewhere-p0")
        return {"time": {"median_s": 1.0}}

    outcome = runner.run(invented(3), tmp_path, ENVIRONMENT, measure)
    assert ran == [0, 2] and len(outcome.finished) == 3


def test_a_budget_leaves_out_what_is_too_long_and_resumes_with_what_is_left(tmp_path):
    clock = {"invented": 1.0}
    estimates = {0: 10.0, 1: 50.0, 2: 20.0}

    def measure(task):
        return {"time": {"median_s": 1.0}, **clock}

    def estimate(task):
        return estimates[task.parameters["number"]]

    outcome = runner.run(
        invented(3), tmp_path, ENVIRONMENT, measure, budget_s=40.0, estimate=estimate
    )
    # the first took far less than estimated, so the others are expected to do so as well
    assert len(outcome.measured) == 3 and not outcome.skipped
    none = runner.run(
        invented(3), tmp_path / "b", ENVIRONMENT, measure, budget_s=5.0, estimate=estimate
    )
    assert not none.measured and len(none.skipped) == 3


def test_keys_ignore_order_but_not_values_or_machine():
    one, other = Task("a", {"m": 1, "n": 2}), Task("a", {"n": 2, "m": 1})
    assert one.key("x") == other.key("x") != one.key("y")
    assert (
        Task("a", {"m": 1, "n": 3}).key("x") != one.key("x") != Task("b", {"m": 1, "n": 2}).key("x")
    )


class Product(tasks.NamedTuple):
    """Parameters of an invented benchmark."""

    m: int
    dtype: str = "bf16"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "not a JSON file"),
        ("{}", "expected a list"),
        ("[3]", "task 1"),
        ('[{"kind": "product", "m": 4}, {"kind": "sorting"}]', "task 2: unknown kind 'sorting'"),
        ('[{"kind": "product"}]', "needs m"),
        ('[{"kind": "product", "m": 4, "q": 1}]', "no parameter q"),
        ('[{"kind": "product", "m": -4}]', "positive integer"),
        ('[{"kind": "product", "m": true}]', "positive integer"),
        ('[{"kind": "product", "m": 4, "dtype": 7}]', "a text"),
    ],
)
def test_mistakes_in_a_plan_are_named_with_their_place(tmp_path, text, message):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(InputError, match=message):
        tasks.read_plan(tmp_path / "plan.json", {"product": Product})


def test_a_plan_fills_blanks_and_drops_repetitions(tmp_path):
    (tmp_path / "plan.json").write_text(
        json.dumps([{"kind": "product", "m": 4}, {"kind": "product", "dtype": "bf16", "m": 4}])
    )
    assert tasks.read_plan(tmp_path / "plan.json", {"product": Product}) == [
        Task("product", {"m": 4})
    ]


def test_killed_at_random_moments_it_loses_and_repeats_nothing(tmp_path):
    verdict = torture(tmp_path, kills=8, count=700, size=30_000, seed=1, life_s=0.05)
    assert verdict.passed, verdict
    assert verdict.kills == 8 and verdict.torn >= 3


def test_two_collectors_at_once_do_no_harm(tmp_path):
    """Each writes a file of its own and skips what the other has finished; what both started at
    once counts once."""
    context = multiprocessing.get_context("forkserver")
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    children = [
        context.Process(target=collect, args=(tmp_path, 200, 2000, there)) for _, there in pipes
    ]
    for child in children:
        child.start()
    for (here, there), child in zip(pipes, children, strict=True):
        there.close()
        while os.read(here.fileno(), 65536):
            pass
        child.join()
        here.close()
    found = store.read(tmp_path / FOLDER)
    keys = {task.key("torture") for task in tasks_of(200)}
    assert found.measurements.keys() == keys and not found.damage


@pytest.mark.slow
def test_a_hundred_kills(tmp_path):
    verdict = torture(tmp_path, kills=100, count=6000, size=30_000, seed=0, life_s=0.03)
    assert verdict.passed and verdict.kills == 100, verdict
