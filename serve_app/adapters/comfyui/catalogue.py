"""What may be asked for, as ComfyUI says it: node types, models, features, and of the system."""

from __future__ import annotations

import asyncio
import sys
from pathlib import PurePosixPath
from typing import Any

from fastapi import APIRouter, Depends

from engine.graph.models_folder import EMBEDDINGS
from serve_app.adapters.comfyui.twins import twin
from serve_app.adapters.credentials import READ, ReadAdapterKey
from serve_app.api_error import not_found
from serve_app.replica import Replica, ReplicaDep
from serve_app.routes.catalogue import KINDS, object_info
from settings.version import VERSION

router = APIRouter(include_in_schema=False, dependencies=[Depends(READ)])


@router.get(twin("/object_info"))
async def every_node(key: ReadAdapterKey, replica: ReplicaDep) -> dict[str, Any]:
    return await object_info(key, replica)


@router.get(twin("/object_info/{node}"))
async def one_node(node: str, key: ReadAdapterKey, replica: ReplicaDep) -> dict[str, Any]:
    """Empty for a node type that there is not."""
    if replica.services.catalogue.node(node) is None:
        return {}
    return {node: (await object_info(key, replica))[node]}


@router.get(twin("/models"))
async def model_folders() -> list[str]:
    return list(KINDS)


@router.get(twin("/models/{folder}"))
async def models(folder: str, replica: ReplicaDep) -> list[str]:
    return await _names(replica, folder)


@router.get(twin("/experiment/models"))
async def described_folders() -> list[dict[str, Any]]:
    return [{"name": kind, "folders": []} for kind in KINDS]


@router.get(twin("/experiment/models/{folder}"))
async def described_models(folder: str, replica: ReplicaDep) -> list[dict[str, Any]]:
    return [{"name": name, "pathIndex": 0} for name in await _names(replica, folder)]


@router.get(twin("/embeddings"))
async def embeddings(replica: ReplicaDep) -> list[str]:
    """Without the endings of their files, as texts name them."""
    names = await _names(replica, EMBEDDINGS)
    return [str(PurePosixPath(name).with_suffix("")) for name in names]


@router.get(twin("/features"))
async def features(replica: ReplicaDep) -> dict[str, Any]:
    return server_features(replica)


@router.get(twin("/system_stats"))
async def system_stats() -> dict[str, Any]:
    """Of no machine: jobs run on workers, of which `GET /v1/endpoints` tells."""
    return {
        "system": {
            "os": sys.platform,
            "comfyui_version": VERSION,
            "python_version": sys.version.partition(" ")[0],
            "pytorch_version": "",
            "embedded_python": False,
            "argv": [],
            "ram_total": 0,
            "ram_free": 0,
        },
        "devices": [
            {
                "name": "Darkroom",
                "type": "workers",
                "index": 0,
                "vram_total": 0,
                "vram_free": 0,
                "torch_vram_total": 0,
                "torch_vram_free": 0,
            }
        ],
    }


def server_features(replica: Replica) -> dict[str, Any]:
    return {
        "supports_preview_metadata": True,
        "max_upload_size": replica.services.http_settings.max_upload_bytes,
    }


async def _names(replica: Replica, folder: str) -> list[str]:
    """Raises ApiError 404, ModelsUnavailable."""
    if folder not in KINDS:
        raise not_found("There is no such folder of models.")
    return list(await asyncio.to_thread(replica.services.catalogue.models.names, folder))
