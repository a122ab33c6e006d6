"""API keys, as administrators make and read them over HTTP."""

from __future__ import annotations

from typing import Any

import httpx


async def created(admin: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await admin.post("/v1/keys", json={"owner": "alice", **body})
    assert answer.status_code == 201, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def shown(admin: httpx.AsyncClient, key_id: str) -> dict[str, Any]:
    answer = await admin.get(f"/v1/keys/{key_id}")
    assert answer.status_code == 200
    body: dict[str, Any] = answer.json()
    return body
