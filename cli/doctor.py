"""`darkroom doctor`: checks the installation."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from cli.terminal import ExitCode, console, printable, show_json, stderr, wants_json
from engine.interface import ModelsFolder
from operations.diagnosis.findings import Finding, Level
from serve_app.setup_warnings import models_warnings, variable_warnings
from settings.settings import Settings

_STYLES = {Level.OK: "green", Level.NOTE: "dim", Level.WARNING: "yellow", Level.ERROR: "red"}

CallbackUrlOption = Annotated[
    str | None,
    typer.Option(
        help="Check whether this URL of a callback receiver can be reached from this machine."
    ),
]


ComfyUIOption = Annotated[
    Path | None,
    typer.Option("--comfyui", help="Folder of a ComfyUI install. Default: DARKROOM_COMFYUI_DIR."),
]


def doctor(callback_url: CallbackUrlOption = None, comfyui: ComfyUIOption = None) -> None:
    """Check the installation, and suggest how to fix problems.

    Checks settings, ports, NATS, database, image store, models, disks, Ray, endpoints, clocks and
    the connection to receivers of callbacks, whether the service runs or not. Starts the ComfyUI
    install, if there is one. Exits with 1 if there is a problem.
    """
    from operations.diagnosis.examination import checks_of, examine

    settings = Settings.load(**({} if comfyui is None else {"comfyui_dir": comfyui}))
    # This handler hides the log lines of libraries, because the findings repeat them.
    logging.getLogger().addHandler(logging.NullHandler())
    findings = asyncio.run(examine(checks_of(settings, callback_url=callback_url)))
    wrong = [each for each in findings if each.is_wrong]
    if wants_json():
        show_json({"healthy": not wrong, "findings": [_body(each) for each in findings]})
    else:
        _show(findings)
    if any(each.hangs for each in findings):
        sys.stdout.flush()
        os._exit(ExitCode.FAILED)  # An ordinary exit would wait for threads that hang.
    if wrong:
        raise typer.Exit(ExitCode.FAILED)


def _body(finding: Finding) -> dict[str, str | None]:
    return {
        "part": finding.part,
        "level": finding.level,
        "what": finding.what,
        "remedy": finding.remedy,
    }


def _show(findings: Sequence[Finding]) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for each in findings:
        style = _STYLES[each.level]
        table.add_row(f"[{style}]{each.level}[/]", each.part, escape(printable(each.what)))
        if each.remedy is not None:
            table.add_row("", "", f"[bold]→[/] {escape(printable(each.remedy))}")
    console.print(table)
    counts = Counter(each.level for each in findings if each.is_wrong)
    summary = ", ".join(f"{count} {level}{'s' * (count > 1)}" for level, count in counts.items())
    console.print(f"\n{summary or 'No problems found'}.")


def setup_warnings(settings: Settings) -> tuple[str, ...]:
    """Return warnings about unknown environment variables and about the models folder."""
    stores = settings.stores
    models = ModelsFolder(stores.models_dir)
    return (
        *variable_warnings(Settings.unknown_variables(os.environ)),
        *models_warnings(models, needs_checkpoint=settings.comfyui.dir is None),
    )


def show_warnings(warnings: tuple[str, ...]) -> None:
    for each in warnings:
        stderr.print(f"Warning: {each}", style="yellow", markup=False, soft_wrap=True)
