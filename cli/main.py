"""The program `darkroom`. Commands are loaded when they are called, so that help is fast."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from cli.terminal import ExitCode, use_json, wants_json, write_error

COMMANDS = {
    "up": "Start everything on this machine and keep it running until Ctrl-C.",
    "doctor": "Check the installation, and suggest how to fix problems.",
    "generate": "Run a job, show its progress and save its pictures.",
    "run": "Run a named workflow, show its progress and save its pictures.",
    "workflows": "List, show, store, mark and delete named workflows.",
    "watch": "Show the events of a job, or of all jobs of the key's owner, as they happen.",
    "result": "Show the state of a job and save its finished pictures.",
    "jobs": "List, show, cancel, quarantine and resubmit jobs.",
    "job": "Show a job. The request of another owner's job is not shown.",
    "cancel": "Stop a job.",
    "upload": "Upload input files. Workflows name them by their file names.",
    "uploads": "List and remove uploads.",
    "models": "List the models that jobs may use.",
    "keys": "Create, list, rotate and revoke API keys.",
    "endpoints": "Create, list, change, drain and delete endpoints.",
    "forward": "Forward a port of this machine to the service, and add the API key.",
    "infotext": "Print the diffusion request that a generation text describes, as JSON.",
    "inspect": "Show the history of a job, and what each store contains about it now.",
    "verify": "Check that log, histories, read model, queues and files agree. Nothing is changed.",
    "rebuild": "Rebuild the read model from the log and the histories, and replace the old one.",
}
"""The first sentence of the help of each command."""
_MEMBERS = {
    "generate": "generate:generate",
    "run": "workflows:run",
    "workflows": "workflows:app",
    "watch": "watch:watch",
    "result": "generate:result",
    "jobs": "jobs:app",
    "job": "jobs:show_job",
    "cancel": "jobs:cancel_job",
    "upload": "uploads:upload",
    "uploads": "uploads:app",
    "models": "models:models",
    "keys": "keys:app",
    "endpoints": "endpoints:app",
}
"""The function or group of a command as `module:member`. The default for a command `x` is `x:x`."""

JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Write answers and errors as JSON.", expose_value=False),
]


class _Commands(TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and load(str(name)), rest

    def main(  # noqa: PLR0917 - the signature of the overridden method
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **rest: Any,
    ) -> Any:
        """Run a command. With `--json`, wrong options are also reported as JSON."""
        named = {
            "prog_name": prog_name,
            "complete_var": complete_var,
            **rest,
            "windows_expand_args": windows_expand_args,
        }
        words = sys.argv[1:] if args is None else list(args)
        use_json("--json" in words)
        if not (standalone_mode and wants_json()):
            return super().main(words, standalone_mode=standalone_mode, **named)
        try:
            code = super().main(words, standalone_mode=False, **named)
        except TyperException as error:
            write_error(error.format_message(), code=ExitCode.USAGE)
            code = ExitCode.USAGE
        sys.exit(code or ExitCode.DONE)


def load(name: str) -> Any:
    """Import the command or the command group with this name, and add the option `--json`."""
    module, _, member = _MEMBERS.get(name, f"{name}:{name}").partition(":")
    found = getattr(import_module(f"cli.{module}"), member)
    group = found
    if not isinstance(found, typer.Typer):
        group = typer.Typer(add_completion=False)
        group.command(name)(found)
    command = get_command(group)
    _add_json_option(command)
    return command


def _add_json_option(command: Any) -> None:
    """Add `--json` to a command and its subcommands, which accept it but leave it to `main`."""
    command.params.append(_JSON)
    for each in getattr(command, "commands", {}).values():
        _add_json_option(each)


def _only_json(json: JsonOption = False) -> None:
    pass


def _json_option() -> Any:
    holder = typer.Typer(add_completion=False)
    holder.command()(_only_json)
    [option] = get_command(holder).params
    return option


_JSON = _json_option()

app = typer.Typer(cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False)


def _loaded_when_called() -> None:
    pass


for _name, _help in COMMANDS.items():
    app.command(_name, help=_help)(_loaded_when_called)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from settings.version import VERSION

        typer.echo(f"darkroom {VERSION}")
        raise typer.Exit


@app.callback()
def darkroom(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version)
    ] = False,
    json: JsonOption = False,
) -> None:
    """Start and manage Darkroom, the image generation service, and run jobs."""


def main() -> None:
    """Run the program, and print one line for each invalid setting."""
    try:
        app()
    except ValueError as error:
        from pydantic import ValidationError

        from settings.settings import Settings

        if not isinstance(error, ValidationError):
            raise
        write_error("\n".join(Settings.wrong_values(error)), code=ExitCode.USAGE)
        raise SystemExit(ExitCode.USAGE) from None
