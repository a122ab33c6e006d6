"""The settings of the WebUI. Here each request has its own, so none is changed for all."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request

from engine.webui.members import NEUTRAL_SETTINGS, is_neutral_setting
from events.store.records import ApiKey
from serve_app.adapters.credentials import GenerateAdapterKey, ReadAdapterKey
from serve_app.adapters.webui.errors import refused
from serve_app.replica import Replica, ReplicaDep

_SHOWN_CHARS = 80
_SHOWN = 5
_CHECKPOINT = "sd_model_checkpoint"
_PER_REQUEST: dict[str, Any] = {
    "sd_vae": "Automatic",
    "CLIP_stop_at_last_layers": 1,
    "eta_noise_seed_delta": 0,
    "sgm_noise_multiplier": False,
    "enable_quantization": False,
    "img2img_fix_steps": False,
    "emphasis": "Original",
    "tiling": False,
    "s_churn": 0.0,
    "s_tmin": 0.0,
    "s_tmax": 0.0,
    "s_noise": 1.0,
    "s_min_uncond": 0.0,
}
"""What a request's `override_settings` may say, with what holds without it."""

router = APIRouter(prefix="/options")


@router.get("")
async def options(replica: ReplicaDep, key: ReadAdapterKey) -> dict[str, Any]:
    return await _options(replica, key)


@router.post("")
async def set_options(request: Request, replica: ReplicaDep, key: GenerateAdapterKey) -> None:
    """Takes what holds anyway, and says of everything else where it belongs."""
    async with replica.bodies.json(request, key.owner) as (_, asked):
        if not isinstance(asked, dict):
            raise refused("The body must be a JSON object.")
        now = await _options(replica, key)
        changed = [name for name, value in asked.items() if not _holds(name, value, now)]
    if changed:
        per_request = [name for name in changed if name in (*_PER_REQUEST, _CHECKPOINT)]
        others = [name for name in changed if name not in per_request]
        raise refused(
            " ".join(
                f"{', '.join(name[:_SHOWN_CHARS] for name in names[:_SHOWN])}: {why}"
                for names, why in (
                    (per_request, "send it with each request, in override_settings."),
                    (others, "only the value that GET /sdapi/v1/options has is supported."),
                )
                if names
            )
        )


def _holds(name: str, value: Any, now: dict[str, Any]) -> bool:
    return now.get(name, _holds) == value or is_neutral_setting(name, value)


async def _options(replica: Replica, key: ApiKey) -> dict[str, Any]:
    """Raises ModelsUnavailable, DatabaseUnavailable."""
    endpoint = await replica.acceptance.endpoints.for_job("default", key)
    checkpoint = await asyncio.to_thread(replica.acceptance.checkpoint, endpoint, key)
    neutral = {name: values[0] for name, values in NEUTRAL_SETTINGS.items()}
    return {**neutral, **_PER_REQUEST, _CHECKPOINT: checkpoint}
