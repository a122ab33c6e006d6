"""What the command line writes to."""

from __future__ import annotations

from typing import NoReturn

import typer
from rich.console import Console

console = Console()
complaints = Console(stderr=True)


def fail(message: str) -> NoReturn:
    complaints.print(message, style="red", markup=False)
    raise typer.Exit(1)
