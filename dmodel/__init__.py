"""A differentiable model of distributed transformer training: step time, memory, energy and cost as
one pure function.

`step_time(system, model, plan, coefficients) -> Breakdown` is the core; `catalog` and `profiles`
give its inputs by name, `design` and `elasticities` are what is done with it. Everything counts in
float64: call `enable_float64()` first.
"""

from dmodel import catalog, profiles
from dmodel.breakdown import Breakdown
from dmodel.coefficients import Coefficients
from dmodel.design import design
from dmodel.records import Chip, Cluster, Layout, Model, Network, Plan, Precision, Software
from dmodel.returns import best_returns, half_return, marginal_returns
from dmodel.run import outputs
from dmodel.sensitivity import elasticities
from dmodel.step import memory_use, step_time
from dmodel.sweep import gradients, sweep
from dmodel.types import InputError, enable_float64

__version__ = "0.1.0"

__all__ = [
    "Breakdown",
    "Chip",
    "Cluster",
    "Coefficients",
    "InputError",
    "Layout",
    "Model",
    "Network",
    "Plan",
    "Precision",
    "Software",
    "best_returns",
    "catalog",
    "design",
    "elasticities",
    "enable_float64",
    "gradients",
    "half_return",
    "marginal_returns",
    "memory_use",
    "outputs",
    "profiles",
    "step_time",
    "sweep",
]
