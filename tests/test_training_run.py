"""What a whole run takes: arithmetic by hand, a simulated run, and its options in the shell."""

from __future__ import annotations

import json
import math
from datetime import date
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from dmodel import counts
from dmodel.catalog.models import transformer
from dmodel.cli import app
from dmodel.codesign.laws import laws, loss
from dmodel.codesign.outcome import parameters
from dmodel.errors import InputError
from dmodel.goodput import LLAMA_3, Reliability, daly_interval, goodput
from dmodel.tokens import by_data_law, to_loss
from dmodel.training_run import SIDE, Wanted, of_run, wanted

DEVICES, BATCH, SEQ, PRICE = 512, 1024, 8192, 2.5 / 3600.0
ANSWER = {"step_time_s": 10.0, "step_time_s_low": 8.0, "step_time_s_high": 12.5}
ANSWER |= {"joules_per_token": 2.0}


def asked(devices: int = DEVICES) -> SimpleNamespace:
    """What a run needs to know of a job."""
    chip = SimpleNamespace(price_per_s=PRICE)
    return SimpleNamespace(
        devices=devices,
        global_batch=BATCH,
        model=SimpleNamespace(seq_len=SEQ),
        cluster=SimpleNamespace(chip=chip),
    )


def run_of(tokens: float, until: date | None = None, devices: int = DEVICES, **answer: float):
    begins = date(2027, 1, 1)
    return of_run(Wanted(tokens, "", begins, until), {**ANSWER, **answer}, asked(devices))


def test_days_hours_money_and_energy_by_hand():
    found = run_of(1e12)
    steps = 1e12 / (BATCH * SEQ)
    share = float(goodput(float(DEVICES), Reliability()))
    assert found["steps"] == pytest.approx(steps)
    assert found["training_days"] == pytest.approx(10.0 * steps / 86400.0)
    assert found["days"] == pytest.approx(found["training_days"] / share)
    assert found["device_hours"] == pytest.approx(found["days"] * 24.0 * DEVICES)
    assert found["dollars"] == pytest.approx(found["device_hours"] * 2.5)
    assert found["megawatt_hours"] == pytest.approx(2e12 / share / 3.6e9)
    assert found["dollars_high"] == pytest.approx(1.25 * found["dollars"])


def test_without_an_interval_there_are_no_ends():
    found = of_run(
        Wanted(1e12, "", date(2027, 1, 1)), {"step_time_s": 1.0, "joules_per_token": 1.0}, asked()
    )
    assert not [name for name in found if name.endswith(("_low", "_high"))]


def test_the_probability_of_a_date_follows_the_interval():
    """Where failures are rare the interval of the step is all that is unknown: its upper end is
    kept with 95 %."""
    steps_a_day = 86400.0 / 12.5
    tokens = 400.0 * steps_a_day * BATCH * SEQ * float(goodput(1.0, Reliability()))
    chances = [
        run_of(tokens, date.fromordinal(date(2027, 1, 1).toordinal() + days), 1)["deadline"]
        for days in (100, 320, 400, 4000)
    ]
    assert [round(each["days"]) for each in chances] == [100, 320, 400, 4000]
    odds = [each["probability"] for each in chances]
    assert odds[0] < 1e-6 and odds[3] > 1.0 - 1e-6
    assert odds[1] == pytest.approx(0.5, abs=0.01) and odds[2] == pytest.approx(0.95, abs=0.01)


def test_failures_scatter_as_a_simulated_run_does():
    """Poisson failures; each costs a restart and what was trained since the last checkpoint."""
    devices, reliability = 16384.0, Reliability()
    interval = float(daly_interval(1.0 / (devices * LLAMA_3), reliability.checkpoint_s))
    random, seconds = np.random.default_rng(0), 30 * 86400.0
    counts_ = random.poisson(seconds * devices * LLAMA_3, 20_000)
    lost = [float(np.sum(reliability.restart_s + random.uniform(0, interval, n))) for n in counts_]
    narrow = {"step_time_s_low": 10.0, "step_time_s_high": 10.0}
    days = 30.0
    tokens = days * 8640.0 * BATCH * SEQ * float(goodput(devices, reliability))
    found = run_of(tokens, date(2027, 1, 31), int(devices), **narrow)
    assert found["days"] == pytest.approx(days)
    later = run_of(tokens * (1.0 - np.std(lost) / seconds), date(2027, 1, 31), 16384, **narrow)
    chance = later["deadline"]["probability"]
    assert chance == pytest.approx(0.5 * (1.0 + math.erf(1.0 / math.sqrt(2.0))), abs=0.01)


def test_ends_are_those_of_90_percent():
    assert pytest.approx(1.6449, abs=1e-4) == SIDE


def test_tokens_by_the_laws():
    llama = transformer("llama-2-7b")
    tokens, said = by_data_law(llama)
    assert tokens == pytest.approx(20.0 * float(counts.active_parameters(llama)))
    assert "Hoffmann" in said
    tokens, said = to_loss(llama, 2.1)
    n = parameters(llama, laws())
    assert float(loss(n, tokens, laws().loss)) == pytest.approx(2.1, rel=1e-12)
    with pytest.raises(InputError, match="endless tokens"):
        to_loss(llama, 1.82)


@pytest.mark.parametrize(
    ("start", "until", "says"),
    [
        ("2027-01-01", "2027-01-01", "after the start"),
        ("tomorrow", None, "--start: expected a date"),
        (None, "2027-13-01", "--until: expected a date"),
    ],
)
def test_dates_that_make_no_sense(start, until, says):
    with pytest.raises(InputError, match=says):
        wanted(1e12, "", start, until)


PLAN = "predict --system H100-DGX --devices 64 --model llama-2-7b --global-batch 128 --tp 2"


def shell(words: str, code: int = 0):
    result = CliRunner().invoke(app, words.split())
    assert result.exit_code == code, result.stderr
    return result


def test_a_prediction_says_what_the_run_takes():
    plain = json.loads(shell(f"{PLAN} --json").stdout)
    assert not {"days", "device_hours", "dollars", "run"} & set(plain)
    found = json.loads(
        shell(f"{PLAN} --tokens 1e12 --until 2099-01-01 --start 2027-01-01 --json").stdout
    )
    assert found["days"] == found["run"]["days"] and found["run"]["deadline"]["probability"] > 0.99
    assert found["step_time_s"] == plain["step_time_s"]
    cheap = json.loads(shell(f"{PLAN} --tokens 1e12 --price-per-hour 0.5 --json").stdout)
    assert cheap["dollars"] == pytest.approx(0.5 * cheap["device_hours"])
    assert cheap["dollars_per_million_tokens"] < found["dollars_per_million_tokens"]
    assert "dollars" in shell(f"{PLAN} --chinchilla").stdout


def test_utilization_says_its_peak_and_another_may_be_said():
    plain = json.loads(shell(f"{PLAN} --json").stdout)
    twice = shell(f"{PLAN} --peak {2e-12 * plain['peak_flops_per_s']} --json")
    for rule, x in json.loads(twice.stdout)["mfu"].items():
        assert x == pytest.approx(0.5 * plain["mfu"][rule])
    assert "sparsity" in twice.stderr
    assert "sparsity" not in shell(f"{PLAN} --peak 800 --json").stderr


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("--tokens 1e12 --chinchilla", "give one"),
        ("--tokens -1", "--tokens: expected a positive number"),
        ("--until 2099-01-01", "a date needs a run"),
        ("--tokens 1e12 --start 2099-01-01", "goes with --until"),
        ("--price-per-hour nan", "--price-per-hour: expected a positive number"),
        ("--peak 0", "--peak: expected a positive number"),
        ("--loss 1.0", "endless tokens"),
    ],
)
def test_bad_options_of_a_run_are_refused(more, says):
    result = shell(f"{PLAN} {more} --json", code=2)
    assert says in result.stderr.replace("\n", " ") and result.stdout == ""


def test_a_file_of_rows_takes_no_options_of_a_run(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("model\n")
    result = shell(f"predict {file} --tokens 1e12", code=2)
    assert "--tokens" in result.stderr
