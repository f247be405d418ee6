"""A differentiable model of distributed transformer training: step time, memory, energy and cost.

Nouns: `Job`, `cluster`, `Layout`; verbs over them: `predict`, `design`, `fit`, `evaluate`. A
prediction has its numbers as a `Case`, of which `step_time` and `memory_use` are pure functions,
differentiable in every leaf. Everything counts in float64: call `enable_float64()` before
differentiating by hand.
"""

from importlib.metadata import PackageNotFoundError, version

from dmodel import catalog, profiles
from dmodel.api import (
    Job,
    cluster,
    design,
    evaluate,
    fit,
    memory_use,
    predict,
    sensitivity,
    step_time,
)
from dmodel.breakdown import Breakdown
from dmodel.catalog.stack import stack
from dmodel.coefficients import Coefficients
from dmodel.errors import InputError
from dmodel.prediction import Prediction
from dmodel.records import Cluster, Layout, Model, Plan, Precision, Software
from dmodel.records.case import Case
from dmodel.types import enable_float64

try:
    __version__ = version("dmodel")
except PackageNotFoundError:  # a source tree that nobody installed
    __version__ = "0+unknown"

__all__ = [
    "Breakdown",
    "Case",
    "Cluster",
    "Coefficients",
    "InputError",
    "Job",
    "Layout",
    "Model",
    "Plan",
    "Precision",
    "Prediction",
    "Software",
    "catalog",
    "cluster",
    "design",
    "enable_float64",
    "evaluate",
    "fit",
    "memory_use",
    "predict",
    "profiles",
    "sensitivity",
    "stack",
    "step_time",
]
