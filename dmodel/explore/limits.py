"""Where data movement ends training: sweeps of the study (arXiv 2411.01137) as the page shows them.

`python -m dmodel.explore.limits` writes the table anew, so that writing a page takes no search.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parent / "limits.json"

COLUMNS = ("training_flop", "n_gpus", "utilization", "train_time_s")
"""What is kept of the smallest cluster of a width."""

DIGITS = 6

Document = dict[str, Any]


def limits() -> Document:
    """The table: generation of a chip → the GPU that stands for it; by GPU and kind of model, rows
    of `COLUMNS`, and where linear scaling ends."""
    return json.loads(TABLE.read_text(encoding="utf-8"))


def sweep(name: str, sparse: bool) -> Document:
    """The frontier of a GPU: the smallest cluster within three months for one width of models after
    the other.

    Args:
      name: of `theory.gpus.gpu`. sparse: models with experts.
    """
    from dmodel.theory.gpus import gpu
    from dmodel.theory.study import headline, sweep_widths

    system = gpu(name)
    clusters = sweep_widths(system, sparse=sparse)
    ends = headline(clusters, system)
    return {
        "rows": [_row(cluster.best) for cluster in clusters if cluster.best is not None],
        "linear_end": None if ends.linear_end is None else _row(ends.linear_end),
        "largest": None if ends.largest is None else _row(ends.largest),
    }


def _row(best: Any) -> list[float]:
    values = best.run.flop, best.n_gpus, best.utilization, best.train_time_s
    return [float(f"{float(x):.{DIGITS}g}") for x in values]


def made() -> Document:
    """The table as of now, of the GPUs that it has."""
    kinds, named = {"dense": False, "sparse": True}, limits()["generations"]
    found = {n: {kind: sweep(n, of) for kind, of in kinds.items()} for n in named.values()}
    return {"generations": named, "columns": COLUMNS, "gpus": found}


def main() -> None:
    """Write the table."""
    TABLE.write_text(json.dumps(made(), separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
