"""Starts the stand-in for ComfyUI as its install would be started."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from comfyui.client import ComfyUIClient
from comfyui.own_server import Install, OwnServer

FOLDER = Path(__file__).parent / "standin"


def install(*arguments: str) -> Install:
    return Install(FOLDER, Path(sys.executable), arguments)


@asynccontextmanager
async def standin(folder: Path) -> AsyncIterator[tuple[OwnServer, ComfyUIClient]]:
    """Run a stand-in with its folders in `folder`."""
    process = OwnServer(install(), folder, on_cpu=True)
    client = await process.start()
    try:
        yield process, client
    finally:
        await client.close()
        await process.close()


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def graph(*nodes: dict[str, Any]) -> dict[str, Any]:
    """Return a graph whose nodes run in this order."""
    return {str(number): each for number, each in enumerate(nodes, 1)}
