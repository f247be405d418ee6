"""A training step to measure: a decoder transformer on a mesh of devices, built from the same
description that the model predicts from.

>>> from calibration.collect.workload import WorkloadSpec, build
>>> import jax
>>> workload = build(WorkloadSpec(precision="fp32"), jax.devices()[:1])
>>> state, loss = workload.step(workload.state, workload.batch())
>>> round(float(loss), 1)
6.0
"""

from calibration.collect.workload.mesh import groups_on, make_mesh, shard_axes
from calibration.collect.workload.spec import (
    AXES,
    WorkloadSpec,
    from_row,
    plan,
    to_row,
    transformer,
)
from calibration.collect.workload.step import Batch, State, Workload, build, lower

__all__ = [
    "AXES",
    "Batch",
    "State",
    "Workload",
    "WorkloadSpec",
    "build",
    "from_row",
    "groups_on",
    "lower",
    "make_mesh",
    "plan",
    "shard_axes",
    "to_row",
    "transformer",
]
