"""Logs of many frameworks and collectives: units, runs, prefixes, what is asked for, files beside a
log, and what physics forbids."""

import csv
import json
import pickle
from pathlib import Path

import pytest
from typer.testing import CliRunner

from calibration.importers import Source, read, settings, steps
from calibration.importers.bars import bars, pace, state
from calibration.importers.beside import beside
from calibration.importers.blocks import Mark, blocks
from calibration.importers.nccl import columns
from calibration.importers.source import bare
from calibration.importers.steps import Step
from dmodel.cli import app
from dmodel.errors import InputError

SAMPLES = Path(__file__).parent / "data" / "importers"

ROWS = [
    ("megatron_golden.json", "megatron-golden", [{"step_time_s": 0.8, "peak_memory_gib": 64.0}]),
    ("megatron_fork.log", "megatron", [{"step_time_s": 1.45}]),
    ("nemo_dllogger.json", "nemo", [{"step_time_s": 5.0, "global_batch": 512, "tp": 4, "pp": 2}]),
    (
        "internlm_two_runs.log",
        "internlm",
        [{"tokens_per_s_per_accel": 3921.5}, {"tokens_per_s_per_accel": 3870.0}],
    ),
    ("neuronx_two_runs.log", "neuronx", [{"step_time_s": 98.0}, {"step_time_s": 120.0}]),
    (
        "deepspeed_timer.log",
        "deepspeed",
        [{"step_time_s": 6.4, "global_batch": 256, "n_accel": 32, "zero_stage": 3}],
    ),
    ("deepspeed_pipeline.log", "deepspeed", [{"step_time_s": 1.875, "global_batch": 256}]),
    (
        "composer.log",
        "composer",
        [{"step_time_s": 1.25, "global_batch": 256, "seq_len": 2048, "n_accel": 8}],
    ),
    ("olmo_core.log", "olmo-core", [{"step_time_s": 0.8, "tokens_per_s_per_accel": 10240.0}]),
    ("olmo.log", "olmo", [{"step_time_s": 4.0, "tokens_per_s_per_accel": 8192.0}]),
    ("lightning_bar.log", "lightning", [{"step_time_s": 0.75, "n_accel": 8}]),
    ("trainer.log", "trainer", [{"step_time_s": 2.5525, "global_batch": 128, "dp": 8}]),
    ("axolotl.log", "trainer", [{"step_time_s": 12.0, "peak_memory_gib": 38.4}]),
    ("llama_factory.jsonl", "trainer", [{"step_time_s": 4.0}]),
    ("mlperf_tokens.log", "mlperf", [{"step_time_s": 9.2, "global_batch": 1536}]),
    ("mlperf_blocks_only.log", "mlperf", [{"step_time_s": 11.0}]),
    ("mlperf_two_series.log", "mlperf", [{"step_time_s": 0.9833}]),
    (
        "torchtitan_two_runs.log",
        "torchtitan",
        [{"tokens_per_s_per_accel": 6835.0}, {"tokens_per_s_per_accel": 7935.0}],
    ),
    (
        "dllogger_bert.json",
        "dllogger",
        [{"step_time_s": 2.4, "seq_len": 512, "micro_batch": 16}],
    ),
    ("memory_snapshot.json", "memory", [{"peak_memory_gib": 28.0}]),
    ("memory_xla.txt", "memory", [{"peak_memory_gib": 48.0}]),
]
"""Sample → its format and figures of each of its rows, within 1 %."""


@pytest.mark.parametrize(("file", "name", "rows"), ROWS, ids=[row[0] for row in ROWS])
def test_a_sample_gives_what_it_says(file, name, rows):
    found = read([SAMPLES / file])
    assert found.files[0]["format"] == name and len(found.rows) == len(rows)
    for row, cells in zip(found.rows, rows, strict=True):
        got = {column: float(row[column]) for column in cells}
        assert got == pytest.approx(cells, rel=0.01)


def run(*words: object, code: int = 0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(
        result.exception
    )
    assert result.exit_code == code, result.stderr
    return result


PREFIXES = {
    "srun": "12: {}",
    "torchrun": "[rank0]:{}",
    "mpirun": "[1,0]<stdout>:{}",
    "mpirun with host": "[1,3][node-1]<stderr>:{}",
    "kubectl": "2024-05-01T12:00:00.123456789Z {}",
    "kubectl with pod": "[pod/train-0/main] {}",
    "docker compose": "trainer-0  | {}",
    "container runtime": "2024-05-01T12:00:00.123456789+00:00 stdout F {}",
    "colours": "\x1b[32m{}\x1b[0m",
    "kubectl and torchrun": "2024-05-01T12:00:00Z [rank1]: {}",
    "quotation": "> {}",
}


def test_files_of_docker_are_unwrapped(tmp_path):
    lines = (SAMPLES / "megatron_fork.log").read_text().splitlines()
    wrapped = [json.dumps({"log": line + "\n", "stream": "stdout"}) for line in lines]
    (tmp_path / "docker.log").write_text("\n".join(line.replace(": ", ":", 1) for line in wrapped))
    times = [
        read([f]).rows[0]["step_time_s"]
        for f in (SAMPLES / "megatron_fork.log", tmp_path / "docker.log")
    ]
    assert times[0] == times[1]


@pytest.mark.parametrize("how", PREFIXES)
@pytest.mark.parametrize("file", ["megatron_interleaved.log", "nccl_no_header.log"])
def test_what_launchers_put_before_lines_changes_nothing(tmp_path, how, file):
    plain = (SAMPLES / file).read_text()
    text = "\n".join(PREFIXES[how].format(line) for line in plain.splitlines())
    (tmp_path / file).write_text(f"```text\n{text}\n```\n")
    cells = [{n: v for n, v in row.items() if n != "source"} for row in read([SAMPLES / file]).rows]
    found = [
        {n: v for n, v in row.items() if n != "source"} for row in read([tmp_path / file]).rows
    ]
    assert found == cells


def test_what_is_no_prefix_stays():
    for text in ("12:00:01 step 3", "  8   2  float", "| a | b |", "2024-05-01 12:00:00,1 INFO x"):
        assert bare(text) == text.rstrip()


def test_a_run_ends_where_numbers_fall_behind_the_first_or_times_change():
    def numbers(*pairs):
        return [len(r) for r in steps.runs(Step(i, n, t) for i, (n, t) in enumerate(pairs))]

    assert numbers((1, 2.0), (2, 2.0), (3, 2.0)) == [3]
    assert numbers((36, 4.0), (9, 8.0), (10, 8.0)) == [1, 2]
    # two ranks, then a restart as fast as before
    assert numbers((1, 9.0), (1, 2.0), (2, 2.0), (2, 2.01), (3, 2.0), (2, 2.0), (3, 2.0)) == [7]
    assert numbers((5, 2.0), (6, 2.0), (6, 3.0), (7, 3.0)) == [2, 2]


def test_the_same_step_much_earlier_is_another_run():
    same = [Step(1, 7, 2.0, clock=1000.0), Step(2, 7, 2.0, clock=1000.5)]
    assert len(steps.runs(same)) == 1
    assert len(steps.runs([*same, Step(3, 7, 2.0, clock=100.0)])) == 2


def test_a_running_mean_that_begins_anew_is_another_run():
    def line(n, t, mean):
        return Step(n, n, t, {"running": mean})

    one = [line(1, 10.0, 1.0), line(2, 10.0, 1.0), line(3, 10.0, 1.0)]
    assert len(steps.runs([*one, line(4, 20.0, 0.8)])) == 1
    assert len(steps.runs([*one, line(4, 20.0, 0.5)])) == 2


# --- MLPerf


def mlperf(folder, *entries, batch=64, benchmark="llama31_8b", seq_len=8192):
    """A log of MLPerf: (time in ms, key, value, metadata)."""
    head = [
        (0, "submission_benchmark", benchmark, {}),
        (0, "global_batch_size", batch, {}),
        (0, "max_sequence_length", seq_len, {}),
        (1, "run_start", None, {}),
    ]
    lines = [
        ":::MLLOG " + json.dumps({"time_ms": t, "key": key, "value": value, "metadata": metadata})
        for t, key, value, metadata in (*head, *entries)
    ]
    path = folder / "mlperf.log"
    path.write_text("\n".join(lines))
    return path


def test_a_rate_in_tokens_is_told_by_the_clock_of_blocks():
    note = read([SAMPLES / "mlperf_tokens.log"]).rows[0]["note"]
    assert "in tokens a second: the clock of blocks says 9.2" in note


def test_a_rate_that_no_unit_fits_is_left_out(tmp_path):
    block = [(0, "block_start", None, {"samples_count": 0})]
    block += [(100000, "block_stop", None, {"samples_count": 6400})]
    odd = (100000, "tracked_stats", {"throughput": 1000.0}, {"step": 6400})
    found = read([mlperf(tmp_path, *block, odd)])
    assert float(found.rows[0]["step_time_s"]) == pytest.approx(1.0)
    assert "makes a step of 0.064 s in sequences, 524 s in tokens" in found.troubles[0].reason


def test_a_rate_without_a_clock_is_in_the_unit_that_makes_a_step(tmp_path):
    def time(rate, **more):
        entries = [(i, "tracked_stats", {"throughput": rate}, {"step": i}) for i in range(4)]
        return read([mlperf(tmp_path, *entries, **more)]).rows[0]

    tokens = time(5154997.0, batch=2688, benchmark="gpt3", seq_len=2048)
    assert float(tokens["step_time_s"]) == pytest.approx(2688 * 2048 / 5154997.0, rel=1e-6)
    assert "in tokens a second" in tokens["note"]
    assert float(time(32.0)["step_time_s"]) == pytest.approx(2.0)


def test_the_series_near_the_clock_of_blocks_counts():
    note = read([SAMPLES / "mlperf_two_series.log"]).rows[0]["note"]
    assert "as reported (train_step_time)" in note and "with reduced_train_loss 0.9 s" in note


def test_the_clock_counts_where_no_series_is_near(tmp_path):
    entries = [(0, "block_start", None, {"samples_count": 0})]
    entries += [
        (1000 * i, "tracked_stats", {"train_step_time": 0.9, "loss": 3.0}, {"step": 64.0 * i})
        for i in range(1, 6)
    ]
    entries += [(100000, "block_stop", None, {"samples_count": 0})]
    entries += [(100000, "eval_start", None, {}), (100500, "eval_stop", None, {})]
    entries += [(100500, "block_start", None, {"samples_count": 6400})]
    found = read([mlperf(tmp_path, *entries)]).rows[0]
    assert float(found["step_time_s"]) == pytest.approx(1.0)
    assert "off by -10 %, so the clock counts" in found["note"]


def test_evaluation_is_taken_out_or_said():
    only = read([SAMPLES / "mlperf_blocks_only.log"]).rows[0]["note"]
    assert "evaluation and all else in them included: an upper bound" in only
    marks = [
        Mark(1, "block", True, 0.0, {"samples_count": 0.0}),
        Mark(2, "eval", True, 50.0, {}),
        Mark(3, "eval", False, 60.0, {}),
        Mark(4, "block", False, 110.0, {"samples_count": 800.0}),
    ]
    (block,) = blocks(marks, 8, 1024)
    assert (block.seconds, block.steps, block.evaluated) == (100.0, 100.0, False)


def test_a_stop_before_any_start_ends_what_began_with_the_run():
    marks = [Mark(1, "run", True, 0.0, {}), Mark(2, "block", False, 30.0, {"samples_count": 80.0})]
    (block,) = blocks(marks, 8, 1024)
    assert (block.seconds, block.steps, block.evaluated) == (30.0, 10.0, True)


def test_a_platform_is_asked_for_with_what_it_says(tmp_path):
    result = run("import", SAMPLES / "mlperf_tokens.log", "--out", tmp_path / "t.csv")
    assert (
        "hint: accelerator=H100-80GB (submission_platform is '64xNVIDIA DGX H100'" in result.stderr
    )
    assert "--set accelerator=H100-80GB --set n_accel=… --set dp=…" in result.stderr


def test_no_step_time_at_all_is_refused(tmp_path):
    with pytest.raises(InputError, match="no step time: of train_step_time"):
        read([mlperf(tmp_path)])


# --- collectives


def collectives(folder, text):
    path = folder / "collectives.log"
    path.write_text(text)
    return path


ROW = (
    "   536870912     134217728     float     sum      -1   1806.7  297.16  586.06      0   "
    "1835.9  292.43  576.74      0\n"
)


def test_an_excerpt_asks_for_ranks_and_never_takes_one(tmp_path):
    head = "#  Rank 71 Group  0 Pid  14840 on node-1 device  3 [0x01] NVIDIA Graphics Device\n"
    found = read([collectives(tmp_path, head + ROW)])
    assert {"collective", "accelerator", "n_accel", "nodes"} == set(found.needed)
    assert found.hints["n_accel"].startswith("72 ") and "all_reduce" in found.hints["collective"]


def test_one_rank_measures_no_network(tmp_path):
    head = "#  Rank  0 Group  0 Pid 297260 on host device  0 [0x1b] NVIDIA B200\n"
    row = "  4299152  2149576  half  none  -1  7.09  605.97  0.00  0  0.79  5429.94  0.00  N/A\n"
    with pytest.raises(InputError, match="one rank measures no network"):
        read([collectives(tmp_path, head + row)])
    with pytest.raises(InputError, match="a bus bandwidth of 0 is that of one rank"):
        read([collectives(tmp_path, row)])
    with pytest.raises(InputError, match="of 1 rank: it moves no byte"):
        given = settings(["collective=all_reduce", "n_accel=1"])
        read([collectives(tmp_path, ROW)], given=given)


LAYOUTS = {
    "nccl_old_columns.log": (6, 13441.8, "all_reduce", "4"),
    "mscclpp_in_place.log": (3, 9415.2, None, None),
    "nccom_allreduce.log": (4, 3270.59, "all_reduce", "32"),
    "nccl_no_header.log": (6, 6730.89, None, None),
}


@pytest.mark.parametrize("file", LAYOUTS)
def test_columns_are_read_as_their_header_names_them(file):
    rows = read([SAMPLES / file]).rows
    last = rows[-1]
    assert (len(rows), float(last["time_us"])) == LAYOUTS[file][:2]
    assert (last.get("collective"), last.get("n_accel")) == LAYOUTS[file][2:]
    assert float(last["algbw_GBs"]) == pytest.approx(
        float(last["message_bytes"]) / 1e3 / float(last["time_us"]), rel=0.01
    )


DOCUMENTS = {
    "nccl_tests.json": (6, 2**30, "all_reduce", "H100-80GB", "16", "2", "NCCL 2.28.3"),
    "nccom_allgather.json": (4, 2**29, None, None, None, None, None),
}


@pytest.mark.parametrize("file", DOCUMENTS)
def test_documents_of_collective_benchmarks_are_read(file):
    found = read([SAMPLES / file])
    last, names = found.rows[-1], ("collective", "accelerator", "n_accel", "nodes", "link")
    said = (len(found.rows), int(last["message_bytes"]), *(last.get(name) for name in names))
    assert said == DOCUMENTS[file] and not found.troubles
    rate = float(last["message_bytes"]) / 1e3 / float(last["time_us"])
    assert float(last["algbw_GBs"]) == pytest.approx(rate, rel=1e-3)


def test_a_document_gives_the_rows_of_the_log_that_was_printed_beside_it(tmp_path):
    document = json.loads((SAMPLES / "nccl_tests.json").read_text())
    lines = ["# Collective test starting: all_reduce_perf", "# NCCL version 2.28.3"]
    lines += [
        f"#  Rank {d['rank']:2} Group  0 Pid {d['pid']} on {d['hostname']} device {d['device']:2} "
        f"[0000:0{d['device']}:00] {d['device_info']}"
        for d in document["config"]["devices"]
    ]
    group = "  time  algbw  busbw  #wrong"
    lines.append(f"#  size  count  type  redop  root{group}{group}")
    for one in document["results"]:
        both = [one[place] for place in ("out_of_place", "in_place")]
        figures = [f"{g['time']} {g['alg_bw']:.2f} {g['bus_bw']:.2f} 0" for g in both]
        lines.append(f"  {one['size']} {one['count']} float sum -1 {' '.join(figures)}")
    log = read([collectives(tmp_path, "\n".join(lines) + "\n")]).rows
    own = read([SAMPLES / "nccl_tests.json"]).rows
    for a, b in zip(own, log, strict=True):
        assert {n: a[n] for n in a if n not in ("source", "algbw_GBs", "busbw_GBs")} == {
            n: b[n] for n in b if n not in ("source", "algbw_GBs", "busbw_GBs")
        }
        assert float(a["busbw_GBs"]) == pytest.approx(float(b["busbw_GBs"]), abs=0.01)


def test_a_document_of_nccom_lets_its_ranks_guess():
    found = read([SAMPLES / "nccom_allgather.json"])
    assert found.hints["n_accel"].startswith("32 ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time": 0.0}, "no time"),
        ({"time": "nan"}, "no size, time"),
        ({"nwrong": 3.0}, "wrong values"),
        ({"alg_bw": 9999.0}, "damaged"),
        ({"bus_bw": -1.0}, "no size, time"),
    ],
)
def test_a_size_of_a_document_that_cannot_be_is_named(tmp_path, change, message):
    document = json.loads((SAMPLES / "nccl_tests.json").read_text())
    document["results"][2]["out_of_place"] |= change
    path = tmp_path / "nccl.json"
    path.write_text(json.dumps(document))
    found = read([path])
    assert len(found.rows) == 5
    assert any("results[2]" in str(t) and message in str(t) for t in found.troubles)


def test_times_of_dllogger_are_differences_of_its_clock(tmp_path):
    line = 'DLLL {{"elapsedtime": "{}", "type": "LOG", "step": [0, {}], "data": {{"loss": 1.0}}}}'
    text = "\n".join(line.format(20.0 + 3.0 * i, 10 * i) for i in range(1, 9))
    path = tmp_path / "log.json"
    path.write_text(text)
    (row,) = read([path]).rows
    assert float(row["step_time_s"]) == pytest.approx(0.3)
    assert "one line for 10 steps" in row["note"]
    path.write_text(text.splitlines()[0])
    with pytest.raises(InputError, match="without a second one"):
        read([path])


def test_bandwidths_of_nccom_are_decimal_where_size_and_time_say_so(tmp_path):
    head = "    size(B)    count(elems)    type    time:avg(us)    algbw(GB/s)    busbw(GB/s)\n"
    row = "      65536           16384    fp32            8.18           8.01           7.76\n"
    (found,) = read([collectives(tmp_path, head + row)]).rows
    assert float(found["algbw_GBs"]) == 8.01


def test_a_group_of_columns_that_was_not_measured_may_be_blank(tmp_path):
    group = "  time  algbw  busbw  #wrong"
    head = f"# Initializing MSCCL++\n#  size  count{group}{group}\n"
    row = f"  1073741824      16777216{' ' * 37}23275   46.13   43.25      0\n"
    (found,) = read([collectives(tmp_path, head + row)]).rows
    assert found["time_us"] == "23275" and found["source"].startswith("mscclpp-test")


def test_a_table_with_bars_is_read(tmp_path):
    text = (
        "+---------+-----------+--------------+-------------+----------------+\n"
        "|   Size  | Time (us) | AlgBW (GB/s) | Correctness | NCCL Time (us) |\n"
        "+---------+-----------+--------------+-------------+----------------+\n"
        "| 1.0 KiB |    5.12   |     0.20     |     PASS    |      9.9       |\n"
        "| 64.0 MiB |   600.0  |    111.85    |     PASS    |     700.0      |\n"
    )
    found = read([collectives(tmp_path, text)])
    assert [row["time_us"] for row in found.rows] == ["5.12", "600"]
    assert found.rows[1]["message_bytes"] == str(64 * 2**20) and "n_accel" in found.needed


def test_times_and_sizes_may_have_units(tmp_path):
    head = "#  size  count  type  time(ms)  algbw(GB/s)  busbw(GB/s)\n"
    row = "  512M  134217728  float  1.8067  297.16  586.06\n"
    (found,) = read([collectives(tmp_path, head + row)]).rows
    assert (found["time_us"], found["message_bytes"]) == ("1806.7", "536870912")
    (found,) = read([collectives(tmp_path, head + row.replace("1.8067", "1806.7us"))]).rows
    assert found["time_us"] == "1806.7"


def test_old_gathers_count_what_a_rank_receives(tmp_path):
    row = "  1048576  131072  float  47.38  11.06  11.06  0e+00  46.84  11.19  11.19  0e+00\n"
    (found,) = read([collectives(tmp_path, row)]).rows
    assert "algbw_GBs" not in found and found["busbw_GBs"] == "11.06"
    with pytest.raises(InputError, match="are 22.13 GB/s, not 5.06"):
        read([collectives(tmp_path, row.replace("11.06", "5.06"))])


def test_columns_of_a_header():
    found = columns(
        "#  size  count  type  redop  time  algbw  busbw  error  time  algbw  busbw  error"
    )
    assert found.head == ("size", "count", "type", "redop") and found.groups == 2
    assert found.each == ("time", "algbw", "busbw", "wrong")


# --- rates, bars, memory, traces


def test_a_rate_makes_a_time_once_the_batch_is_known(tmp_path):
    lines = [
        f"[timer.py:258:stop] epoch=0/micro_step={n}/global_step={n}, RunningAvgSamplesPerSec=7.8, "
        "CurrSamplesPerSec=8.0, MemAllocated=5GB, MaxMemAllocated=9GB"
        for n in range(1, 9)
    ]
    (tmp_path / "ds.log").write_text("\n".join(lines))
    blank = read([tmp_path / "ds.log"])
    assert "step_time_s" not in blank.rows[0] and "global_batch" in blank.hints
    row = read([tmp_path / "ds.log"], given={"global_batch": "64"}).rows[0]
    assert row["step_time_s"] == "8" and "global_batch over 8 sequences a second" in row["note"]


def test_a_pace_comes_from_states_far_apart():
    def bar(done, clock, shown="9.99s/it"):
        return state(done, f"{done}%|##| {done}/100 [{clock}<01:00,  {shown}]")

    found = pace([bar(0, "00:00"), bar(10, "00:30"), bar(50, "01:30"), bar(100, "02:45")])
    assert found is not None and found.seconds == pytest.approx(1.5)
    short = pace([bar(1, "00:00", "2.00it/s"), bar(9, "00:04", "2.00it/s")])
    assert short is not None and short.seconds == 0.5
    assert [len(b) for b in bars([bar(5, "00:05"), bar(9, "00:09"), bar(1, "00:01")])] == [2, 1]
    assert state(1, "no bar") is None


def test_the_end_of_a_trainer_run_is_said_to_be_an_upper_bound():
    (row,) = read([SAMPLES / "trainer.log"]).rows
    assert "an upper bound; from 20 to 200 of 200 of the progress bar: 2.5 s" in row["note"]


def test_two_runs_of_a_trainer_are_two_rows(tmp_path):
    end = (
        "{{'train_runtime': {}, 'train_samples_per_second': 8.0, 'train_steps_per_second': 0.5}}\n"
    )
    (tmp_path / "t.log").write_text(end.format(500.0) + end.format(900.0))
    rows = read([tmp_path / "t.log"]).rows
    assert [(row["step_time_s"], row["global_batch"]) for row in rows] == [("2", "16")] * 2


def test_a_pickle_is_never_read_and_told_how_to_convert(tmp_path):
    class Trap:
        def __reduce__(self):
            return print, ("read",)

    (tmp_path / "snapshot.pickle").write_bytes(pickle.dumps(Trap()))
    for words in (
        ("import", tmp_path / "snapshot.pickle", "--out", tmp_path / "t.csv"),
        (
            "import",
            SAMPLES / "trainer.log",
            "--with",
            tmp_path / "snapshot.pickle",
            "--out",
            "t.csv",
        ),
    ):
        result = run(*words, code=2)
        assert "json.dump(pickle.load(" in result.stderr and "read\n" not in result.stdout


def test_a_memory_snapshot_beside_a_log_fills_its_peak():
    (row,) = read([SAMPLES / "trainer.log"], with_files=[SAMPLES / "memory_snapshot.json"]).rows
    assert row["peak_memory_gib"] == "28" and row["peak_kind"] == "allocated"


@pytest.mark.parametrize(
    ("sample", "kind"),
    [
        ("megatron_golden.json", "allocated"),
        ("memory_snapshot.json", "allocated"),
        ("memory_xla.txt", "planned"),
        ("torchtitan_json.log", "reserved"),
    ],
)
def test_a_peak_says_what_it_counts(sample, kind):
    (row, *_) = read([SAMPLES / sample]).rows
    assert row["peak_kind"] == kind


def test_what_xla_plans_is_the_peak_of_a_maxtext_log(tmp_path):
    text = (SAMPLES / "maxtext_two_slices.log").read_text()
    planned = "Total memory size: 45.5 GB, Output size: 10.1 GB, Temp size: 30.2 GB\n"
    (tmp_path / "run.log").write_text(planned + text)
    row = read([tmp_path / "run.log"]).rows[0]
    assert (
        row["peak_memory_gib"] == "45.5"
        and row["peak_kind"] == "planned"
        and "what XLA plans" in row["note"]
    )


def test_a_trace_without_steps_or_kernels_is_refused_with_what_to_do(tmp_path):
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 5, "args": {"device": 0}}
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 9e4}
    for event, says in (
        (kernel, "give the profiler schedule=torch.profiler.schedule"),
        (step, "ProfilerActivity.CUDA"),
    ):
        (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": [event]}))
        with pytest.raises(InputError, match=says):
            read([tmp_path / "trace.json"])


# --- what is missing, files beside a log


LAUNCH = """#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
TP=4; PP=${PP:-2}
MODEL_ARGS=(
  --num-layers 32   # deep
  --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
  --group-query-attention --num-query-groups 8 --swiglu --bf16 --vocab-size 128256
)
torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES pretrain_gpt.py ${MODEL_ARGS[@]} \\
  --seq-length 8192 --tensor-model-parallel-size $TP --pipeline-model-parallel-size ${PP} \\
  --micro-batch-size 1 --global-batch-size 64 $(touch /nowhere/at/all) --use-distributed-optimizer
"""

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}

TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
global_batch_size = 64
[parallelism]
data_parallel_shard_degree = 8
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "full"
"""

MAXTEXT = """base_emb_dim: 4096
base_num_query_heads: 32
base_num_kv_heads: 8
base_mlp_dim: 14336
base_num_decoder_layers: 32
mlp_activations: ["silu", "linear"]
vocab_size: 128256
max_target_length: 8192
ici_fsdp_parallelism: 16
remat_policy: full
"""

MEGATRON = """MODEL_ARGS:
  --num-layers: 12
  --hidden-size: 512
  --num-attention-heads: 8
  --seq-length: 1024
  --micro-batch-size: 4
  --global-batch-size: 32
  --tensor-model-parallel-size: 1
  --pipeline-model-parallel-size: 4
"""

LLAMA_FACTORY = """model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
finetuning_type: lora
cutoff_len: 2048
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
bf16: true
"""

ZERO = {"train_batch_size": 64, "zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}

SHAPE = {"n_layers": "32", "d_model": "4096", "d_ff": "14336", "n_kv_heads": "8", "vocab": "128256"}

BESIDE = {
    "launch.sh": (
        LAUNCH,
        SHAPE
        | {"n_accel": "32", "tp": "4", "pp": "2", "seq_len": "8192", "global_batch": "64"}
        | {"zero_stage": "1", "precision": "bf16", "gated_mlp": "1", "recompute": "none"},
    ),
    "config.json": (json.dumps(CONFIG), SHAPE | {"gated_mlp": "1", "n_params": "8030261248"}),
    "titan.toml": (
        TITAN,
        {"model": "llama3-8B", "tp": "2", "dp": "8", "n_accel": "16", "zero_stage": "3"}
        | {"global_batch": "64", "seq_len": "8192", "recompute": "full"},
    ),
    "maxtext.yml": (MAXTEXT, SHAPE | {"seq_len": "8192", "recompute": "full"}),
    "megatron.yaml": (
        MEGATRON,
        {"n_layers": "12", "d_model": "512", "pp": "4", "tp": "1", "global_batch": "32"},
    ),
    "lora.yaml": (
        LLAMA_FACTORY,
        {"model": "Meta-Llama-3-8B-Instruct", "flag": "lora", "seq_len": "2048"}
        | {"micro_batch": "2", "precision": "bf16"},
    ),
    "ds.json": (json.dumps(ZERO), {"global_batch": "64", "zero_stage": "3", "precision": "bf16"}),
}


@pytest.mark.parametrize("file", BESIDE)
def test_files_beside_a_log_say_how_it_was_made(tmp_path, file):
    text, cells = BESIDE[file]
    (tmp_path / file).write_text(text)
    found = beside(tmp_path / file).cells
    assert {name: found.get(name) for name in cells} == cells


def test_a_script_is_not_run_and_what_it_leaves_open_is_not_read(tmp_path):
    (tmp_path / "run.sh").write_text("X=$(touch made)\ntorchrun --nproc_per_node $X train.py\n")
    with pytest.raises(InputError, match="says nothing of a row"):
        beside(tmp_path / "run.sh")
    assert not (tmp_path / "made").exists() and not Path("made").exists()


@pytest.mark.parametrize("content", ["", "{", "{}", "just words", "a: b\n", "[x]\n", "\x00" * 50])
@pytest.mark.parametrize("ending", [".json", ".toml", ".yaml", ".sh", ".txt"])
def test_a_file_beside_that_says_nothing_is_refused(tmp_path, content, ending):
    path = tmp_path / f"f{ending}"
    path.write_text(content)
    with pytest.raises(InputError, match=path.name):
        beside(path)


def test_everything_missing_is_asked_for_at_once_and_a_file_beside_fills_it(tmp_path):
    (tmp_path / "launch.sh").write_text(LAUNCH)
    out = tmp_path / "t.csv"
    bare_ = run("import", SAMPLES / "megatron_fork.log", "--out", out).stderr
    columns_ = ("model=NAME", "seq_len=…", "accelerator=…", "n_accel=…", "global_batch=…", "dp=…")
    typed = next(line for line in bare_.splitlines() if line.startswith("to type: "))
    assert all(f"--set {name}" in typed for name in columns_)
    run(
        *("import", SAMPLES / "megatron_fork.log", "--out", out, "--strict"),
        *("--with", tmp_path / "launch.sh", "--set", "accelerator=H100-80GB"),
    )
    with out.open() as file:
        (row,) = csv.DictReader(file)
    assert (row["n_accel"], row["tp"]) == ("32", "4") and "of launch.sh" in row["note"]


def test_given_counts_before_the_log_and_the_log_before_files_beside_it(tmp_path):
    (tmp_path / "launch.sh").write_text(LAUNCH)
    (tmp_path / "other.sh").write_text(LAUNCH.replace("--seq-length 8192", "--seq-length 4096"))
    found = read(
        [SAMPLES / "megatron_interleaved.log"],
        given=settings(["pp=4"]),
        with_files=[tmp_path / "launch.sh", tmp_path / "other.sh"],
    )
    row, said = found.rows[0], "\n".join(found.conflicts)
    assert (row["tp"], row["pp"], row["seq_len"]) == ("2", "4", "8192")
    log = SAMPLES / "megatron_interleaved.log"
    assert f"tp: {log} says 2, {tmp_path / 'launch.sh'} says 4; {log} counts" in said
    assert f"pp: --set says 4, {log} says 2; --set counts" in said
    assert "seq_len" in said and "other.sh says 4096" in said


def test_files_beside_say_nothing_of_collectives(tmp_path):
    (tmp_path / "launch.sh").write_text(LAUNCH)
    with pytest.raises(InputError, match="a table of collectives"):
        read([SAMPLES / "nccl_no_header.log"], with_files=[tmp_path / "launch.sh"])


# --- physics


def test_a_time_beyond_the_peak_comes_out_of_no_importer(tmp_path):
    facts = ["accelerator=H100-80GB", "n_accel=512", "dp=8", "tp=8", "pp=8", "precision=bf16"]
    words = [word for fact in facts for word in ("--set", fact)]
    out = tmp_path / "t.csv"
    run("import", SAMPLES / "mlperf_tokens.log", "--out", out, *words)
    fast = run(
        "import",
        SAMPLES / "mlperf_tokens.log",
        "--out",
        out,
        *words,
        "--set",
        "step_time_s=0.004",
        code=2,
    )
    assert "times the peak; expected less than 1" in fast.stderr and "left out" in fast.stderr


def test_what_can_hardly_be_is_flagged_in_the_file_and_the_command_ends_with_1(tmp_path):
    out = tmp_path / "t.csv"
    result = run(
        *("import", SAMPLES / "torchtitan_json.log", "--out", out, "--json"),
        *("--set", "step_time_s=9000"),
        code=1,
    )
    (doubt, *_) = json.loads(result.stdout)["doubts"]
    assert not doubt["left_out"] and "flagged implausible" in result.stderr
    with out.open() as file:
        (row,) = csv.DictReader(file)
    assert row["flag"] == "implausible" and doubt["reason"] in row["flag_reason"]


def test_single_figures_of_a_row_that_lacks_others_are_judged(tmp_path):
    text = (SAMPLES / "olmo_core.log").read_text().replace("MFU=44.57", "MFU=4457")
    (tmp_path / "fast.log").write_text(text)
    found = read([tmp_path / "fast.log"])
    assert "implausible" in found.rows[0]["flag"] and "mfu_reported = 44.57" in str(found.doubts[0])


def test_a_precision_that_is_only_assumed_is_asked_for():
    given = settings(["accelerator=GB200", "n_accel=8", "dp=8", "step_time_s=0.4"])
    with pytest.raises(InputError, match="precision is blank and taken as bf16"):
        read([SAMPLES / "mlperf_throughput.log"], given=given)


def test_text_of_a_source_keeps_numbers_of_lines():
    found = Source("f", b"a\n```\n0: b\n```\nc").lines
    assert [(line.number, line.text) for line in found] == [(1, "a"), (3, "b"), (5, "c")]
