"""What the model says of every published row today, under flat names, and the file that keeps it.

Of every row there is a number or a text by these names:

- leaves of its case: `chip.flops_per_s`, `network.size[0]`, `model.n_layers`, `plan.tp`; and static
  ones: `plan.schedule`; of a model's blocks those of `mean_layer.SIZES`;
- `profile`: the one that `dmodel predict` picks;
- by its coefficients `term.matmul` (and so on) and `step_time_s` [s], `mfu` [1]; the same under
  `perturbed.…`, with noise on the unconstrained coefficients;
- `memory.weights` (and so on, with `total`): of the device that the stack reports; `fullest.…`: of
  the fullest device with all that it holds [byte]; `oom_probability` of that one [1];
- `model_flops`: of a step on all devices [FLOP];
- `row.source` (and so on): cells that name the row, as written.

When records change, `leaf` has to be adapted, and `memory` and `model_flops`, which call the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from calibration.predict import Predictions, assign, predict
from calibration.traces import Cases, TraceTable, read, to_cases
from calibration.traces.published import PUBLISHED
from dmodel import counts
from dmodel.coefficients import NAMES
from dmodel.footprint import whole
from dmodel.profiles import Profile
from dmodel.records import LEAVES
from dmodel.records import leaf as plan_leaf
from dmodel.records.model import INSIDE
from dmodel.run import CONVENTION, tokens_per_step
from dmodel.step import memory_use
from dmodel.sweep import quick_to_compile
from dmodel.types import enable_float64
from tests.mean_layer import SIZES

FROZEN = Path(__file__).parent / "data" / "oracle.npz"

IDENTITY = ("source", "stack", "model", "accelerator", "n_accel", "url")
"""Cells that tell a row from others, with its line and how many rows before it have the same."""

NOISE_SEED, NOISE_SD = 0, 0.3
"""Of the noise on the unconstrained coefficients, one vector for all rows."""


class Answers(NamedTuple):
    """What the model says of every row.

    Attributes:
      line: of the file, `[rows]`. occurrence: rows before it with the same `IDENTITY`, `[rows]`.
      values: name → float64 or text, `[rows]`.
      noise: coefficient → what `perturbed.…` added to it, unconstrained.
    """

    line: np.ndarray
    occurrence: np.ndarray
    values: dict[str, np.ndarray]
    noise: dict[str, float]

    def identity(self, row: int) -> tuple:
        """Cells that name a row, and how many rows before it have the same."""
        cells = (str(self.values[f"row.{name}"][row]) for name in IDENTITY)
        return *cells, int(self.occurrence[row])


RECORDS: dict[str, Callable[[Cases], Any]] = {
    "chip": lambda cases: cases.system.chip,
    "network": lambda cases: cases.system.network,
    "model": lambda cases: cases.model,
    "plan": lambda cases: cases.plan,
}
"""Beginnings of the names of leaves, and the records that hold them."""


def leaf(cases: Cases, name: str) -> np.ndarray:
    """One leaf by its flat name, `[rows]`: the one place that knows where leaves are.

    Raises:
      AttributeError: there is none of that name.
    """
    record, _, field = name.partition(".")
    field, _, level = field.partition("[")
    if name == "plan.low_precision":
        value = cases.plan.precision.low_precision
    elif record == "plan" and field in LEAVES:
        value = plan_leaf(cases.plan, field)
    elif record == "model" and field in SIZES:
        value = SIZES[field](cases.model)
    else:
        value = getattr(RECORDS[record](cases), field)
    if isinstance(value, tuple):
        value = ",".join(value)
    if level:
        value = value[int(level.rstrip("]"))]
    values = np.asarray(value)
    number = values.dtype.kind != "U"
    return np.broadcast_to(values.astype(np.float64) if number else values, len(cases))


def leaf_names(cases: Cases) -> list[str]:
    """Flat names of all leaves that there are, static ones too."""
    names: list[str] = []
    for record, of in RECORDS.items():
        for field in fields(of(cases)):
            if record == "plan" and field.name not in LEAVES:
                names += [f"plan.{n}" for n in getattr(cases.plan, field.name).__dataclass_fields__]
                continue
            if record == "model" and field.name in INSIDE:
                continue
            value, name = getattr(of(cases), field.name), f"{record}.{field.name}"
            levels = len(value) if np.ndim(value) == 2 else 0
            names += [f"{name}[{k}]" for k in range(levels)] or [name]
    return names + [f"model.{name}" for name in SIZES]


def leaves(cases: Cases, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Those of the leaves that there are, `[rows]` each."""
    found = {}
    for name in names:
        try:
            found[name] = leaf(cases, name)
        except AttributeError:
            continue
    return found


def times(found: Predictions) -> dict[str, np.ndarray]:
    """Terms and step time [s], and model FLOP utilization [1], `[rows]` each."""
    terms = {f"term.{f.name}": getattr(found.breakdown, f.name) for f in fields(found.breakdown)}
    return {**terms, "step_time_s": found.step_time_s, "mfu": found.mfu}


def shifted(profile: Profile, noise: Mapping[str, float]) -> Profile:
    """The profile with noise on its coefficients; without covariances, which take time here."""
    center = profile.center + np.array([noise.get(name, 0.0) for name in NAMES])
    nothing: dict[str, Any] = {"covariance": None, "stack_covariances": {}, "pair_covariances": {}}
    return replace(profile, center=center, **nothing)


def perturbed(
    cases: Cases, profiles: list[Profile], noise: Mapping[str, float]
) -> dict[str, np.ndarray]:
    """`times` by each row's profile with noise, `[rows]` each.

    Every profile predicts all rows, so that they share compiled code; each row keeps its own.
    """
    names, values = np.array([p.name for p in profiles]), {}
    for name, profile in {p.name: p for p in profiles}.items():
        for quantity, found in times(predict(cases, shifted(profile, noise))).items():
            kept = values.get(f"perturbed.{quantity}", found)
            values[f"perturbed.{quantity}"] = np.where(names == name, found, kept)
    return values


def memory(cases: Cases, profiles: list[Profile]) -> dict[str, np.ndarray]:
    """Bytes by purpose `[rows]`: of the reported device, and of the fullest with all it holds."""
    stacks = map(str, cases.labels.stack)
    footprints = [p.footprint_for(s).footprint for p, s in zip(profiles, stacks, strict=True)]
    footprint = jax.tree.map(lambda *values: np.array(values), *footprints)
    records = cases.model, cases.plan, footprint

    def both(model: Any, plan: Any, footprint: Any) -> dict[str, Any]:
        kinds = {"memory": footprint, "fullest": whole(footprint)}
        return {kind: memory_use(model, plan, footprint=f) for kind, f in kinds.items()}

    found = jax.jit(both, compiler_options=quick_to_compile())(*records)
    return {
        f"{kind}.{name}": np.asarray(getattr(parts, name))
        for kind, parts in found.items()
        for name in (*(f.name for f in fields(parts)), "total")
    }


def model_flops(cases: Cases) -> np.ndarray:
    """Model FLOPs of a step by the convention of `dmodel predict`, `[rows]` [FLOP]."""
    per_token = counts.model_flops_per_token(cases.model, CONVENTION)
    return np.asarray(tokens_per_step(cases.model, cases.plan) * per_token)


def identities(table: TraceTable) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Line, occurrence and cells as written of the usable rows, `[rows]` each.

    Rows that are set aside count as occurrences too: they may be filled and become usable.
    """
    seen: dict[tuple, int] = {}
    at: dict[int, int] = {}
    for row in sorted((*table.rows, *table.aside), key=lambda row: row.line):
        cells = tuple(row.cells.get(name, "").strip() for name in IDENTITY)
        at[row.line] = seen[cells] = seen.get(cells, -1) + 1
    line = np.array([row.line for row in table.rows])
    occurrence = np.array([at[row.line] for row in table.rows])
    columns = {n: [row.cells.get(n, "").strip() for row in table.rows] for n in IDENTITY}
    return line, occurrence, {f"row.{name}": np.array(cells) for name, cells in columns.items()}


def answers(frozen: Answers | None = None) -> Answers:
    """What the code says of the shipped table's rows, as `dmodel predict FILE` reads them.

    Args:
      frozen: whose leaves to look up and whose noise to take; None: all leaves, and noise drawn.
    """
    enable_float64()
    table = read(PUBLISHED, require_time=False)
    cases = to_cases(table)
    noise = frozen.noise if frozen else drawn()
    names = frozen.values if frozen else leaf_names(cases)
    found, profiles = predict(cases), assign(cases, None)[0]
    line, occurrence, texts = identities(table)
    values = {
        **texts,
        **leaves(cases, [name for name in names if name.split(".")[0] in RECORDS]),
        "profile": np.array(found.profile),
        **times(found),
        **perturbed(cases, profiles, noise),
        **memory(cases, profiles),
        "memory.total": found.memory_bytes,
        "oom_probability": found.oom_probability,
        "model_flops": model_flops(cases),
    }
    return Answers(line, occurrence, values, noise)


def drawn() -> dict[str, float]:
    """Noise of every coefficient, unconstrained."""
    noise = NOISE_SD * np.random.default_rng(NOISE_SEED).standard_normal(len(NAMES))
    return dict(zip(NAMES, noise.tolist(), strict=True))


def save(found: Answers, path: Path = FROZEN) -> None:
    """Write every bit of the answers: each number and text once, and its places `[name, rows]`."""
    texts = {name: v for name, v in found.values.items() if v.dtype.kind == "U"}
    numbers = {name: v for name, v in found.values.items() if v.dtype.kind != "U"}
    # as bits, so that signs of zeros and what is no number are kept apart
    bits = np.stack([v.astype(np.float64).view(np.uint64) for v in numbers.values()])
    pool, place = np.unique(bits, return_inverse=True)
    words, word = np.unique(np.stack(list(texts.values())), return_inverse=True)
    np.savez_compressed(
        path,
        line=found.line.astype(np.int32),
        occurrence=found.occurrence.astype(np.int32),
        names=np.array(list(numbers)),
        numbers=pool.view(np.float64),
        places=place.reshape(len(numbers), -1).astype(np.int32),
        text_names=np.array(list(texts)),
        texts=words,
        text_places=word.reshape(len(texts), -1).astype(np.int32),
        noise_names=np.array(list(found.noise)),
        noise=np.array(list(found.noise.values())),
    )


def load(path: Path = FROZEN) -> Answers:
    """Inverse of `save`."""
    with np.load(path, allow_pickle=False) as held:
        file = {name: held[name] for name in held.files}
    texts, numbers = file["texts"][file["text_places"]], file["numbers"][file["places"]]
    values = dict(zip(file["text_names"].tolist(), texts, strict=True))
    values |= dict(zip(file["names"].tolist(), numbers, strict=True))
    noise = dict(zip(file["noise_names"].tolist(), file["noise"].tolist(), strict=True))
    return Answers(file["line"], file["occurrence"], values, noise)
