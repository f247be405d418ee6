"""All tools on all protocols: scores, with ours on the same rows beside each."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments.benchmark.answers import Answers
from experiments.benchmark.protocols import PROTOCOLS, SPLITS, protocol, split
from experiments.benchmark.scoring import Score, by_task, score
from experiments.benchmark.table import table
from experiments.benchmark.tools import TOOLS, Known
from experiments.benchmark.tools import answers as of_tool

RESULTS = Path(__file__).parent / "results.json"
"""The committed results."""

OURS = "dmodel"
DIGITS = 4
"""Significant digits of a score."""


def assemble(
    names: Sequence[str],
    ours: Mapping[str, Answers],
    known: Mapping[str, Known],
    failed: Mapping[str, str],
) -> dict[str, Any]:
    """One document of everything.

    Args:
      names: protocols. ours: own answers by protocol. known: what each tool says of the rows.
      failed: tools that were not run, and why.
    """
    scores, parts = [], []
    for name in names:
        given = [(OURS, False, ours[name])] + [
            (tool, tuned, found)
            for tool, says in known.items()
            for tuned in (False, True)
            if (found := of_tool(name, says, TOOLS[tool].own, tuned)) is not None
        ]
        for tool, tuned, found in given:
            line = {"protocol": name, "tool": tool, "tuned": tuned}
            scores.append(line | _cells(score(name, found)) | _beside(name, found, ours[name]))
            parts += [line | {"task": t} | _cells(s) for t, s in by_task(name, found).items()]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {"dmodel-jax": _version(), "python": platform.python_version()},
        "rows": len(table().ids),
        "splits": splits_hash(),
        "protocols": {
            name: {"about": protocol(name).about, "questions": len(split(name))} for name in names
        },
        "tools": {name: _described(name, says) for name, says in known.items()},
        "not_run": dict(failed),
        "scores": scores,
        "tasks": parts,
    }


def _version() -> str:
    try:
        return importlib.metadata.version("dmodel-jax")
    except importlib.metadata.PackageNotFoundError:
        return "checkout"


def splits_hash() -> str:
    """Twelve digits that stand for all frozen splits."""
    digest = hashlib.sha256()
    for name in PROTOCOLS:
        digest.update((SPLITS / f"{name}.csv").read_bytes())
    return digest.hexdigest()[:12]


def _beside(name: str, found: Answers, ours: Answers) -> dict[str, Any]:
    """Our score on the questions that were answered."""
    same = score(name, ours, list(found))
    return {
        "ours": {
            key: value
            for key, value in _cells(same).items()
            if key in ("median", "mean", "area", "balanced")
        }
    }


def _cells(scored: Score) -> dict[str, Any]:
    """A score, rounded; what cannot be said is left out."""
    cells = scored._asdict().items()
    return {key: _rounded(value) for key, value in cells if value is not None}


def _rounded(value: float) -> float:
    return value if isinstance(value, int) else float(format(value, f".{DIGITS}g"))


def _described(name: str, says: Known) -> dict[str, Any]:
    tool = TOOLS[name]
    return {
        "title": tool.title,
        "source": tool.source,
        "version": says.version,
        "constant": tool.constant,
        "own": None if math.isnan(tool.own) else tool.own,
        "rows_with_time": len(says.seconds),
        "rows_with_peak": len(says.bytes),
        "not_covered": _shortened(says.reasons),
    }


MOST_REASONS = 12
"""Reasons that are listed by themselves."""


def _shortened(reasons: Mapping[str, int]) -> dict[str, int]:
    first = dict(list(reasons.items())[:MOST_REASONS])
    left = sum(reasons.values()) - sum(first.values())
    return first | ({"other reasons": left} if left else {})


def read(path: Path = RESULTS) -> dict[str, Any]:
    """Results that were written."""
    return json.loads(path.read_text(encoding="utf-8"))


def write(results: Mapping[str, Any], path: Path) -> Path:
    """Results as JSON, a line for each score."""
    lists = ("scores", "tasks")
    head = {key: value for key, value in results.items() if key not in lists}
    text = json.dumps(head, indent=1, ensure_ascii=False, allow_nan=False).removesuffix("\n}")
    for key in lists:
        lines = (json.dumps(line, allow_nan=False) for line in results[key])
        text += f',\n "{key}": [\n  ' + ",\n  ".join(lines) + "\n ]"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n}\n", encoding="utf-8")
    return path
