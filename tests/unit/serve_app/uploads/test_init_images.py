"""How a diffusion job comes to the uploads that it starts from."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import httpx
import pytest

from events.errors import FetchFailed
from tests.support.edge import Edge
from tests.support.generate_bodies import diffusion_body
from tests.support.uploads import names, png, upload

GENERATE = "/diffusion/v1/generate"
URL = "https://pictures.example.com/cat.png?secret=s3cret"
BASE64 = b64encode(png()).decode()
DATA_URL = f"data:image/png;base64,{BASE64}"


def body(**changed: Any) -> dict[str, Any]:
    return diffusion_body() | {"init_images": ["cat.png"], "compatibility": "webui", **changed}


async def test_a_job_records_the_files_that_it_starts_from(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    await upload(client)
    await upload(client, "mask.png", data=png("white"))
    answer = await client.post("/diffusion/v1/generate", json=body(mask="mask.png"))
    assert answer.status_code == 202, answer.text
    submitted = (await edge.job(answer.json()["request_id"])).submitted
    assert list(submitted.input_files or ()) == ["cat.png", "mask.png"]
    assert submitted.request["mask"] == "mask.png"


async def test_a_name_that_is_no_upload_is_a_field_in_error(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    await upload(client)
    async with await edge.client("bob") as bob:
        await upload(bob, "bobs.png")
    answer = await client.post(
        "/diffusion/v1/generate",
        json=body(init_images=["cat.png", "bobs.png"], batch_size=2, mask="none.png"),
    )
    assert answer.status_code == 400
    fields = answer.json()["error"]["extra_info"]["fields"]
    assert [each["field"] for each in fields] == ["init_images", "mask"]
    assert "'bobs.png'" in fields[0]["message"]
    assert "there are: cat.png" in answer.json()["error"]["details"]


@pytest.mark.parametrize("file", ["init_images", "mask"])
async def test_the_cost_counts_the_files_as_large_as_they_are(
    client: httpx.AsyncClient, file: str
) -> None:
    works = []
    await upload(client, "small.png")
    await upload(client, "mask.png", data=png())
    for side in (8, 800):
        await upload(client, "large.png", data=png(size=(side, side)))
        asked = {"init_images": ["small.png"], "mask": "mask.png"}
        named = {file: ["large.png"] if file == "init_images" else "large.png"}
        answer = await client.post("/diffusion/v1/check", json=body(**asked | named))
        works.append(answer.json()["cost"]["work"])
    assert works[1] > works[0] + 1


@pytest.mark.parametrize("compatibility", ["webui", "comfyui"])
async def test_an_image_may_stand_in_the_place_of_a_name(
    edge: Edge, client: httpx.AsyncClient, compatibility: str
) -> None:
    edge.pictures[URL] = png("white", (7, 5))
    await upload(client)
    asked = body(compatibility=compatibility, init_images=["cat.png", DATA_URL, BASE64, URL])
    answer = await client.post(GENERATE, json=asked | {"batch_size": 4, "mask": URL})
    assert answer.status_code == 202, answer.text
    submitted = (await edge.job(answer.json()["request_id"])).submitted
    first, *others = submitted.request["init_images"]
    assert (first, others[0]) == ("cat.png", others[1])
    assert others[2] == submitted.request["mask"]
    assert set(submitted.input_files or ()) == {first, *others}
    assert (submitted.input_files or {})[others[2]].width == 7
    assert set(await names(client)) == {first, *others}
    recorded = submitted.model_dump_json()
    assert "s3cret" not in recorded
    assert BASE64 not in recorded


@pytest.mark.parametrize(
    "image",
    [
        URL,
        "data:image/svg+xml;base64," + b64encode(b"<svg/>").decode(),
        "data:image/png;base64," + b64encode(b"<html></html>").decode(),
        "data:text/html,<script>",
        "A" * 2000,
    ],
)
async def test_what_is_no_image_is_an_error_of_its_member(
    client: httpx.AsyncClient, image: str
) -> None:
    asked = {"init_images": [DATA_URL, image], "batch_size": 2}
    for sent, field in (
        (asked, "init_images.1"),
        ({"init_images": [DATA_URL], "mask": image}, "mask"),
    ):
        answer = await client.post(GENERATE, json=body(**sent))
        assert answer.status_code == 400
        [told] = answer.json()["error"]["extra_info"]["fields"]
        assert told["field"] == field
        assert "the image cannot be used" in told["message"]
        assert "s3cret" not in answer.text


async def test_nothing_is_fetched_for_a_request_that_is_not_valid(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    edge.pictures[URL] = AssertionError("it was fetched")
    assert (await client.post(GENERATE, json=body(init_images=[URL], steps=0))).status_code == 400
    answer = await client.post(GENERATE, json=body(init_images=[], mask=URL))
    assert answer.status_code == 400


async def test_too_many_images_are_refused_before_any_is_read(client: httpx.AsyncClient) -> None:
    sent = [f"{DATA_URL}{'=' * at}" for at in range(1, 18)]
    answer = await client.post(GENERATE, json=body(init_images=sent))
    [told] = answer.json()["error"]["extra_info"]["fields"]
    assert (answer.status_code, told["type"]) == (400, "too_many_images")
    assert await names(client) == []


@pytest.mark.parametrize("sent", [{"init_images": URL}, {"init_images": [1]}, {"mask": [DATA_URL]}])
async def test_members_of_another_type_are_refused(
    client: httpx.AsyncClient, sent: dict[str, Any]
) -> None:
    assert (await client.post(GENERATE, json=body(**sent))).status_code == 400


async def test_a_large_image_fits_beside_a_small_request_and_a_long_text_does_not(
    client: httpx.AsyncClient,
) -> None:
    large = b64encode(png() + bytes(600_000)).decode()
    assert (await client.post(GENERATE, json=body(init_images=[large]))).status_code == 202
    answer = await client.post(GENERATE, json=body(init_images=[BASE64], prompt="x" * 600_000))
    assert answer.status_code == 413


async def test_a_check_says_what_an_image_costs(client: httpx.AsyncClient) -> None:
    works = []
    for side in (8, 800):
        image = b64encode(png(size=(side, side))).decode()
        answer = await client.post("/diffusion/v1/check", json=body(init_images=[image]))
        works.append(answer.json()["cost"]["work"])
    assert works[1] > works[0] + 1


async def test_a_repeat_fetches_nothing_again(edge: Edge, client: httpx.AsyncClient) -> None:
    edge.pictures[URL] = png()
    key = {"Idempotency-Key": "order 1"}
    first = await client.post(GENERATE, json=body(init_images=[URL]), headers=key)
    edge.pictures[URL] = AssertionError("it was fetched again")
    again = await client.post(GENERATE, json=body(init_images=[URL]), headers=key)
    assert (again.status_code, again.json()) == (202, first.json())
    other = await client.post(GENERATE, json=body(init_images=[URL], steps=3), headers=key)
    assert other.status_code == 409


async def test_an_image_that_is_not_fetched_says_why(edge: Edge, client: httpx.AsyncClient) -> None:
    edge.pictures[URL] = FetchFailed("its server answered 404")
    answer = await client.post(GENERATE, json=body(init_images=[URL]))
    assert (answer.status_code, "its server answered 404" in answer.text) == (400, True)
