"""Measurements that can hardly be right: times of more FLOP/s than the chips have, or far from what
a profile predicts; peaks of more memory than a device has.

Such rows are named, never dropped, and a fit takes them as they stand.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibration.traces import Cases, Problem
from dmodel.counts import active_parameters
from dmodel.run import tokens_per_step
from dmodel.tables import parameter_groups

FAR = 30.0
"""Times that a prediction may be off before the measurement is doubted: of the published rows none
is by more than 5, by whichever profile predicts it, and a time in milliseconds is by 1,000."""

SLOW_FLAGS = frozenset({"slow-unexplained", "offload"})
"""Flags by which a table itself says that a row is slow: it may be slower by `FAR` once more. A
sweep of nanotron has rows that take up to 145 times what the prior predicts, all of them flagged.
"""


def least_flops(cases: Cases) -> np.ndarray:
    """Model FLOPs that no implementation of a step can do without, all devices together [FLOP],
    `[rows]`.

    `6 N B s` with N the active parameters that take part in products: not the input embedding,
    which is looked up, unless it is the output head too. Attention scores and recomputation are
    left out; gradients of frozen weights are (4 for 6).
    """
    model = cases.model
    looked_up = np.asarray(parameter_groups(model).embedding * (1.0 - model.tied_embeddings))
    further = np.asarray(model.n_mtp * model.vocab * model.d_model)
    active = np.asarray(active_parameters(model)) + further - looked_up
    return (
        2.0
        * (2.0 + np.asarray(model.trainable))
        * active
        * np.asarray(tokens_per_step(model, cases.plan))
    )


def least_utilization(cases: Cases) -> np.ndarray:
    """Share of the chips' peak rate of products, at each row's precision, that its measured time
    implies at least [1], `[rows]`: more than 1 cannot be. NaN without a time."""
    peak = np.asarray(cases.plan.devices * cases.system.chip.flops_per_s)
    return least_flops(cases) / (peak * cases.labels.step_time_s)


ROOM = 1.1
"""Memory over the catalog's that a measured peak is not doubted for: vendors' gigabytes and tables'
roundings differ by less, MiB for GiB is 1,024."""


def too_much_memory(cases: Cases) -> list[Problem]:
    """Rows whose measured peak is more than their device has, each with the reason."""
    labels, peak = cases.labels, cases.labels.peak_memory_bytes
    has = np.broadcast_to(np.asarray(cases.system.chip.hbm_bytes), peak.shape)
    return [
        Problem(
            str(labels.file[i]),
            int(labels.line[i]),
            (
                f"measured peak of memory {peak[i] / 2**30:.6g} GiB: {labels.accelerator[i]} has "
                f"{has[i] / 2**30:.4g}; expected less"
            ),
        )
        for i in np.flatnonzero(peak > ROOM * has).tolist()
    ]


def implausible(cases: Cases, predicted: np.ndarray, profiles: Sequence[str]) -> list[Problem]:
    """Rows whose measured time or peak of memory looks like a slip, each with the reason: times in
    the order of the rows, then peaks; what is not measured is not judged.

    Args:
      predicted: step times [s], `[rows]`. profiles: names of what predicted them, `[rows]`.
    """
    labels = cases.labels
    measured, share = labels.step_time_s, least_utilization(cases)
    said_slow = np.array([_said_slow(flag) for flag in labels.flag], bool)
    ratio = measured / predicted
    slow, fast = ratio > np.where(said_slow, FAR * FAR, FAR), ratio < 1.0 / FAR
    found = []
    for i in np.flatnonzero((share > 1.0) | slow | fast).tolist():
        reasons = []
        if share[i] > 1.0:
            chips = f"{labels.n_accel[i]:g} × {labels.accelerator[i]} at {labels.precision[i]}"
            reasons.append(
                f"its products alone would take {share[i]:.3g} times the peak FLOP/s of {chips}; "
                "expected less than 1"
            )
        if slow[i] or fast[i]:
            reasons.append(
                f"it is {_times(ratio[i])} the {predicted[i]:.4g} s that profile {profiles[i]} "
                f"predicts; expected within {FAR:g} times"
            )
        text = f"measured time {measured[i]:.6g} s: {'; '.join(reasons)}"
        found.append(Problem(str(labels.file[i]), int(labels.line[i]), text))
    return found + too_much_memory(cases)


def _said_slow(flag: object) -> bool:
    return not SLOW_FLAGS.isdisjoint(str(flag).replace(",", " ").replace(";", " ").split())


def _times(ratio: float) -> str:
    return (
        f"{ratio:.3g} times as long as" if ratio > 1.0 else f"{1.0 / ratio:.3g} times shorter than"
    )
