"""The studies of data movement, in their quick mode: the published figures come out, and each
writes two tables and a figure."""

import csv
from pathlib import Path

import pytest

from tests.studies import quick_study

GROUP = "data_movement_limits"


def study(name: str, out: Path) -> list[dict]:
    document = quick_study(f"{GROUP}_{name}", out)
    assert (out / f"{GROUP}_{name}.png").stat().st_size > 20_000
    with (out / f"{GROUP}_{name}.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) > 10
    with (out / f"{GROUP}_{name}_compared.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(document["rows"])
    return document["rows"]


def difference(rows: list[dict], what: str) -> float:
    (row,) = [r for r in rows if what in r["what"]]
    return row["difference"]


def test_utilization(tmp_path):
    rows = study("utilization", tmp_path)
    assert abs(difference(rows, "dense: linear scaling ends")) < 0.005
    assert difference(rows, "dense: utilization of all of them") < 1e-12
    assert abs(difference(rows, "sparse: best time at given clusters")) < 1e-12


def test_walls(tmp_path):
    assert difference(study("walls", tmp_path), "all of them") < 1e-10


def test_matmul(tmp_path):
    rows = study("matmul", tmp_path)
    assert abs(difference(rows, "time of the smallest square")) < 1e-3
    assert abs(difference(rows, "exponent at the largest square")) < 1e-2
    assert abs(difference(rows, "cubic, above")) < 0.25


@pytest.mark.slow
def test_gradient(tmp_path):
    rows = {r["what"]: r["model"] for r in study("gradient", tmp_path)}
    assert (
        rows["same optimum [share of rows]"] >= 0.95
        and -1e-12 <= rows["smallest gap"] <= rows["largest gap"] <= 0.01
    )


@pytest.mark.slow
def test_grand(tmp_path):
    rows = study("grand", tmp_path)
    assert all(
        abs(r["difference"]) < 1e-12 for r in rows if "best time at given clusters" in r["what"]
    )


@pytest.mark.slow
def test_batch(tmp_path):
    rows = study("batch", tmp_path)
    ends = [r["difference"] for r in rows if "linear scaling ends" in r["what"]]
    assert len(ends) == 3 and max(map(abs, ends)) < 0.005


@pytest.mark.slow
def test_parallelism(tmp_path):
    rows = study("parallelism", tmp_path)
    assert (
        abs(difference(rows, "mean share, data")) < 0.01
        and abs(difference(rows, "mean share, pipeline")) < 0.01
    )


@pytest.mark.slow
def test_ways_out(tmp_path):
    rows = study("ways_out", tmp_path)
    assert all(r["model"] > 2.0 for r in rows if "largest grows by" in r["what"])


@pytest.mark.slow
def test_elasticities(tmp_path):
    rows = study("elasticities", tmp_path)
    for what in ("training time", "batch constant", "depth constant", "matmul and network latency"):
        assert abs(difference(rows, f"elasticity to {what}")) < 1e-3


@pytest.mark.slow
def test_beyond(tmp_path):
    found = {r["what"]: r["model"] for r in study("beyond", tmp_path)}
    assert (
        found["attention, 2048 tokens: largest run [FLOP]"]
        < found["no attention: largest run [FLOP]"]
    )
    assert found["as Llama 3's: largest run [FLOP]"] < found["never fails: largest run [FLOP]"]


@pytest.mark.slow
def test_gtx580(tmp_path):
    rows = study("gtx580", tmp_path)
    (row,) = [r for r in rows if r["what"].startswith("GTX 580: largest run")]
    assert 0.3 < row["model"] / row["published"] < 3.0
