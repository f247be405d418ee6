"""What published runs are most like a plan, and whether any is near."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dmodel.cli.output import Document, digits

if TYPE_CHECKING:
    from dmodel.records import Model

SIZES = ("n_layers", "d_model", "n_experts", "seq_len")
"""Sizes of a model that tell runs apart."""


def columns_of(
    said: Mapping[str, Any], model: Model, plan: Document, devices: float, accelerator: str
) -> Document:
    """A run by columns of trace files.

    Args:
      said: columns of the question. plan: as `question.plan_document` has it.
    """
    from dmodel.records import value

    sizes = {name: float(value(model, name)) for name in SIZES}
    sizes["n_experts"] = max(sizes["n_experts"], 1.0)
    return {**sizes, **said, **plan, "n_accel": devices, "accelerator": accelerator}


def published_of(runs: Sequence[Document]) -> Document | None:
    """The published run that is nearest to any of some runs of one job, and whether it is near;
    None where none ran on a chip of their generation."""
    from calibration.traces.neighbours import NEAR, neighbours

    found = [each for run in runs for each in neighbours(run, 1)]
    if not found:
        return None
    nearest = min(found, key=lambda each: each.distance)
    return {**nearest._asdict(), "near": nearest.distance <= NEAR}


def far_line(published: Document | None) -> list[str]:
    """What is said where no published run is near."""
    if published is None:
        return ["No published run on such a chip is known: take these steps as a guess."]
    if published["near"]:
        return []
    return [
        "Outside of what was measured: the published run most like any of these plans is "
        f"{published['model']} on {published['devices']} × {published['accelerator']}, "
        f"{published['layout']} (distance {digits(published['distance'], 2)}; 1 is a factor of e "
        "in one size)."
    ]
