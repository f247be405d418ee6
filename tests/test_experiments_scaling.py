"""The studies of hardware scaling: the quickest ones end to end in their quick mode, and the pieces
that all of them share."""

import csv
import json
import sys
from importlib import import_module
from pathlib import Path

import jax
import numpy as np
import pytest

from dmodel import catalog
from experiments import scaling as shared
from experiments import scaling_compared as compared
from experiments import scaling_measured as measured
from experiments.scaling_crossover import crossover
from experiments.scaling_plans import Choice, Searched, every_plan

GROUP = (
    "allreduce",
    "context",
    "crossover",
    "extrapolation",
    "generations",
    "goodput",
    "measured",
    "returns",
    "size",
    "strong",
    "weak",
)


def study(name: str, out: Path, monkeypatch, capsys) -> dict:
    """Run in this process, so that all share what is compiled."""
    monkeypatch.setattr(sys, "argv", [f"scaling_{name}", "--quick", "--json", "--out", str(out)])
    with jax.numpy_dtype_promotion("standard"):
        import_module(f"experiments.scaling_{name}").main()
    document = json.loads(capsys.readouterr().out)
    assert document["study"] == f"scaling_{name}" and document["assumptions"]
    assert (out / f"scaling_{name}.png").stat().st_size > 20_000
    for table, least in (
        (f"scaling_{name}", 5),
        (f"scaling_{name}_compared", len(document["rows"])),
    ):
        with (out / f"{table}.csv").open(newline="", encoding="utf-8") as file:
            assert len(list(csv.DictReader(file))) >= least
    return {row["what"]: row for row in document["rows"]}


def test_weak_scaling(tmp_path, monkeypatch, capsys):
    rows = study("weak", tmp_path, monkeypatch, capsys)
    fall = rows["1 throughput per device, 128 → 2,048 H100"]
    assert fall["published"] == -37.22 and -100.0 < fall["predicted"] < 0.0
    power = rows["2 power per device, 128 → 2,048 H100"]
    assert fall["predicted"] < power["predicted"] < 0.0
    per_joule = 100.0 * ((100.0 + fall["predicted"]) / (100.0 + power["predicted"]) - 1.0)
    assert rows["3 tokens per joule, 128 → 2,048 H100"]["predicted"] == pytest.approx(
        per_joule, rel=1e-9
    )
    assert rows["3 throughput of 16 times the devices"]["predicted"] == pytest.approx(
        0.16 * (100.0 + fall["predicted"]), rel=1e-9
    )


def test_generations(tmp_path, monkeypatch, capsys):
    rows = study("generations", tmp_path, monkeypatch, capsys)
    old, new, fall = (
        rows[f"4 utilization {x}"]["predicted"]
        for x in ("on 256 A100", "on 256 H100", "A100 → H100")
    )
    assert fall == pytest.approx(new - old) and 0.0 < new < 100.0


def test_goodput(tmp_path, monkeypatch, capsys):
    rows = study("goodput", tmp_path, monkeypatch, capsys)
    assert rows["Llama 3: interruptions in 54 days"]["difference"] == pytest.approx(0.0, abs=1e-9)
    assert rows["Llama 3: share of time that trains"]["reached"]


def test_every_study_can_be_run_by_name():
    from dmodel.cli.experiment import studies, studies_folder

    assert {f"scaling_{name}" for name in GROUP} <= set(studies(studies_folder()))


def test_answers_of_a_part_are_those_of_the_whole():
    """Cases do not depend on what else is in the batch, on its order, or on where it is cut."""
    system, c = catalog.system("H100-DGX"), shared.coefficients("H100-80GB")
    model = catalog.transformer("llama-2-7b", seq_len=4096)
    scales = np.geomspace(8.0, 2048.0, shared.CHUNK + 9)
    whole = shared.answer(shared.cases(system, model, shared.fsdp(scales), c))
    again = shared.answers(
        {
            n: shared.cases(system, model, shared.fsdp(scales[i]), c)
            for n, i in (("end", slice(-3, None)), ("one", [5]))
        }
    )
    np.testing.assert_allclose(again["end"].step_time_s, whole.step_time_s[-3:], rtol=1e-12)
    np.testing.assert_allclose(again["one"].mfu, whole.mfu[[5]], rtol=1e-12)
    np.testing.assert_allclose(sum(whole.terms.values()), whole.step_time_s, rtol=1e-12)
    np.testing.assert_allclose(sum(shared.grouped(whole).values()), whole.step_time_s, rtol=1e-12)
    np.testing.assert_allclose(sum(whole.draw.values()), whole.device_watts, rtol=1e-12)


def test_between_nodes_the_curves_decide():
    found, own = (shared.coefficients("H100-80GB", curves=x) for x in (True, False))
    changed = {
        name for name in vars(own) if float(getattr(found, name)) != float(getattr(own, name))
    }
    assert changed == set(shared.BETWEEN_NODES)
    assert {name: float(getattr(found, name)) for name in changed} == shared.curves_fit()


def test_draws_lie_around_the_coefficients():
    many = shared.draws("H100-80GB", 4000, seed=1)
    one = shared.coefficients("H100-80GB")
    for name in ("net_latency_outer", "matmul_half_rows", "straggler"):
        x = np.log(getattr(many, name))
        assert abs(np.mean(x) - np.log(float(getattr(one, name)))) < 5.0 * np.std(x) / np.sqrt(
            len(x)
        ), name
    again = shared.draws("H100-80GB", 4000, seed=1)
    np.testing.assert_array_equal(np.asarray(many.launch), np.asarray(again.launch))


def test_plans_are_valid():
    model = catalog.transformer("llama-2-7b", seq_len=4096)
    c = every_plan(model, 64.0, 128.0, Choice(cp=(1, 2)))
    np.testing.assert_array_equal(c["dp"] * c["tp"] * c["pp"] * c["cp"], 64.0)
    left = 128.0 / c["dp"]
    for dividend, divisor in (
        (128.0, c["dp"]),
        (32.0, c["tp"]),
        (32.0, c["pp"]),
        (left, c["micro_batch"]),
        (c["dp"], c["shard"]),
    ):
        np.testing.assert_array_equal(dividend % divisor, 0.0)
    rows = np.stack(list(c.values()), 1)
    assert len(np.unique(rows, axis=0)) == len(rows) > 500
    assert every_plan(model, 7.0, 128.0)["dp"].size == 0


def test_the_best_plan_fits():
    found = Searched(
        {"dp": np.arange(4.0)}, np.array([1.0, 2.0, 3.0, 4.0]), np.array([False, True, True, True])
    )
    assert (
        found.best(np.ones(4, bool)) == 1 and found.best(np.array([True, False, False, True])) == 3
    )
    assert found.best(np.array([True, False, False, False])) is None


def test_crossing_and_crossover():
    assert compared.crossing([1.0, 10.0, 100.0], [0.0, 0.5, 1.5], 1.0) == pytest.approx(10.0**1.5)
    assert (
        compared.crossing([1.0, 10.0], [0.0, 0.5], 1.0) is None
        and compared.crossing([4.0, 10.0], [2.0, 3.0], 1.0) == 4.0
    )
    scales = (8.0, 16.0, 32.0, 64.0)
    assert crossover(scales, [2.0, 2.0, 2.0, 1.0], [1.0, 4.0, 1.0, 2.0]) == pytest.approx(
        32.0 * 2.0**0.5
    )
    assert crossover(scales, [1.0] * 4, [2.0, 2.0, 2.0, None]) is None
    assert crossover(scales, [1.0] * 4, [2.0] * 4) == 8.0


def test_findings_say_what_is_reached():
    assert (
        compared.points("x", -37.0, -41.0, 5.0)["difference"] == -4.0
        and compared.points("x", -37.0, -41.0, 5.0)["reached"]
    )
    assert not compared.points("x", -37.0, -43.0, 5.0)["reached"]
    assert (
        compared.ratio("x", "W", 658.0, 630.0, 0.05)["reached"]
        and not compared.ratio("x", "W", 658.0, 620.0, 0.05)["reached"]
    )
    assert (
        compared.ratio("x", "H100", 128.0, 1200.0, 10.0)["reached"]
        and not compared.ratio("x", "H100", 128.0, 12.0, 10.0)["reached"]
    )
    assert compared.ratio("x", "H100", None, 12.0, None)["difference"] is None


def test_measured_errors_are_relative_to_the_smallest_scale():
    n = np.array([8.0, 16.0, 32.0])
    seen = np.array([True, True, False])
    c = measured.Curve(
        "s",
        "c",
        n,
        np.array([1.0, 0.8, 0.5]),
        np.array([1.0, 0.88, 0.5]),
        np.array([1.0, 0.8, 0.6]),
        seen,
        seen,
    )
    np.testing.assert_allclose(measured.errors([c], "fitted", None), [10.0, 0.0], atol=1e-9)
    np.testing.assert_allclose(measured.errors([c], "held_out", False), [20.0])
    entry = measured.line("s", [c])
    assert (
        entry["held_out_points"] == 1
        and entry["held_out_median"] == pytest.approx(20.0)
        and not entry["reached"]
    )


def test_curves_of_the_published_table():
    cases, rates = measured.table_of([])
    assert np.isfinite(rates).all()
    found = measured.along(cases)
    assert {key[0] for key in found} >= {
        "llm-foundry",
        "megatron-sc21-t1",
        "megatron-lm-h100-weak",
        "maxtext-readme",
        "mlperf-train-v4.0",
    }
    weak = cases.labels.n_accel[found[("megatron-lm-h100-weak", "model grows with the devices")]]
    assert weak.min() == 48.0 and weak.max() == 6144.0
    beyond = measured.larger(cases)
    assert not beyond.all()
    assert all(
        beyond[rows & (cases.labels.n_accel > cases.labels.n_accel[rows].min())].all()
        for rows in found.values()
    )
