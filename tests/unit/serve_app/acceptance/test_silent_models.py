"""What callers see while the models folder does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.edge import Client, refusal
from tests.support.engine.hung_mount import HungMount, hung_mount
from tests.support.generate_bodies import GENERATE_PATHS, body_for
from tests.support.polling import eventually

PATHS = ("/api/v1/workflow/generate", "/diffusion/v1/generate")


@pytest.fixture
def mount() -> Iterator[HungMount]:
    with hung_mount() as mount:
        yield mount


@pytest.mark.parametrize("path", PATHS)
async def test_jobs_are_refused_for_now_and_other_calls_are_answered(
    client: Client, mount: HungMount, path: str
) -> None:
    mount.hang()
    body = body_for(GENERATE_PATHS[path])
    posts = [asyncio.create_task(client.post(path, json=body)) for _ in range(3)]
    assert (await client.get("/v1/samplers")).status_code == 200
    assert not any(post.done() for post in posts), "the loop waits for no folder"
    for answer in await asyncio.gather(*posts):
        assert refusal(answer) == (503, "unavailable")
        assert "models folder" in answer.json()["error"]["message"]
        assert int(answer.headers["Retry-After"]) > 0
    mount.answer()

    async def is_accepted() -> bool:
        return (await client.post(path, json=body)).status_code == 202

    await eventually(is_accepted)


async def test_models_that_were_listed_before_go_on_being_used(
    client: Client, mount: HungMount
) -> None:
    listed = (await client.get("/v1/models")).json()
    mount.hang()
    for path, flavour in GENERATE_PATHS.items():
        assert (await client.post(path, json=body_for(flavour))).status_code == 202
    assert (await client.get("/v1/models")).json() == listed
