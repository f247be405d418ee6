"""Importers: every format gives back what a recorded sample says, damage is named with its place,
and nothing ends in a traceback."""

import csv
import gzip
import json
import re
import statistics
from pathlib import Path

import jax
import pytest
from typer.testing import CliRunner

from calibration import micro, traces
from calibration.importers import (
    FORMATS,
    Source,
    formats,
    fuzz,
    maxtext,
    megatron,
    mlperf,
    nemo,
    read,
    save,
    settings,
    steps,
    torchtitan,
    xplane,
)
from calibration.importers.found import Result
from dmodel.catalog.stack import stack
from dmodel.cli import app
from dmodel.errors import InputError
from dmodel.records import leaf
from dmodel.settings import parse

SAMPLES = Path(__file__).parent / "data" / "importers"
MODEL = {
    "n_layers": "32",
    "d_model": "4096",
    "d_ff": "14336",
    "gated_mlp": "1",
    "n_heads": "32",
    "n_kv_heads": "8",
    "vocab": "128256",
}
PROFILE = {"n_layers", "d_model", "d_ff", "n_heads", "vocab", "seq_len", "global_batch", "dp"}

EXPECTED = [
    (
        "megatron_interleaved.log",
        "megatron",
        MODEL
        | {
            "n_accel": "64",
            "dp": "16",
            "tp": "2",
            "pp": "2",
            "interleave": "2",
            "cp": "1",
            "sp": "1",
            "zero_stage": "1",
            "seq_len": "8192",
        }
        | {
            "micro_batch": "2",
            "global_batch": "512",
            "precision": "bf16",
            "recompute": "selective",
            "attention": "flash",
        }
        | {"peak_memory_gib": "60.0004883", "head_dim": "128"},
        {"accelerator"},
    ),
    (
        "megatron_old_rampup.log",
        "megatron",
        {
            "n_layers": "24",
            "d_ff": "16384",
            "vocab": "51200",
            "tp": "8",
            "dp": "4",
            "precision": "fp16",
            "recompute": "full",
        },
        {"accelerator"},
    ),
    (
        "megatron_seconds.log",
        "megatron",
        {"global_batch": "2048"},
        (PROFILE | {"accelerator", "n_accel"}) - {"global_batch"},
    ),
    (
        "nemo_iterations.log",
        "nemo",
        {
            "n_layers": "80",
            "d_ff": "28672",
            "n_kv_heads": "8",
            "vocab": "32000",
            "seq_len": "4096",
            "n_accel": "32",
            "dp": "4",
            "tp": "4",
        }
        | {
            "pp": "2",
            "interleave": "5",
            "zero_stage": "1",
            "recompute": "full",
            "gated_mlp": "1",
            "precision": "bf16",
            "sp": "1",
        },
        {"accelerator"},
    ),
    ("nemo_bar.log", "nemo", {}, PROFILE | {"accelerator", "n_accel"}),
    (
        "torchtitan_json.log",
        "torchtitan",
        MODEL
        | {
            "accelerator": "H100-80GB",
            "n_accel": "64",
            "dp": "64",
            "zero_stage": "3",
            "micro_batch": "2",
            "global_batch": "128",
        }
        | {
            "precision": "fp8",
            "recompute": "selective",
            "n_params": "8030261248",
            "peak_memory_gib": "57.31",
        },
        set(),
    ),
    (
        "torchtitan_toml_two_ranks.log",
        "torchtitan",
        {
            "model": "llama3-70B",
            "n_layers": "80",
            "n_accel": "256",
            "dp": "32",
            "shard": "16",
            "tp": "8",
            "zero_stage": "3",
        }
        | {"micro_batch": "8", "global_batch": "256", "recompute": "full"},
        {"accelerator"},
    ),
    (
        "maxtext_two_slices.log",
        "maxtext",
        {
            "n_layers": "80",
            "d_ff": "28672",
            "gated_mlp": "1",
            "n_accel": "256",
            "dp": "256",
            "zero_stage": "3",
            "micro_batch": "4",
        }
        | {
            "global_batch": "1024",
            "seq_len": "4096",
            "precision": "bf16",
            "recompute": "full",
            "n_params": "68977000000",
        },
        {"accelerator"},
    ),
    (
        "mlperf_step_times.log",
        "mlperf",
        {
            "model": "llama-3.1-405b",
            "n_layers": "126",
            "tp": "4",
            "pp": "8",
            "cp": "2",
            "dp": "8",
            "n_accel": "512",
            "micro_batch": "1",
        }
        | {"accelerator": None},
        {"accelerator"},
    ),
    (
        "mlperf_throughput.log",
        "mlperf",
        {"flag": "lora", "global_batch": "8", "d_model": "8192"},
        {"accelerator", "n_accel", "dp"},
    ),
    (
        "mlperf_blocks.log",
        "mlperf",
        {"flag": "lora", "global_batch": "8", "seq_len": "8192"},
        {"accelerator", "n_accel", "dp"},
    ),
    ("kineto_rank3.json", "kineto", {"accelerator": "H100-80GB", "n_accel": "16"}, PROFILE),
    ("kineto_rank0.json.gz", "kineto", {"accelerator": "H100-80GB", "n_accel": "16"}, PROFILE),
    ("tpu.xplane.pb", "xplane", {"accelerator": "TPU-v5e"}, PROFILE | {"n_accel"}),
    (
        "gpu.xplane.pb",
        "xplane",
        {"step_time_s": "0.02", "compute_s": "0.016"},
        PROFILE | {"n_accel", "accelerator"},
    ),
    ("cpu_recorded.xplane.pb", "xplane", {}, PROFILE | {"n_accel", "accelerator"}),
]
TIMES = {
    "megatron_interleaved.log": (r"\(ms\): ([\d.]+)", 1e-3, 2),
    "megatron_seconds.log": (r"\(s\): ([\d.]+)", 1.0, 1),
    "nemo_iterations.log": (r"timing in s: ([\d.]+)", 1.0, 1),
    "nemo_bar.log": (r"timing in s=([\d.]+)", 1.0, 1),
    "maxtext_two_slices.log": (r"seconds: ([\d.]+)", 1.0, 2),
    "mlperf_step_times.log": (r'"train_step_time": ([\d.]+)', 1.0, 1),
}
"""Sample → pattern of its times, their unit [s], steps that are warm-up."""


@pytest.mark.parametrize(
    ("file", "name", "cells", "needed"), EXPECTED, ids=[e[0] for e in EXPECTED]
)
def test_a_sample_gives_what_it_says(file, name, cells, needed):
    found = read([SAMPLES / file])
    row = found.rows[-1]
    assert found.files[0]["format"] == name
    assert found.troubles == []
    assert {column: row.get(column) for column in cells} == cells
    assert set(found.needed) == needed
    assert 0.0 < float(row["step_time_s"]) and "warm-up" in row["note"]


@pytest.mark.parametrize("file", TIMES)
def test_step_time_is_the_median_after_warm_up(file):
    pattern, unit, warm = TIMES[file]
    times = [float(t) * unit for t in re.findall(pattern, (SAMPLES / file).read_text())]
    row = read([SAMPLES / file]).rows[0]
    assert float(row["step_time_s"]) == pytest.approx(statistics.median(times[warm:]), rel=1e-8)
    assert (
        f"median of {len(times) - warm} logged times" in row["note"]
        and f"{warm} before them dropped" in row["note"]
    )


def test_a_growing_batch_makes_rows_of_their_own():
    rows = read([SAMPLES / "megatron_old_rampup.log"]).rows
    assert [row["global_batch"] for row in rows] == ["32", "64"]
    assert all("mean of 10 steps" in row["note"] for row in rows)


def maxtext_log(folder: Path, config: dict[str, str]) -> Path:
    """A log of MaxText with other parameters in place of its policy."""
    told = "\n".join(f"Config param {name}: {value}" for name, value in config.items())
    text = (SAMPLES / "maxtext_two_slices.log").read_text()
    (folder / "run.log").write_text(text.replace("Config param remat_policy: full", told))
    return folder / "run.log"


STARTS = {
    "new": "using world size: 8, data-parallel size: 2, context-parallel size: 1, hierarchical "
    "context-parallel sizes: None, "
    "tensor-model-parallel size: 4, pipeline-model-parallel size: 1",
    "order": "using world size: 8, pipeline-model-parallel size: 1, tensor-model-parallel size: 4, "
    "encoder-tensor-model-parallel size: 0, "
    "context-parallel size: 1, data-parallel-size: 2",
    "old": (
        "using world size: 8, data-parallel-size: 2, model-parallel size: 4, "
        "pipeline-model-parallel size: 1 "
    ),
    "oldest": "using world size: 8 and model-parallel size: 4 ",
}


def megatron_log(folder: Path, *starts: str) -> Path:
    """A log of Megatron without its dump of arguments: for each start its first line, and ten
    iterations."""
    step = (
        " iteration {:8d}/     100 | consumed samples: 1 | elapsed time per iteration (ms): "
        "{:.1f} | global batch size:    16 |"
    )
    path = folder / "run.log"
    path.write_text(
        "\n".join(
            line
            for i, s in enumerate(starts)
            for line in (s, *(step.format(n, 900.0 + 100 * i) for n in range(1, 11)))
        )
    )
    return path


@pytest.mark.parametrize("form", STARTS)
def test_degrees_of_the_first_line_of_megatron_are_read_in_any_order(tmp_path, form):
    found = read(
        [megatron_log(tmp_path, STARTS[form])],
        given=settings(["model=llama-3-8b", "accelerator=H100", "seq_len=8192"]),
    )
    (row,) = found.rows
    expected = {"n_accel": "8", "dp": "2", "tp": "4", "pp": "1"}
    expected = {"n_accel": "8", "tp": "4"} if form == "oldest" else expected
    assert {name: row.get(name) for name in expected} == expected
    assert "no dump of arguments in the log" in row["note"]
    assert not found.needed and not found.unusable


def test_a_second_first_line_begins_another_run(tmp_path):
    other = (
        STARTS["new"]
        .replace("tensor-model-parallel size: 4", "tensor-model-parallel size: 2")
        .replace("l size: 2, c", "l size: 4, c")
    )
    rows = read([megatron_log(tmp_path, STARTS["new"], other)]).rows
    assert [(row["dp"], row["tp"], float(row["step_time_s"])) for row in rows] == [
        ("2", "4", 0.9),
        ("4", "2", 1.0),
    ]


def test_degrees_that_stay_unknown_are_asked_for(tmp_path):
    log, out = (
        megatron_log(tmp_path, "using world size: 8, data-parallel size: 2"),
        tmp_path / "t.csv",
    )
    words = [
        "import",
        log,
        "--out",
        out,
        "--set",
        "model=llama-3-8b",
        "--set",
        "accelerator=H100",
        "--set",
        "seq_len=8192",
    ]
    said = run(*words, "--strict", code=1).stderr
    assert "needed besides in 1 of 1 rows, where blank: --set tp=…; --set pp=…" in said
    assert "needed" not in run(*words, "--set", "tp=4").stderr


def test_hosts_that_repeat_the_configuration_are_one_run_and_another_configuration_is_another(
    tmp_path,
):
    text = (SAMPLES / "maxtext_two_slices.log").read_text()
    (tmp_path / "two.log").write_text(text + text)
    assert len(read([tmp_path / "two.log"]).rows) == 1
    (tmp_path / "two.log").write_text(
        text + text.replace("max_target_length: 4096", "max_target_length: 2048")
    )
    assert [row["seq_len"] for row in read([tmp_path / "two.log"]).rows] == ["4096", "2048"]


def test_throughput_and_step_time_agree():
    row = read([SAMPLES / "torchtitan_json.log"]).rows[0]
    tokens = float(row["global_batch"]) * float(row["seq_len"])
    assert float(row["step_time_s"]) == pytest.approx(
        tokens / 64 / float(row["tokens_per_s_per_accel"]), rel=1e-6
    )


def test_ranks_that_log_the_same_step_count_once():
    assert (
        "median of 11 logged times"
        in read([SAMPLES / "torchtitan_toml_two_ranks.log"]).rows[0]["note"]
    )


def test_three_ways_of_mlperf_agree():
    rows = [read([SAMPLES / f"mlperf_{how}.log"]).rows[0] for how in ("throughput", "blocks")]
    assert [float(row["step_time_s"]) for row in rows] == pytest.approx([3.05, 3.05], rel=0.01)


def test_a_profile_splits_into_computing_and_communicating():
    found = read([SAMPLES / "kineto_rank3.json"])
    row, profile = found.rows[0], found.files[0]["profile"]
    # the kernels of stream 7, which do not overlap
    assert float(row["compute_s"]) == pytest.approx(7.95e-3, rel=1e-3)
    assert float(row["communication_s"]) == pytest.approx(2.8e-3, rel=1e-3)
    assert 0.0 < float(row["exposed_communication_s"]) < 2.8e-3
    assert profile["groups"]["matmul"] == pytest.approx(5.7e-3, rel=1e-3)
    assert profile["groups"]["attention"] == pytest.approx(0.9e-3, rel=1e-3)
    whole = sum(float(row[name]) for name in ("compute_s", "exposed_communication_s", "idle_s"))
    assert whole == pytest.approx(statistics.mean([float(row["step_time_s"])]), rel=0.02)


def test_asynchronous_communication_of_a_tpu_counts():
    row = read([SAMPLES / "tpu.xplane.pb"]).rows[0]
    assert float(row["communication_s"]) == pytest.approx(13e-3, rel=1e-3)
    assert float(row["exposed_communication_s"]) == pytest.approx(5e-3, rel=1e-3)


@pytest.mark.parametrize("file", ["tpu.xplane.pb", "gpu.xplane.pb", "cpu_recorded.xplane.pb"])
def test_the_reader_of_profiles_agrees_with_that_of_jax(file):
    data = (SAMPLES / file).read_bytes()
    theirs = jax.profiler.ProfileData.from_serialized_xspace(data)
    mine = {plane.name: plane for plane in xplane.space(data).planes}
    for plane in theirs.planes:
        lines = list(plane.lines)
        assert [line.name for line in mine[plane.name].lines] == [line.name for line in lines]
        for own, other in zip(mine[plane.name].lines, lines, strict=True):
            events = list(other.events)
            assert [e.name for e in own.events] == [e.name for e in events]
            # theirs are whole
            assert [e.start_ns for e in own.events] == pytest.approx(
                [e.start_ns for e in events], abs=1.0, rel=0.0
            )
            assert [e.duration_ns for e in own.events] == pytest.approx(
                [e.duration_ns for e in events], abs=1.0, rel=0.0
            )
            assert [[n for n, _ in e.stats] for e in own.events] == [
                [n for n, _ in e.stats] for e in events
            ]


def test_collectives_become_the_table_of_micro_benchmarks(tmp_path):
    found = read([SAMPLES / "nccl_h100_two_hosts.log", SAMPLES / "rccl_mi300x.log"])
    save(found, tmp_path / "collectives.csv")
    table = micro.read(tmp_path / "collectives.csv")
    assert (table.kind, len(table.rows), table.problems) == ("collective", 30, ())
    assert {
        (r.text("collective"), r.text("accelerator"), r.text("n_accel"), r.text("nodes"))
        for r in table.rows
    } == {
        ("all_reduce", "H100-80GB", "16", "2"),
        ("all_gather", "MI300X", "8", "1"),
        ("all_to_all", "MI300X", "8", "1"),
    }


def test_rows_are_traces_that_the_reader_takes(tmp_path):
    files = [SAMPLES / e[0] for e in EXPECTED if e[3] <= {"accelerator"}]
    found = read(files, given={"accelerator": "GB200", "precision": "nvfp4"})
    save(found, tmp_path / "traces.csv")
    table = traces.read(tmp_path / "traces.csv")
    assert table.problems == ()
    # utilization that was logged on another chip contradicts the time on this one
    doubted = [row for row in table.rows if row.flag == "implausible"]
    assert doubted and all("mfu_reported" in row.flag_reason for row in doubted)
    assert len(traces.to_cases(table)) == len(found.rows) == 8
    assert [row.text("step_time_s") for row in table.rows] == [
        row["step_time_s"] for row in found.rows
    ]


def test_what_a_person_gives_wins_and_the_note_keeps_what_the_file_said():
    row = read(
        [SAMPLES / "torchtitan_json.log"], given={"n_accel": "128", "accelerator": "H200-141GB"}
    ).rows[0]
    assert row["n_accel"] == "128" and "n_accel given in place of 64" in row["note"]


def test_a_model_by_name_fills_the_shape():
    row = read(
        [SAMPLES / "megatron_seconds.log"], given=settings(["model=llama-3-8b", "seq_len=8192"])
    ).rows[0]
    assert {name: row[name] for name in MODEL} == MODEL and "catalog's llama-3-8b" in row["note"]


def test_words_are_given_in_any_case():
    assert settings(["attention=Flash", "flag=LoRA", "precision=FP8"]) == {
        "attention": "flash",
        "flag": "lora",
        "precision": "fp8",
    }


@pytest.mark.parametrize(
    "bad",
    [
        "accelerator",
        "nonsense=1",
        "n_layers=1.5",
        "recompute=some",
        "step_time_s=nan",
        "accelerator=",
        "graphed=often",
        "dispatcher=pigeon",
        "set=nonsense=1",
    ],
)
def test_a_wrong_setting_is_refused(bad):
    with pytest.raises(InputError, match="--set"):
        settings([bad])


def test_a_column_is_given_once():
    with pytest.raises(InputError, match="given twice"):
        settings(["dp=1", "dp=2"])
    with pytest.raises(InputError, match="given twice"):
        settings(["graphed=1", "set=graphed=0"])
    assert settings(["dp=2", "dp=2"]) == {"dp": "2"}


def test_a_setting_that_is_no_column_lands_in_set(tmp_path):
    out, log = tmp_path / "t.csv", SAMPLES / "megatron_interleaved.log"
    words = ["--set", "accelerator=H100", "--set", "graphed=1", "--set", "adapters=q_proj + v_proj"]
    run("import", log, "--out", out, *words, "--strict")
    (row,) = traces.read(out).rows
    assert row.text("set") == "graphed=1; adapters=q_proj+v_proj"
    assert row.settings == {"graphed": 1.0, "adapters": ("q_proj", "v_proj")}
    assert settings(["set=graphed=1; n_mtp=1", "zero=3"]) == {
        "set": "graphed=1; n_mtp=1",
        "zero_stage": "3",
    }


def test_an_unknown_name_is_told_the_nearest_and_where_all_are():
    for wrong, near in (("graphd=1", "graphed"), ("step_time=1", "step_time_s")):
        with pytest.raises(InputError, match=f"nearest.*{near}") as raised:
            settings([wrong])
        assert "`dmodel catalog settings` lists all" in str(raised.value)


def test_settings_that_a_person_gives_win_and_the_note_keeps_the_file_s(tmp_path):
    log = maxtext_log(tmp_path, {"remat_policy": "minimal_offloaded"})
    (row,) = read([log]).rows
    assert (row["recompute"], row["set"]) == ("selective", "recompute_policy=minimal_offloaded")
    (row,) = read([log], given=settings(["recompute_keeps=qkv", "graphed=1"])).rows
    assert "recompute" not in row and row["set"] == "recompute_keeps=qkv; graphed=1"
    said = "recompute selective left out; recompute_policy minimal_offloaded left out"
    assert row["note"].endswith(said)
    (row,) = read([log], given=settings(["recompute=full"])).rows
    assert row["recompute"] == "full" and "set" not in row


def test_a_file_named_twice_counts_once():
    sample = SAMPLES / "megatron_seconds.log"
    found = read([sample, SAMPLES / ".." / "importers" / sample.name])
    assert len(found.rows) == 1 and "more than once" in found.troubles[0].reason


def cut(path: Path, into: Path, nbytes: int) -> Path:
    into.write_bytes(path.read_bytes()[:nbytes])
    return into


def test_a_log_cut_within_a_line_keeps_what_is_whole(tmp_path):
    data = (SAMPLES / "megatron_interleaved.log").read_bytes()
    at = data.rindex(b"(ms): ") + 8  # within the last time
    found = read([cut(SAMPLES / "megatron_interleaved.log", tmp_path / "cut.log", at)])
    last = data.count(b"\n", 0, at) + 1
    assert [str(t) for t in found.troubles] == [
        (
            f"{tmp_path / 'cut.log'}:{last}: an iteration without its elapsed time: the line is "
            "cut "
            "short, or damaged; left out"
        )
    ]
    assert "median of 21 logged times" in found.rows[0]["note"]


def test_a_cut_gzip_names_the_byte(tmp_path):
    whole = (SAMPLES / "megatron_interleaved.log").read_bytes()
    (tmp_path / "cut.log.gz").write_bytes(gzip.compress(whole)[:1400])
    found = read([tmp_path / "cut.log.gz"])
    assert [t.place for t in found.troubles if "gzip" in t.reason] == ["byte 1400"]
    assert len(found.rows) == 1


def test_two_gzip_streams_are_one_file(tmp_path):
    whole = (SAMPLES / "megatron_interleaved.log").read_bytes()
    (tmp_path / "two.log.gz").write_bytes(gzip.compress(whole[:5000]) + gzip.compress(whole[5000:]))
    found = read([tmp_path / "two.log.gz"])
    assert found.troubles == [] and found.rows[0] == read(
        [SAMPLES / "megatron_interleaved.log"]
    ).rows[0] | {"source": "two.log.gz"}


def test_a_cut_trace_keeps_its_whole_events(tmp_path):
    found = read([cut(SAMPLES / "kineto_rank3.json", tmp_path / "cut.json", 14000)])
    assert (
        found.troubles[0].place.startswith("byte ") and "not valid JSON" in found.troubles[0].reason
    )
    assert float(found.rows[0]["step_time_s"]) == pytest.approx(0.0133, rel=0.02)


def test_a_cut_profile_names_the_byte(tmp_path):
    found = read([cut(SAMPLES / "tpu.xplane.pb", tmp_path / "cut.pb", 2000)])
    assert found.troubles[0].place.startswith("byte ") and "cut short" in found.troubles[0].reason
    assert float(found.rows[0]["step_time_s"]) == pytest.approx(0.05, rel=0.01)


def test_wrong_values_of_a_collective_are_left_out(tmp_path):
    text = (SAMPLES / "nccl_h100_two_hosts.log").read_text().splitlines()
    text[-6] = re.sub(r" 0 ", " 7 ", text[-6], count=1)
    (tmp_path / "wrong.log").write_text("\n".join(text))
    found = read([tmp_path / "wrong.log"])
    assert len(found.rows) == 13 and "7 wrong values" in found.troubles[0].reason


@pytest.mark.parametrize(
    "content",
    [b"", b"hello\nworld\n", b"\x00\x01\x02" * 50, b"{}", b"[1, 2]", b"\x1f\x8b", b"\xff\xfe"],
)
def test_what_is_no_log_is_refused_with_its_name(tmp_path, content):
    path = tmp_path / "odd.bin"
    path.write_bytes(content)
    for name in (None, *FORMATS):
        with pytest.raises(InputError, match="odd.bin"):
            read([path], format=name)


def test_a_log_cannot_make_us_read_files(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    text = (
        (SAMPLES / "torchtitan_toml_two_ranks.log")
        .read_text()
        .replace('"llama3"', f'"{tmp_path}/config.json"')
    )
    (tmp_path / "run.log").write_text(text)
    assert "n_layers" not in read([tmp_path / "run.log"]).rows[0]


def test_names_of_the_message_and_the_formats_agree():
    from dmodel.cli import import_

    assert set(import_.FORMATS.split(", ")) == set(FORMATS)


def test_too_few_steps_are_named():
    result = Result("f")
    found = steps.summary(result, [steps.Step(7, 0, 2.0), steps.Step(8, 1, 1.0)])
    assert (
        found is not None
        and found.seconds == 1.5
        and "only 2 logged times" in str(result.troubles[0])
    )


def test_no_steps_no_summary():
    assert steps.summary(Result("f"), []) is None
    assert steps.seconds_of(Result("f"), 1, "nan") is None


@pytest.mark.parametrize("name", FORMATS)
def test_mutated_files_never_end_in_a_traceback(name):
    tally = fuzz.fuzz(name, fuzz.samples()[name], 200, seed=1)
    assert tally.defects == []
    assert sum(tally.counts.values()) == 200 and len(tally.counts) >= 2


def run(*words: object, code: int = 0):
    result = CliRunner().invoke(app, [str(w) for w in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(
        result.exception
    )
    assert result.exit_code == code, result.stderr
    return result


def test_the_command_writes_a_table_and_one_document(tmp_path):
    out = tmp_path / "t.csv"
    result = run(
        "import",
        SAMPLES / "torchtitan_json.log",
        SAMPLES / "kineto_rank3.json",
        "--out",
        out,
        "--json",
    )
    document = json.loads(result.stdout)
    assert [f["format"] for f in document["files"]] == ["torchtitan", "kineto"]
    assert [row["unusable"] is None for row in document["rows"]] == [True, False]
    assert document["needed"]["n_layers"] == 1 and "--set model=NAME" in result.stderr
    with out.open() as file:
        assert [row["stack"] for row in csv.DictReader(file)] == ["torchtitan", "pytorch"]


def test_the_command_says_why_names_do_not_help(tmp_path):
    out, shapeless, whole = (
        tmp_path / "t.csv",
        SAMPLES / "megatron_seconds.log",
        SAMPLES / "torchtitan_json.log",
    )
    assert (
        "Not in the catalog: nonsense"
        in run("import", shapeless, "--out", out, "--set", "model=nonsense").stderr
    )
    result = run("import", whole, "--out", out, "--set", "accelerator=Nonesuch")
    assert "1 of 1 rows cannot be used: unknown chip 'Nonesuch'" in result.stderr
    missing = run("import", whole, tmp_path / "none.log", "--out", out).stderr
    assert missing.count("none.log") == 1 and "no such file" in missing


def test_the_command_says_what_went_wrong(tmp_path):
    out, sample = tmp_path / "t.csv", SAMPLES / "megatron_interleaved.log"
    run("import", sample, "--out", out, "--strict", code=1)
    run("import", sample, "--out", out, "--strict", "--set", "accelerator=H100-80GB")
    assert "no such file" in run("import", tmp_path / "none.log", "--out", out, code=2).stderr
    assert (
        "different tables"
        in run("import", sample, SAMPLES / "rccl_mi300x.log", "--out", out, code=2).stderr
    )
    assert (
        "unknown; expected one of"
        in run("import", sample, "--format", "csv", "--out", out, code=2).stderr
    )
    assert "one of the files to read" in run("import", out, "--out", out, code=2).stderr
    assert (
        "no measured steps"
        in run("import", sample, "--format", "maxtext", "--out", out, code=2).stderr
    )


def test_a_bad_file_beside_a_good_one_is_named_and_the_good_one_kept(tmp_path):
    (tmp_path / "bad.log").write_text("nothing\n")
    result = run(
        "import",
        tmp_path / "bad.log",
        SAMPLES / "torchtitan_json.log",
        "--out",
        tmp_path / "t.csv",
        "--json",
    )
    assert json.loads(result.stdout)["files"][0]["format"] is None and "bad.log" in result.stderr


def test_detection_needs_no_name():
    assert formats.detect(Source("x", b"step:  1  loss: 2.0  tps: 10  mfu: 1%")) == "torchtitan"


@pytest.mark.parametrize(
    ("policy", "kind", "again", "notes"),
    [
        ("full", "full", {}, []),
        ("minimal", "selective", {}, []),
        ("none", "none", {}, []),
        ("minimal_flash", "selective", {"recompute_policy": "minimal_flash"}, []),
        ("qkv_proj_offloaded", "selective", {"recompute_policy": "qkv_proj_offloaded"}, []),
        ("our_own", None, {}, ["remat_policy our_own: recompute left blank"]),
    ],
)
def test_policies_of_maxtext_are_words_or_settings(policy, kind, again, notes):
    assert maxtext._recompute(policy) == (kind, again, notes)


ON_DEVICE = {"query_proj": "device", "key_proj": "device", "value_proj": "device"}
IN_HOST = dict.fromkeys(ON_DEVICE, "offload")
LEFT = "recompute left blank"
CUSTOM = {
    "nothing": ({}, "full", "", ""),
    "inputs": (
        {"decoder_layer_input": "offload", "mlpwo": "remat"},
        "full",
        "offload_inputs=1",
        "",
    ),
    "products on the device": (ON_DEVICE, "selective", "recompute_keeps=qkv", ""),
    "fused": ({"qkv_proj": "device"}, "selective", "recompute_keeps=qkv", ""),
    "fused in vain": ({"qkv_proj": "device", "fused_qkv": "False"}, "full", "", ""),
    "core": ({"context": "device"}, "selective", "recompute_keeps=core", ""),
    "results in the host": (
        IN_HOST | {"out_proj": "offload"},
        "selective",
        "recompute_keeps=qkv+out; offload_results=1",
        "",
    ),
    "all in the host": (
        IN_HOST | {"out_proj": "offload", "decoder_layer_input": "offload"},
        "selective",
        "recompute_keeps=qkv+out; offload_inputs=1; offload_results=1",
        "",
    ),
    "inputs in the host, results on the device": (
        ON_DEVICE | {"context": "device", "decoder_layer_input": "offload"},
        "selective",
        "recompute_keeps=qkv+core; offload_inputs=1",
        "",
    ),
    "one result in the host": (
        ON_DEVICE | {"out_proj": "offload"},
        "selective",
        "recompute_keeps=qkv+out; offload_results=1",
        "in host memory out alone, read as all that is kept",
    ),
    "of the mlp": (
        IN_HOST | {"mlpwo": "offload"},
        None,
        "",
        "remat_policy custom: query_proj offload, key_proj offload, value_proj offload, "
        f"mlpwo offload: {LEFT}",
    ),
    "queries alone": (
        {"query_proj": "device"},
        None,
        "",
        f"remat_policy custom: query_proj device: {LEFT}",
    ),
    "damaged": ({"out_proj": "devi"}, None, "", f"remat_policy custom: out_proj devi: {LEFT}"),
}
"""Parameters of MaxText's policy `custom`; the column, the settings and the remark they become."""


@pytest.mark.parametrize("case", CUSTOM)
def test_single_parameters_of_maxtext_become_settings(tmp_path, case):
    given, kind, again, note = CUSTOM[case]
    (row,) = read([maxtext_log(tmp_path, {"remat_policy": "custom"} | given)]).rows
    assert (row.get("recompute"), row.get("set", "")) == (kind, again)
    assert row["note"].endswith(f"%; {note}" if note else "%")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"cpu_offloading_num_layers": "20"}, True),
        ({"cpu_offloading_num_layers": "20", "cpu_offloading": "True"}, True),
        ({"cpu_offloading_num_layers": "0", "cpu_offloading": "False"}, False),
        ({"cpu_offloading_num_layers": "20", "cpu_offloading": "False"}, False),
        ({"cpu_offloading_num_layers": "20", "cpu_offloading_activations": "False"}, False),
        ({"cpu_offloading_num_layers": "None"}, False),
    ],
)
def test_layers_that_megatron_offloads_are_a_share_in_set(given, says):
    cells, notes = megatron.described({"num_layers": "80", "recompute_granularity": "None"} | given)
    assert notes == ["activations of 20 of 80 layers kept in host memory"] * says
    assert parse(cells["set"]) == ({"offload": 0.25} if says else {})


@pytest.mark.parametrize(
    ("given", "some"),
    [
        ({"cpu_offloading": "True", "cpu_offloading_num_layers": "20"}, 20),
        ({"cpu_offloading": "True", "cpu_offloading_num_layers": "${sum:${.num_layers},-1}"}, 79),
        ({"cpu_offloading": "False", "cpu_offloading_num_layers": "79"}, None),
        ({"cpu_offloading_num_layers": "20"}, None),
        (
            {
                "cpu_offloading": "True",
                "cpu_offloading_num_layers": "20",
                "cpu_offloading_activations": "False",
            },
            None,
        ),
    ],
)
def test_layers_that_nemo_offloads_are_in_set_where_it_is_switched_on(given, some):
    cells, notes = nemo.described(
        {f"model.{name}": value for name, value in ({"num_layers": "80"} | given).items()}
    )
    assert notes == ([f"activations of {some} of 80 layers kept in host memory"] if some else [])
    assert parse(cells["set"]) == ({"offload": some / 80} if some else {})


def _megatron(given: str) -> tuple[str, str, str]:
    kind = "recompute_granularity ..........................."
    return "megatron_interleaved.log", f"{kind} selective", f"{kind} None\n  {given}"


def _maxtext(*told: str) -> tuple[str, str, str]:
    mark = "Config param "
    new = "\n".join(mark + text for text in told)
    return "maxtext_two_slices.log", f"{mark}remat_policy: full", new


AGAIN = (
    "recompute_layers",
    "recompute_attention",
    "recompute_products",
    "recompute_elementwise",
    "recompute_last",
    "last_kept",
    "offload",
)
PLANS = {
    "minimal_offloaded": (
        _maxtext("remat_policy: minimal_offloaded"),
        (0, 1, 0, 1, 0, 0, 0.9024390244),
    ),
    "minimal_flash": (_maxtext("remat_policy: minimal_flash"), (0, 0, 0, 1, 0, 0, 0)),
    "with context": (
        _maxtext("remat_policy: save_dot_with_context_except_mlp"),
        (0, 0, 0.5490196078, 1, 0, 0, 0),
    ),
    "qkv offloaded": (
        _maxtext("remat_policy: qkv_proj_offloaded"),
        (0, 1, 0.6274509804, 1, 0, 0, 0.5555555556),
    ),
    "custom, inputs": (
        _maxtext("remat_policy: custom", "decoder_layer_input: offload"),
        (1, 0, 0, 0, 0, 0, 1),
    ),
    "custom, results and inputs": (
        _maxtext(
            "remat_policy: custom",
            "qkv_proj: device",
            "context: device",
            "decoder_layer_input: offload",
        ),
        (0, 0, 0.6274509804, 1, 0, 0, 0.3076923077),
    ),
    "megatron": (
        _megatron("cpu_offloading_num_layers ....................... 8"),
        (0, 0, 0, 0, 1, 0, 0.25),
    ),
    "nemo": (
        (
            "nemo_iterations.log",
            "activations_checkpoint_granularity: full",
            "activations_checkpoint_granularity: null\n      cpu_offloading: true\n"
            "      cpu_offloading_num_layers: 20",
        ),
        (0, 0, 0, 0, 1, 0, 0.25),
    ),
    "torchtitan": (
        (
            "torchtitan_toml_two_ranks.log",
            'mode = "full"',
            'mode = "selective"\nselective_ac_option = "2"',
        ),
        (0.5, 0, 0, 0, 1, 0, 0),
    ),
}
"""Configurations, and what is made of their rows and notes, by the leaves of `AGAIN`."""


@pytest.mark.parametrize("case", PLANS)
def test_settings_make_the_plan_that_words_of_notes_made(tmp_path, case):
    (sample, old, new), expected = PLANS[case]
    text = (SAMPLES / sample).read_text()
    assert old in text
    (tmp_path / "run.log").write_text(text.replace(old, new))
    found = read([tmp_path / "run.log"], given={"accelerator": "H100-80GB"})
    save(found, tmp_path / "traces.csv")
    table = traces.read(tmp_path / "traces.csv")
    plan = traces.to_cases(table).plan
    assert found.rows[0]["set"] and table.notes == ()
    assert [float(leaf(plan, name)[0]) for name in AGAIN] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("module", [maxtext, megatron, nemo, torchtitan, mlperf])
def test_stacks_of_logs_are_described(module):
    assert stack(module.STACK).known
