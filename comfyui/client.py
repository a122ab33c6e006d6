"""ComfyUIClient: the HTTP and websocket interface of one ComfyUI server.

The routes are described at https://docs.comfy.org/development/comfyui-server/comms_routes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import struct
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from comfyui.errors import (
    OutputMissing,
    OutputTooLarge,
    PromptRefused,
    RequestFailed,
    ServerUnavailable,
)
from comfyui.graphs import FileReference
from settings.constant import constant

logger = logging.getLogger(__name__)

_TIMEOUT_S = constant("COMFYUI_TIMEOUT_S", 30.0)
"""Seconds that the server may take for one answer."""
_LONGEST_RECONNECT_S = 10.0
_SILENCE_S = constant("COMFYUI_WEBSOCKET_SILENCE_S", 60.0)
"""Seconds without a message after which the websocket is opened again. The websocket of a server
that has run for days may stay silent for good, while prompts go on.
"""
_MOST_MESSAGE_BYTES = 32 * 2**20
"""Largest size of a websocket message in bytes. Previews are the largest messages."""
_PREVIEW = 1
_PREVIEW_WITH_METADATA = 4
_INTEGER_BYTES = 4
_FEATURES = {"type": "feature_flags", "data": {"supports_preview_metadata": True}}
"""The first message on a websocket. With this feature the server names the node of a preview."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message about a prompt, from the websocket."""

    type: str
    """ComfyUI's name, such as `executing` or `progress`, or `preview` for a preview image."""
    data: Mapping[str, Any] = field(default_factory=dict)
    image: bytes | None = None
    """The preview image as JPEG or PNG."""


class ComfyUIClient:
    def __init__(self, url: str, *, timeout_s: float = _TIMEOUT_S) -> None:
        """`url` is the address of the server, such as `http://127.0.0.1:8188`."""
        self.url = url.rstrip("/")
        self.client_id = uuid.uuid4().hex
        """The id under which the server sends messages about our prompts."""
        self.is_heard = False
        """Whether the websocket is open."""
        self._http = httpx.AsyncClient(base_url=self.url, timeout=timeout_s, trust_env=False)

    async def system_stats(self) -> dict[str, Any]:
        """Return the version, the arguments and the devices of the server."""
        stats: dict[str, Any] = await self._json("GET", "/system_stats")
        return stats

    async def object_info(self) -> bytes:
        """Return the list of node types, for `ObjectInfo`."""
        response = await self._send("GET", "/object_info")
        _require_success(response)
        return response.content

    async def upload(self, name: str, content: bytes) -> str:
        """Store a file in the input folder, and return its name there.

        Raises ServerUnavailable, RequestFailed, and PromptRefused if the file is too large.
        """
        files = {"image": (name, content, "application/octet-stream")}
        response = await self._send(
            "POST", "/upload/image", files=files, data={"overwrite": "true"}
        )
        if response.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            message = f"ComfyUI accepts no input file of {len(content)} bytes"
            raise PromptRefused({"type": "too_large", "message": message}, {})
        _require_success(response)
        return str(_json_object(response)["name"])

    async def submit(
        self, graph: Mapping[str, Any], prompt_id: str, extra_data: Mapping[str, Any]
    ) -> str:
        """Add a prompt to the server's queue and return its id, which may differ from `prompt_id`.

        Raises ServerUnavailable, and PromptRefused if the server refuses the graph. If the server
        accepts only a part of the graph, the prompt is cancelled and PromptRefused is raised.
        """
        body = {
            "prompt": graph,
            "prompt_id": prompt_id,
            "client_id": self.client_id,
            "extra_data": extra_data,
        }
        response = await self._send("POST", "/prompt", json=body)
        answer = _json_object(response)
        if response.status_code == HTTPStatus.BAD_REQUEST:
            error = answer.get("error")
            if not isinstance(error, dict):
                error = {"type": "invalid_prompt", "message": str(error or "invalid prompt")}
            raise PromptRefused(error, answer.get("node_errors") or {})
        if not response.is_success:  # ComfyUI answers 500 to some malformed graphs.
            message = f"ComfyUI could not check the graph (status {response.status_code})"
            raise PromptRefused({"type": "invalid_prompt", "message": message}, {})
        prompt_id = str(answer.get("prompt_id", prompt_id))
        if node_errors := answer.get("node_errors"):
            await self.cancel(prompt_id)
            message = "Some outputs of the prompt are not valid"
            raise PromptRefused({"type": "invalid_prompt", "message": message}, node_errors)
        return prompt_id

    async def history(self, prompt_id: str) -> dict[str, Any] | None:
        """Return the history entry of a prompt, or None if there is none."""
        entry: dict[str, Any] | None = (await self._json("GET", f"/history/{prompt_id}")).get(
            prompt_id
        )
        return entry

    async def queue(self) -> tuple[set[str], set[str]]:
        """Return the ids of the prompts that run, and of those that wait."""
        queue = await self._json("GET", "/queue")
        running, pending = (
            # Entries are lists, or objects in the distribution of ComfyUI by hiddenswitch.
            {
                str(item["prompt_id" if isinstance(item, dict) else 1])
                for item in queue.get(name, ())
            }
            for name in ("queue_running", "queue_pending")
        )
        return running, pending

    async def cancel(self, prompt_id: str) -> None:
        """Remove a waiting prompt, or interrupt it between two steps or nodes.

        No other prompt is interrupted: older servers ignore the id of an interrupt, so it is sent
        only while our prompt runs.
        """
        # Versions of 2026 have this route, which has no race with the start of the prompt.
        response = await self._send("POST", f"/api/jobs/{prompt_id}/cancel")
        if response.is_success:
            return
        await self._send("POST", "/queue", json={"delete": [prompt_id]})
        running, _ = await self.queue()
        if prompt_id in running:
            await self._send("POST", "/interrupt", json={"prompt_id": prompt_id})

    async def forget(self, prompt_id: str) -> None:
        """Remove a prompt from the history."""
        await self._send("POST", "/history", json={"delete": [prompt_id]})

    async def free_memory(self) -> None:
        """Request the server to unload all models before its next prompt."""
        await self._send("POST", "/free", json={"unload_models": True, "free_memory": True})

    async def download(self, reference: FileReference, *, max_bytes: int) -> bytes:
        """Return the content of a file.

        Raises OutputMissing, OutputTooLarge, ServerUnavailable.
        """
        query = {
            "filename": reference.filename,
            "subfolder": reference.subfolder,
            "type": reference.type,
        }
        content = bytearray()
        try:
            async with self._http.stream("GET", "/view", params=query) as response:
                if not response.is_success:
                    status = response.status_code
                    text = (
                        f"ComfyUI does not send the output {reference.filename} (status {status})"
                    )
                    raise OutputMissing(text)
                async for chunk in response.aiter_bytes():
                    content += chunk
                    if len(content) > max_bytes:
                        text = f"the outputs have more than {max_bytes} bytes"
                        raise OutputTooLarge(text)
        except httpx.HTTPError as error:
            raise _unavailable(error) from error
        return bytes(content)

    async def listen(self, on_message: Callable[[Message], None]) -> None:
        """Call `on_message` with each message about our prompts, until cancelled.

        The websocket is opened again after it closes or is silent. The messages of the time
        between are lost, so only the history says whether a prompt has ended.
        """
        parts = urlsplit(self.url)
        scheme = {"https": "wss"}.get(parts.scheme, "ws")
        query = f"clientId={self.client_id}"
        url = urlunsplit((scheme, parts.netloc, f"{parts.path}/ws", query, ""))
        pause_s = 0.1
        while True:
            try:
                async with connect(url, max_size=_MOST_MESSAGE_BYTES, proxy=None) as websocket:
                    await websocket.send(json.dumps(_FEATURES))
                    self.is_heard = True
                    while True:
                        async with asyncio.timeout(_SILENCE_S):
                            content = await websocket.recv()
                        pause_s = 0.1
                        if (message := message_of(content)) is not None:
                            on_message(message)
            except (OSError, TimeoutError, WebSocketException) as error:
                self.is_heard = False
                fields = {"action": "comfyui_listen", "error": str(error) or type(error).__name__}
                logger.debug("the websocket of ComfyUI has ended", extra=fields)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_RECONNECT_S)

    async def close(self) -> None:
        await self._http.aclose()

    async def _json(self, method: str, path: str, **more: Any) -> Any:
        response = await self._send(method, path, **more)
        _require_success(response)
        return _json_object(response)

    async def _send(self, method: str, path: str, **more: Any) -> httpx.Response:
        try:
            return await self._http.request(method, path, **more)
        except httpx.HTTPError as error:
            raise _unavailable(error) from error


def _json_object(response: httpx.Response) -> dict[str, Any]:
    try:
        content = response.json()
    except ValueError as error:
        if response.is_success:
            raise RequestFailed("The server's answer is not JSON.") from error
        return {}
    return content if isinstance(content, dict) else {}


def _require_success(response: httpx.Response) -> None:
    if not response.is_success:
        path = response.request.url.path
        raise RequestFailed(f"{path} was answered with status {response.status_code}")


def _unavailable(error: httpx.HTTPError) -> ServerUnavailable:
    return ServerUnavailable(f"no answer: {str(error) or type(error).__name__}")


def message_of(content: str | bytes) -> Message | None:
    """Return a message of the websocket, or None if it is of another form."""
    if isinstance(content, bytes):
        return _preview(content)
    with suppress(ValueError):
        message = json.loads(content)
        data = message.get("data") if isinstance(message, dict) else None
        if isinstance(data, dict) and isinstance(message.get("type"), str):
            return Message(message["type"], data)
    return None


def _preview(content: bytes) -> Message | None:
    """Return a preview.

    Bytes 0 to 3 are its kind, and bytes 4 to 7 the format of the image, or for the other kind the
    length of the JSON metadata before the image. Both are big-endian.
    """
    if len(content) < 2 * _INTEGER_BYTES:
        return None
    kind, number = struct.unpack_from(">II", content)
    rest = content[2 * _INTEGER_BYTES :]
    if kind == _PREVIEW:
        return Message("preview", image=rest)
    if kind == _PREVIEW_WITH_METADATA:
        with suppress(ValueError):
            metadata = json.loads(rest[:number])
            data = metadata if isinstance(metadata, dict) else {}
            return Message("preview", data, image=rest[number:])
    return None
