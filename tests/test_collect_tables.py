"""From records to tables that the fit takes, plans of measurement, several hosts, and the
command."""

import csv
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from calibration import traces
from calibration.collect import budget, convert, hosts, store
from calibration.collect.assumed import system_at
from calibration.collect.budget import Forecast
from calibration.collect.kinds import collectives, matmul, memory
from calibration.collect.machine import MIB, Machine, environment, machine
from calibration.collect.tasks import make
from calibration.collect.workload import WorkloadSpec
from dmodel import catalog
from dmodel.catalog import loader
from dmodel.cli import app
from dmodel.coefficients import SPECS
from dmodel.cost.collectives import OWN_PART
from dmodel.errors import InputError

ROOT = Path(__file__).parents[1]
CPU = Machine(
    "cpu", "Test CPU 2 cores", "cpu-test-2-cores", False, 4, 4, 1, 32 * MIB, 2**34, ("fp32", "bf16")
)
HOST = "cpu-test-2-cores-host.toml"
"""File that describes that machine."""

GEMM = "source,accelerator,dtype,m,n,k,tflops,time_us"
ATTENTION = (
    "source,accelerator,dtype,pass,causal,batch,seq_len,n_heads,n_kv_heads,head_dim,tflops_causal,"
    "time_us"
)
COLLECTIVES = (
    "source,collective,accelerator,link,n_accel,nodes,message_bytes,algbw_GBs,busbw_GBs,time_us"
)


def record(kind, p, median, work, **more):
    task = make(kind, p)
    time = {
        "median_s": median,
        "low_s": 0.99 * median,
        "high_s": 1.02 * median,
        "confidence": 0.95,
        "settled": True,
        "samples": 9,
    }
    sizes = {
        "argument_bytes": 2**30,
        "output_bytes": 2**29,
        "temp_bytes": 2**29,
        "alias_bytes": 2**29,
        "generated_code_bytes": 0,
    }
    whole = {
        "type": "measurement",
        "kind": kind,
        "parameters": dict(task.parameters),
        "key": task.key("x"),
        "status": "ok",
    }
    whole |= {
        "environment": "e",
        "process": 0,
        "run": "r",
        "started": "2026-11-21T10:00:00",
        "wall_s": 1.0,
        "time": time,
        "work": work,
    }
    return (
        whole
        | {
            "rotation": {"beyond_cache": True},
            "compile": {"memory": sizes},
            "device_time": {"unavailable": "x"},
        }
        | more
    )


def stored(folder, records, where=CPU):
    found = environment(where) | {"id": "e", "identity": "x"}
    with store.Writer(folder, "host-p0") as writer:
        for each in ({"type": "environment", **found}, *records):
            writer.append(each)
    return folder


def steps(n=12):
    """Steps of several shapes whose times are those of a machine of 1e11 FLOP/s."""
    for i in range(n):
        layers, width = 1 + i % 4, 128 * (1 + i // 4)
        spec = WorkloadSpec(
            layers, width, 4 * width, 4, 4, width // 4, 512, 128, precision="fp32", micro_batch=2
        )
        flops = 6 * 256 * (layers * 16 * width**2 + 512 * width)
        yield record("steps", spec, 2e-3 + flops / 1e11, {"tokens": 256.0})


def benchmarks():
    for side in (256, 512):
        p = matmul.Matmul(side, side, side, "fp32")
        yield record(
            "matmul", p, 2 * side**3 / 9e10, {"flops": 2.0 * side**3, "bytes": 12.0 * side**2}
        )
    yield record(
        "memory", memory.Stream("add", 2**26, "fp32"), 3 * 2**26 / 8e9, {"bytes": 3.0 * 2**26}
    )
    for g in (2, 4):
        p = collectives.Collective("all_gather", 2**20, g, "inner", "fp32")
        yield record("collectives", p, 1e-4 * g, {"bytes": 2.0**20, "nodes": 1.0})


@pytest.fixture
def forgets():
    """The catalog as it was."""
    kinds = {kind: dict(loader.table(kind)) for kind in ("chips", "systems")}
    yield
    for kind, entries in kinds.items():
        loader.table(kind).clear()
        loader.table(kind).update(entries)
    loader._ADDED.clear()
    loader._spellings.cache_clear()


def header(path):
    return path.read_text().splitlines()[0]


def rows(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_steps_become_traces_that_are_read_without_a_problem(tmp_path, forgets):
    written = convert.convert(stored(tmp_path, [*steps(), *benchmarks()]))
    path = tmp_path / "traces.csv"
    assert written[path] == 12
    table = traces.read(path)
    assert len(table.rows) == 12 and not table.problems
    row = table.rows[0]
    assert (
        row.text("accelerator") == "cpu-test-2-cores"
        and row.text("precision") == "fp32"
        and row.number("peak_memory_gib") == 1.5
    )
    assert row.stack == f"dmodel-collect/jax-{'.'.join(jax.__version__.split('.')[:2])}"
    cases = traces.to_cases(table)
    assert (
        len(cases) == 12
        and float(cases.plan.precision.operand_bytes[0]) == 4.0
        and float(cases.plan.precision.optimizer_bytes[0]) == 8.0
    )


def test_parquet_holds_the_same_traces(tmp_path, forgets):
    pytest.importorskip("pyarrow")
    stored(tmp_path, [*steps(4), *benchmarks()])
    convert.convert(tmp_path)
    convert.convert(tmp_path, parquet=True)
    one, other = (traces.read(tmp_path / f"traces.{s}") for s in ("csv", "parquet"))
    assert [traces.fingerprint(r) for r in one.rows] == [traces.fingerprint(r) for r in other.rows]


def test_micro_benchmarks_have_the_columns_of_the_public_tables(tmp_path, forgets):
    from calibration.collect.kinds.attention import Attention

    more = record(
        "attention", Attention(1, 128, 4, 2, 32, "fp32"), 1e-3, {"flops": 1e9, "bytes": 1.0}
    )
    convert.convert(stored(tmp_path, [*benchmarks(), more]))
    assert [header(tmp_path / f"{name}.csv") for name in ("gemm", "attention", "collectives")] == [
        GEMM,
        ATTENTION,
        COLLECTIVES,
    ]
    gemm = rows(tmp_path / "gemm.csv")
    assert float(gemm[0]["tflops"]) == pytest.approx(0.09) and float(
        gemm[1]["time_us"]
    ) == pytest.approx(2 * 512**3 / 9e4, rel=1e-5)
    gather = rows(tmp_path / "collectives.csv")
    assert float(gather[1]["busbw_GBs"]) == pytest.approx(
        0.75 * float(gather[1]["algbw_GBs"]), rel=1e-4
    )


def test_on_an_accelerator_kernels_count_by_their_device_time(tmp_path):
    gpu = CPU._replace(platform="gpu", accelerator="H200-141GB", known=True)
    p = matmul.Matmul(256, 256, 256)
    device = {
        "busy_s": 2e-5,
        "compute_s": 2e-5,
        "communication_s": 0.0,
        "both_s": 0.0,
        "devices": 1,
        "calls": 10,
        "operations": {},
    }
    convert.convert(
        stored(
            tmp_path,
            [record("matmul", p, 5e-5, {"flops": 2.0 * 256**3, "bytes": 1.0}, device_time=device)],
            gpu,
        )
    )
    row = rows(tmp_path / "gemm.csv")[0]
    assert float(row["time_us"]) == pytest.approx(20.0) and "profiler" in row["source"]
    assert not list(tmp_path.glob("*.toml"))


def test_a_machine_that_the_catalog_has_not_is_described_by_what_was_measured(tmp_path, forgets):
    with pytest.raises(InputError, match="unknown chip"):
        catalog.chip("cpu-test-2-cores", "fp32")
    convert.convert(stored(tmp_path, [*steps(1), *benchmarks()]))
    traces.read(tmp_path / "traces.csv")
    found = catalog.system_for("cpu-test-2-cores", precision="fp32")
    assert float(found.chip.flops_per_s) == pytest.approx(
        9e10 / SPECS["matmul_efficiency"].default, rel=1e-5
    )
    assert float(found.chip.hbm_bytes_per_s) == pytest.approx(
        8e9 / SPECS["memory_efficiency"].default, rel=1e-5
    )
    assert np.asarray(found.network.size).tolist() == [4.0, np.inf]
    sent = (1.0 + OWN_PART) / 2.0 * 2**20
    assert float(found.network.bytes_per_s[0]) == pytest.approx(
        sent / 2e-4 / SPECS["net_efficiency_inner"].default, rel=1e-5
    )
    assert float(found.network.latency_s[0]) == pytest.approx(
        (4e-4 - SPECS["collective_start"].default) / 3, rel=1e-5
    )
    entry = next(e for e in catalog.entries("chips") if e["name"] == "cpu-test-2-cores")
    assert all(field["source"] and field["date"] for field in entry["fields"])


def test_a_described_machine_has_a_name_in_the_shell(tmp_path, forgets, monkeypatch):
    convert.convert(stored(tmp_path, [*steps(1), *benchmarks()]))
    words = ["catalog", "chips", "cpu-test-2-cores", "--json"]
    assert CliRunner().invoke(app, words).exit_code == 2
    monkeypatch.setenv("DMODEL_CATALOG", str(tmp_path / HOST))
    assert "cpu-test-2-cores" in CliRunner().invoke(app, words).stdout
    monkeypatch.setenv("DMODEL_CATALOG", str(tmp_path / "nowhere.toml"))
    assert "nowhere.toml" in CliRunner().invoke(app, words).stderr


def test_a_description_beside_traces_may_not_take_a_name_of_the_catalog(tmp_path, forgets):
    convert.convert(stored(tmp_path, [*steps(1), *benchmarks()]))
    path = tmp_path / HOST
    path.write_text(path.read_text().replace("cpu-test-2-cores", "h100"))
    with pytest.raises(InputError, match="is a name of the catalog"):
        traces.read(tmp_path / "traces.csv")


@pytest.mark.parametrize("text", ["{", "[]", "chip = 3", 'name = "x"', 'name = "x"\nchip = "h100"'])
def test_a_damaged_description_is_named(tmp_path, forgets, text):
    convert.convert(stored(tmp_path, [*steps(1), *benchmarks()]))
    (tmp_path / HOST).write_text(text)
    with pytest.raises(InputError, match="cpu-test-2-cores-host"):
        traces.read(tmp_path / "traces.csv")


def test_a_described_machine_is_a_system_by_its_file(tmp_path, forgets):
    convert.convert(stored(tmp_path, [*steps(1), *benchmarks()]))
    by_path = catalog.system(str(tmp_path / HOST), "fp32")
    traces.read(tmp_path / "traces.csv")
    by_name = catalog.system("cpu-test-2-cores-host", "fp32")
    pairs = zip(jax.tree.leaves(by_path), jax.tree.leaves(by_name), strict=True)
    assert all(np.array_equal(one, other) for one, other in pairs)


def forecast_of(jacobian, cost):
    return Forecast(np.ones(len(cost)), np.asarray(cost, float), np.asarray(jacobian, float))


def test_the_order_is_greedy_in_information_per_second():
    draw = np.random.default_rng(0)
    slopes, cost = draw.normal(size=(12, 5)), draw.uniform(1.0, 9.0, 12)
    told = np.einsum("ti,tj->tij", slopes, slopes) / budget.NOISE**2
    sigma = np.diag(draw.uniform(0.1, 1.0, 5))
    found = budget.order(forecast_of(slopes, cost), sigma)
    assert sorted(step.at for step in found) == list(range(12))
    precision = np.linalg.inv(sigma)
    left = set(range(12))
    for step in found:
        gains = {
            t: 0.5 * np.linalg.slogdet(np.eye(5) + np.linalg.solve(precision, told[t]))[1]
            for t in left
        }
        assert gains[step.at] / cost[step.at] == pytest.approx(
            max(gains[t] / cost[t] for t in left), rel=1e-6
        )
        assert step.gain == pytest.approx(gains[step.at], rel=1e-6)
        precision = precision + told[step.at]
        left.remove(step.at)


def test_what_is_known_is_not_measured_again_first():
    """The second of two alike tasks tells little once the first is known."""
    found = forecast_of([[1.0, 0.0], [1.0, 0.0], [0.0, 0.5]], [1.0, 1.0, 1.0])
    assert [step.at for step in budget.order(found, np.eye(2))] == [0, 2, 1]
    assert [step.at for step in budget.order(found, np.eye(2), known=[1])] == [2, 0]


def test_the_prior_of_a_new_stack_is_a_covariance():
    mean, sigma = budget.covariance("cpu-test-2-cores", "dmodel-collect/jax-0.10")
    assert np.isfinite(mean).all() and np.linalg.eigvalsh(sigma).min() > -1e-9
    assert (np.diag(sigma) > 1e-4).all()


@pytest.mark.parametrize(
    ("environ", "launcher", "expected"),
    [
        ({}, "auto", None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, "auto", None),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4"}, "auto", hosts.Launch("slurm")),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "1"}, "auto", hosts.Launch("tpu")),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, "auto", None),
        ({}, "tpu", hosts.Launch("tpu")),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4"}, "none", None),
        (
            {
                "JAX_COORDINATOR_ADDRESS": "n0:1",
                "JAX_NUM_PROCESSES": "2",
                "JAX_PROCESS_ID": "1",
                "SLURM_PROCID": "1",
                "SLURM_NTASKS": "2",
            },
            "auto",
            hosts.Launch("env", "n0:1", 2, 1),
        ),
        (
            {
                "MASTER_ADDR": "m",
                "MASTER_PORT": "29500",
                "WORLD_SIZE": "16",
                "RANK": "9",
                "LOCAL_RANK": "1",
                "LOCAL_WORLD_SIZE": "8",
            },
            "auto",
            hosts.Launch("torchrun", "m:29501", 16, 9, [1]),
        ),
        (
            {"MASTER_ADDR": "m", "MASTER_PORT": "29500", "WORLD_SIZE": "1", "RANK": "0"},
            "auto",
            None,
        ),
    ],
)
def test_how_a_job_was_launched_is_read_from_its_environment(environ, launcher, expected):
    assert hosts.detect(environ, launcher) == expected


@pytest.mark.parametrize(
    ("environ", "launcher", "message"),
    [
        ({}, "mpi", "expected one of"),
        ({}, "slurm", "was it started by slurm"),
        ({"MASTER_ADDR": "m", "WORLD_SIZE": "4", "RANK": "0"}, "auto", "MASTER_PORT"),
        ({"JAX_COORDINATOR_ADDRESS": "m:1", "JAX_NUM_PROCESSES": "x"}, "auto", "JAX_NUM_PROCESSES"),
    ],
)
def test_an_environment_that_contradicts_itself_is_named(environ, launcher, message):
    with pytest.raises(InputError, match=message):
        hosts.detect(environ, launcher)


def run(*words, code=0):
    result = CliRunner().invoke(app, ["collect", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(
        result.exception
    )
    assert result.exit_code == code, result.stderr
    return result


def plan_of(folder, *tasks):
    path = folder / "plan.json"
    path.write_text(json.dumps(tasks))
    return path


PRODUCT = {"kind": "matmul", "m": 16, "n": 16, "k": 16, "dtype": "fp32"}


def test_the_command_measures_once_and_goes_on_where_it_stopped(tmp_path):
    out = tmp_path / "out"
    first = json.loads(run("--plan", plan_of(tmp_path, PRODUCT), "--out", out, "--json").stdout)
    assert (first["finished"], first["measured_now"], first["failed"]) == (1, 1, [])
    missing = {
        "kind": "attention",
        "batch": 1,
        "seq_len": 8,
        "n_heads": 2,
        "n_kv_heads": 2,
        "head_dim": 8,
        "kernel": "flash",
    }
    second = run(
        "--plan",
        plan_of(tmp_path, PRODUCT, {"kind": "launch", "kernels": 2}, missing),
        "--out",
        out,
        "--json",
    )
    document = json.loads(second.stdout)
    assert (document["finished"], document["measured_now"]) == (3, 2)
    assert (
        "no fused attention kernel" in document["failed"][0]["reason"]
        and "unavailable" in second.stderr
    )
    host = f"{document['accelerator']}-host.toml"
    assert set(document["files"]) == {str(out / n) for n in ("gemm.csv", "launch.csv", host)}
    found = store.read(out)
    assert len(found.measurements) == 3 and not found.damage
    of_product = next(r for r in found.measurements.values() if r["kind"] == "matmul")
    assert (
        of_product["device_time"].get("compute_s", 0.0) > 0.0
        or of_product["device_time"]["unavailable"]
    )


def test_a_budget_is_kept_and_takes_the_most_informative(tmp_path):
    tasks = [PRODUCT, {**PRODUCT, "m": 17}, {"kind": "launch", "kernels": 3}]
    words = [
        "--plan",
        plan_of(tmp_path, *tasks),
        "--out",
        tmp_path / "out",
        "--json",
        "--budget-minutes",
    ]
    document = json.loads(run(*words, "0.001", code=1).stdout)
    assert document["skipped_for_time"] == 3 and document["finished"] == 0
    assert sorted(task["task"] for task in document["skipped"]) == ["launch", "matmul", "matmul"]
    document = json.loads(run(*words, "5").stdout)
    assert document["finished"] == 3 and document["information_nats"] > 0.1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--what", "matmul,sorting"], "unknown sorting"),
        (["--what", "collectives"], "needs more than the 1 device"),
        (["--budget-minutes", "-1"], "positive number of minutes"),
        (["--plan", "nowhere.json"], "nowhere.json"),
        (["--launcher", "mpi"], "expected one of"),
        (
            ["--list", "--launcher", "foo"],
            "--launcher: expected one of auto, none, slurm, tpu, env, torchrun, got 'foo'",
        ),
        (["--tables-only", "--launcher", "foo"], "expected one of auto, none"),
        (["--tables-only"], "no such folder"),
        (["--what", " , "], "names nothing to measure"),
    ],
)
def test_mistakes_end_with_a_message(tmp_path, words, message):
    assert message in run(*words, "--out", tmp_path / "out", code=2).stderr


def test_tables_of_a_folder_without_records_are_no_answer(tmp_path):
    assert "no records" in run("--tables-only", "--out", tmp_path, code=2).stderr
    stored(tmp_path, [{**next(iter(benchmarks())), "status": "failed", "reason": "x"}])
    assert (
        json.loads(run("--tables-only", "--json", "--out", tmp_path, code=1).stdout)["files"] == {}
    )


def test_records_that_no_table_can_show_are_named_and_the_others_kept(tmp_path):
    products = [
        record("matmul", matmul.Matmul(m, 64, 64, "fp32"), 1e-4, {"flops": 2.0 * m * 64 * 64})
        for m in (8, 16, 32)
    ]
    products[1]["environment"] = "lost"
    products[2]["parameters"]["tiles"] = 3
    document = json.loads(
        run("--tables-only", "--json", "--out", stored(tmp_path, products)).stdout
    )
    assert document["files"][str(tmp_path / "gemm.csv")] == 1 and not document["damaged_lines"]
    assert len(document["left_out"]) == 2
    assert "environment lost" in " ".join(
        document["left_out"]
    ) and "no parameter tiles" in " ".join(document["left_out"])


def test_tables_name_damaged_lines(tmp_path):
    products = [
        record("matmul", matmul.Matmul(m, 64, 64, "fp32"), 1e-4, {"flops": 2.0 * m * 64 * 64})
        for m in (8, 16)
    ]
    path = stored(tmp_path, products) / "host-p0.jsonl"
    path.write_bytes(path.read_bytes()[:-200])
    assert (
        "cut short"
        in json.loads(run("--tables-only", "--json", "--out", tmp_path).stdout)["damaged_lines"][0]
    )
    assert "damaged: " in run("--tables-only", "--out", tmp_path).stdout


def test_sizes_beyond_the_hosts_memory_are_unavailable_at_once(tmp_path):
    plan = plan_of(tmp_path, {**PRODUCT, "m": 10**9, "k": 10**6})
    document = json.loads(run("--plan", plan, "--out", tmp_path / "o", "--json", code=1).stdout)
    assert "half of the host's memory" in document["failed"][0]["reason"]


def test_traces_come_as_parquet_when_asked_for(tmp_path, forgets):
    pytest.importorskip("pyarrow")
    stored(tmp_path, [*steps(2), *benchmarks()])
    document = json.loads(run("--out", tmp_path, "--tables-only", "--parquet", "--json").stdout)
    assert document["files"][str(tmp_path / "traces.parquet")] == 2


@pytest.mark.slow
def test_collected_steps_are_fitted_and_evaluated(tmp_path, forgets):
    """Steps of a machine that no profile knows: a fit of most of them predicts the others."""
    sizes = [
        (layers, width, batch)
        for layers in (1, 2, 4, 8)
        for width in (128, 256, 512)
        for batch in (1, 4)
    ]
    records = []
    for i, (layers, width, batch) in enumerate(sizes):
        spec = WorkloadSpec(
            layers,
            width,
            4 * width,
            4,
            4,
            width // 4,
            512,
            128,
            precision="fp32",
            micro_batch=batch,
        )
        flops = 6 * 128 * batch * (layers * 16 * width**2 + 512 * width)
        records.append(
            record(
                "steps",
                spec,
                (4e-3 + flops / 4e10) * (1.0 + 0.02 * (-1) ** i),
                {"tokens": 128.0 * batch},
            )
        )
    convert.convert(stored(tmp_path, [*records, *benchmarks()]))
    traces_file, profile = str(tmp_path / "traces.csv"), str(tmp_path / "mine.json")
    with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer powers
        fitted = CliRunner().invoke(
            app, ["fit", traces_file, "--out", profile, "--hold-out", "0.25", "--json"]
        )
    assert fitted.exit_code == 0, fitted.stderr
    errors = json.loads(fitted.stdout)["overall"]
    assert errors["fitted"]["median"] < 0.1 and errors["held_out"]["median"] < 0.15
    judged = CliRunner().invoke(app, ["evaluate", traces_file, "--profile", profile, "--json"])
    assert judged.exit_code == 0 and json.loads(judged.stdout)["rows_used"] == len(sizes)


def test_the_list_is_a_plan(tmp_path):
    listed = run("--what", "launch,dispatch", "--out", tmp_path, "--list").stdout
    (tmp_path / "plan.json").write_text(listed)
    assert len(json.loads(listed)) == 9


def four_processes(folder, plan):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "dmodel",
        "collect",
        "--plan",
        str(plan),
        "--out",
        str(folder),
        "--json",
        "--no-device-time",
    ]
    job = {
        "JAX_COORDINATOR_ADDRESS": f"localhost:{port}",
        "JAX_NUM_PROCESSES": "4",
        "JAX_PLATFORMS": "cpu",
    }
    flags = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "DMODEL_CACHE": str(folder / "cache"),
    }
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | job | flags | {"JAX_PROCESS_ID": str(i)},
            stdout=pipe,
            stderr=pipe,
            text=True,
        )
        for i in range(4)
    ]
    return [(p.communicate(timeout=400), p.returncode) for p in processes]


@pytest.mark.slow
def test_four_processes_measure_together(tmp_path):
    gather = {
        "kind": "collectives",
        "collective": "all_gather",
        "nbytes": 4096,
        "devices": 8,
        "dtype": "fp32",
    }
    plan = plan_of(tmp_path, gather, {**gather, "devices": 2, "collective": "all_reduce"}, PRODUCT)
    (done, *others) = four_processes(tmp_path / "out", plan)
    assert [code for _, code in (done, *others)] == [0] * 4, done[0][1][-2000:]
    document = json.loads(done[0][0])
    assert (document["devices"], document["hosts"], document["finished"], document["failed"]) == (
        8,
        4,
        3,
        [],
    )
    assert all(out == "" for (out, _), _ in others)
    files = sorted((tmp_path / "out").glob("*.jsonl"))
    records = [
        [r for r in store.scan(path).records if r["type"] == "measurement"] for path in files
    ]
    assert [len(r) for r in records] == [3, 2, 2, 2]  # the product is for process 0 alone
    times = {r["key"]: [] for r in records[0]}
    for r in (r for part in records for r in part):
        times[r["key"]].append(r["time"]["median_s"])
    merged = store.read(tmp_path / "out").measurements
    assert {key: r["time"]["median_s"] for key, r in merged.items()} == {
        key: max(found) for key, found in times.items()
    }
    table = rows(tmp_path / "out" / "collectives.csv")
    assert sorted((row["n_accel"], row["nodes"]) for row in table) == [("2", "1"), ("8", "4")]
    again = four_processes(tmp_path / "out", plan)
    assert json.loads(again[0][0][0])["measured_now"] == 0


def test_a_guess_of_the_machine_is_good_enough_to_plan_with():
    found = system_at(machine(), "fp32")
    assert 1e9 < float(found.chip.flops_per_s) < 1e15 and found.network.n_levels == 2
    assert float(system_at(CPU, "bf16").chip.flops_per_s) > 0.0
    gpu = CPU._replace(platform="gpu", accelerator="H100-80GB", known=True)
    assert float(system_at(gpu, "fp8").chip.flops_per_s) == pytest.approx(1.979e15, rel=0.01)
    assert 0.0 < float(system_at(gpu, "fp32").chip.flops_per_s) < 2e14
