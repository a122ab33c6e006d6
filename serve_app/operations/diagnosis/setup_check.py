"""Variables, the secret and the models folder."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from engine.errors import ModelsUnavailable
from engine.graph.models_folder import CHECKPOINTS, LORAS, ModelsFolder
from serve_app.operations.diagnosis.findings import Finding, Level
from serve_app.operations.setup_warnings import models_warnings
from settings.stores import StoreSettings


class SettingsCheck:
    part = "settings"

    def __init__(self, stores: StoreSettings, *, wrong: Sequence[str]) -> None:
        """`wrong`: what is said of variables that are no settings."""
        self._stores = stores
        self._wrong = wrong

    async def run(self) -> list[Finding]:
        found = [
            Finding(self.part, Level.WARNING, each, "Correct its name, or unset it.")
            for each in self._wrong
        ]
        if self._stores.secret is not None:
            try:
                self._stores.secret_bytes  # noqa: B018 - it says what is wrong with it
            except ValueError as error:
                text = "Set one of 16 characters or more, the same on every node."
                found.append(Finding(self.part, Level.ERROR, f"{error}.", text))
        return found or [Finding(self.part, Level.OK, "Every DARKROOM_ variable is a setting.")]


class ModelsCheck:
    part = "models"

    def __init__(self, models: ModelsFolder) -> None:
        self._models = models

    async def run(self) -> list[Finding]:
        return await asyncio.to_thread(self._look)

    def _look(self) -> list[Finding]:
        root = self._models.root.absolute()
        remedy = f"Put a .safetensors file into {root / CHECKPOINTS}, or set DARKROOM_MODELS_DIR."
        if warnings := models_warnings(self._models):
            return [Finding(self.part, Level.ERROR, each, remedy) for each in warnings]
        try:
            counts = {kind: len(self._models.names(kind)) for kind in (CHECKPOINTS, LORAS)}
            pickled = sorted({path.name for path in self._models.pickled(CHECKPOINTS).values()})
        except ModelsUnavailable as error:
            return [Finding(self.part, Level.ERROR, str(error), remedy)]
        said = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        found = [Finding(self.part, Level.OK, f"{root} has {said}.")]
        if pickled:
            text = f"{len(pickled)} pickled files are not listed: {', '.join(pickled[:3])}."
            found.append(
                Finding(
                    self.part, Level.WARNING, text, "Convert them to .safetensors, or move them."
                )
            )
        return found
