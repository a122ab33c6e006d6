"""Converts calls to requests of httpx, and responses of httpx to answers."""

from __future__ import annotations

from typing import Any

import httpx

from darkroom_client.core import Answer, Call

VERSION = "0.2.0"


def headers_of(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}", "User-Agent": f"darkroom-client/{VERSION}"}


def request_of(client: httpx.Client | httpx.AsyncClient, call: Call) -> httpx.Request:
    """Build the request of a call, without the API key if the path is a whole URL.

    A whole URL is the URL of an image. It needs no key and may be on another host.
    """
    more: dict[str, Any] = {}
    if call.file is not None:
        more["files"] = {"image": call.file}
    elif call.json is not None:
        more["json"] = call.json
    request = client.build_request(
        call.method,
        call.path,
        params=dict(call.query) or None,
        headers=dict(call.headers),
        timeout=httpx.Timeout(call.timeout_s),
        **more,
    )
    if "://" in call.path:
        del request.headers["Authorization"]
    return request


def answer_of(response: httpx.Response) -> Answer:
    """Convert a response that has been read to its end."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status_code, headers, response.content)


def is_stream(response: httpx.Response) -> bool:
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return response.status_code == 200 and media_type == "text/event-stream"
