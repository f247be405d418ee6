"""From a task to its measurement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from calibration.collect.kinds import BENCHMARKS
from calibration.collect.machine import Machine
from calibration.collect.program import Options, measured
from calibration.collect.runner import Job, Unavailable
from calibration.collect.tasks import Task, make, parse
from dmodel.errors import InputError

PARAMETERS = {kind: benchmark.parameters for kind, benchmark in BENCHMARKS.items()}

FAILURES = (RuntimeError, ValueError, TypeError, MemoryError)
"""What jax raises when a device lacks memory or a kernel lacks a precision: recorded with its text,
and the next task goes on."""


def grid(kinds: list[str], machine: Machine) -> list[Task]:
    """What is worth measuring of some kinds on a machine.

    Raises:
      InputError: unknown kind.
    """
    unknown = [kind for kind in kinds if kind not in BENCHMARKS]
    if unknown:
        raise InputError(
            f"--what: unknown {', '.join(unknown)}; expected some of {', '.join(BENCHMARKS)}, "
            "separated by commas"
        )
    return [make(kind, p) for kind in dict.fromkeys(kinds) for p in BENCHMARKS[kind].grid(machine)]


def parameters_of(task: Task) -> Any:
    """The task's parameter record.

    Raises:
      InputError: the task is none that this version knows.
    """
    return parse(task.kind, task.parameters, PARAMETERS)


def measurer(machine: Machine, options: Options, job: Job) -> Callable[[Task], Mapping[str, Any]]:
    """What the runner calls for each task."""

    def measure(task: Task) -> Mapping[str, Any]:
        try:
            program = BENCHMARKS[task.kind].build(parameters_of(task), machine)
        except InputError as error:
            raise Unavailable(str(error)) from None
        return measured(program, machine, options, job)

    return measure
