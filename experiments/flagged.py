"""Rows of files that their tables mark as slow, and the others, each diagnosed by a fit that has
not seen it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibration.fit import fit
from calibration.predict import predict
from calibration.traces import Cases, read, to_cases
from dmodel import uncertainty
from dmodel.diagnose.diagnosis import TAIL
from dmodel.profiles import load
from experiments.study import say

FLAG = "slow-unexplained"

FOLDS = 5
"""Parts of the rows without a flag, each judged by a fit of the others [count]."""


def verdicts(files: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of files, apart by their flag: how many are said to be slower or faster than what
    nine of ten such runs take, by fits from the shipped profile that have not seen them."""
    cases = to_cases(read(list(files)))
    flagged = np.array([FLAG in str(f) for f in cases.labels.flag.tolist()])
    ratio, share = _unseen(cases, flagged)
    missed = np.abs(1.0 / ratio - 1.0) > 0.2
    groups = {
        "flagged, missed by more than a fifth": flagged & missed,
        "flagged": flagged,
        "not flagged": ~flagged,
    }
    return [
        {
            "rows": name,
            "count": int(mask.sum()),
            "said to be slower": 100.0 * float((share[mask] > 1.0 - TAIL).mean()),
            "said to be faster": 100.0 * float((share[mask] < TAIL).mean()),
        }
        for name, mask in groups.items()
        if mask.any()
    ]


def _unseen(cases: Cases, flagged: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of every row, what `_judged` says by a fit of rows without a flag that has not seen it."""
    fold = np.random.default_rng(0).integers(0, FOLDS, len(cases))
    ratio, share = np.ones(len(cases)), np.full(len(cases), 0.5)
    for judged in (flagged, *(~flagged & (fold == k) for k in range(FOLDS))):
        if judged.any():
            known = cases.take(~flagged & ~judged)
            ratio[judged], share[judged] = _judged(cases.take(judged), known)
    return ratio, share


def _judged(cases: Cases, known: Cases) -> tuple[np.ndarray, np.ndarray]:
    """Measured over predicted, and the share of such runs that take less, by a fit of some rows."""
    say(f"fitting {len(known)} rows for {len(cases)} others")
    found = predict(cases, fit(known, load("generic")) if len(known) else None)
    ratio = cases.labels.step_time_s / found.step_time_s
    return ratio, uncertainty.share_below(np.log(ratio) / found.scale)
