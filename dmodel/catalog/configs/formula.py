"""Formulas of the families: arithmetic on the keys of a configuration, in Python's notation."""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

from dmodel.errors import InputError

OPERATORS: Mapping[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, several: one in several,
    ast.NotIn: lambda one, several: one not in several,
}
"""Operators that formulas may use."""


def up_to(size: float, step: float) -> float:
    """The next multiple of a step [count]."""
    return -(-size // step) * step


def numbers(several: str | list[int]) -> list[int]:
    """Whole numbers of a list, or of a text such as "3,4,5"."""
    return [int(each) for each in (several.split(",") if isinstance(several, str) else several)]


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "len": len,
    "max": max,
    "min": min,
    "int": int,
    "up_to": up_to,
    "listed": lambda value: isinstance(value, list | str),
    "numbers": numbers,
}
"""Functions that formulas may use."""

Look = Callable[[str], Any]
"""What a name of a formula means."""


@functools.cache
def _tree(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def names(text: str) -> set[str]:
    """Names that a formula asks for, functions not among them."""
    found = {node.id for node in ast.walk(_tree(text)) if isinstance(node, ast.Name)}
    return found - FUNCTIONS.keys()


def worked_out(text: str, look: Look) -> Any:
    """The value of a formula.

    Args:
      look: value of a name.
    Raises:
      InputError: a value that it uses is not of the kind that it needs.

    >>> worked_out("h // 2 if h > 1 else 'none'", {"h": 8}.__getitem__)
    4
    """
    try:
        return _value(_tree(text), look)
    except InputError:
        raise
    except (TypeError, ValueError, ZeroDivisionError, OverflowError, LookupError) as error:
        used = ", ".join(sorted(names(text)))
        raise InputError(f"{used}: no value can be made of them ({error})") from None


def _value(node: ast.AST, look: Look) -> Any:
    return NODES[type(node)](node, look)


def _both(node: Any, look: Look) -> Any:
    return OPERATORS[type(node.op)](_value(node.left, look), _value(node.right, look))


def _either(node: Any, look: Look) -> Any:
    wanted = isinstance(node.op, ast.Or)
    value = None
    for each in node.values:
        value = _value(each, look)
        if bool(value) == wanted:
            break
    return value


def _compared(node: Any, look: Look) -> bool:
    left = _value(node.left, look)
    for op, right in zip(node.ops, node.comparators, strict=True):
        other = _value(right, look)
        if not OPERATORS[type(op)](left, other):
            return False
        left = other
    return True


def _at(node: Any, look: Look) -> Any:
    """An element of a list, a letter of a text, or a key of an object."""
    held, index = _value(node.value, look), _value(node.slice, look)
    name = ast.unparse(node.value)
    if isinstance(held, dict):
        return held.get(index)
    if not isinstance(held, list | str):
        raise InputError(f"{name!r}: expected a list, got {held!r:.40}")
    if not -len(held) <= index < len(held):
        raise InputError(
            f"{name!r}: expected an entry for each layer, at least {index + 1}; got {len(held)}"
        )
    return held[index]


def _called(node: Any, look: Look) -> Any:
    return FUNCTIONS[node.func.id](*(_value(each, look) for each in node.args))


NODES: Mapping[type, Callable[[Any, Look], Any]] = {
    ast.Constant: lambda node, look: node.value,
    ast.Name: lambda node, look: look(node.id),
    ast.List: lambda node, look: [_value(each, look) for each in node.elts],
    ast.BinOp: _both,
    ast.UnaryOp: lambda node, look: OPERATORS[type(node.op)](_value(node.operand, look)),
    ast.BoolOp: _either,
    ast.Compare: _compared,
    ast.IfExp: lambda node, look: _value(
        node.body if _value(node.test, look) else node.orelse, look
    ),
    ast.Subscript: _at,
    ast.Call: _called,
}
"""Parts of the notation that formulas may use."""
