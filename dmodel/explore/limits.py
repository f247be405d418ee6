"""Where data movement ends training: sweeps of the study (arXiv 2411.01137) as the page shows them.

`python -m dmodel.explore.limits` writes the table anew, so that writing a page takes no search.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dmodel.explore.programs import Program, paths, program
from dmodel.theory import laws
from dmodel.theory.gpus import gpu
from dmodel.theory.layout import KINDS, LevelLayout
from dmodel.theory.profile import training
from dmodel.theory.study import DEADLINE_S, headline, sweep_widths
from dmodel.theory.tiling import RELAXED

TABLE = Path(__file__).parent / "limits.json"

COLUMNS = ("training_flop", "n_gpus", "utilization", "train_time_s")
"""What is kept of the smallest cluster of a width."""

LAYOUT = (
    *(f"{kind}_levels.{level}" for kind in KINDS for level in (0, 1)),
    *("n_microbatches", "interleave", "zero_bubble"),
)
"""Leaves of a layout that the sweep finds; all others are as they are by default."""

DIGITS = 6

SPARSE = {"dense": False, "sparse": True}
"""Kinds of models, and whether they have experts."""

Document = dict[str, Any]


def limits() -> Document:
    """The table: generation of a chip → the GPU that stands for it; by GPU and kind of model, rows
    of `COLUMNS`, for each its width and `LAYOUT`, and where linear scaling ends."""
    return json.loads(TABLE.read_text(encoding="utf-8"))


def document() -> Document:
    """The table, and what the page evaluates `point` on: numbers of the GPUs and of a layout."""
    found, usual = limits(), _usual()
    numbers = {name: _numbers(gpu(name), "gpu") for name in found["gpus"]}
    return found | {
        "numbers": numbers,
        "usual": _numbers(usual, "layout"),
        "layout": [f"layout.{name}" for name in LAYOUT],
        "deadline_s": DEADLINE_S,
    }


def _usual() -> LevelLayout:
    """A layout on one GPU of a network of two levels."""
    degrees = {f"{kind}_levels": np.ones(2) for kind in KINDS}
    return LevelLayout(**degrees, n_microbatches=1.0)


def _numbers(record: Any, name: str) -> dict[str, float]:
    """Numbers of a record by their path; those without an end are left out."""
    values = np.concatenate([np.ravel(x) for x in jax.tree.leaves(record)]).astype(float)
    pairs = zip(paths({name: record}), values.tolist(), strict=True)
    return {path: x for path, x in pairs if np.isfinite(x)}


def point(system: Any, layout: LevelLayout, width: Any, sparse: bool) -> dict[str, Any]:
    """A run of the study's laws in a layout, nothing rounded: away from its whole numbers the
    study's cuts would take less than there is.

    Args:
      system: of `theory.gpus.gpu`. width: of the model [element]. sparse: with experts. Static.

    Returns:
      Compute of the run [FLOP], its time [s], utilization [1], GPUs.
    """
    found = laws.run(width, sparse=sparse, rounding=False)
    of = training(system, found, layout, rules=RELAXED)
    return {
        "flop": found.flop,
        "seconds": of.train_time_s,
        "utilization": of.utilization,
        "gpus": layout.devices,
    }


def programs() -> dict[str, Program]:
    """`point` of dense and of sparse models, for GPUs with networks of two levels."""
    system = gpu(next(iter(limits()["gpus"])))
    records = system, _usual(), np.float64(12288.0)
    records = jax.tree.map(lambda x: np.asarray(x, np.float64), records)
    names = dict(zip(("gpu", "layout", "width"), records, strict=True))
    return {
        kind: program(partial(point, sparse=sparse), *records, names=names)
        for kind, sparse in SPARSE.items()
    }


def sweep(name: str, sparse: bool) -> Document:
    """The frontier of a GPU: the smallest cluster within three months for one width of models after
    the other.

    Args:
      name: of `theory.gpus.gpu`. sparse: models with experts.
    """
    system = gpu(name)
    clusters = sweep_widths(system, sparse=sparse)
    ends = headline(clusters, system)
    known = [cluster.best for cluster in clusters if cluster.best is not None]
    return {
        "rows": [_row(best) for best in known],
        "layouts": [_layout(best) for best in known],
        "linear_end": None if ends.linear_end is None else _row(ends.linear_end),
        "largest": None if ends.largest is None else _row(ends.largest),
    }


def _row(best: Any) -> list[float]:
    values = best.run.flop, best.n_gpus, best.utilization, best.train_time_s
    return [float(f"{float(x):.{DIGITS}g}") for x in values]


def _layout(best: Any) -> list[float]:
    """Width and `LAYOUT` of a cluster."""
    degrees = [float(x) for each in best.degrees for x in each]
    schedule = best.micro_batches, best.interleave, best.zero_bubble
    return [float(best.run.d_model), *degrees, *map(float, schedule)]


def made() -> Document:
    """The table as of now, of the GPUs that it has."""
    named = limits()["generations"]
    found = {n: {kind: sweep(n, of) for kind, of in SPARSE.items()} for n in named.values()}
    return {"generations": named, "columns": COLUMNS, "gpus": found}


def main() -> None:
    """Write the table."""
    TABLE.write_text(json.dumps(made(), separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
