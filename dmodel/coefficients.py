"""The one fitted tree: few numbers, each with a unit, a meaning, a bound, a default and a prior
width.

Values live in `Coefficients`; what is known about them lives beside, in `SPECS`. Fits run in an
unconstrained space:
`log` for a positive number, `logit` for a share between 0 and 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dmodel import struct
from dmodel.types import Array, at_hand, stack, taken


class Spec(NamedTuple):
    """What is known about one coefficient before any measurement.

    Attributes:
      unit, meaning: for people.
      bound: "share" (between 0 and 1, logit) or "positive" (log).
      default: value without measurements. width: prior standard deviation in the unconstrained
        space.
      scope: "hardware" (shared by all traces of a chip or fabric), "software" (belongs to a stack)
        or "both".
    """

    unit: str
    meaning: str
    bound: str
    default: float
    width: float
    scope: str


SPECS: dict[str, Spec] = {
    "matmul_efficiency": Spec(
        "1",
        "share of the peak rate that a large matmul reaches at the full clock",
        "share",
        0.78,
        0.45,
        "both",
    ),
    "matmul_half_rows": Spec(
        "token", "tokens at which a matmul reaches half of its rate", "positive", 100.0, 0.7, "both"
    ),
    # 87 on A100, 3 to 18 on chips since (calibration/micro/data/fits.json)
    "matmul_half_columns": Spec(
        "1",
        "columns (N) at which a matmul reaches half of its rate",
        "positive",
        20.0,
        0.7,
        "hardware",
    ),
    "matmul_half_inner": Spec(
        "1",
        "inner size (K) at which a 16-bit matmul reaches half of its rate",
        "positive",
        100.0,
        0.4,
        "both",
    ),
    "low_precision_efficiency": Spec(
        "1", "further share of the peak kept below 16 bits", "share", 0.9, 0.6, "both"
    ),
    "four_bit_efficiency": Spec(
        "1", "further share of the peak kept below 8 bits", "share", 0.75, 0.5, "both"
    ),
    "cast_traffic": Spec(
        "1",
        "memory traffic of casts below 16 bits over its count",
        "positive",
        1.0,
        0.5,
        "software",
    ),
    # 0.92 to 1.0 of products alone from 1,024 tokens for each expert on, however launched
    # (calibration/torch_step/data/products.csv)
    "grouped_efficiency": Spec(
        "1", "further share kept by the grouped matmuls of experts", "share", 0.85, 0.7, "both"
    ),
    # FlashAttention-2, cuDNN and FlashAttention-3 on H100: 0.35 to 0.75 (Shah et al. 2024, figures
    # 5 to 7)
    "attention_efficiency": Spec(
        "1",
        "share of the peaks that the attention core reaches at the full clock",
        "share",
        0.62,
        0.4,
        "both",
    ),
    # single calls: 1.2 on Hopper, 0.9 on Blackwell (calibration/micro/data/fits.json)
    "attention_exponentials": Spec(
        "1",
        "time of the exponentials of fused attention over their count",
        "positive",
        1.05,
        0.3,
        "hardware",
    ),
    # of FlashAttention-2, cuDNN and FlashAttention-3 on H100 (Shah et al. 2024, figures 5 and 6);
    # 1.6 of xFormers (flash-attention #416)
    "attention_backward": Spec(
        "1",
        "time of the backward pass of fused attention over its count",
        "positive",
        1.15,
        0.1,
        "software",
    ),
    # 1.5 on H200 (calibration/torch_step); single products of the tables tell 1.1 on A100
    "power_demand": Spec(
        "1",
        "power of products at the full clock over what the limit leaves",
        "positive",
        1.3,
        0.2,
        "hardware",
    ),
    "memory_efficiency": Spec(
        "1",
        "share of the memory bandwidth that streaming kernels reach",
        "share",
        0.75,
        0.3,
        "hardware",
    ),
    "elementwise_traffic": Spec(
        "1",
        "memory traffic of norms, activations, residuals and accumulated gradients over the least",
        "positive",
        1.5,
        0.8,
        "software",
    ),
    "softmax_traffic": Spec(
        "1", "memory traffic of unfused attention over its count", "positive", 1.0, 0.4, "software"
    ),
    "optimizer_traffic": Spec(
        "1", "memory traffic of the optimizer step over its count", "positive", 1.2, 0.5, "software"
    ),
    "loss_traffic": Spec(
        "1", "memory traffic of logits and loss over its count", "positive", 2.0, 0.4, "software"
    ),
    # what hosts measured take for a counted kernel of plain PyTorch, 1.3 to 3 ms for the 33 of a
    # layer in 16 bits: 9 to 20 of the 4.5 µs of an H100 (`host_s` of calibration/torch_step/data/
    # steps.csv, without what steps of no layers take); two standard deviations are 5 to 16
    "launch": Spec(
        "1", "time between kernels over the chip's kernel latency", "positive", 9.0, 0.3, "both"
    ),
    "rendezvous": Spec(
        "1",
        (
            "host time per peer of a tensor-parallel collective beside a pipeline over several "
            "nodes, "
            "over the latency"
        ),
        "positive",
        2.0,
        3.0,
        "software",
    ),
    "kernel_fill": Spec(
        "1", "time to fill and drain a kernel over the kernel latency", "positive", 0.6, 0.5, "both"
    ),
    # Megatron-Core's 40 million gradients of 4 bytes, PyTorch's DDP 25 MB, apex 100 MB, DeepSpeed
    # 5e8 elements
    "bucket": Spec(
        "byte",
        "what a message once per step carries, unless its group asks for more",
        "positive",
        1.6e8,
        0.7,
        "software",
    ),
    # a gather of 16 MiB over 8 begins within 4 to 9 µs and changes protocol for 11 to 57 more
    # (calibration/micro/data/fits.json)
    "collective_start": Spec("s", "fixed time of one collective", "positive", 3e-5, 0.2, "both"),
    # at others ranks have just met or need not wait: gathers run ahead, sums behind; of the size of
    # what single calls take besides
    "collective_skew": Spec(
        "s",
        "wait of tensor-parallel ranks for each other at a sum of products",
        "positive",
        3e-5,
        0.7,
        "software",
    ),
    "net_efficiency_inner": Spec(
        "1", "share of the innermost level's bandwidth", "share", 0.6, 0.4, "hardware"
    ),
    "net_efficiency_outer": Spec(
        "1", "share of the outer levels' bandwidth", "share", 0.75, 0.7, "both"
    ),
    "net_efficiency_tp_outer": Spec(
        "1", "further share for tensor parallelism across nodes", "share", 0.6, 0.8, "software"
    ),
    # single calls pay 0.9 to 1.1 of the catalog's for a hop over NVLink (the same); in blocks
    # NCCL's tuning table has 14 µs over InfiniBand, 2.8 times the catalog's
    "net_latency_inner": Spec(
        "1", "hop latency over the catalog's, innermost level", "positive", 1.1, 0.3, "hardware"
    ),
    "net_latency_outer": Spec(
        "1", "hop latency over the catalog's, outer levels", "positive", 2.8, 0.3, "both"
    ),
    "net_contention": Spec(
        "1",
        "bandwidth of outer levels falls as (members spanned)^-gamma",
        "share",
        0.03,
        1.0,
        "both",
    ),
    "overlap_tp": Spec(
        "1",
        "share of tensor-parallel communication that products hide",
        "share",
        0.3,
        1.0,
        "software",
    ),
    "overlap_cp": Spec(
        "1",
        "share of the window that hides context-parallel communication",
        "share",
        0.7,
        0.8,
        "software",
    ),
    "overlap_ep": Spec(
        "1",
        "share of the window that hides expert-parallel communication",
        "share",
        0.2,
        1.0,
        "software",
    ),
    "overlap_dp": Spec(
        "1",
        "share of the last backward passes that hides gradient reduction (ZeRO 0-2)",
        "share",
        0.5,
        1.0,
        "software",
    ),
    # most of it by default: NeMo's recipes gather beside the forward pass (overlap_param_sync), as
    # Megatron-LM does on demand
    "overlap_gather": Spec(
        "1",
        "share of the first forward passes that hides the gather of new parameters",
        "share",
        0.6,
        1.0,
        "software",
    ),
    "overlap_fsdp": Spec(
        "1",
        "share of the window that hides FSDP gathers and scatters",
        "share",
        0.8,
        0.8,
        "software",
    ),
    "overlap_pp": Spec(
        "1", "share of the window that hides pipeline transfers", "share", 0.3, 1.0, "software"
    ),
    # beside 16 channels products take 1.2 to 1.4 times as long, attention 1.12
    # (calibration/torch_step/data/channels.csv)
    "contention": Spec(
        "1", "compute time added per unit of hidden communication", "positive", 0.2, 0.7, "software"
    ),
    "bubble": Spec(
        "1", "pipeline bubble over the schedule's ideal", "positive", 1.0, 0.25, "software"
    ),
    "head_balance": Spec(
        "1",
        "share of the LM head's work spread evenly over the stages",
        "share",
        0.2,
        1.0,
        "software",
    ),
    "straggler": Spec(
        "1", "relative jitter of one device per step", "positive", 0.005, 0.7, "software"
    ),
    "overhead": Spec(
        "s", "fixed time per step: host, data, logging", "positive", 0.01, 1.0, "software"
    ),
}


class Coefficients(struct.PyTreeNode, kw_only=True):
    """Values of the coefficients; units and meanings in `SPECS`, in the same order. Scalars, or one
    value per case `[*batch]`."""

    matmul_efficiency: Array
    matmul_half_rows: Array
    matmul_half_columns: Array
    matmul_half_inner: Array
    low_precision_efficiency: Array
    four_bit_efficiency: Array
    cast_traffic: Array
    grouped_efficiency: Array
    attention_efficiency: Array
    attention_exponentials: Array
    attention_backward: Array
    power_demand: Array
    memory_efficiency: Array
    elementwise_traffic: Array
    softmax_traffic: Array
    optimizer_traffic: Array
    loss_traffic: Array
    launch: Array
    rendezvous: Array
    kernel_fill: Array
    bucket: Array
    collective_start: Array
    collective_skew: Array
    net_efficiency_inner: Array
    net_efficiency_outer: Array
    net_efficiency_tp_outer: Array
    net_latency_inner: Array
    net_latency_outer: Array
    net_contention: Array
    overlap_tp: Array
    overlap_cp: Array
    overlap_ep: Array
    overlap_dp: Array
    overlap_gather: Array
    overlap_fsdp: Array
    overlap_pp: Array
    contention: Array
    bubble: Array
    head_balance: Array
    straggler: Array
    overhead: Array


NAMES: tuple[str, ...] = tuple(SPECS)


def default() -> Coefficients:
    """The coefficients without any measurement."""
    return Coefficients(**{name: jnp.asarray(spec.default) for name, spec in SPECS.items()})


def unconstrained(name: str, value: float) -> float:
    """One coefficient in the unconstrained space: its logit if it is a share, else its logarithm.

    >>> round(unconstrained("matmul_efficiency", 0.5), 9), unconstrained("launch", 1.0)
    (0.0, 0.0)
    """
    return float(np.log(value) - (np.log1p(-value) if SPECS[name].bound == "share" else 0.0))


def to_unconstrained(values: Coefficients) -> Any:
    """`[coefficient, *batch]`: log of the positive ones, logit of the shares; by numpy where all
    are at hand."""
    given = [taken(getattr(values, name)) for name in SPECS]
    at = np if at_hand(*given) else jnp
    rows = [
        at.log(x) - at.log1p(-x) if spec.bound == "share" else at.log(x)
        for x, spec in zip(given, SPECS.values(), strict=True)
    ]
    return stack(*rows)


def from_unconstrained(z: Array) -> Coefficients:
    """Inverse of `to_unconstrained`; z is `[coefficient, *batch]`; by numpy where it is at hand."""
    z = taken(z)
    exp, share = (np.exp, _share) if at_hand(z) else (jnp.exp, jax.nn.sigmoid)
    kinds = {name: share if spec.bound == "share" else exp for name, spec in SPECS.items()}
    # what overflows is infinite, and what is no number stays none: JAX does not warn of either
    with np.errstate(over="ignore", invalid="ignore"):
        values = {name: kind(z[i]) for i, (name, kind) in enumerate(kinds.items())}  # type: ignore
        return Coefficients(**values)


def _share(z: np.ndarray) -> np.ndarray:
    """`1 / (1 + exp(−z))`, which does not overflow."""
    return np.exp(-np.logaddexp(0.0, -z))
