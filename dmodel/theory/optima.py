"""Rows of text that ask for the best layout at a given number of GPUs, answered in bulk; a row
without an answer has a reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np

from dmodel.errors import InputError
from dmodel.records import Cluster
from dmodel.sweep import quick_to_compile
from dmodel.theory import laws
from dmodel.theory.layout import KINDS
from dmodel.theory.profile import Training, training
from dmodel.theory.rows import DEGREES, Answers, Row, cell, system, whole
from dmodel.theory.search import Best, Problem, best_layouts, no_layout
from dmodel.theory.study import MONTH_S
from dmodel.theory.tiling import EXACT

COLUMNS = ("gpu", "model_type", "d_model", "d_ff", "n_gpus")
"""What a row needs; `gpu_variable` may stand in place of `gpu`."""

OUTLINE = (
    *("train_time_months", "utilization", *(f"{name}_per_level" for name in DEGREES.values())),
    *("n_microbatches", "pp_interleaving", "zero_bubble"),
)
"""Results that say most about a layout."""

WIDEST, WIDEST_INNER = max(laws.WIDTHS), 2**40
"""Beyond the widest model of the study its laws are not known; beyond the other, products of sizes
do not fit 64 bits."""


class _Asked(NamedTuple):
    name: str
    gpu: Cluster
    problem: Problem


def optima(rows: Sequence[Row]) -> Answers:
    """For each row the layout that trains its model fastest on its number of GPUs, and what the
    whole run takes [month, byte, 1].

    Rows of one GPU are searched together.
    """
    answers: list[Best | None] = [None] * len(rows)
    reasons, asked = [""] * len(rows), {}
    for i, row in enumerate(rows):
        try:
            asked[i] = _asked(row)
        except InputError as error:
            reasons[i] = str(error)
    for i, found in _best_of(asked):
        if isinstance(found, Best):
            answers[i] = found
        else:
            reasons[i] = str(found or no_layout(asked[i].problem.n_gpus))
    return Answers(_columns(answers, {i: a.gpu for i, a in asked.items()}), reasons)


def _best_of(asked: Mapping[int, _Asked]) -> Iterator[tuple[int, Best | InputError | None]]:
    """The place of each row, and its answer; those of one GPU are searched together."""
    for name, gpu in {a.name: a.gpu for a in asked.values()}.items():
        places = [i for i, a in asked.items() if a.name == name]
        found = best_layouts([asked[i].problem for i in places], gpu)
        yield from zip(places, found, strict=True)


@cache
def _run(width: int, inner: int, sparse: bool) -> laws.Run:
    return laws.run(float(width), float(inner), sparse=sparse)


def _asked(row: Row) -> _Asked:
    """What a row asks for.

    Raises:
      InputError: an unknown GPU or kind of model, sizes that are no whole numbers or beyond the
        study.
    """
    (gpu, rules), kind = system(row), cell(row, "model_type").lower()
    if rules != EXACT:
        raise InputError(
            "version: expected the code of 2024-10-23, whose search this is, or a blank; got "
            f"{cell(row, 'version')!r}"
        )
    if kind not in ("dense", "sparse"):
        raise InputError(f"model_type: expected dense or sparse, got {cell(row, 'model_type')!r}")
    sizes = {column: whole(row, column) for column in COLUMNS[2:]}
    for column, most in (("d_model", WIDEST), ("d_ff", WIDEST_INNER)):
        if sizes[column] > most:
            raise InputError(
                f"{column}: expected at most {most}, where the study ends, got {sizes[column]}"
            )
    return _Asked(
        cell(row, "gpu") or cell(row, "gpu_variable"),
        gpu,
        Problem(_run(sizes["d_model"], sizes["d_ff"], kind == "sparse"), sizes["n_gpus"]),
    )


def _columns(answers: list[Best | None], systems: dict[int, Cluster]) -> dict[str, np.ndarray]:
    """Results by name, `[row]`; None where a row has no answer."""
    found: dict[str, np.ndarray] = {}
    for (i, best), whole_run in zip(
        [(i, b) for i, b in enumerate(answers) if b], _training(answers, systems), strict=True
    ):
        for name, value in _cells(best, whole_run).items():
            found.setdefault(name, np.full(len(answers), None))[i] = value
    return found


def _training(answers: list[Best | None], systems: dict[int, Cluster]) -> list[Training]:
    """What each answer's whole run takes; those on networks of equally many levels are evaluated
    together."""
    known = {i: (systems[i], best.run, best.layout) for i, best in enumerate(answers) if best}
    groups: dict[int, list[int]] = {}
    for i, (cluster, *_) in known.items():
        groups.setdefault(cluster.network.n_levels, []).append(i)
    found: dict[int, Training] = {}
    for places in groups.values():
        together = _trained([known[i] for i in places])
        found |= {i: _one(together, at) for at, i in enumerate(places)}
    return [found[i] for i in known]


def _one(together: Training, at: int) -> Training:
    """One of several runs."""
    return jax.tree.map(lambda x: float(x[at]), together)


def _trained(cases: list[tuple]) -> Training:
    """What runs take, `[n]`; filled up to a power of two, so that code compiled once serves many
    numbers of rows."""
    more = (1 << (len(cases) - 1).bit_length()) - len(cases)
    batch = jax.tree.map(
        lambda *x: np.stack([np.asarray(v, np.float64) for v in x], -1),
        *cases,
        *[cases[-1]] * more,
    )
    return jax.device_get(jax.jit(training, compiler_options=quick_to_compile())(*batch))


def _cells(best: Best, whole_run: Training) -> dict[str, Any]:
    """One answer, named as the study's tables name it."""
    run, levels = best.run, dict(zip(KINDS, best.degrees, strict=True))
    degrees = {DEGREES[kind]: np.asarray(levels[kind]).astype(int).tolist() for kind in KINDS}
    return {
        "layers": int(run.layers),
        "sparsity_factor": int(run.experts),
        "training_flop": float(run.flop),
        "batch_size_tokens": int(run.batch_tokens),
        "feasible_in_memory": int(whole_run.mem_required_bytes <= whole_run.mem_available_bytes),
        "train_time_months": best.train_time_s / MONTH_S,
        "utilization": best.utilization,
        **{f"N_{name}": int(np.prod(each)) for name, each in degrees.items()},
        **{f"{name}_per_level": "x".join(str(x) for x in each) for name, each in degrees.items()},
        "n_microbatches": best.micro_batches,
        "pp_interleaving": best.interleave,
        "zero_bubble": int(best.zero_bubble),
        "tp_comm_months": whole_run.tp_comm_s / MONTH_S,
        "dp_comm_months": whole_run.dp_comm_s / MONTH_S,
        "pp_ep_comm_months": whole_run.pp_ep_comm_s / MONTH_S,
        "network_latency_months": whole_run.latency_s / MONTH_S,
    }
