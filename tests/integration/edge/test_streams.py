"""Event streams through HAProxy, under its time-outs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import httpx
import pytest

from tests.integration.edge.conftest import PATIENCE_S, SHORT, Front, listening
from tests.support.edge import running_edge
from tests.support.generate_bodies import diffusion_body


@pytest.fixture
def caller(front: Front) -> httpx.Client:
    headers = {"Authorization": f"Bearer {front.key}"}
    url = f"http://127.0.0.1:{front.port}"
    return httpx.Client(base_url=url, headers=headers, timeout=PATIENCE_S, trust_env=False)


def submit(caller: httpx.Client) -> str:
    answer = caller.post("/diffusion/v1/generate", json=diffusion_body())
    assert answer.status_code == httpx.codes.ACCEPTED, answer.text
    return str(answer.json()["request_id"])


def test_a_stream_outlasts_the_time_outs_and_ends_with_its_job(caller: httpx.Client) -> None:
    with caller:
        job_id = submit(caller)
        with caller.stream("GET", f"/v1/jobs/{job_id}/events") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = answer.iter_lines()
            begun = time.monotonic()
            while time.monotonic() < begun + 2 * SHORT["silence_timeout_s"]:
                next(lines)
            assert caller.post(f"/v1/jobs/{job_id}/cancel").json() == {"cancelled": True}
            assert "event: cancelled" in list(lines)  # which it comes to the end of


def test_an_event_comes_as_soon_as_it_is_stored(caller: httpx.Client) -> None:
    with caller, caller.stream("GET", "/v1/events") as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("id:")
        job_id = submit(caller)
        while not (line := next(lines)).startswith("data:"):
            pass
        assert job_id in line


def test_callers_who_vanish_leave_nothing(caller: httpx.Client) -> None:
    with caller:
        for _ in range(SHORT["max_streams"]):
            with caller.stream("GET", "/v1/events") as answer:
                next(answer.iter_lines())
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            with caller.stream("GET", "/v1/events") as answer:
                if answer.status_code == httpx.codes.OK:
                    break
            assert time.monotonic() < give_up_at
            time.sleep(0.1)


async def test_a_server_that_is_told_to_end_ends_its_streams_properly(tmp_path: Path) -> None:
    """As Serve does it with a replica that it replaces: nothing tells the streams."""
    async with (
        running_edge(tmp_path, stream_keep_alive_s=600.0) as edge,
        listening(edge.app) as (port, server),
        httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as http,
    ):
        url = f"http://127.0.0.1:{port}/v1/events"
        headers = {"Authorization": f"Bearer {await edge.key()}"}
        async with http.stream("GET", url, headers=headers) as answer:
            lines = answer.aiter_lines()
            assert (await anext(lines)).startswith("id:")
            server.should_exit = True
            async with asyncio.timeout(PATIENCE_S):
                assert [line async for line in lines if line] == ["retry: 1000"]
