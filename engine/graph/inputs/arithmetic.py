"""Arithmetic that a graph writes as a text, in the form of Python's, of bounded length and size."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from engine.errors import EngineError

Number: TypeAlias = int | float
_MOST_CHARS = 1000
_MOST_BITS = 1024
"""Of a whole number, and so of what it takes to compute one."""
_MOST_DIGITS = 30
_MOST_PARSED = 64
"""So many expressions stay as they were read: the nodes of a graph often have the same one."""
_LIST = "values"
"""The name of all the numbers together."""


def evaluated(expression: str, numbers: Mapping[str, Number]) -> Number:
    """What the expression makes of the numbers that it names. Raises EngineError."""
    if len(expression) > _MOST_CHARS:
        raise EngineError(f"the expression has more than {_MOST_CHARS} characters")
    try:
        found: Number | tuple[Number, ...] = _value(_parsed(expression), numbers)
        if isinstance(found, tuple) or not math.isfinite(found):
            raise EngineError("the expression makes no finite number")
    except (ArithmeticError, SyntaxError, TypeError, ValueError, RecursionError) as error:
        reason = str(error).split("\n")[0] or type(error).__name__
        raise EngineError(f"the expression cannot be computed: {reason}") from error
    return found


@lru_cache(maxsize=_MOST_PARSED)
def _parsed(expression: str) -> ast.expr:
    try:
        return ast.parse(expression.strip(), mode="eval").body
    except MemoryError as error:  # which is how the parser says it
        raise EngineError("the expression cannot be computed: it is nested too deeply") from error


def _value(node: ast.expr, numbers: Mapping[str, Number]) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() as number):
            found: Any = number
        case ast.Name(id=name):
            found = _named(name, numbers)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            found = _UNARY[type(op)](_one(operand, numbers))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            found = _BINARY[type(op)](_one(left, numbers), _one(right, numbers))
        case ast.BoolOp(op=op, values=parts):
            is_and = isinstance(op, ast.And)
            every = (_value(each, numbers) for each in parts)
            found = next((each for each in every if bool(each) is not is_and), is_and)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            found = _value(body if _value(test, numbers) else orelse, numbers)
        case ast.Compare(left=left, ops=ops, comparators=others):
            found = _compared(left, ops, others, numbers)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            found = _FUNCTIONS[name](*(_value(each, numbers) for each in args))
        case _:
            raise EngineError(f"the expression has what is not taken: {ast.unparse(node)[:40]}")
    return _bounded(found)


def _one(node: ast.expr, numbers: Mapping[str, Number]) -> Number:
    """A number, and not the list of them all, which operators would make as long as they say."""
    found: Number | tuple[Number, ...] = _value(node, numbers)
    if isinstance(found, tuple):
        raise EngineError(f"operators take numbers, and {_LIST} are several")
    return found


def _named(name: str, numbers: Mapping[str, Number]) -> Any:
    if name == _LIST:
        return tuple(numbers.values())
    if name not in numbers:
        raise EngineError(f"the expression names {name[:40]}, which is not given")
    return numbers[name]


def _compared(
    left: ast.expr,
    ops: list[ast.cmpop],
    others: list[ast.expr],
    numbers: Mapping[str, Number],
) -> bool:
    values = [_value(each, numbers) for each in (left, *others)]
    pairs = zip(ops, values, values[1:], strict=False)
    if unknown := next((op for op in ops if type(op) not in _COMPARISONS), None):
        raise EngineError(f"the expression has what is not taken: {type(unknown).__name__}")
    return all(_COMPARISONS[type(op)](one, other) for op, one, other in pairs)


def _bounded(found: Any) -> Any:
    if isinstance(found, int) and found.bit_length() > _MOST_BITS:
        raise EngineError(f"the expression makes a number of more than {_MOST_BITS} bits")
    if isinstance(found, complex):
        raise EngineError("the expression makes no real number")
    return found


def _power(base: Number, exponent: Number) -> Any:
    if isinstance(base, int) and isinstance(exponent, int):
        _bounded_power(base, exponent)
    return base**exponent


def _bounded_power(base: int, exponent: int) -> None:
    if abs(base) > 1 and abs(exponent) * abs(base).bit_length() > 2 * _MOST_BITS:
        raise EngineError(f"the expression makes a number of more than {_MOST_BITS} bits")


def _rounded(number: Number, digits: int = 0) -> Number:
    if abs(digits) > _MOST_DIGITS:
        raise EngineError(f"round takes {_MOST_DIGITS} digits at most")
    return round(number, digits) if digits else round(number)


def _sum(*numbers: Any) -> Any:
    one_list = len(numbers) == 1 and isinstance(numbers[0], tuple)
    return sum(numbers[0] if one_list else numbers)


_UNARY: Mapping[type, Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
}
_BINARY: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_COMPARISONS: Mapping[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "sum": _sum,
    "min": min,
    "max": max,
    "abs": abs,
    "round": _rounded,
    "pow": _power,
    "sqrt": math.sqrt,
    "ceil": math.ceil,
    "floor": math.floor,
    "log": math.log,
    "log2": math.log2,
    "log10": math.log10,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "int": int,
    "float": float,
}
