"""A node that computes a number of others."""

from __future__ import annotations

from string import ascii_lowercase
from typing import TYPE_CHECKING

from engine.errors import EngineError
from engine.graph.declarations import AnyNumber, Expression, node
from engine.graph.inputs.arithmetic import Number, evaluated

if TYPE_CHECKING:
    from engine.diffusion.context import Context

_MOST = float(2**64)
_VALUES = "values."


@node(
    "ComfyMathExpression",
    inputs={
        "expression": Expression(
            "a + b", multiline=True, tooltip="Of a, b, and so on, and of all of them, `values`."
        ),
    },
    optional={
        f"{_VALUES}{letter}": AnyNumber(0.0, min=-_MOST, max=_MOST) for letter in ascii_lowercase
    },
    outputs=("FLOAT", "INT", "BOOLEAN"),
    output_names=("FLOAT", "INT", "BOOL"),
    category="utils",
    display_name="Math Expression",
    is_pure=True,
)
def math_expression(context: Context, expression: str, **values: Number) -> tuple[float, int, bool]:
    """Computes an expression of numbers, with Python's operators and its functions of numbers."""
    numbers = {name.removeprefix(_VALUES): each for name, each in values.items()}
    found = evaluated(expression, numbers)
    try:
        return float(found), int(found), bool(found)
    except OverflowError as error:
        raise EngineError("the expression makes a number that is too large") from error
