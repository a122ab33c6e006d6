"""Runs of jobs on one ComfyUI server: their events, their errors, and the blame for a death."""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

import comfyui.prompt_run
from actors.worker.comfyui_engine import ComfyUIHost
from actors.worker.engine_process import EngineDied, RunEvent, RunRequest, ServerInfo
from actors.worker.result_file import FileReady
from actors.worker.run_mark import RunMark
from comfyui.client import ComfyUIClient
from comfyui.object_info import ObjectInfo
from comfyui.own_server import OwnServer
from engine.interface import (
    ActivityKind,
    EngineError,
    Errored,
    Finished,
    GraphInvalid,
    RunOptions,
)
from tests.support.comfyui.standin_server import graph, install, node, standin
from tests.support.polling import eventually


class Host:
    def __init__(
        self, process: OwnServer, client: ComfyUIClient, folder: Path, **limits: Any
    ) -> None:
        self.host = ComfyUIHost(client, process, **limits)
        self.process = process
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

    @property
    def pid(self) -> int:
        """The id of the process of the server."""
        assert self.process._process is not None
        return self.process._process.pid

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
    async with running(tmp_path) as host:
        yield host


@asynccontextmanager
async def running(tmp_path: Path, **limits: Any) -> AsyncIterator[Host]:
    async with standin(tmp_path / "server") as (process, client):
        host = Host(process, client, tmp_path / "server", **limits)
        yield host
        await host.host.close()


PICTURE = node("Picture", filename_prefix="a")
KEY = "comfyui-0123456789"


async def test_a_run_yields_its_files_and_leaves_none_on_the_server(server: Host) -> None:
    events = await server.events(PICTURE, node("Note", text="hi"))

    files = [each for each in events if isinstance(each, FileReady)]
    assert [(each.index, each.node_id, each.media_type) for each in files] == [
        (0, "1", "image/png"),
        (1, "2", "text/plain"),
    ]
    assert events[-1] == Finished(2)
    folders = [server.folder / each for each in ("output", "input", "temp")]
    assert [path for each in folders for path in each.rglob("*") if path.is_file()] == []
    assert not server.mark_is_active


async def test_input_files_have_names_that_depend_on_their_content_only(server: Host) -> None:
    read = node("Read", image="../../secret.png", filename_prefix="a")

    events = await server.events(read, input_files={"../../secret.png": b"the content"})

    file = next(each for each in events if isinstance(each, FileReady))
    assert file.content == b"the content"


async def test_a_job_with_a_file_that_is_too_large_for_the_server_fails(server: Host) -> None:
    read = node("Read", image="clip.mp4", filename_prefix="a")

    events = await server.events(read, input_files={"clip.mp4": bytes(2**20 + 1)})

    assert isinstance(events[-1], Errored)
    assert events[-1].error.code == "invalid_input"
    assert "no input file of 1048577 bytes" in str(events[-1].error)


async def test_any_node_reads_an_input_file_under_a_name_with_its_suffix(server: Host) -> None:
    nodes = (
        node("Read", image="clip.mp4 [input]", filename_prefix="a"),
        node("Note", text="clip.mp4"),
        node("Note", text="a film about clip.mp4"),
    )

    events = await server.events(*nodes, input_files={"clip.mp4": b"a video"})

    video, name, text = (each.content for each in events if isinstance(each, FileReady))
    assert video == b"a video"
    assert re.fullmatch(rb"darkroom-[0-9a-f]{32}\.mp4", name)
    assert text == b"a film about clip.mp4"


async def test_images_of_a_diffusion_request_have_the_order_of_their_seeds(server: Host) -> None:
    seeds = {f"save-{index}": 40 + index for index in range(12)}
    prompt = {f"sample-{seed}": node("KSampler", seed=seed) for seed in seeds.values()}
    prompt |= {
        id: node("SaveImage", images=[f"sample-{seed}", 0], filename_prefix="a")
        for id, seed in seeds.items()
    }
    options = RunOptions(first_index={id: index for index, id in enumerate(seeds)})

    with RunMark.new() as mark:
        request = RunRequest("job", 1, prompt, mark.path, options)
        events = [each async for each in server.host.run(request)]

    files = [each for each in events if isinstance(each, FileReady)]
    assert {(each.node_id, each.index, each.seed) for each in files} == {
        (f"save-{index}", index, 40 + index) for index in range(12)
    }


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


async def test_extra_data_reaches_the_server_and_no_text_of_an_error(server: Host) -> None:
    failing = node("Raise", kind="ValueError", text=f"401 for {KEY}")
    extra_data = SecretStr(json.dumps({"api_key_comfy_org": KEY, "flag": True}))
    with RunMark.new() as mark:
        asked = request(mark, failing)
        asked = replace(asked, extra_pnginfo={"workflow": {}}, extra_data=extra_data)
        async with aclosing(server.host.run(asked)) as events:
            last = [each async for each in events][-1]

    seen = (await server.client._http.get("/seen")).json()["extra_data"]
    assert seen == [{"api_key_comfy_org": KEY, "flag": True, "extra_pnginfo": {"workflow": {}}}]
    assert isinstance(last, Errored)
    assert "401 for ***" in str(last.error)
    assert KEY not in f"{last.error} {asked.extra_data!r}"


@pytest.mark.parametrize("nodes", [node(f"For{KEY}"), node("Read", image=f"{KEY}.png")])
async def test_extra_data_reaches_no_text_of_a_refused_graph(
    server: Host, nodes: dict[str, Any]
) -> None:
    extra_data = SecretStr(json.dumps({"accounts": [{"key": KEY[:-1]}, {"key": KEY}]}))
    with RunMark.new() as mark:
        asked = replace(request(mark, nodes), extra_data=extra_data)
        async with aclosing(server.host.run(asked)) as events:
            [last] = [each async for each in events]

    assert isinstance(last, Errored)
    assert isinstance(last.error, GraphInvalid)
    body = json.dumps(last.error.body())
    assert "***" in body
    assert KEY[:-1] not in body
    assert "***9" not in body


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


async def test_a_job_that_waited_for_another_prompt_is_a_bystander(
    server: Host,
) -> None:
    await server.client.submit(graph(node("Wait", seconds=2), node("Crash")), "other", {})

    with pytest.raises(EngineDied):
        await server.events(PICTURE)

    assert server.host.is_broken
    assert not server.mark_is_active


async def test_a_second_cancel_does_not_let_the_next_job_begin(
    server: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comfyui.prompt_run, "_CANCEL_S", 1)
    deaf = asyncio.create_task(server.events(node("Wait", seconds=600, deaf=True)))
    await eventually(lambda: has_prompts(server))

    server.host.cancel("job", 1)
    await asyncio.sleep(0)
    server.host.cancel("job", 1)

    await eventually(lambda: not server.host._turn.locked())
    assert server.host.is_broken
    deaf.cancel()


async def test_an_error_that_cannot_be_read_ends_the_job(
    server: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr(server.host, "_end_of", fail)

    assert "cannot be used" in str(await server.error(node("Raise", kind="ValueError", text="no")))


@pytest.mark.parametrize("input_files", [{}, {"a.png": b"content"}])
async def test_a_job_after_the_death_of_the_server_is_a_bystander(
    server: Host, input_files: dict[str, bytes]
) -> None:
    server.host.kill()
    await eventually(lambda: server.host.has_ended)
    await server.client.close()

    with pytest.raises(EngineDied):
        await server.events(PICTURE, input_files=input_files)

    assert server.host.is_broken
    assert not server.mark_is_active


async def test_a_server_that_does_not_answer_is_not_ready(server: Host) -> None:
    state = await server.host.check()
    assert state.jobs == 1
    # The node types may have been read already.
    assert state.server is not None
    assert replace(state.server, object_info_digest=None) == ServerInfo(
        "stand-in", ("broken-pack",)
    )
    server.host.kill()

    with pytest.raises(EngineDied, match=server.client.url):
        await server.host.check()


async def test_a_server_is_restarted_after_a_number_of_jobs(tmp_path: Path) -> None:
    async with running(tmp_path, max_jobs=2) as server:
        pids = []
        for number in range(4):
            assert (await server.events(PICTURE, job_id=str(number)))[-1] == Finished(1)
            pids.append(server.pid)
            assert not server.host.has_ended

        assert len(set(pids)) == 2
        assert pids[0] == pids[1]


async def test_jobs_wait_while_a_server_is_restarted(tmp_path: Path) -> None:
    async with running(tmp_path, max_jobs=1) as server:
        jobs = [server.events(PICTURE, job_id=str(number)) for number in range(3)]

        ends = await asyncio.gather(*jobs)

        assert [events[-1] for events in ends] == [Finished(1)] * 3


async def test_a_server_that_is_restarted_is_neither_idle_nor_ended(tmp_path: Path) -> None:
    async with running(tmp_path, max_jobs=1) as server:
        first = server.pid
        await server.events(PICTURE)
        state = await server.host.check()
        assert (state.kind, state.works_s > 0) == (ActivityKind.LOAD, True)
        description = asyncio.create_task(server.host.server())
        waiting = asyncio.create_task(server.events(PICTURE, job_id="waiting"))
        await eventually(lambda: "waiting" in server.host._runs)

        assert server.host.cancel("waiting", 1) is False

        await eventually(lambda: not server.host._is_recycling)
        assert server.pid != first
        assert (await description).version == "stand-in"
        assert (await description).object_info is not None
        assert (await server.host.server()) == await description
        assert (await server.host.check()).kind is ActivityKind.IDLE
        assert not server.mark_is_active
        waiting.cancel()


async def test_a_server_that_uses_too_much_memory_is_restarted(tmp_path: Path) -> None:
    async with running(tmp_path, max_memory_gib=0.001) as server:
        first = server.pid
        await server.events(PICTURE)

        await eventually(lambda: not server.host._is_recycling)
        assert server.pid != first


async def test_a_server_below_its_limits_is_not_restarted(tmp_path: Path) -> None:
    async with running(tmp_path, max_jobs=3, max_memory_gib=100) as server:
        first = server.pid
        await server.events(PICTURE)

        await eventually(lambda: not server.host._is_recycling)
        assert server.pid == first


async def test_a_server_that_does_not_start_again_has_ended(tmp_path: Path) -> None:
    async with running(tmp_path, max_jobs=1) as server:
        server.process._install = install("--fail-start")
        await server.events(PICTURE)

        with pytest.raises(EngineDied):
            await server.events(PICTURE, job_id="second")

        assert server.host.has_ended
        assert server.host.is_broken
        assert not server.mark_is_active


async def test_the_state_names_the_node_types_that_the_server_declares(server: Host) -> None:
    async def digest() -> str | None:
        known = (await server.host.check()).server
        return None if known is None else known.object_info_digest

    await eventually(digest)
    declared = ObjectInfo(zlib.decompress(server.host.compressed_object_info))
    assert {"Picture", "Video"} <= declared.nodes.keys()
