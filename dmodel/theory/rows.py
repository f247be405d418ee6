"""Rows of text, as tables of the study hold them, answered in bulk; a row that cannot be answered
has a reason instead of numbers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, partial
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np

from dmodel.errors import InputError
from dmodel.records import Cluster
from dmodel.sweep import quick_to_compile
from dmodel.theory import laws
from dmodel.theory.gpus import Gpu, gpu
from dmodel.theory.layout import KINDS, LevelLayout
from dmodel.theory.profile import training
from dmodel.theory.tiling import EXACT, REVISION_3A871BE, Rules, matmul_time

Row = Mapping[str, str]

DEGREES = dict(zip(KINDS, ("DP", "TP_model", "TP_ff", "PP", "EP"), strict=True))
"""Kinds of parallelism as the tables name them."""

SHAPE = ("d_model", "d_ff", "layers", "sparsity_factor", "batch_size_seqs", "seq_len")
SWITCHES = ("zero_bubble", "overlap_TP", "overlap_DP", "overlap_PP")
LAYOUT_COLUMNS = (
    *("gpu", *SHAPE, "n_microbatches"),
    *(f"{name}_per_level" for name in DEGREES.values()),
    *("pp_interleaving", *SWITCHES, "recompute_activations"),
)
"""What a layout's row needs; `gpu_variable` may stand in place of `gpu`, and `version` may name the
revision of the study's code."""

MATMUL_COLUMNS = ("gpu", "d1", "d2", "b", "for_weight_grads")

LAYOUT_RESULTS = (
    "train_time_s",
    "utilization",
    "tp_comm_s",
    "dp_comm_s",
    "pp_ep_comm_s",
    "latency_s",
    "mem_required_bytes",
)

LARGEST = 2**53
"""Whole numbers beyond are not exact."""

VERSIONS = {
    "": (EXACT, None),
    "head_2024-10-23": (EXACT, None),
    "3a871be": (REVISION_3A871BE, 5e-6),
}
"""Revisions of the study's code: how products are cut, and the network latency when it is not that
of the table [s]."""


class Answers(NamedTuple):
    """columns: results by name, `[row]`, NaN where there is none. reasons: why a row has none, ""
    where it has, `[row]`."""

    columns: dict[str, np.ndarray]
    reasons: list[str]


def layouts(rows: Sequence[Row]) -> Answers:
    """Time, utilization, communication and memory of fixed layouts, `LAYOUT_RESULTS` of each
    row."""

    def function(case: Any, *, rules: Rules) -> dict[str, Any]:
        found = training(*case, rules=rules)
        return {name: getattr(found, name) for name in LAYOUT_RESULTS}

    return _answer(rows, _layout_case, function, LAYOUT_RESULTS)


def matmuls(rows: Sequence[Row]) -> Answers:
    """Time of matrix products, `time_s` of each row."""

    def function(case: Any, *, rules: Rules) -> dict[str, Any]:
        return {"time_s": matmul_time(*case[:-1], weight_gradient=case[-1], rules=rules)}

    return _answer(rows, _matmul_case, function, ("time_s",))


def cell(row: Row, name: str) -> str:
    """Text of a cell without blanks around it; "" where the row has no such column."""
    return (row.get(name) or "").strip()


def whole(row: Row, name: str) -> int:
    """A cell that has to be a whole number from 1 on.

    Raises:
      InputError: it is not, or too large to be exact.
    """
    return _whole(cell(row, name), name)


def _whole(text: str, name: str) -> int:
    try:
        value = float(text if "_" not in text else "nan")
    except ValueError:
        value = float("nan")
    if not (1 <= value <= LARGEST and value == int(value)):
        raise InputError(f"{name}: expected a whole number from 1 to 2^53, got {text!r}")
    return int(value)


def switch(row: Row, name: str) -> float:
    """A cell that has to be 0 or 1."""
    text = cell(row, name).lower()
    if text not in ("0", "1", "false", "true"):
        raise InputError(f"{name}: expected 0 or 1, got {cell(row, name)!r}")
    return float(text in ("1", "true"))


@cache
def _gpu(name: str) -> Cluster:
    return gpu(name)


def system(row: Row) -> tuple[Cluster, Rules]:
    """The GPU that a row names, and the rules of the revision that it names.

    Raises:
      InputError: unknown GPU or revision.
    """
    found, version = _gpu(cell(row, "gpu") or cell(row, "gpu_variable")), cell(row, "version")
    if version not in VERSIONS:
        raise InputError(
            f"version: expected one of {', '.join(v for v in VERSIONS if v)}, or a blank for "
            "the "
            f"first; got {version!r}"
        )
    rules, latency = VERSIONS[version]
    if latency is not None:
        network = found.network
        found = found.replace(
            network=network.replace(latency_s=np.full_like(network.latency_s, latency))
        )
    return found, rules


def _levels(row: Row, column: str, n_levels: int) -> list[int]:
    """Degrees of a cell like 8x4, one for each level."""
    parts = cell(row, column).lower().split("x")
    if len(parts) != n_levels:
        raise InputError(
            f"{column}: expected {n_levels} degrees, one per level of this GPU's network, like "
            f"{'x'.join('1' * n_levels)}; "
            f"got {cell(row, column)!r}"
        )
    return [_whole(part.strip(), column) for part in parts]


def _divides(parts: int, name: str, whole: int, what: str) -> None:
    if whole % parts:
        raise InputError(f"{name} {parts} does not divide {what} {whole}: choose a divisor")


def _check(n: Mapping[str, int], d: Mapping[str, int], zero_bubble: float) -> None:
    """Refuse a layout that cuts something into unequal parts, or that its schedule cannot run."""
    _divides(d["tp_model"], "TP_model", n["d_model"], "d_model")
    _divides(d["tp_ff"], "TP_ff", n["d_ff"], "d_ff")
    _divides(d["pp"], "PP", n["layers"], "layers")
    _divides(d["ep"], "EP", n["sparsity_factor"], "sparsity_factor")
    _divides(d["pp"] * n["pp_interleaving"], "PP · pp_interleaving", n["layers"], "layers")
    cut = d["dp"] * n["n_microbatches"] * n["sparsity_factor"]
    _divides(
        cut,
        "DP · n_microbatches · sparsity_factor",
        n["batch_size_seqs"] * n["seq_len"],
        "the batch's tokens",
    )
    if n["layers"] == 1:
        raise InputError("layers: expected 2 or more, got 1: activations move between layers")
    if zero_bubble and (n["n_microbatches"] < 2 * d["pp"] or n["pp_interleaving"] > 1):
        raise InputError(
            f"zero_bubble: expected n_microbatches ≥ 2 · PP = {2 * d['pp']} and pp_interleaving "
            f"1, got {n['n_microbatches']} and "
            f"{n['pp_interleaving']}"
        )


def _fits_levels(degrees: Mapping[str, list[int]], sizes: np.ndarray) -> None:
    """Refuse degrees that join more at a level than it has."""
    for level, size in enumerate(sizes):
        members = prod(d[level] for d in degrees.values())
        if members > size:
            raise InputError(
                f"level {level} of this network joins {size:.0f}, the degrees there make "
                f"{members}: move some outwards"
            )


def _layout_case(row: Row) -> tuple[tuple[Cluster, laws.Run, LevelLayout], Rules]:
    """Records of one row, all leaves float64."""
    found, rules = system(row)
    sizes = np.asarray(found.network.size)
    n = {name: whole(row, name) for name in (*SHAPE, "n_microbatches", "pp_interleaving")}
    degrees = {
        kind: _levels(row, f"{column}_per_level", len(sizes)) for kind, column in DEGREES.items()
    }
    switches = {name: switch(row, name) for name in SWITCHES}
    again = cell(row, "recompute_activations").lower()
    if again not in ("", "none", "true", "1", "false", "0"):
        raise InputError(
            "recompute_activations: expected a blank, True or False, got "
            f"{cell(row, 'recompute_activations')!r}"
        )
    _check(n, {kind: prod(d) for kind, d in degrees.items()}, switches["zero_bubble"])
    _fits_levels(degrees, sizes)
    parameters = laws.parameters(n["d_model"], n["d_ff"], n["layers"], n["sparsity_factor"])
    run = laws.Run(
        d_model=n["d_model"],
        d_ff=n["d_ff"],
        layers=n["layers"],
        experts=n["sparsity_factor"],
        parameters=parameters,
        dataset_tokens=laws.dataset(parameters),
        flop=laws.training_flop(parameters, n["sparsity_factor"]),
        batch_tokens=n["batch_size_seqs"] * n["seq_len"],
    )
    layout = LevelLayout(
        **{f"{kind}_levels": np.array(d, np.float64) for kind, d in degrees.items()},
        n_microbatches=n["n_microbatches"],
        interleave=n["pp_interleaving"],
        zero_bubble=switches["zero_bubble"],
        overlap_tp=switches["overlap_TP"],
        overlap_dp=switches["overlap_DP"],
        overlap_pp=switches["overlap_PP"],
        recompute=float(again in ("true", "1")),
        activations=float(again not in ("", "none")),
    )
    return (found, run, layout), rules


def _matmul_case(row: Row) -> tuple[tuple[Any, ...], Rules]:
    found, rules = system(row)
    chip: Gpu = found.chip  # type: ignore[assignment]
    sizes = (float(whole(row, name)) for name in ("d1", "d2", "b"))
    return (*sizes, chip, switch(row, "for_weight_grads")), rules


NOT_FINITE = "the answer is not a finite number: the sizes lie outside the range of float64"


def _answer(
    rows: Sequence[Row],
    case_of: Callable[[Row], tuple[Any, Rules]],
    function: Callable[..., dict[str, Any]],
    names: Sequence[str],
) -> Answers:
    """Make cases of rows, evaluate those of one structure together, and put the results where the
    rows are."""
    columns = {name: np.full(len(rows), np.nan) for name in names}
    groups, reasons = _grouped(rows, case_of)
    for rules, members in groups:
        places, cases = [i for i, _ in members], [case for _, case in members]
        for name, values in _evaluate(partial(function, rules=rules), cases).items():
            columns[name][places] = values
    finite = np.isfinite(np.stack(list(columns.values()))).all(0)
    for i in np.flatnonzero(~finite):
        reasons[i] = reasons[i] or NOT_FINITE
    return Answers(columns, reasons)


def _grouped(
    rows: Sequence[Row], case_of: Callable[[Row], tuple[Any, Rules]]
) -> tuple[list[tuple[Rules, list[tuple[int, Any]]]], list[str]]:
    """Rules and cases with their places, those of one structure together; and why rows are none."""
    reasons = [""] * len(rows)
    groups: dict[Hashable, tuple[Rules, list[tuple[int, Any]]]] = {}
    for i, row in enumerate(rows):
        try:
            case, rules = case_of(row)
        except InputError as error:
            reasons[i] = str(error)
            continue
        shapes = tuple(np.shape(x) for x in jax.tree.leaves(case))
        groups.setdefault((rules, shapes), (rules, []))[1].append((i, case))
    return list(groups.values()), reasons


def _evaluate(function: Callable[[Any], dict[str, Any]], cases: list[Any]) -> dict[str, np.ndarray]:
    """A function of cases of one structure, `[case]`; filled up to a power of two, so that code
    compiled once serves many numbers."""
    n = len(cases)
    cases = cases + [cases[-1]] * ((1 << (n - 1).bit_length()) - n)
    batch = jax.tree.map(lambda *x: np.stack([np.asarray(v, np.float64) for v in x], -1), *cases)
    found = jax.jit(function, compiler_options=quick_to_compile())(batch)
    return {name: np.asarray(values)[:n] for name, values in found.items()}
