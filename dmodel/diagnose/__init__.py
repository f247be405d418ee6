"""Is a measured throughput what such runs have, and if not, why: causes ranked by Bayes.

Every cause is a change of the case with a size of its own; the model says what each would show,
and the fit's covariance how far it may be off (`docs/diagnosing.md`).
"""

from dmodel.lazily import surface

_NAMES = {
    "dmodel.diagnose.causes": ("Beliefs", "Cause", "beliefs", "cause_named"),
    "dmodel.diagnose.diagnosis": ("Diagnosis", "Explanation", "diagnose"),
    "dmodel.diagnose.measured": ("Measured", "measured", "step_seconds"),
    "dmodel.diagnose.subject": ("Records", "Stated", "Subject", "of_profile", "stated", "subject"),
}

surface(__name__, {name: home for home, names in _NAMES.items() for name in names})
