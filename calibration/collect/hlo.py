"""What a compiled program does, read from its text (`compiled.as_text()`): matrix products and
collectives, as often as they run.

XLA's own cost analysis counts the body of a loop once; here each instruction counts as often as its
loops turn, which the program says. Understood are the texts of CPU, GPU and TPU: plain
instructions, fusions, calls, loops, branches, asynchronous pairs, calls of GEMM.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from dmodel.errors import InputError

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")

_SHAPE = re.compile(r"([a-z][a-z0-9]*)\[([0-9,<=]*)\]")
_NAME = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ")
_HEAD = re.compile(r"^(?! |HloModule)(ENTRY )?%*([^ (]*).*\{$")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_OPERAND = re.compile(r"%([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_CONTRACTED = re.compile(r'lhs_contracting_dim(?:s=\{|ensions":\[)([0-9,"]*)')
_CALLED = re.compile(
    r"(body|calls|to_apply|branch_computations|true_computation|false_computation|"
    r"called_computations)=(\{[^}]*\}|%?[\w.\-]+)"
)
_GROUPS = re.compile(
    r"replica_groups=(\{\{[0-9,{}]*\}\}|\{\}|\[[0-9,]+\]<=\[[0-9,]+\](?:T\([0-9,]+\))?)"
)
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\],? ?\{([^}]*)\}")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_GEMM = re.compile(r'custom_call_target="(__cublas[^"]*|__onednn\$matmul|__triton_gemm)"')


Groups = frozenset[frozenset[int]]


class Instruction(NamedTuple):
    """One line of a computation. shape: as written; operands: names in the same computation; rest:
    all after the operands."""

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    rest: str

    @property
    def op_name(self) -> str:
        """The path of names under which jax made it; "" when unknown."""
        found = _OP_NAME.search(self.rest)
        return found[1] if found else ""


class Module(NamedTuple):
    """computations: name → instructions. entry: where the program begins."""

    computations: Mapping[str, tuple[Instruction, ...]]
    entry: str


class Product(NamedTuple):
    """A matrix product: 2 M N K [FLOP] once, how often it runs, and its jax name."""

    flops: float
    times: float
    op_name: str


class Collective(NamedTuple):
    """A collective operation of the program.

    Attributes:
      kind: one of `KINDS`. nbytes: what one device puts in, once [byte]. groups: devices that it
        joins, by position in the mesh.
      times: how often it runs. dtype: of what it moves. op_name: of jax.
    """

    kind: str
    nbytes: float
    groups: frozenset[frozenset[int]]
    times: float
    dtype: str
    op_name: str

    @property
    def wire_bytes(self) -> float:
        """What a device sends by the bandwidth-optimal algorithm, all times together [byte].

        With n in the group and V what a device puts in: all-gather `(n − 1) V`, reduce-scatter and
        all-to-all `(n − 1)/n V`, all-reduce twice that, permute V.
        """
        n = max((len(g) for g in self.groups), default=1)
        factor = {
            "all-gather": n - 1.0,
            "all-reduce": 2.0 * (n - 1.0) / n,
            "collective-permute": 1.0,
        }.get(self.kind, (n - 1.0) / n)
        return factor * self.nbytes * self.times


def shape_bytes(shape: str) -> float:
    """Bytes of a shape, all parts of a tuple together."""
    return float(sum(math.prod(dims) * _width(dtype) for dtype, dims in _parts(shape)))


def _parts(shape: str) -> list[tuple[str, list[int]]]:
    return [
        (m[1], [int(d.removeprefix("<=")) for d in m[2].split(",") if d])
        for m in _SHAPE.finditer(shape)
    ]


def _width(dtype: str) -> float:
    """Bytes of one element: the number in the name is its bits."""
    if dtype in ("pred", "token"):
        return float(dtype == "pred")
    bits = re.search(r"\d+", dtype)
    return int(bits[0]) / 8.0 if bits else 0.0


def parse(text: str) -> Module:
    """Computations and instructions of a program's text.

    Raises:
      InputError: no entry computation, so the text is not a compiled program.
    """
    computations: dict[str, tuple[Instruction, ...]] = {}
    entry, name, lines = "", "", []
    for line in text.splitlines():
        if line.startswith("}"):
            computations[name], lines = tuple(lines), []
        elif head := _HEAD.match(line):
            name = head[2]
            entry = name if head[1] else entry
        elif found := _instruction(line):
            lines.append(found)
    if entry not in computations:
        raise InputError(
            "no ENTRY computation in the program's text: expected what `compiled.as_text()` gives"
        )
    return Module(computations, entry)


def _instruction(line: str) -> Instruction | None:
    start = _NAME.match(line)
    if start is None:
        return None
    end = _shape_end(line, start.end())
    opcode = _OPCODE.match(line, end)
    if opcode is None:
        return None
    close = _closing(line, opcode.end() - 1)
    operands = tuple(_OPERAND.findall(line[opcode.end() : close]))
    return Instruction(start[1], line[start.end() : end], opcode[1], operands, line[close + 1 :])


def _shape_end(line: str, start: int) -> int:
    """Where the shape that begins at `start` ends: a tuple in parentheses, or up to the next
    blank."""
    return _closing(line, start) + 1 if line[start] == "(" else line.find(" ", start)


def _closing(line: str, start: int) -> int:
    """Position of the parenthesis that closes the one at `start`."""
    depth = 0
    for i in range(start, len(line)):
        depth += (line[i] == "(") - (line[i] == ")")
        if depth == 0:
            return i
    return len(line)


def times(module: Module) -> dict[str, float]:
    """How often each computation runs in one run of the program.

    Of branches each counts as if it were taken. Functions applied to single elements (the sum of a
    reduction) count nothing.

    Raises:
      InputError: a loop whose turns the program does not say.
    """
    counts: defaultdict[str, float] = defaultdict(float)

    def visit(name: str, n: float) -> None:
        counts[name] += n
        for instruction in module.computations[name]:
            for called, turns in _calls(instruction):
                if called in module.computations:
                    visit(called, n * turns)

    visit(module.entry, 1.0)
    return dict(counts)


def _calls(instruction: Instruction) -> Iterator[tuple[str, float]]:
    """Computations that an instruction runs, and how often each time."""
    if instruction.opcode not in (
        "while",
        "fusion",
        "call",
        "conditional",
        "async-start",
        "custom-call",
    ):
        return
    turns = _turns(instruction) if instruction.opcode == "while" else 1.0
    for _, value in _CALLED.findall(instruction.rest):
        for name in value.strip("{}").split(","):
            yield name.strip().lstrip("%"), turns


def _turns(loop: Instruction) -> float:
    known = _TRIPS.search(loop.rest)
    if known is None:
        raise InputError(
            f"the loop {loop.name} ({loop.op_name or 'unnamed'}) does not say how often it "
            "turns; "
            "loops must be scans"
        )
    return float(known[1])


def products(module: Module) -> list[Product]:
    """All matrix products of the program."""
    found = []
    for name, n in times(module).items():
        shapes = {i.name: i.shape for i in module.computations[name]}
        dots = filter(_is_product, module.computations[name])
        found += [Product(_product_flops(i, shapes), n, i.op_name) for i in dots]
    return found


def _is_product(i: Instruction) -> bool:
    return i.opcode == "dot" or (i.opcode == "custom-call" and _GEMM.search(i.rest) is not None)


def _product_flops(product: Instruction, shapes: Mapping[str, str]) -> float:
    """2 · elements of the result · elements summed over; a library call's result is the first of
    its tuple."""
    left = _parts(shapes[product.operands[0]])[0][1]
    contracted = _CONTRACTED.search(product.rest)
    if contracted is None:
        raise InputError(f"the product {product.name} does not say which dimensions it sums over")
    summed = [left[int(d)] for d in contracted[1].replace('"', "").split(",") if d]
    return 2.0 * math.prod(_parts(product.shape)[0][1]) * math.prod(summed)


def collectives(module: Module) -> list[Collective]:
    """All collectives of the program that join more than one device."""
    found = []
    for name, n in times(module).items():
        shapes = {i.name: i.shape for i in module.computations[name]}
        for i in module.computations[name]:
            if _kind(i) in KINDS:
                found.append(_collective(i, shapes, n))
    return [c for c in found if any(len(g) > 1 for g in c.groups)]


def _kind(i: Instruction) -> str:
    return i.opcode.removesuffix("-start")


def _collective(i: Instruction, shapes: Mapping[str, str], n: float) -> Collective:
    moved = "".join(shapes[operand] for operand in i.operands)
    groups = _pairs(i) if _kind(i) == "collective-permute" else _groups(i)
    return Collective(_kind(i), shape_bytes(moved), groups, n, _parts(moved)[0][0], i.op_name)


def _pairs(permute: Instruction) -> frozenset[frozenset[int]]:
    """Sender and receiver of each pair, as sets."""
    found = _PAIRS.search(permute.rest)
    if found is None:
        raise InputError(f"the permutation {permute.name} does not say who sends to whom")
    return frozenset(frozenset(map(int, pair)) for pair in re.findall(r"\{(\d+),(\d+)\}", found[1]))


def _groups(collective: Instruction) -> Groups:
    """Groups written out `{{0,1},{2,3}}`; as an array `[2,2]<=[4]` that is reshaped, and transposed
    where `T(…)` says so; or by axes of a mesh `mesh['a'=2,'b'=4] {'b'}`."""
    named = _MESH.search(collective.rest)
    if named is not None:
        return _along(named[1], named[2])
    found = _GROUPS.search(collective.rest)
    if found is None or found[1] == "{}":
        raise InputError(
            f"the collective {collective.name} ({collective.op_name}) does not say whom it joins "
            "in a known form"
        )
    if found[1].startswith("{"):
        return _sets(_integers(group) for group in re.findall(r"\{([0-9,]+)\}", found[1]))
    shape, source, order = map(_integers, re.split(r"<=|T|$", found[1], maxsplit=2))
    ids = np.arange(math.prod(source)).reshape(source)
    return _sets((ids.transpose(order) if order else ids).reshape(shape))


def _sets(rows: Iterable[Iterable[int]]) -> Groups:
    """Rows of devices as sets."""
    return frozenset(frozenset(map(int, row)) for row in rows)


def _along(mesh: str, axes: str) -> Groups:
    """Groups along some axes of a mesh of devices in order."""
    sizes = {name: int(n) for name, n in re.findall(r"'([^']*)'=(\d+)", mesh)}
    joined = [list(sizes).index(name) for name in re.findall(r"'([^']*)'", axes)]
    rest = [i for i in range(len(sizes)) if i not in joined]
    shape = list(sizes.values())
    ids = np.arange(math.prod(shape)).reshape(shape).transpose(*rest, *joined)
    return _sets(ids.reshape(-1, math.prod(ids.shape[len(rest) :])))


def _integers(text: str) -> list[int]:
    return [int(d) for d in re.findall(r"\d+", text)]
