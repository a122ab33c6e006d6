"""The consoles that the command line writes to."""

from __future__ import annotations

from typing import NoReturn

import typer
from rich.console import Console

console = Console()
stderr = Console(stderr=True)


def fail(message: str, *, code: int = 1) -> NoReturn:
    """Print the message and exit with `code`."""
    stderr.print(message, style="red", markup=False)
    raise typer.Exit(code)


def printable(text: str) -> str:
    """The text of a caller without what a terminal would obey."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text)
