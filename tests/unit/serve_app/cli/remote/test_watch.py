"""`watch`, `upload`, `uploads` and `models` on an edge that listens on a free port."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import httpx
import pytest
from click.testing import Result
from PIL import Image

from tests.support.edge import Edge
from tests.support.generate_bodies import CHECKPOINT, diffusion_body
from tests.unit.serve_app.cli.conftest import Run

Darkroom = Callable[..., Awaitable[Result]]


@pytest.fixture
async def darkroom(edge: Edge, run: Run) -> Darkroom:
    return partial(run, await edge.key("alice"))


async def submit(client: httpx.AsyncClient) -> str:
    answer = await client.post("/diffusion/v1/generate", json=diffusion_body())
    return str(answer.json()["request_id"])


async def test_a_job_is_told_until_its_end(
    edge: Edge, client: httpx.AsyncClient, darkroom: Darkroom
) -> None:
    job_id = await submit(client)
    await edge.run(job_id)
    told = await darkroom("watch", job_id)
    assert told.exit_code == 0, told.output
    lines = told.stdout.splitlines()
    assert [line.split("  ")[2] for line in lines] == [
        "submitted",
        "started",
        "image_stored",
        "completed",
    ]
    assert all(job_id in line for line in lines)
    events = [
        json.loads(line) for line in (await darkroom("watch", job_id, "--json")).stdout.splitlines()
    ]
    assert [each["event"] for each in events][-1] == "completed"
    assert events[0]["data"]["subject"] == job_id


async def test_a_job_that_was_cancelled_ends_it_with_a_failure(
    client: httpx.AsyncClient, darkroom: Darkroom
) -> None:
    job_id = await submit(client)
    cancelled = await darkroom("cancel", job_id, "--json")
    assert json.loads(cancelled.stdout) == {"request_id": job_id, "cancelled": True}
    told = await darkroom("watch", job_id)
    assert (told.exit_code, "cancelled" in told.stdout) == (1, True)


async def test_an_image_is_uploaded_listed_and_removed(darkroom: Darkroom, tmp_path: Path) -> None:
    Image.new("RGB", (8, 16), "red").save(tmp_path / "cat.png")
    stored = await darkroom("upload", str(tmp_path / "cat.png"), "--json")
    assert json.loads(stored.stdout)["uploads"][0]["height"] == 16
    assert "8 x 16" in (await darkroom("uploads", "list")).stdout
    assert (await darkroom("uploads", "remove", "cat.png")).stdout == "cat.png is removed.\n"
    assert json.loads((await darkroom("uploads", "list", "--json")).stdout) == {"uploads": []}
    assert (await darkroom("upload", str(tmp_path / "none.png"))).exit_code == 2


async def test_models_are_listed_by_kind(darkroom: Darkroom) -> None:
    assert CHECKPOINT in (await darkroom("models")).stdout
    listed = await darkroom("models", "--kind", "loras", "--json")
    assert json.loads(listed.stdout) == {"models": []}
