"""`darkroom`: the list of its commands. Each is loaded when it is called, so help comes at once."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

COMMANDS = {
    "up": "Start everything on this machine and keep it running until Ctrl-C.",
    "doctor": "Say what is probably set up otherwise than it was meant.",
    "generate": "Run a job, show its progress, save its pictures.",
    "result": "Show where a job is; save the pictures it has.",
    "jobs": "List, show, cancel, quarantine and resubmit jobs.",
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
_MODULES = {"result": "generate", "restore": "backup"}
"""Where a command is that has no module of its own name."""


class _Commands(TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and load(str(name)), rest


def load(name: str) -> Any:
    """The command of this name, or the group of commands, as typer calls it."""
    module = import_module(f"serve_app.cli.{_MODULES.get(name, name)}")
    if (group := getattr(module, "app", None)) is None:
        group = typer.Typer(add_completion=False)
        group.command(name)(getattr(module, name))
    return get_command(group)


app = typer.Typer(
    cls=_Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)


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
        sys.stderr.writelines(f"{line}\n" for line in Settings.wrong_values(error))
        raise SystemExit(2) from None
