"""MLPerf's fine-tuning runs: what their logs and the public configurations of their submitters say
where a table does not.

The logs name the batch and how many micro-batches a step accumulates ("gradient accumulation 4" in
the notes), the configurations have one sequence per micro-batch (`MBS=1`), so the ranks of data
parallelism follow; how the others share a sequence is in the configurations
(`benchmarks/llama2_70b_lora/implementations` of mlcommons/training_results_v4.0 and v5.0).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from calibration.traces.schema import base_precision
from calibration.traces.table import Row

_ACCUMULATED = re.compile(r"\bgradient accumulation (\d+)|\blogged_grad_accum=(\d+)")
_SUBMITTER = re.compile(r"/([^/]+)/results/")

CONFIGURED = "the submissions' configurations"

SMALL = ("h100", "l40s")
"""Chips, by the beginnings of their names, too small for the 70 GB of 8-bit weights, which 4 ranks
of tensor parallelism split."""

TENSOR_PAIRS = ("ASUSTeK", "HPE")
"""Submitters to 5.0 whose pairs of H200 are of tensor parallelism, as all are in 4.0
(`…1x8x2xtp2pp1cp1.sh`); NVIDIA's and Dell's are of context parallelism (`…1x8x2xtp1pp1cp2.sh`)."""


class Submitted(NamedTuple):
    """Degrees [count] and how they are known, in words."""

    dp: float
    tp: float
    cp: float
    said: str


def submitted(row: Row) -> Submitted | None:
    """Degrees of a fine-tuning row of MLPerf whose cells are blank, or are not those of its log;
    None for other rows.

    Data parallelism is the batch over the micro-batches accumulated and their sequences; of the
    rest, where the row does not say, tensor parallelism 4 on `SMALL` chips, and on H200 where 4 or
    more are left (Lenovo; Oracle on 512), 2 there where 2 are, in 4.0 and of `TENSOR_PAIRS`;
    context parallelism otherwise, as in all configurations for Blackwell and AMD's chips. Two rows
    of 5.0 (Oracle, 8 H200; HPE, 16) have the degrees of a configuration for H100 beside them, which
    would accumulate twice what their logs do.
    """
    found = _ACCUMULATED.search(row.text("note"))
    batch, devices, written = row.number("global_batch"), row.number("n_accel"), row.number("dp")
    if (
        not row.stack.lower().startswith("mlperf")
        or "lora" not in row.flags
        or not (found and batch and devices)
    ):
        return None
    accumulated, others = float(found[1] or found[2]), row.number("pp") or 1.0
    dp = batch / (accumulated * (row.number("micro_batch") or 1.0)) if accumulated else 0.0
    if written == dp or dp < 1.0 or dp != int(dp) or devices % (dp * others):
        return None
    rest = devices / (dp * others)
    tp = _tensor(row, rest) if written is None else _configured(row, rest)
    if tp != int(tp) or rest % tp:
        return None
    log = f"batch {batch:g} over {accumulated:g} micro-batches accumulated, by the log"
    text = f"dp {dp:g}: {log}; tp {tp:g}, cp {rest / tp:g}: {CONFIGURED}"
    return Submitted(dp, tp, rest / tp, text if written is None else f"{text}, not the row's")


def _tensor(row: Row, rest: float) -> float:
    """Tensor parallelism of `rest` ranks: the row's, or what its context parallelism leaves, else
    the configurations'."""
    tp, cp = row.number("tp"), row.number("cp")
    return tp if tp else rest / cp if cp else _configured(row, rest)


def _configured(row: Row, rest: float) -> float:
    """Tensor parallelism of `rest` ranks in the configurations for a row's chip."""
    accelerator = row.accelerator.lower()
    if not accelerator.startswith("h200"):
        return min(4.0, rest) if accelerator.startswith(SMALL) else 1.0
    submitter = _SUBMITTER.search(row.text("url"))
    pairs = row.stack.endswith("v4.0") or (submitter is not None and submitter[1] in TENSOR_PAIRS)
    return 4.0 if rest >= 4.0 else 2.0 if pairs else 1.0


class Kept(NamedTuple):
    """weight_bytes: per frozen parameter [byte]. recomputed: share of the layers, in full. narrow:
    1 where what MLPs keep is in 8 bits. attention_bytes: per operand of the attention core [byte].
    graphed: 1 where CUDA graphs launch whole layers. said: in words."""

    weight_bytes: float
    recomputed: float
    narrow: float
    attention_bytes: float
    graphed: float
    said: tuple[str, ...]


VERSIONS = ("mlperf-train-v4.0", "mlperf-train-v5.0")
"""Stacks whose configurations were read for what they keep."""

RECOMPUTED = {"mi300x": 21.0}
"""Layers that configurations recompute in full (`ACL=21`, MangoBoost's), by chip; those of others
set none."""

WIDE_ATTENTION = ("l40s", "mi3", "h200-nvl")
"""Chips, by the beginnings of their names, whose configurations leave the attention core in 16 bits
(`FP8_DPA=0`); in 5.0 those for H200 do too (Dell's; Oracle's do not set it), but for
`TENSOR_PAIRS`. NVIDIA's common settings switch it to 8 (`config_common.sh`)."""


GRAPHED_FROM = 32.0
"""GPUs of NVIDIA from which on submissions to 5.0 launch layers by CUDA graphs [count]: its own do
from 4 nodes of H100, 8 of B200 and 9 of GB200 on (`MCORE_CUDA_GRAPH=1`; "Llama 2 70B LoRA" of its
guide to CUDA graphs), and so it is assumed of others. Without, 64 ranks that share 8 sequences on
GB200 would be 24 % too slow by their host alone, with the kernels of adapters 76."""


def kept(row: Row) -> Kept | None:
    """What an 8-bit fine-tuning row of MLPerf holds, recomputes and launches; None for other rows.

    Frozen weights are 8-bit (`fp8_params`), without their transposes
    (`disable_parameter_transpose_cache`): B200 and GB200 measure 134, 100 and 82 GiB with a half, a
    quarter and an eighth of a sequence of 8,192 tokens on each, a line from 65 GiB, which are 8-bit
    weights, not 16-bit ones (128), with no layer recomputed, and 138 GiB for a sequence (counted:
    144, of which adapters keep 30). A whole one would not fit; 169 GiB are measured, and what MLPs
    keep for their activation in 8 bits (`FP8_ACT=1`, in configurations of 5.1) is the difference.
    """
    if (
        not row.stack.lower().startswith(VERSIONS)
        or "lora" not in row.flags
        or base_precision(row.text("precision")) != "fp8"
    ):
        return None
    accelerator, submitter = row.accelerator.lower(), _SUBMITTER.search(row.text("url"))
    layers = RECOMPUTED.get(accelerator, 0.0)
    wide = accelerator.startswith(WIDE_ATTENTION)
    wide |= (
        accelerator.startswith("h200")
        and row.stack.endswith("v5.0")
        and not (submitter and submitter[1] in TENSOR_PAIRS)
    )
    wide |= row.text("attention") == "none"
    degrees = submitted(row)
    narrow = (
        accelerator.startswith(("b200", "gb200"))
        and (degrees.cp if degrees else row.number("cp") or 1.0) == 1.0
    )
    large = (row.number("n_accel") or 0.0) >= GRAPHED_FROM
    graphed = row.stack.lower().endswith("v5.0") and large and not accelerator.startswith("mi")
    again = f"recompute blank: {f'{layers:g} layers' if layers else 'none'}, as in {CONFIGURED}"
    said = (
        f"frozen weights held in 8 bits: {CONFIGURED}",
        *([] if row.text("recompute") else [again]),
        *(["what MLPs keep is in 8 bits: peaks of such runs"] if narrow else []),
        *([f"CUDA graphs launch whole layers: {CONFIGURED}"] if graphed else []),
        *([] if wide else [f"attention core in 8 bits: {CONFIGURED}"]),
    )
    return Kept(
        1.0,
        min(layers / row.known("n_layers"), 1.0),
        float(narrow),
        2.0 if wide else 1.0,
        float(graphed),
        said,
    )
