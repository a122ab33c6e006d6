"""Named workflows as models of OpenAI's images API."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.edge import Client, Edge
from tests.support.generate_bodies import workflow_body
from tests.support.uploads import png
from tests.unit.serve_app.protocols.conftest import Answered

IMAGES = "/v1/images"
EDIT = {
    "1": {"class_type": "LoadImage", "inputs": {"image": "a.png"}},
    "2": {"class_type": "LoadImage", "inputs": {"image": "b.png"}},
    "3": {"class_type": "ImageBatch", "inputs": {"image1": ["1", 0], "image2": ["2", 0]}},
    "4": {"class_type": "PreviewImage", "inputs": {"images": ["3", 0]}},
}


@pytest.fixture(autouse=True)
async def _stored(client: Client) -> None:
    portrait = workflow_body()["prompt"]
    portrait["5"]["inputs"]["batch_size"] = 4
    for name, prompt in (("portrait", portrait), ("collage", EDIT)):
        answer = await client.post("/v1/workflows", json={"name": name, "prompt": prompt})
        assert answer.status_code == 201, answer.text


@pytest.mark.parametrize("number", [1, 2])
async def test_its_inputs_are_the_parameters_of_their_names(
    edge: Edge, client: Client, answered: Answered, number: int
) -> None:
    body = {"model": "portrait@1", "prompt": "a dog", "size": "64x128", "seed": 7, "n": number}
    answer = await answered(client.post(f"{IMAGES}/generations", json=body), edge.run)
    assert answer.status_code == 200, answer.text
    named = (await edge.submitted(answer)).workflow
    assert named is not None
    assert (named.name, named.version) == ("portrait", 1)
    given = {"prompt": "a dog", "batch_size": number, "width": 64, "height": 128, "seed": 7}
    assert {name: named.inputs[name] for name in given} == given


async def test_images_and_masks_are_inputs_and_an_unused_prompt_is_noted(
    edge: Edge, client: Client, answered: Answered
) -> None:
    files = [("image[]", ("a.png", png(colour))) for colour in ("red", "blue")]
    form = {"model": "collage", "prompt": "both"}
    answer = await answered(client.post(f"{IMAGES}/edits", files=files, data=form), edge.run)
    named = (await edge.submitted(answer)).workflow
    assert named is not None
    assert named.inputs["image"] != named.inputs["image_2"]
    assert answer.json()["notes"] == [
        "The prompt was not used, because collage@1 has no input `prompt`."
    ]


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({"model": "collage", "n": 2}, "n"),
        ({"model": "collage", "size": "64x64"}, "size"),
        ({"model": "portrait", "cfg_scale": 3}, "cfg_scale"),
    ],
)
async def test_a_parameter_without_an_input_is_refused(
    client: Client, body: dict[str, Any], parameter: str
) -> None:
    answer = await client.post(f"{IMAGES}/generations", json={"prompt": "a", **body})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, parameter)


async def test_models_list_the_workflows_of_the_key(client: Client, bob: Client) -> None:
    for who, names in ((client, {"portrait", "collage"}), (bob, set())):
        listed = {each["id"] for each in (await who.get("/v1/models")).json()["data"]}
        assert listed & {"portrait", "collage"} == names
    answer = await bob.post(f"{IMAGES}/generations", json={"prompt": "a", "model": "portrait"})
    assert answer.status_code == 404
