"""Images in the result itself."""

from base64 import b64decode
from pathlib import Path

import httpx
import pytest

from storage.keys import SAFETENSORS, WEBP
from tests.support.edge import Edge, running_edge
from tests.support.generate_bodies import diffusion_body

LARGE = bytes(range(256)) * 2048


async def job_with(edge: Edge, client: httpx.AsyncClient, *files: bytes, end: bool = True) -> str:
    body = diffusion_body(batch_size=max(1, len(files)))
    answer = await client.post("/diffusion/v1/generate", json=body)
    job_id = str(answer.json()["request_id"])
    await edge.start(job_id)
    for index, data in enumerate(files):
        media_type = (None, WEBP, SAFETENSORS)[index % 3]
        await edge.store_image(job_id, index=index, data=data, media_type=media_type)
    if end:
        await edge.complete(job_id, images=len(files))
    return job_id


def paths(job_id: str) -> list[str]:
    of_flavour = [f"/{path}?request_id={job_id}&" for path in PATHS]
    return [*of_flavour, f"/v1/jobs/{job_id}/result?"]


PATHS = ("diffusion/v1/result", "api/v1/diffusion/result")


async def test_files_are_in_the_result_where_it_is_asked_for_so(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    files = (LARGE, b"two", b"", b"\0" * 196_609)
    job_id = await job_with(edge, client, *files)
    for path in paths(job_id):
        answer = await client.get(f"{path}inline=true", headers={"Accept-Encoding": "gzip"})
        assert answer.status_code == 200
        assert len(answer.content) == int(answer.headers["Content-Length"])
        assert answer.headers["Cache-Control"] == "no-store"
        items = answer.json()["results"]
        assert [b64decode(item.pop("data")) for item in items] == list(files)
        plain = (await client.get(path)).json()
        assert items == plain["results"]


async def test_what_is_there_is_shown_while_the_rest_runs(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    job_id = await job_with(edge, client, b"one", end=False)
    [item] = (await client.get(f"{paths(job_id)[0]}inline=true")).json()["results"]
    assert b64decode(item["data"]) == b"one"
    job_id = await job_with(edge, client, end=False)
    [item] = (await client.get(f"{paths(job_id)[0]}inline=true")).json()["results"]
    assert item == {"status": 0}


async def test_of_more_than_the_limit_there_are_urls_alone(tmp_path: Path) -> None:
    async with (
        running_edge(tmp_path, max_inline_bytes=7) as edge,
        await edge.client("alice") as client,
    ):
        job_id = await job_with(edge, client, b"four", b"four", b"1")
        items = (await client.get(f"{paths(job_id)[0]}inline=true")).json()["results"]
        assert ["data" in item for item in items] == [True, False, False]
        assert all(item["url"] for item in items)


async def test_a_file_that_is_gone_is_left_out(edge: Edge, client: httpx.AsyncClient) -> None:
    job_id = await job_with(edge, client, b"one", b"two")
    await edge.services.images.delete(f"{job_id}/1/0.png")
    items = (await client.get(f"{paths(job_id)[0]}inline=true")).json()["results"]
    assert ["data" in item for item in items] == [False, True]


async def test_another_owner_gets_nothing(edge: Edge, client: httpx.AsyncClient) -> None:
    job_id = await job_with(edge, client, b"one")
    async with await edge.client("bob") as bob:
        for path in paths(job_id):
            assert (await bob.get(f"{path}inline=true")).status_code == 404


@pytest.mark.parametrize("value", ["maybe", "2"])
async def test_it_is_yes_or_no(edge: Edge, client: httpx.AsyncClient, value: str) -> None:
    job_id = await job_with(edge, client, b"one")
    assert (await client.get(f"{paths(job_id)[0]}inline={value}")).status_code == 400
