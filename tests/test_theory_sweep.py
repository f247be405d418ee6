"""The study's sweep: its runs for three GPUs, the headlines, what ends a sweep, and `dmodel theory
--optima` and `--sweep`."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dmodel.cli import app
from dmodel.theory import gpu, laws, run, study
from dmodel.theory.search import Best, Problem, best_layouts
from dmodel.theory.study import DEADLINE_S, MONTH_S, headline, smallest_clusters, sweep_widths

DATA = Path(__file__).parents[1] / "experiments" / "reference"
GPUS = ("H100 SXM", "A100 SXM", "V100 SXM")
COLUMNS = ["d_model", "training_flop", "n_gpus", "utilization", "train_time_months"]


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


STUDIED = {
    name: [row for row in read(DATA / "theory_runs_dense.csv") if row["gpu"] == name]
    for name in GPUS
}


def of(cluster: study.SmallestCluster) -> Best:
    assert cluster.best is not None, cluster
    return cluster.best


@pytest.mark.parametrize("name", GPUS)
def test_clusters_are_those_of_the_study(name):
    rows = STUDIED[name]
    assert len(rows) == 35
    found = smallest_clusters([run(float(row["d_model"])) for row in rows], gpu(name))
    assert [of(c).n_gpus for c in found] == [int(row["n_gpus"]) for row in rows]
    np.testing.assert_allclose(
        [of(c).utilization for c in found], [float(row["utilization"]) for row in rows], rtol=1e-12
    )
    np.testing.assert_allclose(
        [of(c).train_time_s / MONTH_S for c in found],
        [float(r["train_time_months"]) for r in rows],
        rtol=1e-12,
    )


@pytest.mark.parametrize(
    ("name", "linear_end", "largest"),
    [
        ("H100 SXM", "2.05e+28", ("2.71e+31", "0.052", "6.87e+10")),
        ("A100 SXM", "3.40e+28", ("2.71e+31", "0.043", "2.75e+11")),
        ("V100 SXM", "2.85e+27", ("2.71e+31", "0.025", "1.10e+12")),
    ],
)
def test_headlines(name, linear_end, largest):
    clusters = sweep_widths(gpu(name))
    assert len(clusters) == 31
    ends = headline(clusters, gpu(name))
    assert ends.linear_end and ends.largest
    assert f"{ends.linear_end.run.flop:.2e}" == linear_end
    assert (
        f"{ends.largest.run.flop:.2e}",
        f"{ends.largest.utilization:.3f}",
        f"{ends.largest.n_gpus:.2e}",
    ) == largest


@pytest.mark.parametrize(
    ("law", "linear_end"), [("none", "2.85e+27"), ("default", "2.05e+28"), ("deepseek", "3.21e+33")]
)
def test_batch_laws_move_the_end_of_linear_scaling(law, linear_end):
    clusters = sweep_widths(gpu("H100 SXM"), law=laws.STUDY.replace(batch=laws.BATCH_LAWS[law]))
    end = headline(clusters, gpu("H100 SXM")).linear_end
    assert end and f"{end.run.flop:.2e}" == linear_end


@pytest.mark.parametrize("sparse", [False, True])
def test_a_smaller_cluster_is_not_in_time(sparse):
    chip = gpu("H100 SXM")
    found = smallest_clusters([run(w, sparse=sparse) for w in (16384.0, 65536.0, 106496.0)], chip)
    for best in map(of, found):
        assert best.train_time_s < DEADLINE_S
        assert math.log2(best.n_gpus / best.run.experts).is_integer()
    halves = [Problem(c.run, of(c).n_gpus // 2) for c in found]
    for answer in best_layouts(halves, chip):
        assert isinstance(answer, Best) and answer.train_time_s >= DEADLINE_S


def test_grouping_changes_nothing(monkeypatch):
    chip, widths = gpu("A100 SXM"), laws.WIDTHS[20:]
    whole = sweep_widths(chip, widths=widths)
    monkeypatch.setattr(study, "GROUP", 3)
    parts = sweep_widths(chip, widths=widths)
    assert [of(c).n_gpus for c in whole] == [of(c).n_gpus for c in parts]
    np.testing.assert_allclose(
        [of(c).train_time_s for c in whole], [of(c).train_time_s for c in parts], rtol=1e-13
    )


def test_a_model_that_the_study_does_not_cover_is_said_and_passed():
    clusters = sweep_widths(gpu("H100 SXM"), sparse=True, widths=(4096, 12288, 16384))
    assert clusters[0].best is None and "filled evenly" in (clusters[0].problem or "")
    assert [of(c).n_gpus for c in clusters[1:]] == [8 * 2**11, 10 * 2**13]


def test_a_sweep_ends_where_nothing_is_in_time():
    chip = gpu("H100 SXM")
    assert len(sweep_widths(chip, widths=(196608, 212992, 16384))) == 1
    assert sweep_widths(chip, widths=(1048576,)) == []
    assert headline([], chip) == (None, None)


def test_a_sweep_ends_where_utilization_is_negligible(monkeypatch):
    monkeypatch.setattr(study, "NEGLIGIBLE", 0.06)
    assert sweep_widths(gpu("H100 SXM"), widths=(163840, 180224, 196608))[-1].run.d_model == 180224


def command(*parts: object, code: int = 0):
    result = CliRunner().invoke(app, ["theory", *(str(p) for p in parts)])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(
        result.exception
    )
    assert result.exit_code == code, result.stderr
    return result


def test_sweep_in_the_shell(tmp_path):
    out = tmp_path / "sweep.csv"
    document = json.loads(command("--sweep", "h100 sxm", "--out", out, "--json").stdout)
    rows = read(out)
    assert list(rows[0]) == COLUMNS
    studied = [row for row in STUDIED["H100 SXM"] if int(row["d_model"]) >= 12288]
    for row, expected in zip(rows, studied, strict=True):
        for name in COLUMNS:
            assert float(row[name]) == pytest.approx(float(expected[name]), rel=1e-9)
    assert document["rows"][3] == {
        name: pytest.approx(float(rows[3][name]), rel=1e-15) for name in COLUMNS
    }
    assert document["linear_end"]["d_model"] == 53248
    assert document["largest_feasible"]["n_gpus"] == 2**36


def test_sweep_for_people():
    shown = command("--sweep", "V100 SXM", "--sparse", "--batch-law", "none").stdout
    assert "sparse models, batch law none" in shown
    assert "Linear scaling ends at" in shown


def test_optima_in_the_shell(tmp_path):
    """Good rows are answered, bad ones say why."""
    given = [
        {k: row[k] for k in ("gpu", "model_type", "d_model", "d_ff", "n_gpus")}
        for row in read(DATA / "theory_optima.csv")[:6]
    ]
    bad = {
        "unknown GPU": {"gpu": "B300"},
        "dense or sparse": {"model_type": "odd"},
        "1572864": {"d_model": "2000000"},
        "no layout": {"n_gpus": "13"},
        "whole number": {"n_gpus": "many"},
        "multiple of 8": {
            "model_type": "sparse",
            "d_model": "4096",
            "d_ff": "16384",
            "n_gpus": "12",
        },
        "layers": {"d_model": "2", "d_ff": "2"},
    }
    plain = {
        "gpu": "H100 SXM",
        "model_type": "dense",
        "d_model": "12288",
        "d_ff": "49152",
        "n_gpus": "64",
    }
    path, out = tmp_path / "in.csv", tmp_path / "out.csv"
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(plain))
        table.writeheader()
        table.writerows([given[0], *({**plain, **change} for change in bad.values()), *given[1:]])
    document = json.loads(command("--optima", path, "--out", out, "--json").stdout)
    rows = read(out)
    assert document["rows_answered"] == len(given) and len(rows) == len(given) + len(bad)
    answered = [row for row in rows if not row["error"]]
    for row, expected in zip(answered, read(DATA / "theory_optima.csv"), strict=False):
        for name in (
            "train_time_months",
            "utilization",
            "training_flop",
            "batch_size_tokens",
            "feasible_in_memory",
            "layers",
        ):
            assert float(row[name]) == pytest.approx(float(expected[name]), rel=1e-9), name
        assert math.prod(
            int(row[f"N_{kind}"]) for kind in ("DP", "TP_model", "TP_ff", "PP", "EP")
        ) == int(row["n_gpus"])
        assert math.prod(int(x) for x in row["DP_per_level"].split("x")) == int(row["N_DP"])
    for says, row in zip(bad, rows[1:], strict=False):
        assert says in row["error"] and row["train_time_months"] == ""


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--sweep", "H101 SXM"], "nearest: H100"),
        (["--sweep", "H100 SXM", "--batch-law", "large"], "deepseek"),
        (["--optima", "none.csv"], "no such file"),
        (["--optima", "none.csv", "--sparse"], "belong to --sweep"),
        (["--sweep", "H100 SXM", "--optima", "none.csv"], "expected one of"),
        (["--sweep", "H100 SXM", "--out", "no/such/folder.csv"], "does not exist"),
        ([], "--sweep"),
    ],
)
def test_mistakes_end_with_2(options, says):
    result = command(*options, code=2)
    assert says in result.stderr and result.stdout == ""
