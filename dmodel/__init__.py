"""A differentiable model of distributed transformer training: step time, memory, energy and cost.

Nouns: `Job`, `cluster`, `Layout`; verbs over them: `predict`, `diagnose`, `solve`, `design`,
`monte_carlo`, `fit`, `evaluate`. A prediction has its numbers as a `Case`, of which `step_time` and
`memory_use` are pure functions, differentiable in every leaf. Everything counts in float64: call
`enable_float64()` before differentiating by hand.

Importing the package loads nothing: each name brings what it needs when it is first used.
"""

from typing import TYPE_CHECKING

from dmodel.lazily import surface

if TYPE_CHECKING:
    from dmodel import catalog, profiles
    from dmodel.api import (
        Job,
        cluster,
        design,
        diagnose,
        evaluate,
        fit,
        memory_use,
        monte_carlo,
        predict,
        sensitivity,
        solve,
        step_time,
    )
    from dmodel.breakdown import Breakdown
    from dmodel.catalog.stack import stack
    from dmodel.coefficients import Coefficients
    from dmodel.errors import InputError
    from dmodel.installed import __version__ as __version__
    from dmodel.prediction import Prediction
    from dmodel.records import Cluster, Layout, Model, Plan, Precision, Software
    from dmodel.records.case import Case
    from dmodel.types import enable_float64

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
    "diagnose",
    "enable_float64",
    "evaluate",
    "fit",
    "memory_use",
    "monte_carlo",
    "predict",
    "profiles",
    "sensitivity",
    "solve",
    "stack",
    "step_time",
]

_NAMES = {
    "dmodel.api": (
        *("Job", "cluster", "design", "diagnose", "evaluate", "fit", "memory_use"),
        *("monte_carlo", "predict", "sensitivity", "solve", "step_time"),
    ),
    "dmodel.breakdown": ("Breakdown",),
    "dmodel.catalog": ("catalog",),
    "dmodel.catalog.stack": ("stack",),
    "dmodel.coefficients": ("Coefficients",),
    "dmodel.errors": ("InputError",),
    "dmodel.installed": ("__version__",),
    "dmodel.prediction": ("Prediction",),
    "dmodel.profiles": ("profiles",),
    "dmodel.records": ("Cluster", "Layout", "Model", "Plan", "Precision", "Software"),
    "dmodel.records.case": ("Case",),
    "dmodel.types": ("enable_float64",),
}

surface(__name__, {name: home for home, names in _NAMES.items() for name in names})
