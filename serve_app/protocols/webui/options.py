"""The settings of the WebUI. Settings that a request may override are stored for each key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request

from engine.interface import OverrideSettings, requests_nothing
from events.log import utc_now
from events.store.records import DEFAULT_ENDPOINT, ApiKey, Endpoint
from serve_app.bodies import validated
from serve_app.protocols.credentials import GenerateProtocolKey, ReadProtocolKey
from serve_app.protocols.webui.errors import V1, refused
from serve_app.replica import KeyOptionsDep, Submission, SubmissionDep

if TYPE_CHECKING:
    from events.store.keys import KeyOptions


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
    "randn_source": "GPU",
    "tiling": False,
    "s_churn": 0.0,
    "s_tmin": 0.0,
    "s_tmax": 0.0,
    "s_noise": 1.0,
    "s_min_uncond": 0.0,
}
"""Options that a request may override, with their defaults."""

router = APIRouter(prefix=f"{V1}/options", include_in_schema=False)


@router.get("")
async def options(
    request: Request, submission: SubmissionDep, key_options: KeyOptionsDep, key: ReadProtocolKey
) -> dict[str, Any]:
    endpoint = await endpoint_of(request, submission, key)
    return await _options(submission, key_options, key, endpoint)


@router.post("")
async def set_options(
    request: Request,
    submission: SubmissionDep,
    key_options: KeyOptionsDep,
    key: GenerateProtocolKey,
) -> None:
    """Store options as defaults of `override_settings` for later requests of the key.

    Other options are refused, and the error message describes how to set them.
    """
    async with submission.bodies.json(request, key.owner) as (_, asked):
        if not isinstance(asked, dict):
            raise refused("The body must be a JSON object.")
        endpoint = await endpoint_of(request, submission, key)
        now = await _options(submission, key_options, key, endpoint)
        changed = {name: each for name, each in asked.items() if not _holds(name, each, now)}
        _refuse([name for name in changed if name not in OverrideSettings.model_fields])
        if changed:
            await _name_checkpoint(
                changed, partial(submission.acceptance.checkpoint_named, endpoint, key)
            )
            kept = {**await key_options.options_of(key.id), **changed}
            given = {name: value for name, value in kept.items() if value is not None}
            await key_options.put(key.id, given, utc_now())


async def with_options(
    key_options: KeyOptions, key: ApiKey, asked: dict[str, Any]
) -> dict[str, Any]:
    """Return the request with the stored options of its key, except options that the request sets.

    Raises DatabaseUnavailable.
    """
    given = asked.get(_OVERRIDES)
    kept = await key_options.options_of(key.id)
    if not kept or not isinstance(given, dict | None):
        return asked
    if asked.get(_CHECKPOINT) is not None:
        kept.pop(_CHECKPOINT, None)
    own = {name: value for name, value in (given or {}).items() if value is not None}
    return {**asked, _OVERRIDES: {**kept, **own}}


def _refuse(names: list[str]) -> None:
    """Raise ApiError 400 unless `names` is empty."""
    per_request = [name for name in names if name in _PER_REQUEST]
    others = [name for name in names if name not in _PER_REQUEST]
    if names:
        raise refused(
            " ".join(
                f"{', '.join(name[:_SHOWN_CHARS] for name in each[:_SHOWN])}: {why}"
                for each, why in (
                    (per_request, "send the option with each request."),
                    (others, "only the value of GET /sdapi/v1/options is supported."),
                )
                if each
            )
        )


async def _name_checkpoint(changed: dict[str, Any], named: Callable[[str], Awaitable[str]]) -> None:
    """Replace the checkpoint's name in `changed` by the name that `named` returns.

    Raises RequestValidationError, ApiError 400, ModelsUnavailable, DatabaseUnavailable.
    """
    asked = validated(OverrideSettings, changed).sd_model_checkpoint
    if asked is not None:
        try:
            changed[_CHECKPOINT] = await named(asked)
        except ValueError as error:
            raise refused(f"{_CHECKPOINT} {error}") from error


def _holds(name: str, value: Any, now: dict[str, Any]) -> bool:
    """Whether an option has the value already, or requests nothing."""
    if name in now:
        return bool(now[name] == value) or OverrideSettings.is_neutral(name, value)
    return requests_nothing(value) or OverrideSettings.is_neutral(name, value)


async def endpoint_of(request: Request, submission: Submission, key: ApiKey) -> Endpoint:
    """Return the endpoint that the query names, or the default endpoint. Raises RequestRefused."""
    id = request.query_params.get("endpoint", DEFAULT_ENDPOINT)
    return await submission.acceptance.endpoints.named(id, key)


async def _options(
    submission: Submission, key_options: KeyOptions, key: ApiKey, endpoint: Endpoint
) -> dict[str, Any]:
    """Return all options of the key. Raises ModelsUnavailable, DatabaseUnavailable."""
    checkpoint = await submission.acceptance.checkpoint(endpoint, key)
    kept = await key_options.options_of(key.id)
    return {**OverrideSettings.neutral(), **_PER_REQUEST, _CHECKPOINT: checkpoint, **kept}
