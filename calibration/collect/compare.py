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
from calibration.collect.compared import CASES, MEMORY, UNROLLED
from calibration.collect.known import Cause
from calibration.collect.workload import AXES, WorkloadSpec, groups_on, lower, make_mesh
from dmodel.sweep import quick_to_compile

DEVICES = 8
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

    def share(self, cause: Cause) -> float:
        """A cause's amount over the model's figure."""
        return cause.amount / self.model if self.model else 1.0


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
    options = None
    if devices[0].platform == "cpu":
        # sums of different purpose stay apart, so that each keeps its name
        apart = {"xla_disable_hlo_passes": "cpu-all-reduce-combiner"}
        options = (quick_to_compile() or {}) | apart
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
        scope = _scope(("core", "layers", "head"), product.op_name)
        done[scope or "nameless"] += product.flops * product.times
    model, causes = expected.flops(spec), known.flops(spec)
    if not done["nameless"]:
        for part in model._fields:
            yield Line(part, getattr(model, part), done[part], tuple(causes[part]))
    every = tuple(itertools.chain.from_iterable(causes.values()))
    yield Line("all products", sum(model), sum(done.values()), every)


def _scope(scopes: Sequence[str], op_name: str) -> str | None:
    """The first of some scopes that an operation lies in."""
    return next((scope for scope in scopes if _within(scope, op_name)), None)


def _within(scope: str, op_name: str) -> bool:
    return re.search(rf"\b{scope}\b", op_name) is not None


def _wire(spec: WorkloadSpec, module: hlo.Module) -> tuple[list[Line], dict[str, float]]:
    """Each axis and kind that model or program knows, and what the model leaves out."""
    sent, left_out = _sent(spec, module)
    model, causes = expected.wire_bytes(spec), known.wire_bytes(spec)
    lines = [
        Line(" ".join(key), model.get(key, 0.0), sent[key], tuple(causes.get(key, ())))
        for key in sorted(model.keys() | sent.keys())
    ]
    return [line for line in lines if line.model or line.program], left_out


def _sent(
    spec: WorkloadSpec, module: hlo.Module
) -> tuple[defaultdict[tuple[str, str], float], dict[str, float]]:
    """Bytes that the program sends: by axis and kind, of what the model speaks of, and the rest by
    the reason to leave it out."""
    sent: defaultdict[tuple[str, str], float] = defaultdict(float)
    left_out: defaultdict[str, float] = defaultdict(float)
    axes_of = _axes_by_group(spec)
    for c in hlo.collectives(module):
        unknown = ("pipeline",) if c.kind == "collective-permute" else ()
        claim = _claim(spec, c, axes_of.get(c.groups, unknown))
        if claim.axis:
            sent[claim.axis, c.kind] += claim.nbytes
        if claim.reason:
            left_out[claim.reason] += c.wire_bytes - claim.nbytes
    return sent, dict(left_out)


def _axes_by_group(spec: WorkloadSpec) -> dict[Any, tuple[str, ...]]:
    mesh = make_mesh(spec, jax.devices()[: spec.devices])
    live = [a for a in AXES if spec.size(a) > 1]
    return {
        groups_on(mesh, axes): axes
        for n in range(1, len(live) + 1)
        for axes in itertools.combinations(live, n)
    }


class _Claim(NamedTuple):
    """What the model says of a collective: under which axis it speaks of it ("" = of none of it),
    how many bytes of it, and why it leaves out the rest."""

    axis: str
    nbytes: float
    reason: str = ""


def _claim(spec: WorkloadSpec, c: hlo.Collective, axes: tuple[str, ...]) -> _Claim:
    if _within("gradients", c.op_name):
        return _of_gradients(spec, c, axes)
    if _within("weights", c.op_name):
        return _Claim("fsdp", c.wire_bytes)
    scope = _scope(("loss", "hand_over", "head"), c.op_name)
    if scope and (scope != "head" or c.kind == "all-reduce"):
        return _Claim("", 0.0, LEFT_OUT[scope])
    again = spec.remat != "full" and _within("rematted_computation", c.op_name)
    if again and axes == ("tensor",):
        return _Claim("", 0.0, LEFT_OUT["repeated"])
    return _Claim(" ".join(axes) or "unknown group", c.wire_bytes)


def _of_gradients(spec: WorkloadSpec, c: hlo.Collective, axes: tuple[str, ...]) -> _Claim:
    """Ranks of tensor and pipeline take part in the sums of what they hold alike: the model sums
    over the data ranks only."""
    n = spec.size(tuple(a for a in axes if a not in ("tensor", "pipeline")))
    counted = 2.0 * (n - 1.0) / n * c.nbytes * c.times
    return _Claim("data", counted, LEFT_OUT["replicas"])


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
    products = [(c.name, c.flops[-1]) for c in cases]
    wire = [(f"{c.name}: {x.what}", x) for c in cases for x in c.wire]
    counted, memory = ([(x.what, x) for x in xs] for xs in (report.cost_analysis, report.memory))
    parts = [
        _table("GFLOP of matrix products", products, 1e9),
        _table("GFLOP by XLA's cost analysis, loops written out", counted, 1e9),
        _table("MB on the wire", wire, 1e6),
        _table("GB in memory", memory, 1e9),
        "Known causes, and their share of the model's figure:",
        *_causes(report),
        "Left out by the model (above 1 kB):\n" + "\n".join(_left_out(report)),
    ]
    return "\n\n".join(parts)


def _causes(report: Report) -> list[str]:
    """Reasons of known causes, with where they apply and their share of the model's figure."""
    lines = [(c.name, x) for c in report.cases for x in (*(c.flops[:-1] or c.flops), *c.wire)]
    lines += [(f"cost analysis of {x.what}", x) for x in report.cost_analysis]
    lines += [(f"memory of {x.what}", x) for x in report.memory]
    causes: defaultdict[str, list[str]] = defaultdict(list)
    for name, x in lines:
        for cause in x.known:
            causes[cause.reason].append(f"{name} {x.share(cause):+.1%}")
    return [f"{reason}\n  " + "; ".join(shares) for reason, shares in causes.items()]


def _left_out(report: Report) -> list[str]:
    return [
        f"  {case.name}: {reason}: {nbytes / 1e6:.3f} MB"
        for case in report.cases
        for reason, nbytes in case.left_out.items()
        if nbytes >= 1e3
    ]


def faults(report: Report) -> list[str]:
    """Lines whose difference has no known cause, beyond the targets."""
    found = [("flops", c.name, x) for c in report.cases for x in c.flops]
    found += [("wire", c.name, x) for c in report.cases for x in c.wire]
    found += [("flops", "cost analysis", x) for x in report.cost_analysis]
    found += [("memory", "memory", x) for x in report.memory]
    return [
        f"{name}, {x.what}: {x.unexplained:+.2%} of the model has no known cause; at most "
        f"{TARGETS[kind]:.0%} may"
        for kind, name, x in found
        if abs(x.unexplained) > TARGETS[kind]
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
    options = _options(arguments)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    report = run(options.only)
    print(json.dumps(as_json(report), indent=1) if options.json else text(report))
    found = faults(report)
    if found:
        print("\n".join(found), file=sys.stderr)
        raise SystemExit(1)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What is asked for on the command line; cases that there are not are refused."""
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
    return options


if __name__ == "__main__":
    main()
