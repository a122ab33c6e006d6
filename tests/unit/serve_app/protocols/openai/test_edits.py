"""Edits by OpenAI's images API: the graphs that they become, and what is refused."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
from safetensors.numpy import save_file

from events.store.records import Endpoint
from tests.support.edge import Client, Edge
from tests.support.generate_bodies import CHECKPOINT
from tests.support.uploads import png, png_of
from tests.unit.serve_app.protocols.conftest import Answered, messages

EDITS = "/v1/images/edits"
VARIATIONS = "/v1/images/variations"
IMAGE = ("image[]", ("a.png", png()))


def mask(size: tuple[int, int] = (64, 32)) -> bytes:
    return png_of(np.zeros((size[1], size[0], 4), np.uint8))


def form(image: bytes = b"", *, mask: bytes = b"", field: str = "image", **texts: Any) -> Any:
    files = [(field, ("a.png", image or png(size=(64, 32))))]
    if mask:
        files.append(("mask", ("m.png", mask)))
    return {"files": files, "data": {"prompt": "a cat", **texts}}


async def graph_of(edge: Edge, answer: httpx.Response) -> dict[str, Any]:
    graph: dict[str, Any] = (await edge.submitted(answer)).request["prompt"]
    return graph


async def test_an_image_alone_is_made_anew_in_part(
    edge: Edge, client: Client, answered: Answered
) -> None:
    for fidelity, denoise in (("low", 0.75), ("high", 0.5)):
        asked = form(field="image[]", input_fidelity=fidelity, n="2", quality="low")
        graph = await graph_of(edge, await answered(client.post(EDITS, **asked), edge.run))
        sampler = graph["sampler"]["inputs"]
        assert (sampler["denoise"], sampler["steps"]) == (denoise, 12)
        assert sampler["seed"] >= 0
        assert graph["checkpoint"]["inputs"]["ckpt_name"] == CHECKPOINT
        assert graph["batch"]["inputs"]["amount"] == 2
        assert "sized" not in graph
        assert "masked" not in graph


async def test_a_mask_is_transparent_where_the_image_is_edited(
    edge: Edge, client: Client, answered: Answered
) -> None:
    asked = form(mask=mask(), n="2")
    graph = await graph_of(edge, await answered(client.post(EDITS, **asked), edge.run))
    assert graph["masked"]["inputs"]["mask"] == ["mask", 1]
    assert graph["composite"]["inputs"]["mask"] == ["mask", 1]
    assert graph["composite"]["inputs"]["destination"] == ["originals", 0]
    assert graph["sampler"]["inputs"]["denoise"] == 1.0


async def test_another_size_brings_image_and_mask_to_it(
    edge: Edge, client: Client, answered: Answered
) -> None:
    asked = form(mask=mask(), size="128x128")
    graph = await graph_of(edge, await answered(client.post(EDITS, **asked), edge.run))
    for id in ("sized", "mask-sized"):
        sides = graph[id]["inputs"]
        assert (sides["width"], sides["height"], sides["crop"]) == (128, 128, "center")
    assert graph["composite"]["inputs"]["mask"] == ["mask-again", 0]


async def test_a_checkpoint_of_another_family_is_asked_as_is_usual_for_it(
    edge: Edge, client: Client, answered: Answered
) -> None:
    keys = ("model.diffusion_model.cap_pad_token", "text_encoders.x", "vae.x")
    folder = edge.services.backends.catalogue.models.root / "checkpoints"
    save_file({key: np.zeros(1, np.float32) for key in keys}, folder / CHECKPOINT)
    for own, cfg in (({}, 1.0), ({"cfg_scale": "4"}, 4.0)):
        graph = await graph_of(edge, await answered(client.post(EDITS, **form(**own)), edge.run))
        sampler = graph["sampler"]["inputs"]
        assert (sampler["cfg"], sampler["sampler_name"]) == (cfg, "res_multistep")
        assert (sampler["scheduler"], sampler["steps"]) == ("simple", 20)


async def test_the_first_of_several_images_is_edited_and_the_answer_says_so(
    edge: Edge, client: Client, answered: Answered
) -> None:
    files = [("image[]", (f"{n}.png", png(size=(64, 8 * n)))) for n in (4, 3, 2)]
    asked = {"files": files, "data": {"prompt": "a cat"}}
    answer = await answered(client.post(EDITS, **asked), edge.run)
    graph = await graph_of(edge, answer)
    upload = await edge.services.uploads.find("alice", graph["image"]["inputs"]["image"])
    assert upload is not None
    assert upload.height == 32
    [note] = answer.json()["notes"]
    assert "first of the 3 images" in note
    alone = await answered(client.post(EDITS, **form()), edge.run)
    assert "notes" not in alone.json()
    asked["data"]["stream"] = "true"
    stream = await answered(client.post(EDITS, **asked), edge.run)
    [completed] = [data for name, data in messages(stream.text) if name.endswith("completed")]
    assert completed["notes"] == [note]


async def test_a_variation_is_an_edit_without_a_prompt(
    edge: Edge, client: Client, answered: Answered
) -> None:
    asked = {"files": [("image", ("a.png", png(size=(64, 32))))], "data": {"n": "2"}}
    asked["data"] |= {"size": "128x128", "response_format": "url", "model": "dall-e-2"}
    answer = await answered(client.post(VARIATIONS, **asked), edge.run)
    assert answer.json()["data"][0]["url"]
    graph = await graph_of(edge, answer)
    assert graph["positive"]["inputs"]["text"] == ""
    assert graph["sampler"]["inputs"]["denoise"] == 0.75
    assert (graph["sized"]["inputs"]["width"], graph["batch"]["inputs"]["amount"]) == (128, 2)
    for texts in ({"n": "0"}, {"colour": "red"}):
        assert (await client.post(VARIATIONS, **form(**texts))).status_code == 400


REFUSED: list[tuple[Any, str | None, str]] = [
    (form(mask=mask((32, 64))), "mask", "32x64"),
    (form(mask=png(size=(64, 32))), "mask", "alpha"),
    (form(field="picture"), "image", "1 to 16 images"),
    (form(png(size=(3, 2))), "size", "16 pixels"),
    (form(size="4096x4096", n="10"), None, "at most 2,000"),
    (form(n="many"), "n", "integer"),
    ({"files": [("mask", ("m.png", mask()))], "data": {"prompt": "x"}}, "image", "1 to 16 images"),
    ({"files": [IMAGE] * 17, "data": {"prompt": "x"}}, "image", "1 to 16 images"),
    (form(b"no image"), None, "not a PNG"),
]


async def test_what_is_not_possible_is_refused_in_words(edge: Edge, client: Client) -> None:
    for asked, parameter, word in REFUSED:
        answer = await client.post(EDITS, **asked)
        error = answer.json()["error"]
        assert answer.status_code == 400, error
        assert error["param"] == parameter
        assert word in error["message"]
        assert not edge.log.job_ids()


async def test_texts_may_be_files_and_other_files_are_ignored(
    edge: Edge, client: Client, answered: Answered
) -> None:
    files: list[Any] = [("image", ("a.png", png(size=(64, 32)))), ("style", ("s.png", png()))]
    files += [("prompt", ("blob", "a dog")), ("n", ("n", "2"))]
    answer = await answered(client.post(EDITS, files=files), edge.run)
    graph = await graph_of(edge, answer)
    assert graph["positive"]["inputs"]["text"] == "a dog"
    assert graph["batch"]["inputs"]["amount"] == 2


async def test_more_files_and_larger_ones_are_refused(client: Client) -> None:
    many = {"files": [IMAGE] * 18, "data": {"prompt": "x"}}
    assert (await client.post(EDITS, **many)).status_code == 400
    large = form(b"\x89PNG" + bytes(21 * 1024**2))
    assert (await client.post(EDITS, **large)).status_code == 413
    assert (await client.post(EDITS, json={"prompt": "x"})).status_code == 415


async def test_an_edit_runs_on_a_comfyui_server_with_the_checkpoint_of_its_endpoint(
    edge: Edge, client: Client, answered: Answered
) -> None:
    server: dict[str, Any] = {"engine": "comfyui", "comfyui_url": "http://127.0.0.1:8188"}
    await edge.services.endpoints.put(Endpoint("comfy", checkpoint="xl.ckpt", **server))

    answer = await answered(client.post(EDITS, **form(model="comfy", mask=mask())), edge.run)

    graph = await graph_of(edge, answer)
    assert graph["checkpoint"]["inputs"]["ckpt_name"] == "xl.ckpt"
    assert (await edge.submitted(answer)).endpoint == "comfy"
