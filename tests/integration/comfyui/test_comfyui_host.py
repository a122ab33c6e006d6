"""Runs of jobs on one ComfyUI server: their events, their errors, and the blame for a death."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

import comfyui.prompt_run
from actors.worker.comfyui_engine import ComfyUIHost
from actors.worker.engine_process import EngineDied, RunEvent, RunRequest
from actors.worker.result_file import FileReady
from actors.worker.run_mark import RunMark
from comfyui.client import ComfyUIClient
from comfyui.own_server import OwnServer
from engine.interface import EngineError, Errored, Finished, RunOptions
from tests.support.comfyui.standin_server import graph, node, standin
from tests.support.polling import eventually


class Host:
    def __init__(self, process: OwnServer, client: ComfyUIClient, folder: Path) -> None:
        self.host = ComfyUIHost(client, process)
        self.client = client
        self.folder = folder
        self.mark_is_active = False

    async def events(self, *nodes: dict[str, Any], **options: Any) -> list[RunEvent]:
        with RunMark.new() as mark:
            try:
                async with aclosing(self.host.run(request(mark, *nodes, **options))) as events:
                    return [each async for each in events]
            finally:
                self.mark_is_active = mark.is_active

    async def error(self, *nodes: dict[str, Any], **options: Any) -> EngineError:
        last = (await self.events(*nodes, **options))[-1]
        assert isinstance(last, Errored)
        return last.error

    async def requests(self) -> list[str]:
        answer = await self.client._http.get("/seen")
        requests: list[str] = answer.json()["requests"]
        return requests


def request(
    mark: RunMark, *nodes: dict[str, Any], job_id: str = "job", attempt: int = 1, **options: Any
) -> RunRequest:
    return RunRequest(job_id, attempt, graph(*nodes), mark.path, RunOptions(**options))


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Host]:
    async with standin(tmp_path / "server") as (process, client):
        host = Host(process, client, tmp_path / "server")
        yield host
        await host.host.close()


PICTURE = node("Picture", filename_prefix="a")


async def test_a_run_yields_its_files_and_leaves_none_on_the_server(server: Host) -> None:
    events = await server.events(PICTURE, node("Note", text="hi"))

    files = [each for each in events if isinstance(each, FileReady)]
    assert [(each.index, each.node_id, each.media_type) for each in files] == [
        (0, "1", "image/png"),
        (1, "2", "text/plain"),
    ]
    assert events[-1] == Finished(2)
    assert [path for path in server.folder.rglob("*") if path.is_file()] == []
    assert not server.mark_is_active


async def test_input_files_have_names_that_depend_on_their_content_only(server: Host) -> None:
    read = node("Read", image="../../secret.png", filename_prefix="a")

    events = await server.events(read, input_files={"../../secret.png": b"the content"})

    file = next(each for each in events if isinstance(each, FileReady))
    assert file.content == b"the content"


@pytest.mark.parametrize(
    ("failing", "code"),
    [
        (node("Unknown"), "invalid_input"),
        (node("Raise", kind="ValueError", text="no"), "node_failed"),
        (node("Raise", kind="RuntimeError", text="device-side assert triggered"), "device_failed"),
        (node("Forget"), "machine_failed"),
        (node("Raise", kind="OSError", text="[Errno 28] No space left"), "machine_failed"),
        (node("Missing"), "node_failed"),
    ],
    ids=["refused", "raised", "device", "lost", "disk full", "output missing"],
)
async def test_an_error_of_the_server_has_the_code_of_an_engine(
    server: Host, failing: dict[str, Any], code: str
) -> None:
    assert (await server.error(failing)).code == code
    assert server.host.is_broken is (code == "device_failed")
    assert server.mark_is_active is (code == "device_failed")


async def test_a_job_without_memory_is_tried_once_more_without_others(server: Host) -> None:
    failing = node("Raise", kind="OutOfMemoryError", text="Allocation on device")

    first = await server.error(failing)
    second = await server.error(failing, attempt=2, is_exclusive=True)

    assert (first.code, first.beside_others) == ("out_of_memory", True)
    assert (second.code, second.beside_others) == ("out_of_memory", False)
    assert await server.requests() == ["free", "free"]


async def test_a_job_whose_server_died_is_a_suspect(server: Host) -> None:
    with pytest.raises(EngineDied):
        await server.events(node("Crash"))

    assert server.host.is_broken
    assert server.mark_is_active


async def test_graphs_run_one_at_a_time(server: Host) -> None:
    first = asyncio.create_task(server.events(node("Wait", seconds=0.5), job_id="first"))
    await eventually(lambda: server.host._current is not None)

    second = await server.events(PICTURE, job_id="second")

    assert first.done()
    assert second[-1] == Finished(1)


async def test_a_later_attempt_cancels_the_earlier_one_and_not_the_other_way_round(
    server: Host,
) -> None:
    first = asyncio.create_task(server.events(node("Wait", seconds=600)))
    await eventually(lambda: server.host._current is not None)
    second = asyncio.create_task(server.events(node("Wait", seconds=0.5), PICTURE, attempt=2))
    await eventually(lambda: server.host._runs["job"].attempt == 2)

    assert "later attempt" in str(await server.error(PICTURE, attempt=1))

    assert (await second)[-1] == Finished(1)
    first.cancel()


async def test_a_cancelled_run_does_not_reach_the_server(server: Host) -> None:
    first = asyncio.create_task(server.events(node("Wait", seconds=1), job_id="first"))
    await eventually(lambda: server.host._current is not None)
    waiting = asyncio.create_task(server.events(PICTURE, job_id="second"))
    await eventually(lambda: "second" in server.host._runs)

    assert server.host.cancel("second", 2) is None
    assert server.host.cancel("second", 1) is False

    await first
    await eventually(lambda: not server.host._turn.locked())
    assert await server.client.queue() == (set(), set())
    waiting.cancel()


async def test_a_running_job_is_cancelled_on_the_server(server: Host) -> None:
    running = asyncio.create_task(server.events(node("Wait", seconds=600)))
    await eventually(
        lambda: server.host._current is not None and server.host._runs["job"].has_begun
    )
    await eventually(lambda: has_prompts(server))

    assert server.host.cancel("job", 1) is True

    await eventually(lambda: not server.host._turn.locked())
    assert not await has_prompts(server)
    running.cancel()


async def has_prompts(server: Host) -> bool:
    return any(await server.client.queue())


async def test_a_job_actor_that_takes_no_events_does_not_hold_the_server(server: Host) -> None:
    with RunMark.new() as mark:
        slow = server.host.run(request(mark, PICTURE, PICTURE, job_id="slow"))
        await anext(slow)

        assert (await server.events(PICTURE))[-1] == Finished(1)
        await slow.aclose()


async def test_a_server_that_ignores_a_cancel_is_replaced(
    server: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comfyui.prompt_run, "_CANCEL_S", 0.3)
    running = asyncio.create_task(server.events(node("Wait", seconds=600, deaf=True)))
    await eventually(lambda: has_prompts(server))

    server.host.cancel("job", 1)

    await eventually(lambda: server.host.is_broken)
    running.cancel()


async def test_a_job_after_the_death_of_the_server_is_a_bystander(server: Host) -> None:
    server.host.kill()
    await eventually(lambda: server.host.has_ended)

    with pytest.raises(EngineDied):
        await server.events(PICTURE)

    assert server.host.is_broken
    assert not server.mark_is_active


async def test_a_server_that_does_not_answer_is_not_ready(server: Host) -> None:
    assert (await server.host.check()).jobs == 1
    server.host.kill()

    with pytest.raises(EngineDied, match=server.client.url):
        await server.host.check()
