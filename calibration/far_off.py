"""Measured times that are far from what a profile predicts.

Such rows are named, never dropped, and a fit takes them as they stand: it may be the prediction
that is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibration.plausible import SLOW_FLAGS
from calibration.traces import Cases, Problem

FAR = 30.0
"""Times that a prediction may be off before the measurement is doubted: of the published rows none
is by more than 5, by whichever profile predicts it, and a time in milliseconds is by 1,000. Rows
that a table itself calls slow may be so once more: a sweep of nanotron has some that take up to 145
times what the prior predicts, all of them flagged."""


def far_off(cases: Cases, predicted: np.ndarray, profiles: Sequence[str]) -> list[Problem]:
    """Rows whose measured time is far from what a profile predicts, each with the reason; what is
    not measured is not judged.

    Args:
      predicted: step times [s], `[rows]`. profiles: names of what predicted them, `[rows]`.
    """
    labels, measured = cases.labels, cases.labels.step_time_s
    said_slow = np.array([_said_slow(flag) for flag in labels.flag], bool)
    ratio = measured / predicted
    off = (ratio > np.where(said_slow, FAR * FAR, FAR)) | (ratio < 1.0 / FAR)
    return [
        Problem(
            str(labels.file[i]),
            int(labels.line[i]),
            f"measured time {measured[i]:.6g} s: it is {_times(ratio[i])} the "
            f"{predicted[i]:.4g} s that profile {profiles[i]} predicts; expected within {FAR:g} "
            "times",
        )
        for i in np.flatnonzero(off).tolist()
    ]


def _said_slow(flag: object) -> bool:
    return not SLOW_FLAGS.isdisjoint(str(flag).replace(",", " ").replace(";", " ").split())


def _times(ratio: float) -> str:
    return (
        f"{ratio:.3g} times as long as" if ratio > 1.0 else f"{1.0 / ratio:.3g} times shorter than"
    )
