"""What the command line writes: texts for people or, with `--json`, JSON for programs."""

from __future__ import annotations

import json
from contextvars import ContextVar
from typing import Any, NoReturn

import typer
from rich.console import Console

from serve_app.cli.exit_codes import ExitCode

console = Console()
stderr = Console(stderr=True)

_is_json: ContextVar[bool] = ContextVar("is_json", default=False)


def use_json(is_wanted: bool) -> None:
    """Once for each command, before anything is written."""
    _is_json.set(is_wanted)


def wants_json() -> bool:
    return _is_json.get()


def show_json(data: Any, *, indent: int | None = 2) -> None:
    """On standard output, in ASCII: nothing in it is obeyed by a terminal."""
    typer.echo(json.dumps(data, indent=indent, default=str))


def progress_console() -> Console:
    """Where it is shown how far something is."""
    return stderr if wants_json() else console


def tell(text: str, data: Any) -> None:
    """A line of text, or `data` with `--json`."""
    if wants_json():
        show_json(data)
    else:
        console.print(text, soft_wrap=True, markup=False, highlight=False)


def write_error(message: str, *, code: ExitCode, **members: Any) -> None:
    """On standard error; with `--json` an object with the member `error`, which has `members`."""
    if wants_json():
        error = {"exit_code": int(code), "type": code.name.lower(), "message": message} | members
        typer.echo(json.dumps({"error": error}), err=True)
    else:
        stderr.print(message, style="red", markup=False, soft_wrap=True)


def fail(message: str, *, code: ExitCode = ExitCode.FAILED, **members: Any) -> NoReturn:
    """Write the error and exit with `code`."""
    write_error(message, code=code, **members)
    raise typer.Exit(code)


def printable(text: str) -> str:
    """The text of a caller without what a terminal would obey."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text)
