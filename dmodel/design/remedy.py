"""When no plan keeps the limits: which limit binds, by how much, and the nearest changes after
which a plan would fit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dmodel import struct
from dmodel.design import rows as rows_
from dmodel.design import search
from dmodel.design import space as spaces
from dmodel.design.choices import Choices
from dmodel.design.constraints import Use, violation
from dmodel.design.judge import Problem, evaluate, excess, used
from dmodel.design.space import Space
from dmodel.records import counts_of
from dmodel.stages import ENDS
from dmodel.topology import capacity

GROWTH = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Device counts tried, over the asked one."""


class Binding(struct.PyTreeNode, kw_only=True):
    """The limit that decides; `amount` is what is missing, 0 when the limit only costs speed.

    Attributes:
      name, unit: of the limit ("memory", "deadline", …, or "divisibility"). amount: missing, in the
        unit. message: the same in words.
    """

    name: str = struct.field(pytree_node=False)
    unit: str = struct.field(pytree_node=False)
    amount: float
    message: str = struct.field(pytree_node=False)


class Remedy(struct.PyTreeNode, kw_only=True):
    """A change after which a plan keeps all limits: what is changed, from and to, and in words."""

    name: str = struct.field(pytree_node=False)
    was: float
    becomes: float
    message: str = struct.field(pytree_node=False)


def roomiest(space: Space) -> np.ndarray:
    """Of each group the rows that need least memory: everything sharded over all of dp, as much as
    allowed recomputed, or nothing."""
    found = [rows_.EMPTY]
    for split in spaces.degrees(space):
        offered = spaces.options(space, split)
        stages = {offered.sharding[0][0], offered.sharding[-1][0]}
        sharding = [
            s for s in offered.sharding if s[0] in stages and s[1] in (1, split.dp) and s[2] == 1
        ]
        recompute = [
            x
            for x in offered.recompute
            if x[1] or x in (offered.recompute[0], offered.recompute[-1])
        ]
        small = offered._replace(
            sharding=sharding,
            recompute=recompute,
            placement=offered.placement[:1],
            sp=offered.sp[:1],
        )
        found.append(rows_.expanded(rows_.group_rows(split, small), small))
    return np.concatenate(found)


def fits(problem: Problem) -> bool:
    """Whether some plan that needs little memory keeps all limits."""
    rows = roomiest(problem.space)
    return bool(len(rows)) and bool((excess(problem, rows, evaluate(problem, rows)) <= 0.0).any())


def nearest(problem: Problem, known: list[np.ndarray]) -> np.ndarray:
    """The row that comes nearest to keeping all limits: of those known, and those that need little
    memory."""
    rows = np.concatenate([roomiest(problem.space), *(row[None] for row in known)])
    over = excess(problem, rows, evaluate(problem, rows))
    rows = rows[over == over.min()]
    return rows[rows_.plainest_first(rows, np.zeros(len(rows)))[0]]


def all_uses(problem: Problem, rows: np.ndarray) -> tuple[Use, ...]:
    """What rows use of everything limited."""
    seen = evaluate(problem, rows)
    return used(problem, rows, seen.step_time_s, seen.memory_bytes, seen.facility_watts)


def broken(problem: Problem, row: np.ndarray) -> list[Use]:
    """The limits that a plan breaks, the one that it breaks most, relative to what there is,
    first."""
    over = [
        (float(np.max(np.asarray(u.amount) / np.asarray(u.limit))), u)
        for u in all_uses(problem, row[None])
    ]
    return [u for x, u in sorted(over, key=lambda pair: -pair[0]) if x > 1.0]


def no_plan(space: Space) -> Binding:
    """Why there is no valid plan at all."""
    m, near = space.model, spaces.neighbouring_counts(space)
    heads = dict.fromkeys(f"{float(n):g}" for n in counts_of(m, "SPLIT"))
    rest = (
        f"device counts that do, nearest first: {', '.join(map(str, near))}"
        if near
        else "change the device count or the global batch"
    )
    text = (
        f"no valid plan: {space.n_devices} devices do not split into dp · tp · cp · pp with tp "
        f"dividing {' and '.join(heads)} heads, "
        f"pp {m.n_layers:g} layers (or nearly, with {ENDS:g} for embedding and head), cp "
        f"{m.seq_len:g} tokens and dp a global batch of "
        f"{space.global_batch}; {rest}"
    )
    return Binding(
        name="divisibility",
        unit="device",
        amount=float(min((abs(n - space.n_devices) for n in near), default=0)),
        message=text,
    )


def counts_instead(space: Space) -> tuple[Remedy, ...]:
    """The nearest device counts for which a valid plan exists."""
    was = float(space.n_devices)
    return tuple(
        Remedy(
            name="devices",
            was=was,
            becomes=float(n),
            message=f"use {n} devices instead of {space.n_devices}",
        )
        for n in spaces.neighbouring_counts(space)
    )


def binding(
    problem: Problem,
    closest: np.ndarray | None,
    best: float | None,
    beyond: np.ndarray | None,
    unlimited: float | None,
    decided: bool,
) -> Binding | None:
    """The limit that decides.

    Args:
      closest: where no plan that keeps all limits was found, the row that comes nearest. decided:
        all plans were looked at for that.
      best: merit of the best plan that keeps them. beyond, unlimited: the best row whatever the
        limits and its merit, where they are known.
    """
    if best is None and closest is not None:
        return _missing(problem, broken(problem, closest)[0], decided)
    if best is None or beyond is None or unlimited is None or best <= unlimited * (1.0 + 1e-9):
        return None
    uses = broken(problem, beyond)
    names = " and ".join(u.name for u in uses)
    unit = {"time": "s", "cost": "dollar", "energy": "J"}[problem.objective]
    text = (
        f"{names} {'binds' if len(uses) == 1 else 'bind'}: a step would take {unlimited:.3g} "
        f"{unit} without, against {best:.3g} {unit}"
    )
    return Binding(name=uses[0].name, unit=uses[0].unit, amount=0.0, message=text)


def _missing(problem: Problem, use: Use, decided: bool) -> Binding:
    """The limit that keeps all plans, or all that were found, from fitting."""
    lacking, limit = float(np.max(-np.asarray(use.margin))), float(np.asarray(use.limit))
    amount, total, short = (shown(x, use.unit) for x in (lacking, lacking + limit, limit))
    what = "no plan fits" if decided else "no plan was found that fits, but not all were checked"
    usable = " that plans may need" if float(problem.limits.memory) < 1.0 else ""
    where = f"{usable} on a device" if use.name == "memory" else ""
    text = (
        f"{what}: {use.name} binds ({use.rule}); the plan that comes closest needs {total} of "
        f"{short}{where}, {amount} too much"
    )
    return Binding(name=use.name, unit=use.unit, amount=lacking, message=text)


def shown(x: float, unit: str) -> str:
    """A number with its unit, as people read it."""
    if unit == "byte":
        return f"{x / 2**30:.1f} GiB"
    return f"{x / 86400.0:.1f} days" if unit == "s" and x > 86400.0 else f"{x:,.4g} {unit}"


def remedies(problem: Problem, closest: np.ndarray) -> tuple[Remedy, ...]:
    """The nearest change of each kind after which a plan keeps all limits; each was tried, those
    that do not help are left out."""
    kinds = [_choices(problem), _devices(problem), _batch(problem), _sequence(problem)]
    found = [change for kind in kinds for change in _first(kind)]
    return (*found, *_loosened(problem, closest))


def _first(changes: Iterator[tuple[Remedy, Problem]]) -> list[Remedy]:
    """The first change that helps."""
    for remedy, changed in changes:
        if spaces.degrees(changed.space) and fits(changed):
            return [remedy]
    return []


def _choices(problem: Problem) -> Iterator[tuple[Remedy, Problem]]:
    """Allow all recomputation and sharding, where that is not allowed."""
    now = problem.space.choices
    most = max(now.recompute) if now.recompute is not None else 1.0
    if most < 1.0:
        text = "allow full recomputation"
        changed = now.replace(recompute=(*(now.recompute or ()), 1.0))
        yield (
            Remedy(name="recompute", was=most, becomes=1.0, message=text),
            _chosen(problem, changed),
        )
    if 3 not in now.zero:
        changed = now.replace(zero=(*now.zero, 3))
        yield (
            Remedy(
                name="zero", was=float(max(now.zero)), becomes=3.0, message="allow ZeRO stage 3"
            ),
            _chosen(problem, changed),
        )
        if most < 1.0:
            both = changed.replace(recompute=(*(now.recompute or ()), 1.0))
            text = "allow ZeRO stage 3 and full recomputation"
            yield (
                Remedy(name="zero", was=float(max(now.zero)), becomes=3.0, message=text),
                _chosen(problem, both),
            )


def _chosen(problem: Problem, choices: Choices) -> Problem:
    return problem.replace(space=problem.space.replace(choices=choices))


def _devices(problem: Problem) -> Iterator[tuple[Remedy, Problem]]:
    """More devices: multiples of the asked count."""
    n = problem.space.n_devices
    for factor in GROWTH:
        if factor * n > capacity(problem.system.network):
            return
        text = f"use {factor * n} devices instead of {n}"
        changed = problem.replace(space=problem.space.replace(n_devices=factor * n))
        yield Remedy(name="devices", was=float(n), becomes=float(factor * n), message=text), changed


def _batch(problem: Problem) -> Iterator[tuple[Remedy, Problem]]:
    """A smaller global batch: its largest divisors first."""
    batch = problem.space.global_batch
    for smaller in spaces.divisors(batch)[-2::-1][:6]:
        text = f"use a global batch of {smaller} sequences instead of {batch}"
        changed = problem.replace(space=problem.space.replace(global_batch=smaller))
        yield (
            Remedy(name="global batch", was=float(batch), becomes=float(smaller), message=text),
            changed,
        )


def _sequence(problem: Problem) -> Iterator[tuple[Remedy, Problem]]:
    """Shorter sequences: halves."""
    space = problem.space
    now = float(space.model.seq_len)
    for factor in (2.0, 4.0, 8.0, 16.0):
        if now % factor == 0.0:
            text = f"use sequences of {now / factor:g} tokens instead of {now:g}"
            changed = problem.replace(
                space=space.replace(model=space.model.replace(seq_len=now / factor))
            )
            yield (
                Remedy(name="sequence length", was=now, becomes=now / factor, message=text),
                changed,
            )


OF_RUN = {
    "deadline": ("time", "deadline_s"),
    "budget": ("cost", "dollars"),
    "energy": ("energy", "joules"),
}
"""Limits of a run → objective that makes least of what they limit, and their names in `Limits`."""


def _loosened(problem: Problem, closest: np.ndarray) -> list[Remedy]:
    """What each limit that the closest plan breaks would have to be with the others as they are;
    all of them together where none helps."""
    uses = [_of_device(problem, use) for use in broken(problem, closest)]
    each = [(use, _needed(problem, use.name, closest)) for use in uses]
    if alone := [
        _limit(use, needed, _instead(use, needed)) for use, needed in each if needed is not None
    ]:
        return alone
    amounts = [float(np.max(np.asarray(use.amount))) for use in uses]
    together = " and ".join(
        _instead(use, amount) for use, amount in zip(uses, amounts, strict=True)
    )
    return [_limit(uses[0], amounts[0], together)]


def _limit(use: Use, needed: float, text: str) -> Remedy:
    return Remedy(
        name=use.name, was=float(np.asarray(use.limit)), becomes=needed, message=f"use {text}"
    )


def _instead(use: Use, needed: float) -> str:
    what = "devices with a memory of" if use.name == "memory" else f"a limit of {use.name} of"
    return (
        f"{what} {shown(needed, use.unit)} instead of "
        f"{shown(float(np.asarray(use.limit)), use.unit)}"
    )


def _of_device(problem: Problem, use: Use) -> Use:
    """A use of a whole device, of which plans may need a share."""
    if use.name != "memory":
        return use
    share = float(problem.limits.memory)
    return use._replace(amount=np.asarray(use.amount) / share, limit=np.asarray(use.limit) / share)


def _needed(problem: Problem, name: str, closest: np.ndarray) -> float | None:
    """The least of a limited thing with which a plan keeps all other limits: of all plans for
    limits of the run, else of those that need little memory; None when there is no such plan."""
    rows = np.concatenate([roomiest(problem.space), closest[None]])
    if name in OF_RUN:
        objective, field = OF_RUN[name]
        rows = search.exact(
            problem.replace(objective=objective, limits=problem.limits.replace(**{field: np.inf})),
            1,
        ).rows
        if not len(rows):
            return None
    found = {u.name: _of_device(problem, u) for u in all_uses(problem, rows)}
    kept = violation(tuple(u for u in found.values() if u.name != name)) <= 0.0
    amounts = np.broadcast_to(np.asarray(found[name].amount, dtype=float), len(rows))[
        np.broadcast_to(kept, len(rows))
    ]
    return float(amounts.min()) if len(amounts) else None
