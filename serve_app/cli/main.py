"""`darkroom`: the list of its commands. Each is loaded when it is called, so help comes at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from serve_app.cli.exit_codes import ExitCode
from serve_app.cli.terminal import use_json, wants_json, write_error

COMMANDS = {
    "up": "Start everything on this machine and keep it running until Ctrl-C.",
    "doctor": "Say what is wrong with what the service stands on, and what to do about it.",
    "generate": "Run a job, show its progress, save its pictures.",
    "watch": "Tell what happens to a job, or to all of yours, as it happens.",
    "result": "Show where a job is; save the pictures it has.",
    "jobs": "List, show, cancel, quarantine and resubmit jobs.",
    "job": "What is known of a job; of another owner's job, nothing of what it was asked for.",
    "cancel": "Stop a job.",
    "upload": "Upload input images and latents, which a workflow names by their file names.",
    "uploads": "List and remove what was uploaded.",
    "models": "List the models that a job may name.",
    "keys": "Make, list, rotate and revoke API keys.",
    "endpoints": "Make, list, change, drain and delete endpoints.",
    "infotext": "Print the diffusion request that a generation text describes, as JSON.",
    "inspect": "What happened to a job, when, and who did it; and where it stands now.",
    "verify": "Check log, archive, read model, queues, files and callbacks; change nothing.",
    "rebuild": "Build the read model anew from log and archive, and put it in the place of the "
    "old one.",
    "backup": "Copy all that the service keeps to a new folder, while it runs.",
    "restore": "Make a new installation from a backup, in a data folder that is empty; start it "
    "then.",
}
"""What each says of itself first."""
_PLACES = {
    "generate": "remote.generate:generate",
    "watch": "remote.watch:watch",
    "result": "remote.generate:result",
    "jobs": "remote.jobs:app",
    "job": "remote.jobs:show_job",
    "cancel": "remote.jobs:cancel_job",
    "upload": "remote.uploads:upload",
    "uploads": "remote.uploads:app",
    "models": "remote.models:models",
    "keys": "keys:app",
    "endpoints": "remote.endpoints:app",
    "restore": "backup:restore",
}
"""Where a command is that is no function in a module of its own name."""

JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Answers and errors are JSON, for programs.", expose_value=False),
]


class _Commands(TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and load(str(name)), rest

    def main(  # noqa: PLR0917 - as the method that it overrides
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **rest: Any,
    ) -> Any:
        """With `--json` anywhere, wrong options are told in JSON as well."""
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
    """The command of this name, or the group of commands, as typer calls it."""
    module, _, member = _PLACES.get(name, f"{name}:{name}").partition(":")
    found = getattr(import_module(f"serve_app.cli.{module}"), member)
    group = found
    if not isinstance(found, typer.Typer):
        group = typer.Typer(add_completion=False)
        group.command(name)(found)
    command = get_command(group)
    _take_json(command)
    return command


def _take_json(command: Any) -> None:
    """Add the option `--json` to a command and to those below it; `main` acts on it."""
    command.params.append(_JSON)
    for each in getattr(command, "commands", {}).values():
        _take_json(each)


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
        bool, typer.Option("--version", help="Which version this is.", callback=_show_version)
    ] = False,
    json: JsonOption = False,
) -> None:
    """Makes images: starts the service, manages it, runs jobs."""


def main() -> None:
    """The console script. Prints one line for each setting that is not valid."""
    try:
        app()
    except ValueError as error:
        from pydantic import ValidationError

        from settings.settings import Settings

        if not isinstance(error, ValidationError):
            raise
        write_error("\n".join(Settings.wrong_values(error)), code=ExitCode.USAGE)
        raise SystemExit(ExitCode.USAGE) from None
