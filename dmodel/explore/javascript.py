"""Graphs of scalars as JavaScript: straight lines of arithmetic, cut into functions that engines
still optimize.

A program is the text of one expression, a pair of functions of an array of inputs and an array that
takes the outputs, both `Float64Array`s: one gives the first outputs, the other all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from dmodel.explore.scalars import Graph, Node, Scalars
from dmodel.operations import Unknown

OPERATIONS_EACH = 1200
"""Operations of one function: V8 leaves much longer ones to its interpreter."""

NESTED = 24
"""Operations of an expression that may stand inside another."""

HELPERS = """\
const {abs,sign,sqrt,exp,expm1,log,log1p,tanh,floor,ceil,max,min,pow}=Math;
const rint=x=>{const r=Math.round(x);return r-x===.5&&r%2!==0?r-1:r};
const clamp=(l,x,h)=>min(max(x,l),h);
const logistic=x=>x<0?exp(x)/(1+exp(x)):1/(1+exp(-x));
const series=x=>{let t=x,s=x;for(let n=1;n<200;n++){t*=2*x*x/(2*n+1);const u=s+t;if(u===s)break;s=u}
return 1.1283791670955126*exp(-x*x)*s};
const tail=x=>{let f=0;for(let n=120;n>0;n--)f=n/2/(x+f);return .5641895835477563*exp(-x*x)/(x+f)};
const erf=x=>abs(x)<2?series(x):x>0?1-tail(x):tail(-x)-1;
const erfc=x=>x<.5?1-erf(x):x<2?(x<1?1-series(x):tail(x)):tail(x);
"""
"""What programs call: functions that JavaScript lacks, or rounds otherwise than numpy."""

INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "eq": "===",
    "ne": "!==",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "and": "&&",
    "or": "||",
}

CALLED = {
    **{n: n for n in "abs sign sqrt exp expm1 log log1p tanh floor ceil max min pow".split()},
    **{n: n for n in "clamp logistic erf erfc".split()},
    "round": "rint",
}

SHAPED = {
    "neg": "(-{0})",
    "not": "(!{0})",
    "rsqrt": "(1/sqrt({0}))",
    "square": "({0}*{0})",
    "rem": "({0}%{1})",
    "select_n": "({0}?{2}:{1})",
}

TWICE = {"square", "integer_pow"}
"""Operations whose text may have an operand more than once."""


def literal(value: Any) -> str:
    """A constant as JavaScript has it, to the last bit."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0.0 else "(-Infinity)"
    text = repr(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
    text = "-0" if value == 0.0 and math.copysign(1.0, value) < 0.0 else text
    return f"({text})" if text.startswith("-") else text


def expression(node: Node, reads: Sequence[str]) -> str:
    """The text of one operation on operands that are texts.

    Raises:
      Unknown: JavaScript has no text for it.
    """
    if node.name in INFIX:
        return f"({reads[0]}{INFIX[node.name]}{reads[1]})"
    if node.name in CALLED:
        return f"{CALLED[node.name]}({','.join(reads)})"
    if node.name in SHAPED:
        return SHAPED[node.name].format(*reads)
    if node.name == "convert_element_type":
        return _converted(node.extra, reads[0])
    if node.name == "integer_pow":
        return _powered(int(node.extra), reads[0])
    raise Unknown(f"{node.name} as JavaScript")


def _converted(kind: str, read: str) -> str:
    if kind.startswith("float"):
        return f"(+{read})"
    if kind == "bool":
        return f"({read}!==0)"
    raise Unknown(f"conversion to {kind} as JavaScript")


def _powered(power: int, read: str) -> str:
    if power == 2:
        return f"({read}*{read})"
    if power == 3:
        return f"({read}*{read}*{read})"
    return f"pow({read},{power})" if power != -1 else f"(1/{read})"


class Writer:
    """Writes the functions of one program.

    Args:
      scalars: a graph with outputs. first: how many outputs the short call gives; its functions
        stand before all others.
    """

    def __init__(self, scalars: Scalars, first: int) -> None:
        self.graph: Graph = scalars.graph
        self.outputs = scalars.outputs
        self.first = first
        early = self._needed(self.outputs[:first])
        late = self._needed(self.outputs)
        self.early, self.needed = early, [*early, *sorted({*late} - {*early})]
        self.functions: list[list[str]] = [[]]
        self.home: dict[int, tuple[int, str]] = {}
        self.slots: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.inside = self._inside()
        self.filled = self.named = 0

    def _needed(self, outputs: Sequence[int]) -> list[int]:
        """Nodes that outputs read, in order."""
        seen, left = set(), list(outputs)
        while left:
            number = left.pop()
            if number not in seen:
                seen.add(number)
                left.extend(self.graph.nodes[number].reads)
        return sorted(seen)

    def _inside(self) -> set[int]:
        """Nodes that stand inside the expression of the only one that reads them."""
        uses = Counter(self.outputs)
        for number in self.needed:
            node = self.graph.nodes[number]
            uses.update(node.reads * (2 if node.name in TWICE else 1))
        sizes, found = self.sizes, set()
        for number in self.needed:
            reads = self.graph.nodes[number].reads
            sizes[number] = 1 + sum(sizes[i] for i in reads if i in found)
            if uses[number] == 1 and sizes[number] < NESTED:
                found.add(number)
        return found

    def _read(self, number: int) -> str:
        """The text by which an expression reads a node."""
        node = self.graph.nodes[number]
        if node.name == "input":
            return f"x[{node.extra}]"
        if node.name == "constant":
            return literal(node.extra)
        if number in self.inside:
            return expression(node, [self._read(i) for i in node.reads])
        home, name = self.home[number]
        if home == len(self.functions) - 1:
            return name
        if number not in self.slots:
            self.slots[number] = len(self.slots)
            self.functions[home].append(f"t[{self.slots[number]}]=+{name};")
        return f"t[{self.slots[number]}]"

    def _write(self, number: int) -> None:
        """The statement of a node that others read."""
        if self.filled >= OPERATIONS_EACH:
            self._cut()
        self.filled += self.sizes[number]
        node = self.graph.nodes[number]
        text = expression(node, [self._read(i) for i in node.reads])
        name = _name(self.named)
        self.named += 1
        self.home[number] = len(self.functions) - 1, name
        self.functions[-1].append(f"const {name}={_bare(text)};")

    def _cut(self) -> None:
        """Begin another function."""
        self.functions.append([])
        self.filled = self.named = 0

    def _write_all(self, numbers: Sequence[int], outputs: range) -> None:
        """Statements of nodes, then of outputs."""
        for number in numbers:
            apart = self.graph.nodes[number].name in ("input", "constant")
            if not apart and number not in self.inside:
                self._write(number)
        for place in outputs:
            self.functions[-1].append(f"y[{place}]={_bare(self._read(self.outputs[place]))};")

    def text(self) -> str:
        """The program."""
        count = len(self.early)
        self._write_all(self.needed[:count], range(self.first))
        short = len(self.functions)
        if count < len(self.needed):
            self._cut()
            self._write_all(self.needed[count:], range(self.first, len(self.outputs)))
        bodies = [f"function f{i}(x,y,t){{{''.join(b)}}}" for i, b in enumerate(self.functions)]
        calls = [f"f{i}(x,y,t);" for i in range(len(bodies))]
        start = f"(()=>{{{HELPERS}const t=new Float64Array({len(self.slots)});"
        entries = f"return [(x,y)=>{{{''.join(calls[:short])}}},(x,y)=>{{{''.join(calls)}}}]}})()"
        return "\n".join([start, *bodies, entries])


FIRST, LATER = (
    "ABCDEFGHJKLMOPQRSTUVWXYZ$_",
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
)
"""Letters of names; none is a word of JavaScript, which begin small but for NaN and Infinity."""


def _name(number: int) -> str:
    """The short name of a variable by its number in its function."""
    number, first = divmod(number, len(FIRST))
    text = FIRST[first]
    while number:
        number, last = divmod(number - 1, len(LATER))
        text += LATER[last]
    return text


def _bare(text: str) -> str:
    """An expression without the parentheses around it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and i < len(text) - 1:
            return text
    return text[1:-1]


def javascript(scalars: Scalars, first: int | None = None) -> str:
    """The text of a program: of two functions, of which one gives the first outputs alone.

    Args:
      first: how many these are; None = all.
    Raises:
      Unknown: an operation has no text, with its name.
    """
    return Writer(scalars, len(scalars.outputs) if first is None else first).text()
