"""`darkroom doctor`: what is wrong with what the service stands on, and what to do about it."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from engine.graph.models_folder import ModelsFolder
from serve_app.cli.exit_codes import ExitCode
from serve_app.cli.terminal import console, printable, show_json, stderr, wants_json
from serve_app.operations.diagnosis.findings import Finding, Level
from serve_app.operations.setup_warnings import models_warnings, variable_warnings
from settings.settings import Settings

_STYLES = {Level.OK: "green", Level.NOTE: "dim", Level.WARNING: "yellow", Level.ERROR: "red"}

CallbackUrlOption = Annotated[
    str | None,
    typer.Option(help="Where callbacks are to go: see whether it can be reached from here."),
]


def doctor(callback_url: CallbackUrlOption = None) -> None:
    """Say what is wrong with what the service stands on, and what to do about it.

    Looks at settings, ports, NATS, database, image store, models, disks, Ray, endpoints, clocks and
    the way of callbacks, whether the service runs or not. Exits with 1 where something is wrong.
    """
    from serve_app.operations.diagnosis.examination import checks_of, examine

    settings = Settings.load()
    logging.getLogger().addHandler(logging.NullHandler())  # what libraries say is in the findings
    findings = asyncio.run(examine(checks_of(settings, callback_url=callback_url)))
    wrong = [each for each in findings if each.is_wrong]
    if wants_json():
        show_json({"healthy": not wrong, "findings": [_told(each) for each in findings]})
    else:
        _show(findings)
    if any(each.hangs for each in findings):
        sys.stdout.flush()
        os._exit(ExitCode.FAILED)  # an exit in good order would wait for what hangs
    if wrong:
        raise typer.Exit(ExitCode.FAILED)


def _told(finding: Finding) -> dict[str, str | None]:
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
    said = ", ".join(f"{count} {level}{'s' * (count > 1)}" for level, count in counts.items())
    console.print(f"\n{said or 'Nothing looks wrong'}.")


def setup_warnings(settings: Settings) -> tuple[str, ...]:
    """What a start says of variables and of the models folder."""
    stores = settings.stores
    models = ModelsFolder(stores.models_dir, timeout_s=stores.models_timeout_s)
    return (
        *variable_warnings(Settings.unknown_variables(os.environ)),
        *models_warnings(models),
    )


def show_warnings(warnings: tuple[str, ...]) -> None:
    for each in warnings:
        stderr.print(f"Warning: {each}", style="yellow", markup=False, soft_wrap=True)
