"""Workflows and other files of ComfyUI's page, of each owner apart."""

from __future__ import annotations

import httpx
import pytest

from tests.support.edge import Edge

WORKFLOW = "/userdata/workflows%2Fcat.json"


async def names(client: httpx.AsyncClient, **query: str) -> list[object]:
    answer = await client.get("/userdata", params={"recurse": "true", **query})
    found: list[object] = answer.json()
    return found


async def test_one_is_stored_listed_read_moved_and_deleted(client: httpx.AsyncClient) -> None:
    stored = await client.post(f"{WORKFLOW}?full_info=true", content=b'{"nodes": []}')
    assert stored.json()["path"] == "workflows/cat.json"
    assert stored.json()["size"] == 13
    assert (await client.post("/userdata/notes.txt", content=b"x")).json() == "notes.txt"
    assert await names(client, dir="workflows") == ["cat.json"]
    assert await names(client, split="true") == [
        ["notes.txt", "notes.txt"],
        ["workflows/cat.json", "workflows", "cat.json"],
    ]
    [told] = await names(client, dir="workflows", full_info="true")
    assert isinstance(told, dict)
    assert told["path"] == "cat.json"
    assert told["modified"] >= told["created"] > 10**12
    assert (await client.get("/userdata")).json() == ["notes.txt"]

    read = await client.get(WORKFLOW)
    assert (read.json(), read.headers["content-type"]) == ({"nodes": []}, "application/json")
    moved = await client.post(f"{WORKFLOW}/move/workflows%2Fmove%2Fdog.json")
    assert moved.json() == "workflows/move/dog.json"
    assert (await client.get(WORKFLOW)).status_code == 404
    assert (await client.get("/userdata/workflows%2Fmove%2Fdog.json")).json() == {"nodes": []}
    assert (await client.delete("/userdata/workflows%2Fmove%2Fdog.json")).status_code == 204
    assert await names(client, dir="workflows") == []
    assert (await client.delete(WORKFLOW)).status_code == 404


async def test_one_is_not_written_over_where_that_is_not_wanted(client: httpx.AsyncClient) -> None:
    await client.post("/userdata/a.json", content=b"1")
    await client.post("/userdata/b.json", content=b"2")
    for path in ("/userdata/a.json", "/userdata/b.json/move/a.json"):
        refused = await client.post(f"{path}?overwrite=false", content=b"3")
        assert refused.status_code == 409, path
    assert (await client.get("/userdata/a.json")).content == b"1"
    assert (await client.post("/userdata/b.json/move/a.json")).status_code == 200
    assert (await client.get("/userdata/a.json")).content == b"2"
    assert (await client.post("/userdata/b.json/move/c.json")).status_code == 404


async def test_another_owner_has_others(edge: Edge, client: httpx.AsyncClient) -> None:
    await client.post(WORKFLOW, content=b"1")
    async with await edge.client("bob") as bob:
        assert await names(bob) == []
        assert (await bob.get(WORKFLOW)).status_code == 404
        assert (await bob.delete(WORKFLOW)).status_code == 404
        assert (await bob.post(f"{WORKFLOW}/move/mine.json")).status_code == 404
        assert (await bob.post(WORKFLOW, content=b"2")).status_code == 200
    assert (await client.get(WORKFLOW)).content == b"1"


async def test_they_are_bounded(narrow: httpx.AsyncClient) -> None:
    assert (await narrow.post("/userdata/a", content=b"x" * 61)).status_code == 413
    assert (await narrow.post("/userdata/a", content=b"x" * 60)).status_code == 200
    assert (await narrow.post("/userdata/b", content=b"x" * 60)).status_code == 413
    assert (await narrow.post("/userdata/b", content=b"x")).status_code == 200
    full = await narrow.post("/userdata/c", content=b"x")
    assert (full.status_code, full.json()["error"]["type"]) == (413, "too_many_user_bytes")
    assert (await narrow.post("/userdata/a", content=b"y" * 60)).status_code == 200


@pytest.mark.parametrize(
    "name",
    [
        "..%2Fa.json",
        "a%2F..%2F..%2Fb",
        "%2Fetc%2Fpasswd",
        "a%2F%2Fb",
        "a%5Cb",
        "a%00",
        "%0A",
        "%2E",
        "a%2F",
        "x" * 501,
        "a%2F" * 16 + "b",
        "%20",
    ],
)
async def test_a_name_plays_no_tricks(client: httpx.AsyncClient, name: str) -> None:
    for method in ("POST", "GET", "DELETE"):
        answer = await client.request(method, f"/userdata/{name}")
        assert answer.status_code == 400, method
    assert (await client.post(f"/userdata/a/move/{name}")).status_code == 400
    assert await names(client) == []


async def test_a_browser_runs_nothing_of_one(client: httpx.AsyncClient) -> None:
    await client.post("/userdata/a.html", content=b"<script>go()</script>")
    answer = await client.get("/userdata/a.html")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert "sandbox" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    await client.post("/userdata/user.css", content=b"a {}")
    style = await client.get("/userdata/user.css")
    assert (style.content, style.headers["content-type"]) == (
        b"a {}",
        "text/css; charset=utf-8",
    )
