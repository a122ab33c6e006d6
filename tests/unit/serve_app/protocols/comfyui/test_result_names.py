"""The names of results: the prefix of the graph, and how a result is found by its name."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.edge import Client, Edge
from tests.support.generate_bodies import workflow_body
from tests.unit.serve_app.protocols.comfyui.conftest import ended, queue


def graph(prefix: Any) -> dict[str, Any]:
    """The graph of a body whose output has this `filename_prefix`."""
    prompt: dict[str, Any] = workflow_body()["prompt"]
    prompt["9"]["inputs"]["filename_prefix"] = prefix
    return prompt


async def result_of(client: Client, id: str) -> dict[str, str]:
    [image] = (await client.get(f"/history/{id}")).json()[id]["outputs"]["9"]["images"]
    return dict(image)


async def test_results_of_two_jobs_with_one_prefix_have_two_names(
    edge: Edge, client: Client
) -> None:
    images = [
        await result_of(client, await ended(edge, client, prompt=graph("cats/mine")))
        for _ in range(2)
    ]
    names = [image["filename"] for image in images]
    assert len(set(names)) == 2
    assert all(name.startswith("mine_") and name.endswith("_00001_.png") for name in names)


async def test_a_result_is_found_with_and_without_its_folder(edge: Edge, client: Client) -> None:
    id = await ended(edge, client, prompt=graph("mine"))
    image = await result_of(client, id)
    older = {"filename": "darkroom_00001_.png", "subfolder": id}
    for params in (image, {"filename": image["filename"]}, older):
        assert (await client.get("/view", params=params)).content == b"pixels"
    other = await ended(edge, client)
    for params in (
        image | {"subfolder": other},
        image | {"subfolder": "cats"},
        {"filename": image["filename"].replace("00001", "00002")},
        {"filename": image["filename"].replace(".png", ".jpg")},
    ):
        assert (await client.get("/view", params=params)).status_code == 404, params
    async with await edge.client("bob") as bob:
        assert (await bob.get("/view", params=image)).status_code == 404


PREFIXES = [
    ("%width%x%height%", "64x64"),
    ("%year%-%month%-%day%", None),
    ("a%b%c%seed%", "a%b%c%seed%"),
    ("C:\\pictures\\cat", "cat"),
    ("../../etc/passwd", "passwd"),
    ("a\r\nb", "ab"),
    ("猫 & 'x'", "猫 & 'x'"),
    ("a_00007_", "a_00007_"),
    ("x" * 5000, "x" * 100),
    ("", ""),
    ("folder/", ""),
]


@pytest.mark.parametrize(("prefix", "begin"), PREFIXES)
async def test_a_result_with_any_prefix_is_found(
    edge: Edge, client: Client, prefix: str, begin: str | None
) -> None:
    id = await ended(edge, client, prompt=graph(prefix))
    image = await result_of(client, id)
    if begin is None:
        begin = f"{(await edge.job(id)).submitted_at:%Y-%m-%d}"
    assert image["filename"] == f"{begin}_{id}_00001_.png"
    assert (await client.get("/view", params=image)).content == b"pixels"


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (("image_a", "image_b"), {"a_images": [1, 2], "b_images": [3, 4]}),
        (("image_a",), {"a_images": [1, 2, 3, 4], "b_images": []}),
        (("image_b",), {"a_images": [], "b_images": [1, 2, 3, 4]}),
    ],
)
async def test_compared_images_are_temporary_and_have_keys_of_their_own(
    edge: Edge, client: Client, inputs: tuple[str, ...], expected: dict[str, list[int]]
) -> None:
    made = {
        "class_type": "EmptyImage",
        "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 0},
    }
    compared = {"class_type": "ImageCompare", "inputs": {name: ["1", 0] for name in inputs}}
    id = await queue(client, prompt={"1": made, "2": compared})
    await edge.run(id, images=4, node="2")
    await edge.project()
    found = (await client.get(f"/history/{id}")).json()[id]["outputs"]["2"]
    names = {
        key: [f"ComfyUI_{id}_{number:05}_.png" for number in numbers]
        for key, numbers in expected.items()
    }
    assert {key: [each["filename"] for each in files] for key, files in found.items()} == names
    assert {each["type"] for files in found.values() for each in files} == {"temp"}


async def test_files_are_listed_newest_first(edge: Edge, client: Client, png: bytes) -> None:
    results = [
        (await result_of(client, await ended(edge, client, prompt=graph("mine"))))["filename"]
        for _ in range(2)
    ]
    assert (await client.get("/internal/files/output")).json() == results[::-1]
    assert (await client.get("/internal/files/temp")).json() == []
    for name in ("a.png", "b.png"):
        await client.post("/upload/image", files={"image": (name, png)})
    assert (await client.get("/internal/files/input")).json() == ["b.png", "a.png"]
    assert (await client.get("/internal/files/models")).status_code == 400
    async with await edge.client("bob") as bob:
        assert (await bob.get("/internal/files/output")).json() == []


async def test_the_second_history_is_a_list_with_the_newest_first(
    edge: Edge, client: Client
) -> None:
    shown = {"extra_pnginfo": {"workflow": {"nodes": []}}}
    ids = [await ended(edge, client, extra_data=shown) for _ in range(3)]
    history = (await client.get("/api/history_v2")).json()["history"]
    assert [each["prompt_id"] for each in history] == ids[::-1]
    page = await client.get("/api/history_v2", params={"max_items": 1, "offset": 1})
    assert [each["prompt_id"] for each in page.json()["history"]] == [ids[1]]
    first = history[0]
    assert first["status"]["completed"] is True
    assert first["outputs"]["9"]["images"][0] == await result_of(client, ids[2])
    assert first["prompt"]["prompt_id"] == ids[2]
    assert first["prompt"]["priority"] > 0
    assert "extra_pnginfo" not in first["prompt"]["extra_data"]
    whole = (await client.get(f"/api/history_v2/{ids[2]}")).json()[ids[2]]
    assert whole["prompt"]["prompt"]["9"]["class_type"] == "SaveImage"
    assert whole["prompt"]["extra_data"]["extra_pnginfo"] == shown["extra_pnginfo"]
    assert (await client.get("/api/history_v2/unknown")).json() == {}
