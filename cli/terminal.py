"""The output of commands as text or, with `--json`, as JSON, and their exit codes."""

from __future__ import annotations

import json
from contextvars import ContextVar
from enum import IntEnum
from typing import Any, NoReturn

import typer
from rich.console import Console


class ExitCode(IntEnum):
    """The exit codes of commands. `docs/command-line.md` has the same table."""

    DONE = 0
    FAILED = 1
    """The job failed or was cancelled, a check found a problem, or the command failed."""
    USAGE = 2
    """An option, an argument, a given file or a setting is wrong."""
    REFUSED = 3
    """The service refuses the request."""
    NOT_FOUND = 4
    """There is no such job, key, endpoint or file for this API key."""
    FORBIDDEN = 5
    """The API key is missing or invalid, or it lacks the permission."""
    UNAVAILABLE = 6
    """The service, or a part of it that the command needs, does not answer."""
    LIMITED = 7
    """A limit is reached, such as the rate of requests, open jobs or a full queue."""
    INTERRUPTED = 130
    """Ctrl-C: 128 plus the number of SIGINT, as in shells."""


def code_of_status(status: int) -> ExitCode:
    """Return the exit code for the HTTP status of an error."""
    match status:
        case 401 | 403:
            return ExitCode.FORBIDDEN
        case 404 | 410:
            return ExitCode.NOT_FOUND
        case 429:
            return ExitCode.LIMITED
        case _:
            return ExitCode.REFUSED if status < 500 else ExitCode.UNAVAILABLE


console = Console()
stderr = Console(stderr=True)

_is_json: ContextVar[bool] = ContextVar("is_json", default=False)


def use_json(is_wanted: bool) -> None:
    """Select JSON or text for all output. Call this once, before a command writes anything."""
    _is_json.set(is_wanted)


def wants_json() -> bool:
    return _is_json.get()


def show_json(data: Any, *, indent: int | None = 2) -> None:
    """Write JSON to standard output, in ASCII, so that it contains no control sequences."""
    typer.echo(json.dumps(data, indent=indent, default=str))


def progress_console() -> Console:
    """Return the console that shows the progress of a command."""
    return stderr if wants_json() else console


def tell(text: str, data: Any) -> None:
    """Write a line of text, or with `--json` the JSON of `data`."""
    if wants_json():
        show_json(data)
    else:
        console.print(text, soft_wrap=True, markup=False, highlight=False)


def write_error(message: str, *, code: ExitCode, **members: Any) -> None:
    """Write an error to standard error. With `--json`, its object `error` includes `members`."""
    if wants_json():
        error = {"exit_code": int(code), "type": code.name.lower(), "message": message} | members
        typer.echo(json.dumps({"error": error}), err=True)
    else:
        stderr.print(message, style="red", markup=False, soft_wrap=True)


def fail(message: str, *, code: ExitCode = ExitCode.FAILED, **members: Any) -> NoReturn:
    write_error(message, code=code, **members)
    raise typer.Exit(code)


def printable(text: str) -> str:
    """Return the text without characters that a terminal would interpret."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text)
