"""A node that computes a number from an arithmetic expression in Python's syntax.

The expression is parsed, never executed. Its length and the size of its numbers are bounded.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any, TypeAlias

from engine.errors import EngineError
from engine.graph.declarations import AnyNumber, Expression, node

if TYPE_CHECKING:
    from engine.diffusion.context import Context


Number: TypeAlias = int | float
_MOST_CHARS = 1000
_MOST_BITS = 1024
"""The largest number of bits of an integer. This also bounds the time of a computation."""
_MOST_DIGITS = 30
_MOST_PARSED = 64
"""The number of parsed expressions in the cache. Nodes of one graph often share an expression."""
_LIST = "values"
"""The name by which an expression refers to the list of all numbers."""


def evaluated(expression: str, numbers: Mapping[str, Number]) -> Number:
    """Return the value of the expression. Raises EngineError if it cannot be computed."""
    if len(expression) > _MOST_CHARS:
        raise EngineError(f"the expression has more than {_MOST_CHARS} characters")
    try:
        found: Number | tuple[Number, ...] = _value(_parsed(expression), numbers)
        if isinstance(found, tuple) or not math.isfinite(found):
            raise EngineError("the result of the expression is not a finite number")
    except (ArithmeticError, SyntaxError, TypeError, ValueError, RecursionError) as error:
        reason = str(error).split("\n")[0] or type(error).__name__
        raise EngineError(f"the expression cannot be computed: {reason}") from error
    return found


@lru_cache(maxsize=_MOST_PARSED)
def _parsed(expression: str) -> ast.expr:
    try:
        return ast.parse(expression.strip(), mode="eval").body
    except MemoryError as error:  # The parser raises MemoryError for deep nesting.
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
            raise EngineError(
                f"the expression uses something unsupported: {ast.unparse(node)[:40]}"
            )
    return _bounded(found)


def _one(node: ast.expr, numbers: Mapping[str, Number]) -> Number:
    """Return a number. Raises EngineError for the list of all numbers, because `values * 10**9`
    would fill the memory.
    """
    found: Number | tuple[Number, ...] = _value(node, numbers)
    if isinstance(found, tuple):
        raise EngineError(f"operators need single numbers, but {_LIST} is a list")
    return found


def _named(name: str, numbers: Mapping[str, Number]) -> Any:
    if name == _LIST:
        return tuple(numbers.values())
    if name not in numbers:
        raise EngineError(f"the expression uses {name[:40]}, which has no value")
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
        raise EngineError(f"the expression uses something unsupported: {type(unknown).__name__}")
    return all(_COMPARISONS[type(op)](one, other) for op, one, other in pairs)


def _bounded(found: Any) -> Any:
    if isinstance(found, int) and found.bit_length() > _MOST_BITS:
        raise EngineError(f"the expression makes a number of more than {_MOST_BITS} bits")
    if isinstance(found, complex):
        raise EngineError("the result of the expression is not a real number")
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
        raise EngineError(f"round allows at most {_MOST_DIGITS} digits")
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


_MOST_VALUE = float(2**64)
_VALUES = "values."


@node(
    "ComfyMathExpression",
    inputs={
        "expression": Expression(
            "a + b",
            multiline=True,
            tooltip="An expression of a, b, and so on. `values` is the list of all of them.",
        ),
    },
    optional={
        f"{_VALUES}{letter}": AnyNumber(0.0, min=-_MOST_VALUE, max=_MOST_VALUE)
        for letter in ascii_lowercase
    },
    outputs=("FLOAT", "INT", "BOOLEAN"),
    output_names=("FLOAT", "INT", "BOOL"),
    category="utils",
    display_name="Math Expression",
    is_pure=True,
)
def math_expression(context: Context, expression: str, **values: Number) -> tuple[float, int, bool]:
    """Computes an arithmetic expression with Python's operators and mathematical functions."""
    numbers = {name.removeprefix(_VALUES): each for name, each in values.items()}
    found = evaluated(expression, numbers)
    try:
        return float(found), int(found), bool(found)
    except OverflowError as error:
        raise EngineError("the expression makes a number that is too large") from error
