"""Constants, which no operator sets. Tests can set other values."""

from __future__ import annotations

import os
from typing import TypeVar

from pydantic import TypeAdapter

T = TypeVar("T", int, float, bool)


def constant(name: str, value: T) -> T:
    """Return `value`, or the value of the variable `DARKROOM_TEST_<NAME>` if a test has set it.

    A module calls this function once, beside the code that uses the constant: `_LEASE_S =
    constant("LEASE_S", 30.0)`.
    """
    text = os.environ.get(f"DARKROOM_TEST_{name}")
    return value if text is None else TypeAdapter(type(value)).validate_strings(text)
