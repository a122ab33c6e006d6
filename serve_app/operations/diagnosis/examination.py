"""All checks at the same time, none of which holds up the others for long."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from engine.graph.models_folder import ModelsFolder
from serve_app.local.embedded import RAY_ADDRESS_FILE, is_up
from serve_app.operations.diagnosis.callback_check import CallbackCheck
from serve_app.operations.diagnosis.database_check import DatabaseCheck
from serve_app.operations.diagnosis.endpoint_check import EndpointCheck
from serve_app.operations.diagnosis.findings import Check, Finding, Level
from serve_app.operations.diagnosis.http_check import HttpCheck
from serve_app.operations.diagnosis.log_check import LogCheck
from serve_app.operations.diagnosis.ray_check import RayCheck
from serve_app.operations.diagnosis.setup_check import ModelsCheck, SettingsCheck
from serve_app.operations.diagnosis.store_check import (
    ImageStoreCheck,
    RoomCheck,
    local_folder,
)
from serve_app.operations.setup_warnings import variable_warnings
from settings.settings import Settings

PATIENCE_S = 45.0


def checks_of(settings: Settings, *, callback_url: str | None = None) -> list[Check]:
    """Those of a service with these settings, whether it runs or not."""
    log, stores, http = settings.log, settings.stores, settings.http
    runs_here = is_up(stores.data_dir)
    models = ModelsFolder(stores.models_dir, timeout_s=stores.models_timeout_s)
    images = local_folder(stores.effective_images_url)
    checks: list[Check] = [
        SettingsCheck(stores, wrong=variable_warnings(Settings.unknown_variables(os.environ))),
        HttpCheck(http, is_up=runs_here),
        LogCheck(log, stores, is_up=runs_here, full_ratio=http.log_full_ratio),
        DatabaseCheck(stores),
        ImageStoreCheck(stores),
        ModelsCheck(models),
        RoomCheck([stores.data_dir.absolute(), *([images] if images else [])]),
        RayCheck(_ray_address(settings, runs_here=runs_here), stores),
    ]
    if runs_here or log.nats_url is not None:
        checks.append(EndpointCheck(log, stores))
    return [*checks, CallbackCheck(settings.callbacks, url=callback_url)]


async def examine(checks: Sequence[Check], *, patience_s: float = PATIENCE_S) -> list[Finding]:
    """What all of them find, in their order."""
    found = await asyncio.gather(*(_run(each, patience_s) for each in checks))
    return [finding for some in found for finding in some]


async def _run(check: Check, patience_s: float) -> list[Finding]:
    try:
        async with asyncio.timeout(patience_s):
            return await check.run()
    except TimeoutError:
        text = f"No answer within {patience_s:g} s."
        remedy = "Something that it stands on hangs: a mount, a server or the way to it."
        return [Finding(check.part, Level.ERROR, text, remedy, hangs=True)]
    except Exception as error:  # noqa: BLE001 - a check that fails hides no other
        # Not the message: it may repeat a URL, with its password.
        text = f"It cannot be looked at: {type(error).__name__}."
        return [Finding(check.part, Level.ERROR, text, "Look at its settings, above all at URLs.")]


def _ray_address(settings: Settings, *, runs_here: bool) -> str | None:
    """That of `darkroom up`; else of the cluster that this machine belongs to, if any."""
    file: Path = settings.stores.data_dir / RAY_ADDRESS_FILE
    if runs_here and file.exists():
        return file.read_text().strip()
    if settings.log.nats_url is None:
        return None
    return os.environ.get("RAY_ADDRESS", "auto")
