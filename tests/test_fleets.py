"""Tables with more rows than configurations: read in blocks, repeats as one row."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from calibration import pooling
from calibration.fit import fit
from calibration.fleets import blocks, drift, keys, read, sources, statistics
from calibration.objective import FREEDOM
from calibration.predict import predict
from calibration.traces import published
from calibration.traces import read as read_rows
from calibration.traces.files import lines
from calibration.traces.published import PUBLISHED
from calibration.uncertainty.laplace import student_weight
from calibration.widths import known_factor
from dmodel.cli import app
from dmodel.errors import InputError
from dmodel.profiles import load
from experiments import fleet as study
from tests.fitting import synthetic

ROWS = list(
    {
        tuple(row.text(key) for key in keys.KEYS): row
        for row in published().rows
        if row.text("source") in ("fms-fsdp", "megatron-sc21-t1") and not row.flags
    }.values()
)
"""Different configurations."""


def text_of(header, rows) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


COLUMNS = [*published().columns, "date", "release"]


def cells(row, **changed) -> dict[str, str]:
    return dict.fromkeys(COLUMNS, "") | dict(row.cells) | {"note": ""} | changed


def table(path: Path, rows: list[dict[str, str]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text_of(COLUMNS, [[row[name] for name in COLUMNS] for row in rows]))
    return path


def repeated(times: int, seed: int = 0, scatter: float = 0.02) -> list[dict[str, str]]:
    """Every row so many times, by turns; times scatter, and grow by 1 % a month."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(times):
        for row in ROWS:
            time = row.known("step_time_s") if row.text("step_time_s") else None
            rate = row.number("tokens_per_s_per_accel")
            tokens = row.known("global_batch") * row.known("seq_len")
            time = time or tokens / ((rate or 0.0) * row.known("n_accel"))
            month = i % 5
            found.append(
                cells(
                    row,
                    step_time_s=repr(
                        float(time * np.exp(scatter * rng.standard_normal() + 0.01 * month))
                    ),
                    tokens_per_s_per_accel="",
                    tflops_reported="",
                    mfu_reported="",
                    date=f"2026-0{month + 1}-{10 + i % 7:02}",
                    release=f"r{month}",
                )
            )
    return found


def together(found) -> tuple[list[list[str]], list[int], list[tuple[int, str]]]:
    """Cells, lines and broken lines of blocks, as the reader of small tables has them."""
    rows, at, broken = [], [], []
    for block in found:
        rows += [list(map(str, each.values())) for each in block.table.to_pylist()]
        at += block.lines.tolist()
        broken += [(row.line, reason) for row, reason in block.broken]
    return rows, at, broken


HEAD = "accelerator,n_accel,global_batch,model,step_time_s,note"
TEXTS = {
    "plain": f"{HEAD}\nA,1,2,x,1.5,\nB,2,2,y,2.5,n\n",
    "no end": f"{HEAD}\nA,1,2,x,1.5,\nB,2,2,y,2.5,n",
    "windows": f"\ufeff{HEAD}\r\nA,1,2,x,1.5,\r\nB,2,2,y,2.5,n\r\n",
    "blank lines": f"\n{HEAD}\n\nA,1,2,x,1.5,\n\n,,,,,\nB,2,2,y,2.5,n\n\n",
    "ragged": f"{HEAD}\nA,1,2,x,1.5,\nB,2,2\nC,2,2,y,2.5,n,m\nD,1,2,x,1.5,\n",
    "quotes": f'{HEAD}\nA,1,2,x,1.5,\nB,2,2,y,2.5,"a, b\nc"\nC,1,2,x,1.5,\nD,1\n',
    "a quote inside": f'{HEAD}\nA,1,2,x,1.5,5" disk\nB,2,2,y,2.5,n\n',
    "cut in quotes": f'{HEAD}\nA,1,2,x,1.5,\nB,2,2,y,2.5,"a\nC,1,2,x,1.5,\n',
    "old line ends": f"{HEAD}\rA,1,2,x,1.5,\rB,2,2,y,2.5,n\r",
    "blank first cells": f"{HEAD}\n,1,2,x,1.5,\nB,2,2,y,2.5,é\n",
}


@pytest.mark.parametrize("piece", [16, 90, 1 << 20])
@pytest.mark.parametrize("name", TEXTS)
def test_blocks_are_the_lines_of_the_small_reader(name, piece, tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "PIECE", piece)
    path = tmp_path / "t.csv"
    path.write_bytes(TEXTS[name].encode())
    wanted = lines(path)
    rows, at, broken = together(blocks.blocks([sources.Source(path, {})], True))
    assert rows == [[row.cells[c] for c in wanted.columns] for row in wanted.rows]
    assert at == [row.line for row in wanted.rows]
    assert broken == [(row.line, reason) for row, reason in wanted.broken]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file is empty"),
        (b"\n \n", "the file is empty"),
        (HEAD.encode() + b"\nA,1,2,x,1.5,\nB,1,2,\xff,1.5,\n", "byte 75"),
        (HEAD.encode() + b"\nA,1,2,x\0,1.5,\n", "NUL"),
        (b"a,b\n1,2\n", "missing columns: accelerator"),
        (b"accelerator,accelerator\n1,2\n", "more than once"),
        (HEAD.encode() + b"\n", "no rows"),
        (b"PAR1 no parquet", "not a readable Parquet file"),
    ],
)
def test_files_that_are_no_tables_are_refused_as_small_ones_are(content, says, tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=says) as small:
        read_rows(path)
    with pytest.raises(InputError, match=says) as large:
        read([path])
    # of Parquet pyarrow gives the reason, by the function that was asked
    assert str(large.value).partition(" (")[0] == str(small.value).partition(" (")[0]


def test_a_table_without_repeats_is_the_table_of_the_small_reader(tmp_path):
    some = tmp_path / "some.csv"
    header, *rows = csv.reader(io.StringIO(PUBLISHED.read_text(encoding="utf-8"), newline=""))
    some.write_text(text_of(header, rows[::9]))
    small, large = read_rows(some), read([some])
    assert len(small.rows) > 150 and len(small.aside) > 3
    single = {row.line: row for row in small.rows}
    alone = [row for row, n in zip(large.table.rows, large.repeats.rows, strict=True) if n == 1]
    assert len(alone) > 150
    for row in alone:
        assert row == single[row.line]
    assert set(large.table.notes) <= set(small.notes)
    assert {p for p, n in zip(large.table.problems, large.aside, strict=True) if n == 1} <= set(
        small.problems
    )
    assert large.repeats.rows.sum() == len(small.rows) and large.aside.sum() == len(small.aside)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    path = table(tmp_path_factory.mktemp("fleet") / "many.csv", repeated(40))
    return path, read([path])


def test_repeats_of_a_configuration_are_one_row_with_their_statistics(fleet):
    path, found = fleet
    assert len(found.table.rows) == len(ROWS) and found.total == 40 * len(ROWS)
    rows = read_rows(path).rows
    for i, row in enumerate(found.table.rows):
        times = np.log([r.known("step_time_s") for r in rows[i :: len(ROWS)]])
        assert found.repeats.rows[i] == found.repeats.times[i] == len(times)
        assert row.line == rows[i].line and row.number("step_time_s") == pytest.approx(
            np.exp(times.mean()), rel=0.004
        )
        for q, value in zip(statistics.QUANTILES, found.repeats.quantiles[:, i], strict=True):
            near = np.quantile(times, q, method="lower"), np.quantile(times, q, method="higher")
            assert near[0] - statistics.WIDTH <= value <= near[1] + statistics.WIDTH
        assert found.repeats.variance[i] == pytest.approx(times.var(ddof=1), rel=0.4)
        assert (found.repeats.first[i], found.repeats.last[i]) == ("2026-01-10", "2026-05-16")
    # one of them scatters by chance, all of them as they were made
    spread = np.sqrt(found.repeats.variance.mean())
    assert spread == pytest.approx(np.hypot(0.02, 0.01 * np.arange(5).std()), rel=0.1)


def test_rows_in_whatever_blocks_have_the_same_statistics(fleet, monkeypatch):
    path, whole = fleet
    monkeypatch.setattr(blocks, "PIECE", 5000)
    parts = read([path])
    for a, b in zip(whole.repeats, parts.repeats, strict=True):
        if a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=1e-12)
        else:
            assert (a == b).all()
    assert [r.cells | {"step_time_s": ""} for r in whole.table.rows] == [
        r.cells | {"step_time_s": ""} for r in parts.table.rows
    ]


def test_the_level_is_that_of_the_many_not_of_hosts_that_failed():
    rng = np.random.default_rng(0)
    x = 0.02 * rng.standard_normal(2000)
    x[:100] += np.log(3.0)
    bins = statistics.Sums(("group", "bin"))
    at = np.round(x / statistics.WIDTH).astype(np.int64)
    sums = {"group": 0 * at, "bin": at, "count": 0 * at + 1, "total": x, "square": x**2}
    bins.add({name: pa.array(values) for name, values in sums.items()})
    table = bins.whole()
    of = (table[n].to_numpy() for n in ("group", "count", "total", "square"))
    found = statistics.levels(statistics.Histogram(*of), 1)
    assert abs(found.level[0]) < 0.006 < 0.05 < x.mean()
    assert found.variance[0] < 1.5 * 0.02**2 < x.var()


def test_bad_rows_are_told_with_file_and_line_and_none_is_lost(tmp_path):
    good = repeated(6)
    rows = [dict(row) for row in good]
    rows[3] |= {"step_time_s": "fast"}
    rows[4] |= {"step_time_s": "1e-7"}
    rows[5] |= {"accelerator": "", "step_time_s": ""}
    for row in rows[len(ROWS) :: len(ROWS)]:
        row["tp"] = "7"
    path = table(tmp_path / "bad.csv", rows)
    text = path.read_text()
    path.write_text(text + "only,three,cells\n")
    small, large = read_rows(path), read([path])
    assert large.total == small.total == len(rows) + 1
    assert large.repeats.rows.sum() == len(small.rows)
    assert large.aside.sum() == len(small.aside)
    told = {(p.file, p.line): p.reason for p in small.problems}
    for problem, count in zip(large.table.problems, large.aside, strict=True):
        reason, _, more = problem.reason.partition(" (and ")
        assert told[problem.file, problem.line] == reason
        assert more == ("" if count == 1 else f"{count - 1} more of this configuration)")
    assert max(large.aside) == 5
    of = np.concatenate(large.of)
    assert (of < 0).sum() == large.aside.sum() - 1 and len(of) == len(rows)


def test_every_row_is_judged_as_it_is_alone(tmp_path):
    rng = np.random.default_rng(1)
    scales = {"peak_memory_gib": 60.0, "tflops_reported": 150.0, "mfu_reported": 0.4}
    rows = []
    for row in repeated(40):
        time = float(row["step_time_s"])
        slow = np.exp(rng.choice([0.0, 0.0, -3.0, 7.5]) + 0.3 * rng.standard_normal())
        tokens = float(row["global_batch"]) * float(row["seq_len"]) / float(row["n_accel"])
        figures = {"step_time_s": time * slow}
        if rng.random() < 0.3:
            figures["tokens_per_s_per_accel"] = tokens / (time * rng.choice([slow, 1.0]))
        for name, scale in scales.items():
            if rng.random() < 0.3:
                figures[name] = scale * np.exp(rng.standard_normal())
        row = row | {name: repr(float(value)) for name, value in figures.items()}
        if rng.random() < 0.1:
            row |= {str(rng.choice(list(figures))): str(rng.choice(["", "x", "-1", "nan", "1e30"]))}
        rows.append(row)
    path = table(tmp_path / "t.csv", rows)
    small, large = read_rows(path), read([path])
    alone = {row.line: {(f.kind, f.severity) for f in row.found} for row in small.rows}
    told = set()
    for i, group in enumerate(np.concatenate(large.of).tolist()):
        assert (group >= 0) == (i + 2 in alone)
        if group >= 0:
            found = {(f.kind, f.severity) for f in large.table.rows[group].found}
            assert found == alone[i + 2]
            told |= {kind for kind, _ in found}
    assert told == {"idle", "memory", "contradiction", "reported"}
    reasons = " ".join(p.reason for p in large.table.problems)
    assert "times the peak" in reasons and "measured peak of memory" in reasons
    assert "no measured time" in reasons and "expected a plain number" in reasons


def test_folders_of_parquet_are_tables_and_their_names_columns(tmp_path):
    rows = repeated(6)
    whole = table(tmp_path / "whole.csv", rows)
    parts = tmp_path / "parts"
    for i in range(5):
        mine = [row for row in rows if row["release"] == f"r{i}"]
        names = [name for name in COLUMNS if name != "release"]
        data = {name: [row[name] or None for row in mine] for name in names}
        data["n_accel"] = [float(row["n_accel"]) for row in mine]
        data["step_time_s"] = [float(row["step_time_s"]) for row in mine]
        folder = parts / f"release=r{i}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table(data), folder / "part.parquet")
    (parts / "_SUCCESS").write_text("")
    one, many = read([whole]), read([parts])
    assert many.total == one.total == len(rows) and not len(many.aside)
    order = {row.known("step_time_s"): i for i, row in enumerate(many.table.rows)}
    assert len(many.table.rows) == len(one.table.rows)
    np.testing.assert_allclose(
        sorted(order), sorted(r.known("step_time_s") for r in one.table.rows)
    )
    assert set(many.dated.release) == set(one.dated.release) == {f"r{i}" for i in range(5)}
    assert {row.file.rpartition("release=")[2] for row in many.table.rows} == {"r0/part.parquet"}
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="no table in the folder"):
        read([tmp_path / "none"])


def test_drift_is_that_of_the_same_configurations():
    """Slow configurations come later: the mix moves more than any of them."""
    rng = np.random.default_rng(0)
    group, period = np.repeat(np.arange(60), 6), np.tile(np.arange(6), 60)
    there = np.abs(group / 10 - period) <= 2
    group, period = group[there], period[there]
    level, count = 0.05 * np.arange(60), rng.integers(1, 50, len(group))
    ratio = level[group] + 0.01 * period + 0.02 * rng.standard_normal(len(group)) / np.sqrt(count)
    log_predicted = rng.standard_normal(60)
    total = count * (ratio + log_predicted[group])
    cells = drift.cells(group, period, count, total, log_predicted)
    found = drift.drift(cells, [f"m{i}" for i in range(6)])
    assert [p.name for p in found] == [f"m{i}" for i in range(6)]
    assert found[5].ratio / found[0].ratio > 2.0
    for i, each in enumerate(found):
        assert each.change == pytest.approx(0.01 * i, abs=4.0 * (each.error or 0.0) + 1e-12)
        assert (each.error or 0.0) < 0.005
    assert sum(p.rows for p in found) == count.sum()
    apart = drift.cells(
        np.array([0, 1, 0]), np.array([0, 1, 0]), np.ones(3), np.array([1.0, 2.0, 1.2]), np.zeros(2)
    )
    first, second = drift.drift(apart, ["a", "b"])
    assert (first.rows, first.change, second.change) == (2, 0.0, None)


def test_a_configuration_counts_for_what_configurations_differ_by_however_often_it_repeats():
    scale, scatter, index = np.array([0.05]), 0.2, np.zeros(1, int)

    def information(n: float) -> float:
        row = pooling.row_scale(scale, index, np.array([scatter**2 / n]))
        return float(student_weight(np.zeros(1), row, FREEDOM)[0])

    once, often, most = information(1.0), information(1e3), information(1e12)
    assert most == pytest.approx(once * (1.0 + (scatter / 0.05) ** 2))
    assert 0.97 * most < often < most


def test_two_fits_in_sequence_end_near_the_fit_of_all():
    rows = synthetic()
    first_half = np.arange(len(rows)) % 2 == 0
    first = fit(rows.take(first_half), starts=2, rounds=1)
    second = fit(rows.take(~first_half), first, starts=2, drift=0.01)
    whole = fit(rows, starts=2, rounds=1)
    assert second.fitted_rows[: len(first.fitted_rows)] == first.fitted_rows

    def apart(profile) -> np.ndarray:
        times = [predict(rows, p.certain).step_time_s for p in (profile, whole)]
        return np.abs(np.log(times[0] / times[1]))

    assert np.median(apart(second)) < 0.01 and apart(second).max() < 0.1
    assert apart(second)[~first_half].max() < apart(first)[~first_half].max()


def test_a_stated_drift_widens_what_is_known_no_further_than_strangers_differ():
    known, strangers = 1e-4 * np.eye(3), np.array([1.0, 0.04, 0.0025])
    still, moved, far = (
        np.diag(factor @ factor.T)
        for factor in (known_factor(known, strangers, d) for d in (0.0, 0.1, 1e3))
    )
    assert (still < moved).all() and (moved < far).all()
    np.testing.assert_allclose(far, strangers, rtol=1e-3)


def run(*words: str, code: int = 0) -> dict:
    found = CliRunner().invoke(app, [*words, "--json"])
    assert found.exit_code == code, found.output
    return json.loads(found.stdout)


def test_a_table_without_repeats_has_the_same_errors_either_way(tmp_path):
    path = str(table(tmp_path / "t.csv", repeated(1)))
    rows, together = run("evaluate", path, "--rows"), run("evaluate", path, "--configurations")
    assert run("evaluate", path) == rows
    assert together["each"] == "configuration" and len(together["configurations"]) == len(ROWS)
    for name in set(rows) - {"set_aside", "reasons"}:
        assert together[name] == rows[name], name


def test_evaluate_and_predict_answer_by_configuration(fleet, tmp_path):
    path, found = fleet
    told = run("evaluate", str(path), "--configurations")
    assert (told["rows_read"], told["rows_used"]) == (found.total, found.total)
    assert told["overall"]["rows"] == told["configurations_used"] == len(ROWS)
    assert sum(c["rows"] for c in told["configurations"]) == found.total
    months = told["drift"]["month"]
    assert [m["name"] for m in months] == [f"2026-0{i + 1}" for i in range(5)]
    for i, month in enumerate(months):
        assert month["change"] == pytest.approx(0.01 * i, abs=0.005)
    out = tmp_path / "out.parquet"
    predicted = run("predict", str(path), "--configurations", "--out", str(out))
    assert "rows" not in predicted and predicted["rows_used"] == found.total
    written, wanted = pq.read_table(out), read_rows(path)
    assert written.column_names[: len(COLUMNS)] == COLUMNS
    assert written["step_time_s"].to_pylist() == [r.known("step_time_s") for r in wanted.rows]
    times = [c["predicted_step_time_s"] for c in predicted["configurations"]]
    assert written["predicted_step_time_s"].to_pylist() == times * 40
    again = read_rows(out)
    assert len(again.rows) == found.total and not again.aside


def test_rows_that_were_set_aside_are_written_as_they_were(tmp_path):
    rows = repeated(3)
    rows[1] |= {"step_time_s": "fast"}
    rows[2] |= {"step_time_s": "1e-7"}
    rows[3] |= {"step_time_s": "1e5"}
    path = table(tmp_path / "t.csv", rows)
    path.write_text(path.read_text() + "one,two\n")
    out = tmp_path / "out.csv"
    document = run("predict", str(path), "--configurations", "--out", str(out))
    assert sum(p["rows"] for p in document["set_aside"]) == 3
    before = list(csv.DictReader(io.StringIO(path.read_text())))
    after = list(csv.DictReader(io.StringIO(out.read_text())))
    assert len(after) == len(before)
    blank = [i for i, row in enumerate(after) if not row["predicted_step_time_s"]]
    assert blank == [1, 2, len(rows)]
    for i, (a, b) in enumerate(zip(before, after, strict=True)):
        own = {name: value or "" for name, value in a.items()}
        if i == 3:
            assert b["flag"] == "implausible" and "of the peak" in b["flag_reason"]
            own |= {name: b[name] for name in ("flag", "flag_reason")}
        assert {name: b[name] for name in own} == own


def test_folders_are_not_read_row_by_row_and_options_of_tables_need_one(tmp_path):
    for words, says in (
        (["evaluate", str(tmp_path), "--rows"], "is a folder"),
        (["predict", "--rows"], "go with a trace file"),
        (["fit", "x.csv", "--out", "y.json", "--drift", "2"], "expected a share"),
    ):
        found = CliRunner().invoke(app, words)
        assert found.exit_code == 2 and says in found.output


def test_a_fit_takes_configurations(tmp_path):
    path, out = table(tmp_path / "t.csv", repeated(3)), tmp_path / "p.json"
    document = run("fit", str(path), "--configurations", "--out", str(out))
    assert document["rows_fitted"] == document["rows_used"] == 3 * len(ROWS)
    assert document["each"] == "configuration"
    profile = load(str(out))
    assert f"{len(ROWS)} configurations ({3 * len(ROWS)} rows)" in profile.description
    assert sum(d["rows"] for d in profile.data if d["source"] == "fms-fsdp") > 0


def test_the_study_of_large_tables_runs_and_large_tables_are_known_by_their_size(tmp_path):
    job = study.Job("evaluate", 12_000, 50)
    line = study.measured(job, tmp_path)
    (path,) = tmp_path.glob("*.parquet")
    assert sources.is_large([path]) and line["rows_used"] == job.rows
    assert 0.0 < line["peak_gib"] < 4.0 and line["cpu_s"] > 0.0
