"""The check of a ComfyUI install, which starts its server as a worker does."""

from __future__ import annotations

import tempfile
from pathlib import Path

from comfyui.errors import ComfyUIError
from comfyui.own_server import Install, OwnServer, torch_device
from operations.diagnosis.findings import Finding, Level

_SHOWN_PACKS = 10


class ComfyUICheck:
    part = "ComfyUI"

    def __init__(self, install: Install) -> None:
        self._install = install

    async def run(self) -> list[Finding]:
        try:
            device = await torch_device(self._install)
            with tempfile.TemporaryDirectory(prefix="darkroom-doctor-") as folder:
                server = OwnServer(self._install, Path(folder, "server"), on_cpu=device == "cpu")
                try:
                    return await self._look(server, device)
                finally:
                    await server.close()
        except (ComfyUIError, OSError) as error:
            text = f"{self._install.folder} does not run: {error}"
            remedy = (
                "Start main.py in this folder by hand with the same interpreter "
                "(DARKROOM_COMFYUI_PYTHON), and correct what it reports."
            )
            return [Finding(self.part, Level.ERROR, text, remedy)]

    async def _look(self, server: OwnServer, device: str) -> list[Finding]:
        """Start the server, and describe it. Raises ComfyUIError."""
        client = await server.start()
        await client.close()
        name = " ".join(filter(None, ("ComfyUI", server.version)))
        text = f"{name} in {self._install.folder} starts (device: {device})"
        found = [Finding(self.part, Level.OK, f"{text}, with {server.node_types} node types.")]
        if failed := server.failed_imports:
            text = f"{len(failed)} packs could not be imported: {', '.join(failed[:_SHOWN_PACKS])}."
            remedy = "Install their requirements with the interpreter of ComfyUI, or remove them."
            found.append(Finding(self.part, Level.WARNING, text, remedy))
        return found
