"""Large answers are built in a thread, one at a time for each owner, and constant pages once."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading

import pytest
from fastapi import Request

from serve_app.answers import ConstantPage, PageCache, json_answer
from tests.support.edge import Client, Edge

CONTENT = b"a constant page, " * 100


def request(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw})


def test_a_constant_page_is_sent_as_the_client_takes_it_and_only_if_it_has_changed() -> None:
    page = ConstantPage(CONTENT, "text/plain")
    plain, packed = page.answer(request()), page.answer(request(accept_encoding="br, gzip"))
    assert plain.body == gzip.decompress(packed.body) == CONTENT
    assert packed.headers["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in plain.headers
    known = page.answer(request(if_none_match=f'"other", {plain.headers["ETag"]}'))
    assert (known.status_code, known.body) == (304, b"")
    assert known.headers["ETag"] == packed.headers["ETag"]
    changed = ConstantPage(CONTENT + b".", "text/plain")
    assert changed.answer(request(if_none_match=plain.headers["ETag"])).body == CONTENT + b"."


async def test_a_page_cache_builds_each_page_once_and_drops_the_one_not_used_longest() -> None:
    built: list[str] = []
    cache = PageCache(most=2)
    for name in ("a", "b", "a", "c", "a", "b"):
        page = await cache.get(name, lambda name=name: built.append(name) or [name])  # type: ignore[func-returns-value]
        assert json.loads(page.answer(request()).body) == [name]
    assert built == ["a", "b", "c", "b"]


async def test_json_is_built_outside_the_event_loop() -> None:
    answer = await json_answer(threading.get_ident)
    assert json.loads(answer.body) != threading.get_ident()


async def test_a_cancelled_answer_lasts_until_its_thread_ends() -> None:
    for answer in (json_answer, lambda build: PageCache().get("page", build)):
        begun, end = threading.Event(), threading.Event()

        def build(begun: threading.Event = begun, end: threading.Event = end) -> list[str]:
            begun.set()
            end.wait()
            return []

        task = asyncio.ensure_future(answer(build))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        await asyncio.wait([task], timeout=0.05)
        is_done = task.done()
        end.set()
        await asyncio.wait([task])
        assert (is_done, task.cancelled()) == (False, True)


@pytest.mark.edge(body_wait_s=0.05)
async def test_one_owner_builds_one_large_answer_at_a_time(
    edge: Edge, client: Client, bob: Client
) -> None:
    paths = (
        "/v1/jobs",
        "/v1/models",
        "/v1/object_info",
        "/object_info",
        "/object_info/KSampler",
        "/history",
        "/history_v2",
        "/queue",
        "/api/jobs",
        "/api/v2/jobs",
    )
    async with edge.app.state.replica.job_access.list_turns.acquire("alice"):
        for path in paths:
            assert (await client.get(path)).status_code == 503, path
            assert (await bob.get(path)).status_code == 200, path
    for path in paths:
        assert (await client.get(path)).status_code == 200, path


@pytest.mark.edge(body_wait_s=0.05)
async def test_a_list_that_waits_for_the_read_model_delays_no_other_list(
    edge: Edge, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("/queue", "/history", "/api/jobs"):
        waits, is_reached = asyncio.Event(), asyncio.Event()

        async def reach(
            _: int | None = None, waits: asyncio.Event = waits, end: asyncio.Event = is_reached
        ) -> None:
            waits.set()
            await end.wait()

        monkeypatch.setattr(edge.app.state.replica.job_access.projected, "reach", reach)
        listed = asyncio.create_task(client.get(path))
        await waits.wait()
        assert (await client.get("/v1/jobs")).status_code == 200, path
        is_reached.set()
        assert (await listed).status_code == 200, path
