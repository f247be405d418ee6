"""The study of peaks: its measures of risk, and a source that is judged."""

import math

import numpy as np

from experiments.memory import area_under_curve, balanced_accuracy
from tests.studies import quick_study


def test_measures_of_risk():
    risk, beyond = np.array([0.1, 0.4, 0.4, 0.9]), np.array([False, True, False, True])
    assert area_under_curve(risk, beyond) == 0.875
    assert balanced_accuracy(risk, beyond) == 0.75
    assert math.isnan(area_under_curve(risk, np.ones(4, bool)))
    assert math.isnan(balanced_accuracy(risk, np.zeros(4, bool)))


def test_twelve_rows_of_a_source_say_more_than_none(tmp_path):
    none, twelve = quick_study("memory", tmp_path)["rows"]
    assert (none["rows_used"], twelve["rows_used"]) == (0, 12)
    assert twelve["rows_judged"] == none["rows_judged"] - 12
    assert twelve["median"] < 0.5 * none["median"]
    assert twelve["area"] > 0.95
