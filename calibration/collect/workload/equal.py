"""The same step on every mesh: `python -m calibration.collect.workload.equal`. Loss, and loss after
an update, against one device, in fp32.

The loss after the update tells whether the gradients agree as well: an update with AdamW is blind
to their scale but not to their signs, so the norm of the gradients' difference is compared too, by
the first moments.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from calibration.collect.workload.spec import WorkloadSpec
from calibration.collect.workload.step import build
from dmodel.sweep import quick_to_compile

DEVICES = 8
BATCH = 8
"""Sequences of a step, on every mesh the same."""

DENSE = WorkloadSpec(precision="fp32", n_layers=4, d_model=64, n_heads=8, n_kv_heads=8, head_dim=8)
SPARSE = DENSE._replace(
    n_layers=2, n_experts=8, top_k=2, capacity_factor=1.25, expert_group=8, d_ff=64
)
SHARDED = {"zero": 3}
MESHES: dict[str, tuple[WorkloadSpec, dict[str, int | bool | str]]] = {
    "dense, 4 micro-batches": (DENSE, {"n_microbatches": 4}),
    "dense, full recomputation": (DENSE, {"remat": "full"}),
    "dense, blocked attention": (DENSE, {"attention": "flash", "remat": "selective"}),
    "dense, data 8": (DENSE, {"data": 8}),
    "dense, fsdp 8": (DENSE, {"fsdp": 8, **SHARDED}),
    "dense, data 2 · fsdp 4": (DENSE, {"data": 2, "fsdp": 4, **SHARDED}),
    "dense, tensor 8": (DENSE, {"tensor": 8}),
    "dense, tensor 8, sequence split": (DENSE, {"tensor": 8, "sequence_parallel": True}),
    "dense, context 8": (DENSE, {"context": 8}),
    "dense, pipeline 4 · data 2": (DENSE, {"pipeline": 4, "data": 2, "n_microbatches": 4}),
    "dense, fsdp 2 · tensor 2 · context 2": (
        DENSE,
        {"fsdp": 2, "tensor": 2, "context": 2, "sequence_parallel": True, **SHARDED},
    ),
    "dense, pipeline 2 · fsdp 2 · tensor 2": (
        DENSE,
        {"pipeline": 2, "fsdp": 2, "tensor": 2, "n_microbatches": 2, **SHARDED},
    ),
    "tied, tensor 2 · fsdp 2": (DENSE._replace(tied=True), {"tensor": 2, "fsdp": 2, **SHARDED}),
    "plain MLP, tensor 2 · data 2": (DENSE._replace(gated=False), {"tensor": 2, "data": 2}),
    "experts, expert 8": (SPARSE, {"expert": 8}),
    "experts, expert 4 · fsdp 2": (SPARSE, {"expert": 4, "fsdp": 2, **SHARDED}),
    "experts, expert 2 · tensor 2 · context 2": (
        SPARSE,
        {"expert": 2, "tensor": 2, "context": 2, "sequence_parallel": True},
    ),
    "experts, pipeline 2 · expert 2 · tensor 2": (
        SPARSE,
        {"pipeline": 2, "expert": 2, "tensor": 2, "n_microbatches": 2},
    ),
}


class Result(NamedTuple):
    """loss, updated: before and after one update on the same batch. gradients: first moments, flat,
    in the order of the tree."""

    loss: float
    updated: float
    gradients: np.ndarray


class Difference(NamedTuple):
    """Relative differences to one device: of both losses, and of the gradients, |g − g₀| / |g₀|
    over all parameters."""

    mesh: str
    loss: float
    updated: float
    gradients: float


def run(spec: WorkloadSpec) -> Result:
    """Two steps on the same batch."""
    workload = build(spec, jax.devices()[: spec.devices], compiler_options=quick_to_compile())
    state, loss = workload.step(workload.state, workload.batch())
    moments = [np.asarray(x).ravel() for x in jax.tree.leaves(state.optimizer[0].mu)]
    _, updated = workload.step(state, workload.batch())
    return Result(float(loss), float(updated), np.concatenate(moments))


def differences(only: Sequence[str] = ("",)) -> list[Difference]:
    """Every mesh against one device, those whose name contains one of some texts; progress on
    standard error."""
    known: dict[WorkloadSpec, Result] = {}
    found = []
    for name, (model, layout) in MESHES.items():
        if not any(text in name for text in only):
            continue
        print(name, file=sys.stderr, flush=True)
        spec = model._replace(**layout)  # type: ignore[arg-type]
        spec = spec._replace(micro_batch=BATCH // (spec.data_ranks * spec.n_microbatches))
        if model not in known:
            known[model] = run(model._replace(micro_batch=BATCH))
        one, many = known[model], run(spec)
        gap = np.linalg.norm(many.gradients - one.gradients) / np.linalg.norm(one.gradients)
        found.append(
            Difference(
                name, many.loss / one.loss - 1.0, many.updated / one.updated - 1.0, float(gap)
            )
        )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(
        prog="python -m calibration.collect.workload.equal",
        description=(__doc__ or "").splitlines()[0],
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument(
        "--only", default=[""], nargs="+", metavar="TEXT", help="meshes whose name contains a TEXT"
    )
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    found = differences(options.only)
    if options.json:
        print(json.dumps([d._asdict() for d in found], indent=1))
    else:
        print(
            f"{'relative difference to one device':<46}{'loss':>10}{'updated':>10}{'gradients':>11}"
        )
        print(
            "\n".join(
                f"{d.mesh:<46}{d.loss:10.1e}{d.updated:10.1e}{d.gradients:11.1e}" for d in found
            )
        )


if __name__ == "__main__":
    main()
