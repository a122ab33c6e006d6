"""Lists of the API come in pages."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.edge import Client, Edge, submit
from tests.support.uploads import upload


async def make(client: Client, listed: str, number: int) -> str:
    match listed:
        case "keys":
            return str((await client.post("/v1/keys", json={"owner": "alice"})).json()["id"])
        case "uploads":
            return str((await upload(client, f"{number}.png")).json()["name"])
    return await submit(client)


@pytest.mark.parametrize(
    ("url", "listed", "id", "is_newest_first"),
    [
        ("/v1/jobs?limit=2", "jobs", "request_id", True),
        ("/v1/admin/jobs?limit=2", "jobs", "request_id", True),
        ("/v1/uploads?limit=2", "uploads", "name", True),
        ("/v1/keys?owner=alice&limit=2", "keys", "id", False),
    ],
)
async def test_pages_join_without_gap_or_repeat(
    edge: Edge, admin: Client, url: str, listed: str, id: str, is_newest_first: bool
) -> None:
    made = [await make(admin, listed, number) for number in range(5)]
    await edge.project()
    seen: list[str] = []
    page: dict[str, Any] = {"next_cursor": ""}
    while "next_cursor" in page:
        after = f"&cursor={page['next_cursor']}" if page["next_cursor"] else ""
        page = (await admin.get(url + after)).json()
        seen += [each[id] for each in page[listed]]
    assert seen == (made[::-1] if is_newest_first else made)
