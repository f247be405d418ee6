"""Is a measured throughput what such runs have, and if not, why: causes ranked by Bayes.

Every cause is a change of the case with a size of its own; the model says what each would show,
and the fit's covariance how far it may be off (`docs/diagnosing.md`). `diagnosis.diagnose` answers
about a `subject.Subject` and what was `measured.measured` of it.
"""
