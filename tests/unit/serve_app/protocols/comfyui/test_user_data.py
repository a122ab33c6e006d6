"""Files and settings of ComfyUI's page, of each owner apart."""

from __future__ import annotations

import pytest

from tests.support.edge import Client, refusal

WORKFLOW = "/userdata/workflows%2Fcat.json"


narrow = pytest.mark.edge(
    adapter_max_user_files=2, adapter_max_user_file_bytes=60, adapter_max_user_bytes=100
)


async def names(client: Client, **query: str) -> list[object]:
    answer = await client.get("/userdata", params={"recurse": "true", **query})
    found: list[object] = answer.json()
    return found


async def test_one_is_stored_listed_read_moved_and_deleted(client: Client) -> None:
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


async def test_folders_and_files_are_listed_with_their_paths(client: Client) -> None:
    assert (await client.get("/v2/userdata")).json() == []
    for name in ("workflows%2Fpets%2Fcat.json", "workflows%2FAnt.json", "notes.txt"):
        await client.post(f"/userdata/{name}", content=b"{}")
    [pets, ant, cat] = (await client.get("/v2/userdata", params={"path": "workflows"})).json()
    assert pets == {"name": "pets", "path": "workflows/pets", "type": "directory"}
    modified = cat.pop("modified")
    assert 10**9 < modified < 10**10  # seconds
    assert cat == {"name": "cat.json", "path": "workflows/pets/cat.json", "type": "file", "size": 2}
    assert ant["path"] == "workflows/Ant.json"
    everything = (await client.get("/api/v2/userdata")).json()
    assert [each["name"] for each in everything] == [
        *("pets", "workflows", "Ant.json", "cat.json", "notes.txt")
    ]
    await client.post("/userdata/a%2Fpets%2Fdog.json", content=b"{}")
    folders = [each["path"] for each in (await client.get("/v2/userdata")).json()][:4]
    assert folders == ["a", "a/pets", "workflows/pets", "workflows"]
    assert (await client.get("/v2/userdata?path=nothing")).status_code == 404
    not_folder = await client.get("/v2/userdata?path=notes.txt")
    assert refusal(not_folder) == (400, "invalid_request")
    assert (await client.get("/v2/userdata?path=workflows%252Fpets")).json() == [
        cat | {"modified": modified}
    ]


async def test_one_is_not_written_over_where_that_is_not_wanted(client: Client) -> None:
    await client.post("/userdata/a.json", content=b"1")
    await client.post("/userdata/b.json", content=b"2")
    for path in ("/userdata/a.json", "/userdata/b.json/move/a.json"):
        assert (await client.post(f"{path}?overwrite=false", content=b"3")).status_code == 409, path
    assert (await client.get("/userdata/a.json")).content == b"1"
    assert (await client.post("/userdata/b.json/move/a.json")).status_code == 200
    assert (await client.get("/userdata/a.json")).content == b"2"
    assert (await client.post("/userdata/b.json/move/c.json")).status_code == 404


async def test_any_text_is_a_value_of_the_parameters(client: Client) -> None:
    """As in ComfyUI, only "true" is true, and a file is overwritten unless the text is "false"."""
    for path in ("/userdata/a.json", "/userdata/b%2Fc.json"):
        await client.post(path, content=b"1")
    for text in ("", "1", "yes", "on", "maybe"):
        assert await names(client, recurse=text, split=text, full_info=text) == ["a.json"], text
        answer = await client.post(
            "/userdata/a.json", params={"overwrite": text, "full_info": text}, content=b"2"
        )
        assert (answer.status_code, answer.json()) == (200, "a.json"), text
    assert await names(client, recurse="TRUE") == ["a.json", "b/c.json"]


@narrow
async def test_files_are_bounded(client: Client) -> None:
    assert (await client.post("/userdata/a", content=b"x" * 61)).status_code == 413
    assert (await client.post("/userdata/a", content=b"x" * 60)).status_code == 200
    assert (await client.post("/userdata/b", content=b"x" * 60)).status_code == 413
    assert (await client.post("/userdata/b", content=b"x")).status_code == 200
    assert refusal(await client.post("/userdata/c", content=b"x")) == (413, "too_many_user_bytes")
    assert (await client.post("/userdata/a", content=b"y" * 60)).status_code == 200


TRAVERSALS = ("..%2Fa.json", "a%2F..%2F..%2Fb", "%2Fetc%2Fpasswd", "a%2F%2Fb", "a%5Cb", "a%00")
UNUSABLE = ("%0A", "%2E", "a%2F", "x" * 501, "a%2F" * 16 + "b", "%20")


async def test_a_name_plays_no_tricks(client: Client) -> None:
    for name in TRAVERSALS + UNUSABLE:
        for method in ("POST", "GET", "DELETE"):
            answer = await client.request(method, f"/userdata/{name}")
            assert answer.status_code == 400, (method, name)
        assert (await client.post(f"/userdata/a/move/{name}")).status_code == 400, name
    assert await names(client) == []


async def test_a_browser_runs_nothing_of_one(client: Client) -> None:
    await client.post("/userdata/a.html", content=b"<script>go()</script>")
    answer = await client.get("/userdata/a.html")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert "sandbox" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    await client.post("/userdata/user.css", content=b"a {}")
    style = await client.get("/userdata/user.css")
    assert style.content == b"a {}"
    assert style.headers["content-type"] == "text/css; charset=utf-8"


async def test_settings_are_kept_one_by_one_and_together(client: Client, bob: Client) -> None:
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
    assert (await bob.get("/settings")).json() == {"Comfy.TutorialCompleted": True}
    assert (await bob.get("/settings/b")).json() is None


@narrow
async def test_settings_are_bounded(client: Client) -> None:
    assert (await client.post("/settings/a", json="x" * 70)).status_code == 413
    assert (await client.post("/settings", json={"a": 1, "b": 2})).status_code == 200
    assert refusal(await client.post("/settings/c", json=3)) == (413, "too_many_user_bytes")
    assert (await client.post("/settings/b", json=4)).status_code == 200


async def test_an_id_of_a_setting_is_short_and_plain(client: Client) -> None:
    for id in ("x" * 201, "ä", "%00", "%0A"):
        assert (await client.post(f"/settings/{id}", json=1)).status_code == 400, id
        assert (await client.get(f"/settings/{id}")).json() is None


async def test_many_settings_at_once_are_an_object(client: Client) -> None:
    assert (await client.post("/settings", json=["a"])).status_code == 400
    assert (await client.post("/settings", content=b"{")).status_code == 400
