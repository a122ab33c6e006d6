"""`darkroom doctor`: what is probably set up otherwise than it was meant."""

from __future__ import annotations

import os

import typer

from engine.graph.models_folder import ModelsFolder
from serve_app.cli.exit_codes import ExitCode
from serve_app.cli.terminal import console, show_json, stderr, wants_json
from serve_app.operations.setup_warnings import models_warnings, variable_warnings
from settings.settings import Settings


def doctor() -> None:
    """Say what is probably set up otherwise than it was meant.

    Looks at variables and at the models folder, and changes nothing. Exits with 1 where it says
    something.
    """
    settings = Settings.load()
    warnings = setup_warnings(settings)
    if wants_json():
        show_json({"warnings": list(warnings)})
    elif warnings:
        show_warnings(warnings)
    else:
        console.print("Nothing looks wrong.")
    if warnings:
        raise typer.Exit(ExitCode.FAILED)


def setup_warnings(settings: Settings) -> tuple[str, ...]:
    stores = settings.stores
    models = ModelsFolder(stores.models_dir, timeout_s=stores.models_timeout_s)
    return (
        *variable_warnings(Settings.unknown_variables(os.environ)),
        *models_warnings(models),
    )


def show_warnings(warnings: tuple[str, ...]) -> None:
    for each in warnings:
        stderr.print(f"Warning: {each}", style="yellow", markup=False, soft_wrap=True)
