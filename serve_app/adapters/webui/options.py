"""The settings of the WebUI: those that a request may have of its own are kept for the key."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request

from engine.graph.models_folder import CHECKPOINTS, ModelsFolder
from engine.webui.members import NEUTRAL_SETTINGS, is_neutral_setting
from engine.webui.model_names import listed_name
from engine.webui.override_settings import OverrideSettings
from events.log import utc_now
from events.store.records import ApiKey
from serve_app.adapters.credentials import GenerateAdapterKey, ReadAdapterKey
from serve_app.adapters.webui.errors import refused
from serve_app.adapters.webui.paths import V1
from serve_app.bodies import validated
from serve_app.replica import Replica, ReplicaDep

_SHOWN_CHARS = 80
_SHOWN = 5
_CHECKPOINT = "sd_model_checkpoint"
_OVERRIDES = "override_settings"
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
"""What a request may say, with what holds without it."""

router = APIRouter(prefix=f"{V1}/options", include_in_schema=False)


@router.get("")
async def options(replica: ReplicaDep, key: ReadAdapterKey) -> dict[str, Any]:
    return await _options(replica, key)


@router.post("")
async def set_options(request: Request, replica: ReplicaDep, key: GenerateAdapterKey) -> None:
    """Keeps what later requests of the key have as their `override_settings`, unless they say
    something else. Says of everything else where it belongs.
    """
    async with replica.bodies.json(request, key.owner) as (_, asked):
        if not isinstance(asked, dict):
            raise refused("The body must be a JSON object.")
        now = await _options(replica, key)
        changed = {name: each for name, each in asked.items() if not _holds(name, each, now)}
        _refuse([name for name in changed if name not in OverrideSettings.model_fields])
        if changed:
            await asyncio.to_thread(_name_checkpoint, changed, replica.services.catalogue.models)
            options = replica.services.key_options
            kept = {**await options.of(key.id), **changed}
            given = {name: value for name, value in kept.items() if value is not None}
            await options.put(key.id, given, utc_now())


async def with_options(replica: Replica, key: ApiKey, asked: dict[str, Any]) -> dict[str, Any]:
    """A request with the options that its key has set, where it has none of its own.

    Raises DatabaseUnavailable.
    """
    given = asked.get(_OVERRIDES)
    kept = await replica.services.key_options.of(key.id)
    if not kept or not isinstance(given, dict | None):
        return asked
    if asked.get(_CHECKPOINT) is not None:
        kept.pop(_CHECKPOINT, None)
    own = {name: value for name, value in (given or {}).items() if value is not None}
    return {**asked, _OVERRIDES: {**kept, **own}}


def _refuse(names: list[str]) -> None:
    """Raises ApiError 400 where there are any."""
    per_request = [name for name in names if name in _PER_REQUEST]
    others = [name for name in names if name not in _PER_REQUEST]
    if names:
        raise refused(
            " ".join(
                f"{', '.join(name[:_SHOWN_CHARS] for name in each[:_SHOWN])}: {why}"
                for each, why in (
                    (per_request, "send it with each request."),
                    (others, "only the value that GET /sdapi/v1/options has is supported."),
                )
                if each
            )
        )


def _name_checkpoint(changed: dict[str, Any], models: ModelsFolder) -> None:
    """Put the name of a checkpoint as it is listed in the place of how it was named.

    Raises RequestValidationError, ApiError 400, ModelsUnavailable.
    """
    asked = validated(OverrideSettings, changed).sd_model_checkpoint
    if asked is not None:
        try:
            changed[_CHECKPOINT] = listed_name(asked, models.names(CHECKPOINTS))
        except ValueError as error:
            raise refused(f"{_CHECKPOINT} {error}") from error


def _holds(name: str, value: Any, now: dict[str, Any]) -> bool:
    is_now = name in now and now[name] == value
    return is_now or is_neutral_setting(name, value)


async def _options(replica: Replica, key: ApiKey) -> dict[str, Any]:
    """Raises ModelsUnavailable, DatabaseUnavailable."""
    endpoint = await replica.acceptance.endpoints.for_job("default", key)
    checkpoint = await asyncio.to_thread(replica.acceptance.checkpoint, endpoint, key)
    neutral = {name: values[0] for name, values in NEUTRAL_SETTINGS.items()}
    kept = await replica.services.key_options.of(key.id)
    return {**neutral, **_PER_REQUEST, _CHECKPOINT: checkpoint, **kept}
