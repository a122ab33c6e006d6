"""URLs of images that work for a while."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest

from storage.tokens import file_token
from tests.support.edge import Edge, running_edge
from tests.support.generate_bodies import diffusion_body


async def ended_job(edge: Edge, client: httpx.AsyncClient) -> str:
    answer = await client.post("/diffusion/v1/generate", json=diffusion_body())
    job_id = str(answer.json()["request_id"])
    await edge.run(job_id)
    return job_id


def path_of(edge: Edge, job_id: str, expires: int | None) -> str:
    token = file_token(edge.services.secret, job_id, "0.png", expires=expires)
    end = "" if expires is None else f"&expires={expires}"
    return f"/files/{job_id}/0.png?token={token}{end}"


async def test_a_url_works_until_its_end_and_is_then_gone(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    job_id = await ended_job(edge, client)
    now = int(time.time())
    answer = await client.get(path_of(edge, job_id, now + 100))
    assert answer.status_code == 200
    max_age_s = int(answer.headers["Cache-Control"].split("max-age=")[1].split(",")[0])
    assert 90 < max_age_s <= 100
    expired = await client.get(path_of(edge, job_id, now - 1))
    assert (expired.status_code, expired.json()["error"]["type"]) == (410, "url_expired")


@pytest.mark.parametrize("change", ["&expires={later}", "", "&expires=x", "&expires=-1"])
async def test_nobody_can_change_the_end(
    edge: Edge, client: httpx.AsyncClient, change: str
) -> None:
    job_id = await ended_job(edge, client)
    now = int(time.time())
    path = path_of(edge, job_id, now - 1).partition("&expires=")[0]
    answer = await client.get(path + change.format(later=now + 100))
    assert answer.status_code in {400, 404}


async def test_where_urls_have_an_end_one_without_is_gone(tmp_path: Path) -> None:
    async with (
        running_edge(tmp_path, image_url_ttl_s=60) as edge,
        await edge.client("alice") as client,
    ):
        job_id = await ended_job(edge, client)
        assert (await client.get(path_of(edge, job_id, None))).status_code == 410
        assert (await client.get(path_of(edge, job_id, int(time.time()) + 9))).status_code == 200
        wrong = await client.get(f"/files/{job_id}/0.png?token=x")
        assert wrong.status_code == 404, "a wrong token tells nothing of the file"
