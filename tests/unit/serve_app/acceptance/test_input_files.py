"""How a job comes to the files that its workflow names."""

from __future__ import annotations

import hashlib
import io
from typing import Any

import pytest
from PIL import Image

from engine.graph.declarations import InputFile, node
from engine.nodes import NODE_TYPES
from tests.support.edge import Client, Edge
from tests.support.generate_bodies import workflow_body
from tests.support.uploads import png, upload


@node("TakeImage", inputs={"image": InputFile()}, outputs=("IMAGE",))
def take_image(context: Any, image: str) -> tuple[bytes]:
    return (context.input_file(image),)


pytestmark = pytest.mark.edge(node_types=(*NODE_TYPES, take_image))


def workflow(*files: str) -> dict[str, Any]:
    prompt = {}
    for number, name in enumerate(files):
        prompt[f"t{number}"] = {"class_type": "TakeImage", "inputs": {"image": name}}
        images = {"images": [f"t{number}", 0], "filename_prefix": ""}
        prompt[f"s{number}"] = {"class_type": "SaveImage", "inputs": images}
    return {"prompt": prompt}


async def test_a_job_records_the_files_as_they_were(edge: Edge, client: Client) -> None:
    await upload(client)
    await upload(client, "dog.png", data=png("blue"))
    body = workflow("cat.png", "dog.png", "cat.png")
    accepted = await client.post("/workflow/v1/generate", json=body)
    assert accepted.status_code == 202
    await upload(client, data=png("green"))
    await client.delete("/v1/uploads/dog.png")

    files = (await edge.job(accepted.json()["request_id"])).submitted.input_files
    assert files is not None
    assert list(files) == ["cat.png", "dog.png"]
    shown = (await client.get(f"/v1/jobs/{accepted.json()['request_id']}")).json()
    assert shown["input_files"] == {name: file.digest for name, file in files.items()}
    for name, colour in (("cat.png", "red"), ("dog.png", "blue")):
        data = await edge.services.images.get(files[name].key)
        assert files[name].digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
        assert Image.open(io.BytesIO(data)).getpixel((0, 0)) == Image.new(
            "RGB", (1, 1), colour
        ).getpixel((0, 0))
    assert (await client.post("/workflow/v1/generate", json=workflow("dog.png"))).status_code == 400


async def test_a_job_without_files_records_none(edge: Edge, client: Client) -> None:
    accepted = await client.post("/workflow/v1/generate", json=workflow_body())
    assert (await edge.job(accepted.json()["request_id"])).submitted.input_files is None


async def test_a_file_that_the_owner_does_not_have_is_not_in_the_list(
    client: Client, bob: Client
) -> None:
    await upload(bob, "bobs.png")
    await upload(client)
    await upload(client, "dog.png")
    body = workflow("cat.png", "bobs.png")
    answer = await client.post("/workflow/v1/generate", json=body)
    assert answer.status_code == 400
    [error] = answer.json()["node_errors"]["t1"]["errors"]
    assert error["type"] == "value_not_in_list"
    assert error["details"] == "image: 'bobs.png' not in [cat.png, dog.png]"


async def test_object_info_lists_the_callers_uploads(client: Client, bob: Client) -> None:
    await upload(client)
    info = (await client.get("/v1/object_info")).json()
    assert info["TakeImage"]["input"]["required"]["image"] == [["cat.png"], {"image_upload": True}]
    info = (await bob.get("/v1/object_info")).json()
    assert info["TakeImage"]["input"]["required"]["image"][0] == []
