"""The model against XLA, on the same step: FLOPs, bytes on the wire, bytes in memory. `python -m
calibration.collect.compare`.

Eight virtual CPU devices, fp32 (a CPU's XLA widens 16-bit sums, which a GPU or TPU does not). Each
line has what the model says, what the compiled program does, the known causes of their difference
with amounts (`known`), and what is left unexplained. Collectives that the model leaves out by
design (its limits say so) are listed apart. Nothing runs: programs are compiled and read. Exit code
1 when a line is further from the model with its known causes than `TARGETS`, 2 when no case was
meant.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

from calibration.collect import expected, hlo, known
from calibration.collect.known import Cause
from calibration.collect.workload import AXES, WorkloadSpec, groups_on, lower, make_mesh
from dmodel.sweep import quick_to_compile

DEVICES = 8
SMALL = WorkloadSpec(
    n_layers=4,
    d_model=128,
    d_ff=512,
    n_heads=8,
    n_kv_heads=4,
    head_dim=16,
    vocab=256,
    seq_len=64,
    micro_batch=2,
    precision="fp32",
)
SPARSE = SMALL._replace(
    n_layers=2, n_experts=8, top_k=2, capacity_factor=1.5, d_ff=256, micro_batch=4
)
CASES: dict[str, WorkloadSpec] = {
    "one device": SMALL,
    "one device, selective": SMALL._replace(remat="selective", micro_batch=4),
    "one device, full": SMALL._replace(remat="full", micro_batch=8),
    "data 8": SMALL._replace(data=8),
    "fsdp 8": SMALL._replace(fsdp=8, zero=3, micro_batch=4),
    "data 2 · fsdp 4": SMALL._replace(data=2, fsdp=4, zero=3, n_microbatches=2),
    "tensor 4": SMALL._replace(tensor=4, micro_batch=4),
    "tensor 4, full": SMALL._replace(tensor=4, remat="full", micro_batch=8, sequence_parallel=True),
    "context 4": SMALL._replace(context=4, data=2, micro_batch=4),
    "fsdp 2 · tensor 2 · context 2": SMALL._replace(
        fsdp=2, tensor=2, context=2, zero=3, micro_batch=4, sequence_parallel=True, n_microbatches=2
    ),
    "expert 4 · data 2": SPARSE._replace(expert=4, data=2),
    "fsdp 2 · expert 2 · tensor 2": SPARSE._replace(
        fsdp=2, expert=2, tensor=2, zero=3, sequence_parallel=True
    ),
    "expert 2 · tensor 4, sequence whole": SPARSE._replace(expert=2, tensor=4),
    "pipeline 2 · data 2 · tensor 2": SMALL._replace(
        pipeline=2, data=2, tensor=2, n_microbatches=4
    ),
    "pipeline 4 · fsdp 2": SMALL._replace(pipeline=4, fsdp=2, zero=3, n_microbatches=8),
}
LARGE = WorkloadSpec(
    n_layers=24,
    d_model=2048,
    d_ff=5632,
    n_heads=16,
    n_kv_heads=8,
    head_dim=128,
    vocab=32000,
    seq_len=2048,
    micro_batch=2,
    precision="fp32",
    attention="flash",
)
LARGE_SPARSE = LARGE._replace(
    n_experts=8, top_k=2, capacity_factor=1.25, expert_group=64, d_ff=2048
)
MEMORY: dict[str, WorkloadSpec] = {
    "one device": LARGE,
    "one device, scores written": LARGE._replace(attention="none", seq_len=512, micro_batch=8),
    "one device, selective": LARGE._replace(attention="none", remat="selective"),
    "one device, full": LARGE._replace(remat="full", micro_batch=8),
    "data 8": LARGE._replace(data=8, micro_batch=1),
    "fsdp 8": LARGE._replace(fsdp=8, zero=3),
    "fsdp 8, full": LARGE._replace(fsdp=8, zero=3, remat="full", micro_batch=4, n_microbatches=2),
    "tensor 4": LARGE._replace(tensor=4),
    "tensor 4, sequence split": LARGE._replace(tensor=4, sequence_parallel=True),
    "context 4": LARGE._replace(context=4, micro_batch=4),
    "fsdp 2 · tensor 2 · context 2": LARGE._replace(
        fsdp=2, tensor=2, context=2, zero=3, sequence_parallel=True, n_microbatches=2
    ),
    "expert 4 · data 2": LARGE_SPARSE._replace(expert=4, data=2),
    "fsdp 2 · expert 2 · tensor 2": LARGE_SPARSE._replace(
        fsdp=2, expert=2, tensor=2, zero=3, sequence_parallel=True
    ),
    "pipeline 2 · data 2 · tensor 2": LARGE._replace(
        pipeline=2, data=2, tensor=2, n_microbatches=16, micro_batch=1
    ),
    "pipeline 2, full": LARGE._replace(
        pipeline=2, data=4, n_microbatches=16, micro_batch=1, remat="full"
    ),
    "pipeline 4 · fsdp 2": LARGE._replace(
        pipeline=4, fsdp=2, zero=3, n_microbatches=32, micro_batch=1
    ),
}
"""Of 1.3 billion parameters (or experts of as many), so that the state, many layers and one layer
weigh what they do in practice."""

WIDE = SMALL._replace(
    d_model=512, d_ff=2048, head_dim=64, vocab=1024, seq_len=256, n_layers=2, unroll=True
)
UNROLLED: dict[str, WorkloadSpec] = {
    "one device": WIDE,
    "two micro-batches": WIDE._replace(n_microbatches=2, micro_batch=1),
    "fsdp 2 · tensor 2 · context 2": WIDE._replace(fsdp=2, tensor=2, context=2, zero=3),
    "experts": WIDE._replace(n_experts=4, top_k=2, d_ff=1024, capacity_factor=1.25, expert=2),
}
"""Loops written out, so that XLA's cost analysis sees each layer; wide, because it counts
elementwise arithmetic too."""

TARGETS = {"flops": 0.02, "wire": 0.05, "memory": 0.15}
"""Largest relative difference that may stay without a cause."""

LEFT_OUT = {
    "loss": "the loss summed for reporting",
    "hand_over": "the last stage's outputs, shared out over the stages for the head",
    "head": "softmax of the vocabulary-parallel head: a few numbers per token",
    "repeated": "sequence parallelism: the gather repeated behind the weight gradients",
    "replicas": "gradients of what tensor ranks or stages hold alike",
}


class Line(NamedTuple):
    """One compared quantity of one device and step. model, program: FLOPs or bytes. known: causes
    of their difference."""

    what: str
    model: float
    program: float
    known: tuple[Cause, ...] = ()

    @property
    def difference(self) -> float:
        """program / model − 1."""
        return self.program / self.model - 1.0 if self.model else float(self.program > 0.0)

    @property
    def unexplained(self) -> float:
        """The same once the known causes are added to the model."""
        explained = self.model + sum(c.amount for c in self.known)
        if abs(explained) <= 1e-9 * self.model:
            return float(self.program > 0.0)
        return self.program / explained - 1.0 if explained else float(self.program > 0.0)


class Comparison(NamedTuple):
    """All lines of one step. left_out: bytes on the wire that the model leaves out, by reason."""

    name: str
    flops: tuple[Line, ...]
    wire: tuple[Line, ...]
    left_out: dict[str, float]


def compiled(spec: WorkloadSpec) -> Any:
    """The step's program on the first devices; quick to compile where that changes neither
    products, collectives nor buffers."""
    devices = jax.devices()[: spec.devices]
    on_cpu = devices[0].platform == "cpu"
    # sums of different purpose stay apart, so that each keeps its name
    options = (
        (quick_to_compile() or {}) | {"xla_disable_hlo_passes": "cpu-all-reduce-combiner"}
        if on_cpu
        else None
    )
    return lower(spec, devices).compile(compiler_options=options)


def compare(name: str, spec: WorkloadSpec) -> Comparison:
    """Compile a step and put its products and collectives beside the model."""
    module = hlo.parse(compiled(spec).as_text())
    wire, left_out = _wire(spec, module)
    return Comparison(name, tuple(_flops(spec, module)), tuple(wire), left_out)


def _flops(spec: WorkloadSpec, module: hlo.Module) -> Iterator[Line]:
    """Products of layers, attention core and head, and last their sum; the sum alone when XLA
    rewrote some and dropped their names, as it does with batches of one head or one expert."""
    done: defaultdict[str, float] = defaultdict(float)
    for product in hlo.products(module):
        scopes = (s for s in ("core", "layers", "head") if _within(s, product.op_name))
        done[next(scopes, "nameless")] += product.flops * product.times
    model, causes = expected.flops(spec), known.flops(spec)
    for part in model._fields if not done["nameless"] else ():
        yield Line(part, getattr(model, part), done[part], tuple(causes[part]))
    yield Line(
        "all products",
        sum(model),
        sum(done.values()),
        tuple(c for part in causes.values() for c in part),
    )


def _within(scope: str, op_name: str) -> bool:
    return re.search(rf"\b{scope}\b", op_name) is not None


def _wire(spec: WorkloadSpec, module: hlo.Module) -> tuple[list[Line], dict[str, float]]:
    """Each axis and kind that model or program knows, and what the model leaves out."""
    sent, left_out = defaultdict(float), defaultdict(float)
    axes_of = _axes_by_group(spec)
    for c in hlo.collectives(module):
        axes = axes_of.get(c.groups, ("pipeline",) if c.kind == "collective-permute" else ())
        for where, key, nbytes in _claims(spec, c, axes):
            (sent if where == "model" else left_out)[key] += nbytes
    model, causes = expected.wire_bytes(spec), known.wire_bytes(spec)
    keys = sorted(key for key in model.keys() | sent.keys() if model.get(key, 0.0) or sent[key])
    return [
        Line(f"{a} {k}", model.get((a, k), 0.0), sent[a, k], tuple(causes.get((a, k), ())))
        for a, k in keys
    ], dict(left_out)


def _axes_by_group(spec: WorkloadSpec) -> dict[Any, tuple[str, ...]]:
    mesh = make_mesh(spec, jax.devices()[: spec.devices])
    live = [a for a in AXES if spec.size(a) > 1]
    return {
        groups_on(mesh, axes): axes
        for n in range(1, len(live) + 1)
        for axes in itertools.combinations(live, n)
    }


def _claims(
    spec: WorkloadSpec, c: hlo.Collective, axes: tuple[str, ...]
) -> Iterator[tuple[str, Any, float]]:
    """("model", (axis, kind), bytes) for what the model speaks of, ("left out", reason, bytes) for
    the rest."""
    if _within("gradients", c.op_name):
        # ranks of tensor and pipeline take part in the sums of what they hold alike: the model sums
        # over the data ranks only
        n = spec.size(tuple(a for a in axes if a not in ("tensor", "pipeline")))
        counted = 2.0 * (n - 1.0) / n * c.nbytes * c.times
        yield "model", ("data", c.kind), counted
        yield "left out", LEFT_OUT["replicas"], c.wire_bytes - counted
    elif _within("weights", c.op_name):
        yield "model", ("fsdp", c.kind), c.wire_bytes
    elif (
        scope := next((s for s in ("loss", "hand_over", "head") if _within(s, c.op_name)), None)
    ) is not None and not (scope == "head" and c.kind != "all-reduce"):
        yield "left out", LEFT_OUT[scope], c.wire_bytes
    elif (
        axes == ("tensor",) and spec.remat != "full" and _within("rematted_computation", c.op_name)
    ):
        yield "left out", LEFT_OUT["repeated"], c.wire_bytes
    else:
        yield "model", (" ".join(axes) or "unknown group", c.kind), c.wire_bytes


def memory(name: str, spec: WorkloadSpec) -> Line:
    """Buffers of the program (arguments, temporary ones, results not written over arguments)
    against the model's sum."""
    used = compiled(spec).memory_analysis()
    total = (
        used.argument_size_in_bytes
        + used.temp_size_in_bytes
        + used.output_size_in_bytes
        - used.alias_size_in_bytes
    )
    return Line(
        name,
        sum(expected.memory_bytes(spec).values()),
        float(total),
        tuple(known.memory_bytes(spec)),
    )


def cost_analysis(name: str, spec: WorkloadSpec) -> Line:
    """XLA's own count of FLOPs, elementwise arithmetic included, against the model's products."""
    found = compiled(spec).cost_analysis()["flops"]
    causes = [c for part in known.flops(spec).values() for c in part]
    return Line(name, sum(expected.flops(spec)), float(found), tuple(causes))


class Report(NamedTuple):
    """All that was compared."""

    cases: tuple[Comparison, ...]
    cost_analysis: tuple[Line, ...]
    memory: tuple[Line, ...]


def run(only: Sequence[str] = ("",)) -> Report:
    """Compare the cases whose kind and name contain one of some texts; progress on standard
    error."""

    def each(
        kind: str, cases: dict[str, WorkloadSpec], one: Callable[[str, WorkloadSpec], Any]
    ) -> tuple[Any, ...]:
        found = []
        for name, spec in cases.items():
            if any(part in f"{kind}: {name}" for part in only):
                print(f"{kind}: {name}", file=sys.stderr, flush=True)
                found.append(one(name, spec))
        return tuple(found)

    return Report(
        each("products and collectives", CASES, compare),
        each("cost analysis", UNROLLED, cost_analysis),
        each("memory", MEMORY, memory),
    )


def _table(title: str, rows: Sequence[tuple[str, Line]], unit: float) -> str:
    """A table of lines, amounts in `unit`."""
    if not rows:
        return f"{title}: nothing compared"
    lines = [f"{title:<60}{'model':>10}{'XLA':>10}{'difference':>12}{'unexplained':>13}"]
    for name, x in rows:
        lines.append(
            f"{name:<60}{x.model / unit:10.4f}{x.program / unit:10.4f}{x.difference:12.2%}"
            f"{x.unexplained:13.2%}"
        )
    return "\n".join(lines)


def text(report: Report) -> str:
    """The tables, the known causes, and what the model leaves out."""
    cases = report.cases
    parts = [
        _table("GFLOP of matrix products", [(c.name, c.flops[-1]) for c in cases], 1e9),
        _table(
            "GFLOP by XLA's cost analysis, loops written out",
            [(x.what, x) for x in report.cost_analysis],
            1e9,
        ),
        _table("MB on the wire", [(f"{c.name}: {x.what}", x) for c in cases for x in c.wire], 1e6),
        _table("GB in memory", [(x.what, x) for x in report.memory], 1e9),
    ]
    causes: defaultdict[str, list[str]] = defaultdict(list)
    lines = [(c.name, x) for c in cases for x in (*(c.flops[:-1] or c.flops), *c.wire)] + [
        (f"{what} of {x.what}", x)
        for what, found in (("cost analysis", report.cost_analysis), ("memory", report.memory))
        for x in found
    ]
    for name, x in lines:
        for cause in x.known:
            causes[cause.reason].append(f"{name} {cause.amount / x.model if x.model else 1.0:+.1%}")
    parts += ["Known causes, and their share of the model's figure:"]
    parts += [f"{reason}\n  " + "; ".join(shares) for reason, shares in causes.items()]
    left = [
        f"  {c.name}: {reason}: {nbytes / 1e6:.3f} MB"
        for c in cases
        for reason, nbytes in c.left_out.items()
        if nbytes >= 1e3
    ]
    return "\n\n".join([*parts, "Left out by the model (above 1 kB):\n" + "\n".join(left)])


def faults(report: Report) -> list[str]:
    """Lines whose difference has no known cause, beyond the targets."""
    found = [("flops", c.name, x) for c in report.cases for x in c.flops] + [
        ("wire", c.name, x) for c in report.cases for x in c.wire
    ]
    found += [("flops", "cost analysis", x) for x in report.cost_analysis] + [
        ("memory", "memory", x) for x in report.memory
    ]
    beyond = [
        (name, x, TARGETS[kind]) for kind, name, x in found if abs(x.unexplained) > TARGETS[kind]
    ]
    return [
        (
            f"{name}, {x.what}: {x.unexplained:+.2%} of the model has no known cause; at most "
            f"{t:.0%} "
            "may"
        )
        for name, x, t in beyond
    ]


def as_json(report: Report) -> dict[str, Any]:
    """All lines as plain data."""

    def plain(x: Line) -> dict[str, Any]:
        shares = {"difference": x.difference, "unexplained": x.unexplained}
        return (
            {"what": x.what, "model": x.model, "program": x.program}
            | shares
            | {"known": [c._asdict() for c in x.known]}
        )

    cases = [
        {
            "name": c.name,
            "left_out": c.left_out,
            "flops": [*map(plain, c.flops)],
            "wire": [*map(plain, c.wire)],
        }
        for c in report.cases
    ]
    return {
        "cases": cases,
        "cost_analysis": [*map(plain, report.cost_analysis)],
        "memory": [*map(plain, report.memory)],
    } | {"faults": faults(report)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(
        prog="python -m calibration.collect.compare", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    parser.add_argument(
        "--only",
        default=[""],
        nargs="+",
        metavar="TEXT",
        help="cases whose 'kind: name' contains a TEXT, such as 'memory'",
    )
    options = parser.parse_args(arguments)
    kinds = {"products and collectives": CASES, "cost analysis": UNROLLED, "memory": MEMORY}
    names = [f"{kind}: {name}" for kind, cases in kinds.items() for name in cases]
    if not any(part in name for part in options.only for name in names):
        parser.error(
            f"--only {' '.join(options.only)}: no such case; expected a part of one of\n  "
            + "\n  ".join(names)
        )
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    report = run(options.only)
    print(json.dumps(as_json(report), indent=1) if options.json else text(report))
    for fault in (found := faults(report)):
        print(fault, file=sys.stderr)
    if found:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
