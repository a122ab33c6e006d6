"""Sets constants of the service for the tests that run it in their own process."""

from __future__ import annotations

import importlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

_PLACES = {
    "adapter_max_user_bytes": "serve_app.protocols.comfyui.user_files:MAX_BYTES",
    "adapter_max_user_file_bytes": "serve_app.protocols.comfyui.user_files:MAX_FILE_BYTES",
    "adapter_max_user_files": "serve_app.protocols.comfyui.user_files:MAX_FILES",
    "adapter_max_wait_s": "serve_app.protocols.waiting:MAX_WAIT_S",
    "body_grace_s": "serve_app.bodies:_GRACE_S",
    "body_wait_s": "serve_app.fair_threads:_WAIT_S",
    "fetch_in_flight": "serve_app.acceptance.inline_images:_FETCHES",
    "fetch_per_owner": "serve_app.acceptance.inline_images:_FETCHES_PER_OWNER",
    "header_timeout_s": "local.haproxy:_HEADER_TIMEOUT_S",
    "idle_timeout_s": "local.haproxy:_IDLE_TIMEOUT_S",
    "key_cache_s": "serve_app.access.api_keys:_CACHE_S",
    "key_image_quality": "serve_app.assembly:_IMAGE_QUALITY",
    "key_refusal_lines_per_s": "serve_app.access.refusal_log:_LINES_PER_S",
    "max_connections": "local.haproxy:_MAX_CONNECTIONS",
    "max_held_body_bytes": "serve_app.bodies:_MAX_HELD_BYTES",
    "max_input_bytes": "serve_app.acceptance.comfyui_compilation:_MOST_INPUT_BYTES",
    "max_inline_bytes": "serve_app.routes.jobs:_MAX_INLINE_BYTES",
    "max_image_body_bytes": "serve_app.bodies:_MAX_IMAGE_BYTES",
    "max_replica_requests": "settings.http:MAX_REPLICA_REQUESTS",
    "max_streams": "serve_app.live.streams:_MAX_STREAMS",
    "max_unread_body_bytes": "serve_app.middleware:_MAX_UNREAD_BODY_BYTES",
    "max_upload_pixels": "serve_app.upload_store:_MAX_PIXELS",
    "owner_max_streams": "serve_app.assembly:_OWNER_MAX_STREAMS",
    "owner_max_waits": "serve_app.assembly:_OWNER_MAX_WAITS",
    "queue_timeout_s": "local.haproxy:_QUEUE_TIMEOUT_S",
    "silence_timeout_s": "settings.http:SILENCE_TIMEOUT_S",
    "stream_buffer_events": "serve_app.live.broadcaster:BUFFER_EVENTS",
    "stream_keep_alive_s": "serve_app.live.streams:_KEEP_ALIVE_S",
    "stream_max_s": "serve_app.live.streams:_MAX_S",
    "stream_replay_events": "serve_app.live.broadcaster:_REPLAY_EVENTS",
    "stream_send_timeout_s": "serve_app.live.streams:_SEND_TIMEOUT_S",
    "unread_body_s": "serve_app.middleware:_UNREAD_BODY_S",
}
"""Module and attribute of each constant that a test sets."""
_IMPORTED = {
    "adapter_max_user_bytes": ["serve_app.assembly"],
    "adapter_max_user_files": ["serve_app.assembly"],
    "adapter_max_wait_s": ["serve_app.protocols.openai.images"],
    "silence_timeout_s": ["serve_app.stored_file", "local.haproxy"],
    "stream_buffer_events": ["serve_app.live.streams"],
}
"""Other modules that import the constant by name."""


def take_constants(values: dict[str, Any]) -> dict[str, Any]:
    """Remove the constants from `values`, and return them."""
    return {name: values.pop(name) for name in list(values) if name in _PLACES}


@contextmanager
def constants(**values: Any) -> Generator[None]:
    """Set constants for as long as the context lasts."""
    earlier: list[tuple[Any, str, Any]] = []
    try:
        for name, value in values.items():
            first, _, attribute = _PLACES[name].partition(":")
            for module_name in (first, *_IMPORTED.get(name, ())):
                module = importlib.import_module(module_name)
                earlier.append((module, attribute, getattr(module, attribute)))
                setattr(module, attribute, value)
        yield
    finally:
        for module, attribute, value in reversed(earlier):
            setattr(module, attribute, value)
