"""Runs all checks of `darkroom doctor` at the same time, and checks the settings and models."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from comfyui.own_server import Install
from engine.interface import ModelsFolder, ModelsUnavailable
from local.embedded import RAY_ADDRESS_FILE, is_up
from operations.diagnosis.cluster_checks import EndpointCheck, RayCheck
from operations.diagnosis.comfyui_check import ComfyUICheck
from operations.diagnosis.findings import Check, Finding, Level
from operations.diagnosis.network_checks import CallbackCheck, HttpCheck
from operations.diagnosis.store_checks import (
    DatabaseCheck,
    DiskSpaceCheck,
    ImageStoreCheck,
    LogCheck,
    local_folder,
)
from serve_app.acceptance.acceptance import LOG_FULL_RATIO
from serve_app.setup_warnings import models_warnings, variable_warnings
from settings.settings import Settings
from settings.stores import StoreSettings


class SettingsCheck:
    part = "settings"

    def __init__(self, stores: StoreSettings, *, wrong: Sequence[str]) -> None:
        """`wrong` has the warnings about variables that are not settings."""
        self._stores = stores
        self._wrong = wrong

    async def run(self) -> list[Finding]:
        found = [
            Finding(
                self.part, Level.WARNING, each, "Correct the name of the variable, or unset it."
            )
            for each in self._wrong
        ]
        if self._stores.secret is not None:
            try:
                self._stores.secret_bytes  # noqa: B018 - raises if the secret is not valid
            except ValueError as error:
                text = "Set a secret of 16 characters or more, the same on every node."
                found.append(Finding(self.part, Level.ERROR, f"{error}.", text))
        return found or [Finding(self.part, Level.OK, "Every DARKROOM_ variable is a setting.")]


class ModelsCheck:
    part = "models"

    def __init__(self, models: ModelsFolder, *, needs_checkpoint: bool = True) -> None:
        self._models = models
        self._needs_checkpoint = needs_checkpoint

    async def run(self) -> list[Finding]:
        return await asyncio.to_thread(self._look)

    def _look(self) -> list[Finding]:
        root = self._models.root.absolute()
        remedy = f"Put a .safetensors file into {root}/checkpoints, or set DARKROOM_MODELS_DIR."
        needed = self._needs_checkpoint
        if warnings := models_warnings(self._models, needs_checkpoint=needed):
            return [Finding(self.part, Level.ERROR, each, remedy) for each in warnings]
        try:
            counts = {kind: len(self._models.names(kind)) for kind in ("checkpoints", "loras")}
            pickled = sorted({path.name for path in self._models.pickled("checkpoints").values()})
        except ModelsUnavailable as error:
            return [Finding(self.part, Level.ERROR, str(error), remedy)]
        summary = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        found = [Finding(self.part, Level.OK, f"{root} has {summary}.")]
        if pickled:
            shown = ", ".join(pickled[:3])
            text = f"{len(pickled)} files in the pickle format are not listed: {shown}."
            found.append(
                Finding(
                    self.part,
                    Level.WARNING,
                    text,
                    "Convert the files to .safetensors, or move them.",
                )
            )
        return found


PATIENCE_S = 45.0
_COMFYUI_PATIENCE_S = 600.0


def checks_of(settings: Settings, *, callback_url: str | None = None) -> list[Check]:
    """Return the checks for a service with these settings. The service need not run."""
    log, stores, http, comfyui = settings.log, settings.stores, settings.http, settings.comfyui
    # The files of ComfyUI servers are in the temporary folder.
    temporary = [] if comfyui.dir is None else [Path(tempfile.gettempdir())]
    runs_here = is_up(stores.data_dir)
    models = ModelsFolder(stores.models_dir)
    images = local_folder(stores.effective_images_url)
    checks: list[Check] = [
        SettingsCheck(stores, wrong=variable_warnings(Settings.unknown_variables(os.environ))),
        HttpCheck(http, is_up=runs_here),
        LogCheck(log, stores, is_up=runs_here, full_ratio=LOG_FULL_RATIO),
        DatabaseCheck(stores),
        ImageStoreCheck(stores),
        ModelsCheck(models, needs_checkpoint=settings.comfyui.dir is None),
        DiskSpaceCheck([stores.data_dir.absolute(), *([images] if images else []), *temporary]),
        RayCheck(_ray_address(settings, runs_here=runs_here), stores),
    ]
    if runs_here or log.nats_url is not None:
        checks.append(EndpointCheck(log, stores))
    if comfyui.dir is not None:
        checks.append(ComfyUICheck(Install(comfyui.dir.absolute(), comfyui.python, comfyui.args)))
    return [*checks, CallbackCheck(settings.callbacks, url=callback_url)]


async def examine(checks: Sequence[Check], *, patience_s: float = PATIENCE_S) -> list[Finding]:
    """Return the findings of all checks, in the order of the checks."""
    found = await asyncio.gather(*(_run(each, patience_s) for each in checks))
    return [finding for some in found for finding in some]


async def _run(check: Check, patience_s: float) -> list[Finding]:
    if isinstance(check, ComfyUICheck):
        patience_s = max(patience_s, _COMFYUI_PATIENCE_S)
    try:
        async with asyncio.timeout(patience_s):
            return await check.run()
    except TimeoutError:
        text = f"No answer within {patience_s:g} s."
        remedy = "A mount, a server, or the network to it may hang."
        return [Finding(check.part, Level.ERROR, text, remedy, hangs=True)]
    except Exception as error:  # noqa: BLE001 - a failed check must not hide other findings
        # The message is left out, because it may contain a URL with a password.
        text = f"The check failed: {type(error).__name__}."
        return [
            Finding(
                check.part, Level.ERROR, text, "Check the settings of this part, especially URLs."
            )
        ]


def _ray_address(settings: Settings, *, runs_here: bool) -> str | None:
    """Return the address of the Ray cluster to check: that of `darkroom up`, or else `RAY_ADDRESS`.

    The result is None if `darkroom up` has written no address and no URL of NATS is set.
    """
    file: Path = settings.stores.data_dir / RAY_ADDRESS_FILE
    if runs_here and file.exists():
        return file.read_text().strip()
    if settings.log.nats_url is None:
        return None
    return os.environ.get("RAY_ADDRESS", "auto")
