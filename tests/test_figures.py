"""Figures of a step as threads and logs have them."""

import pytest

from dmodel.diagnose.figures import figure
from dmodel.diagnose.measured import measured
from dmodel.errors import InputError


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("3.2 s/it", "time", 3.2),
        ("850ms/step", "time", 0.85),
        ("2.93 seconds", "time", 2.93),
        ("8.68s/iter", "time", 8.68),
        ("1.5 min", "time", 90.0),
        ("0.5 it/s", "time", 2.0),
        ("30 steps per minute", "time", 2.0),
        ("24h/1218steps", "time", 24 * 3600 / 1218),
        ("1,218 steps / 24 h", "time", 24 * 3600 / 1218),
        ("4745s/156006samples", "sequences_per_s", 156006 / 4745),
        ("32.879 samples/s", "sequences_per_s", 32.879),
        ("4.2 samples/second/GPU", "sequences_per_s_per_device", 4.2),
        ("13.5h/1.2Btokens", "tokens_per_s", 1.2e9 / (13.5 * 3600)),
        ("80k tok/s", "tokens_per_s", 80e3),
        ("1.2M tokens/sec", "tokens_per_s", 1.2e6),
        ("3.7ktok/s/gpu", "tokens_per_s_per_device", 3700.0),
        ("6,325 Tokens/GPU/Second", "tokens_per_s_per_device", 6325.0),
        ("840 token/sec/GPU", "tokens_per_s_per_device", 840.0),
        ("1900 tgs", "tokens_per_s_per_device", 1900.0),
        ("420 TFLOPS/GPU", "flops_per_s_per_device", 420e12),
        ("194.3 TFLOP/s/GPU", "flops_per_s_per_device", 194.3e12),
        ("20 TFLOPs", "flops_per_s_per_device", 20e12),
        ("180 TFLOPS/s/GPU", "flops_per_s_per_device", 180e12),
        ("24.3 % MFU", "mfu", 0.243),
        ("MFU 24.3%", "mfu", 0.243),
        ("mfu: 0.243", "mfu", 0.243),
        ("mfu=24.3 %", "mfu", 0.243),
    ],
)
def test_units_of_practice_are_read(text, kind, value):
    found = figure(text, "--measured")
    assert found.kind == kind
    assert found.value == pytest.approx(value, rel=1e-12)
    assert measured([text]).kind == kind


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("5,2s", "with a unit"),
        ("tok/s", "with a unit"),
        ("3tok", "with a unit"),
        ("3s/s", "with a unit"),
        ("3parsec", "with a unit"),
        ("MFU high", "with a unit"),
        ("3tok/s/gpu/gpu", "with a unit"),
        ("0it/s", "positive"),
        ("3h/0steps", "positive"),
        ("2 hours per epoch", "over its sequences, tokens or steps"),
    ],
)
def test_what_is_no_figure_is_refused(text, says):
    with pytest.raises(InputError, match=says):
        figure(text, "--measured")
