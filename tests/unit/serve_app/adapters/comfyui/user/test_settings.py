"""Settings of ComfyUI's page, of each owner apart."""

from __future__ import annotations

import httpx
import pytest

from tests.support.edge import Edge


async def test_they_are_kept_one_by_one_and_together(edge: Edge, client: httpx.AsyncClient) -> None:
    await client.post("/settings", json={"a": [1], "Comfy.TutorialCompleted": False})
    await client.post("/api/settings/b", json="x")
    await client.post("/comfy/api/settings/a", json={"c": None})
    assert (await client.get("/settings")).json() == {
        "Comfy.TutorialCompleted": False,
        "a": {"c": None},
        "b": "x",
    }
    assert (await client.get("/settings/b")).json() == "x"
    assert (await client.get("/settings/unknown")).json() is None
    async with await edge.client("bob") as bob:
        assert (await bob.get("/settings")).json() == {"Comfy.TutorialCompleted": True}
        assert (await bob.get("/settings/b")).json() is None


async def test_they_are_bounded(narrow: httpx.AsyncClient) -> None:
    assert (await narrow.post("/settings/a", json="x" * 70)).status_code == 413
    assert (await narrow.post("/settings", json={"a": 1, "b": 2})).status_code == 200
    full = await narrow.post("/settings/c", json=3)
    assert (full.status_code, full.json()["error"]["type"]) == (413, "too_many_user_bytes")
    assert (await narrow.post("/settings/b", json=4)).status_code == 200


@pytest.mark.parametrize("id", ["x" * 201, "ä", "%00", "%0A"])
async def test_an_id_is_short_and_plain(client: httpx.AsyncClient, id: str) -> None:
    assert (await client.post(f"/settings/{id}", json=1)).status_code == 400
    assert (await client.get(f"/settings/{id}")).json() is None


async def test_many_at_once_are_an_object(client: httpx.AsyncClient) -> None:
    assert (await client.post("/settings", json=["a"])).status_code == 400
    assert (await client.post("/settings", content=b"{")).status_code == 400
