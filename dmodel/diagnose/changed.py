"""Why a run became slower than it was: causes that may begin while a run goes on, against its own
level before.

The level before says where the run stands without the cause, so the doubt of the prediction does
not count: only how sure both levels are.
"""

from __future__ import annotations

from dmodel.diagnose.causes import beliefs
from dmodel.diagnose.diagnosis import Diagnosis, Explanation, diagnose
from dmodel.diagnose.measured import Measured
from dmodel.diagnose.subject import Subject
from dmodel.diagnose.telling import is_cause

NOTHING = 1e-9
"""Probability of ordinary scatter behind what was found to be a change."""

LEAST_DOUBT = 0.01
"""Relative error of a cause's effect on a step as the model has it, at least [1]."""


def why(run: Subject, predicted_s: float, factor: float, doubt: float) -> tuple[Explanation, ...]:
    """Causes of a change, most likely first; seconds are those of the predicted step.

    Args:
      predicted_s: step of the run as stated [s]. factor: level after over before, > 1.
      doubt: standard deviation of ln(factor).
    """
    found = _diagnosed(run, predicted_s * factor, max(doubt, LEAST_DOUBT))
    return tuple(each for each in found.causes if is_cause(each.name))


def _diagnosed(run: Subject, seconds: float, doubt: float) -> Diagnosis:
    held = beliefs()
    begin = {each.name: each.probability for each in held.causes if each.begins}
    known = run._replace(points=run.points[:, :1], misfit=doubt)
    return diagnose(known, Measured("time", seconds), held.only(begin, NOTHING, held.otherwise[0]))
