"""What compiled programs hold and move: facts by release and variant, and rows that say so."""

from __future__ import annotations

import csv
from importlib import resources

import numpy as np
import pytest

from calibration.traces import published, to_cases
from dmodel.records import leaf
from dmodel.step import memory_use, step_time
from dmodel.units import GIB
from tests.points import COEFFICIENTS
from tests.rows import answered, job


@pytest.fixture(scope="module")
def titan():
    """Rows of torchtitan, and where each was read."""
    table = published()
    cases = to_cases(table)
    own = cases.take(cases.labels.source == "torchtitan")
    url = {row.line: row.text("url") for row in table.rows}
    return own, np.array([str(url[line]) for line in own.labels.line])


def test_rows_of_a_date_have_the_loss_of_that_date(titan):
    """Whole and in fp32 until April 2025, compiled from then on, whatever is the newest today."""
    own, urls = titan
    alive = np.broadcast_to(np.asarray(own.plan.precision.logit_bytes), len(own))
    mixture = np.array(["dist_moe" in url for url in urls])
    compiled = np.array(["2025-06" in url or "202506" in url for url in urls])
    assert set(alive[compiled]) == {4.0}
    assert set(alive[~compiled & ~mixture]) == {12.0}
    assert compiled.sum() == 14


def test_compiled_loss_is_what_h200_of_june_2025_hold(titan):
    """Two rows of a commit behind the compiled loss, by hand: no factor of a fit."""
    own = titan[0].take(np.array(["whitefiber" in url for url in titan[1]]))
    measured = own.labels.peak_memory_bytes / GIB

    def peaks(each):
        plan = own.plan.having(logit_bytes=np.full(len(own), each))
        return np.asarray(memory_use(own.model.replace(order=()), plan).total) / GIB

    assert peaks(4.0) == pytest.approx(measured, rel=0.05)
    assert np.all(peaks(12.0) > 1.3 * measured)


@pytest.mark.parametrize(
    ("stack", "recompute", "last"),
    [
        ("torchtitan", "full", 1.0),
        ("torchtitan/0.2.1", "full", 1.0),
        ("torchtitan/0.1.0", "full", 0.0),
        ("torchtitan/compile", "full", 0.0),
    ],
)
def test_checkpoints_of_new_releases_run_to_their_end(stack, recompute, last):
    row = {"zero_stage": "3", "dp": "64", "tp": "1", "pp": "1", "recompute": recompute}
    assert float(answered(**row, stack=stack).plan.software.recompute_last) == last


def test_exchanged_tokens_are_kept_once_to_experts_and_once_back():
    """2 t k h bytes each way of a layer with experts, of 26 of DeepSeek-V2-Lite's 27 layers."""
    row = dict(
        ep=8, micro_batch=4, global_batch=256, zero_stage="3", recompute="selective", seq_len=4096
    )
    held = [
        job("torchtitan/0.2.1", "deepseek-v2-lite", "H100-80GB", **row, exchange_kept=x)
        for x in (0.0, 1.0)
    ]
    bytes_ = [float(memory_use(of.model.replace(order=()), of.plan).total) for of in held]
    ways = 2.0 * (4 * 4096) * 6 * 2048 * 2.0 * 26
    assert bytes_[1] - bytes_[0] == pytest.approx(ways, rel=0.1)
    told = job("torchtitan", "deepseek-v2-lite", "H100-80GB", **row).plan
    assert float(told.software.exchange_kept) == 1.0
    assert float(told.precision.logit_bytes) == 0.5


FUSED = ("stream_ratio", "loss_ratio", "logit_bytes", "eager", "split_rotary")


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        ("pytorch", (1.0, 1.0, 12.0, 0.0, 0.0)),
        ("pytorch/compile", (0.6, 0.25, 4.0, 0.0, 0.0)),
        ("nanochat", (0.6, 0.25, 4.0, 0.0, 0.0)),
        ("nanoGPT", (0.6, 0.25, 4.0, 0.0, 0.0)),
        ("nanochat/eager", (1.0, 1.0, 12.0, 0.0, 0.0)),
        ("huggingface", (1.0, 1.0, 14.0, 1.0, 1.0)),
        ("huggingface/compile", (0.6, 0.25, 4.0, 0.0, 0.0)),
        ("trl/compile", (0.6, 0.25, 0.0, 0.0, 0.0)),
        ("torchtitan/compile", (1.0, 1.0, 0.5, 0.0, 0.0)),
    ],
)
def test_what_a_compiler_fuses(stack, expected):
    """Of torchtitan/compile the fit has rows, and with them how much its kernels move."""
    row = {"zero_stage": "0", "dp": "64", "tp": "1", "pp": "1", "recompute": "none"}
    plan = answered(**row, stack=stack).plan
    assert tuple(float(leaf(plan, name)) for name in FUSED) == expected


def test_programs_without_checkpoints_recompute_nothing():
    row = {"zero_stage": "0", "dp": "64", "tp": "1", "pp": "1", "recompute": ""}
    assert float(answered(**row, stack="nanochat").plan.layout.recompute_layers) == 0.0
    asked = {**row, "recompute": "full"}
    assert float(answered(**asked, stack="nanochat").plan.layout.recompute_layers) == 1.0


@pytest.mark.parametrize(
    ("name", "term"), [("stream_ratio", "elementwise"), ("loss_ratio", "head")]
)
def test_time_of_a_term_is_linear_in_what_a_compiler_leaves(name, term):
    """Of both, a part that no compiler touches stays: sums of gradients, the product of logits."""

    def seconds(ratio):
        of = job("pytorch", "llama-3-8b", "A100-80GB", recompute="none", **{name: ratio})
        return float(getattr(step_time(of.cluster, of.model, of.plan, COEFFICIENTS), term))

    low, middle, high = (seconds(x) for x in (0.2, 0.6, 1.0))
    assert 0.0 < low < middle < high
    assert middle == pytest.approx(0.5 * (low + high), rel=1e-9)


def test_measured_kernels_move_what_the_facts_say():
    """The loss of Llama 3 8B on H100 and H200, and its peak: compiled over as written."""
    file = resources.files("calibration.torch_step").joinpath("data/steps.csv")
    lines = file.read_text(encoding="utf-8").splitlines()
    rows = {(row["device"], row["name"]): row for row in csv.DictReader(lines)}
    for device in {device for device, _ in rows}:
        fused, apart = (
            rows[device, f"llama-3-8b/{name}"] for name in ("compiled-no-layers", "no-layers")
        )
        ratio = float(fused["streaming_s"]) / float(apart["streaming_s"])
        assert ratio == pytest.approx(0.25, abs=0.04)
        spared = float(apart["peak_bytes"]) - float(fused["peak_bytes"])
        assert 5.0 < spared / (8192 * 128256) < 8.0
