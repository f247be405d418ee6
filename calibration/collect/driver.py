"""Collect: from what a user asks for to records on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from calibration.collect import budget, runner, store
from calibration.collect.assumed import system_at
from calibration.collect.kinds import BENCHMARKS
from calibration.collect.machine import Machine, environment, machine
from calibration.collect.measure import FAILURES, PARAMETERS, grid, measurer
from calibration.collect.program import Options
from calibration.collect.runner import Event, Job, Outcome
from calibration.collect.tasks import Task, read_plan
from dmodel.errors import InputError

STACK = "dmodel-collect"
"""Software that ran the steps, as traces name it; the version of jax is its variant."""


class Collected(NamedTuple):
    """What a collection did. gain: nats that each task of a budgeted plan was expected to tell, by
    key."""

    outcome: Outcome
    tasks: list[Task]
    machine: Machine
    environment: dict[str, Any]
    gain: dict[str, float]


def collect(
    folder: Path,
    kinds: Sequence[str],
    *,
    plan: Path | None = None,
    budget_s: float | None = None,
    options: Options | None = None,
    job: Job | None = None,
    report: Callable[[Event], None] = lambda event: None,
    say: Callable[[str], None] = lambda text: None,
    retry: bool = False,
) -> Collected:
    """Measure what is not in the folder yet.

    Args:
      folder: of the records; made when missing. kinds: benchmarks, when no plan is given.
      plan: file with a list of tasks. budget_s: seconds to spend in all, earlier runs included; the
        most informative tasks come first.
      job: the processes that measure together (`hosts.join`). report: called before and after each
        task. say: for remarks.
      retry: measure again what failed or was unavailable before.

    Raises:
      InputError: unknown kind, unreadable plan, a folder that cannot be written, or nothing to
        measure.
    """
    job, m = job or Job(), machine()
    tasks = read_plan(plan, PARAMETERS) if plan else grid(list(kinds), m)
    if not tasks:
        raise InputError(
            f"nothing to measure: {', '.join(kinds)} needs more than the {m.n_devices} device "
            "here; ask for other kinds"
        )
    found = environment(m)
    costs, gain = {}, {}
    if budget_s is not None:
        say(
            f"choosing the most informative of {len(tasks)} measurements for {budget_s / 60:g} "
            "minutes"
        )
        tasks, costs, gain = _budgeted(tasks, m, found, folder if job.processes == 1 else None)
    with jax.enable_x64(False):
        outcome = runner.run(
            tasks,
            folder,
            found,
            measurer(m, options or Options(), job),
            job=job,
            budget_s=budget_s,
            estimate=(lambda task: costs[task.key("")]) if costs else None,
            report=report,
            failures=FAILURES,
            retry=retry,
            shared=lambda task: BENCHMARKS[task.kind].shared,
        )
    return Collected(outcome, tasks, m, found, gain)


def stack_of(found: dict[str, Any]) -> str:
    """Name of the stack in traces: `dmodel-collect/jax-0.10`."""
    return f"{STACK}/jax-{'.'.join(found['versions']['jax'].split('.')[:2])}"


def _host() -> Any:
    """The host's processor as a device; an accelerator where jax was told to see nothing else."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return jax.local_devices()[0]


def _budgeted(
    tasks: list[Task], m: Machine, found: dict[str, Any], folder: Path | None
) -> tuple[list[Task], dict[str, float], dict[str, float]]:
    """Tasks in the order of information per second; seconds of each by its bare key, nats by its
    key.

    What is finished in the folder comes first and counts as known. Processes of one job give none:
    they must agree on the order.
    """
    finished = store.read(folder).measurements if folder and folder.is_dir() else {}
    known = [at for at, task in enumerate(tasks) if task.key(found["identity"]) in finished]
    # planning is arithmetic in float64, which accelerators are slow at or have not
    with jax.enable_x64(True), jax.default_device(_host()):
        mean, sigma = budget.covariance(m.accelerator, stack_of(found))
        foreseen = budget.forecast(tasks, lambda precision: system_at(m, precision), mean, m)
        steps = budget.order(foreseen, sigma, known)
    ordered = [tasks[at] for at in known] + [tasks[step.at] for step in steps]
    costs = {task.key(""): float(cost) for task, cost in zip(tasks, foreseen.cost_s, strict=True)}
    return ordered, costs, {tasks[step.at].key(found["identity"]): step.gain for step in steps}
