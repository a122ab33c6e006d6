"""How a diffusion job comes to the uploads that it starts from."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.edge import Edge
from tests.support.generate_bodies import diffusion_body
from tests.support.uploads import png, upload


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
