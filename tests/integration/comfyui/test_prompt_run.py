"""Prompts on a server that misbehaves in the ways that ComfyUI does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

import comfyui.prompt_run
from comfyui.client import ComfyUIClient, Message
from comfyui.errors import (
    ComfyUIError,
    NodeError,
    OutputMissing,
    PromptLost,
    PromptRefused,
    PromptStalled,
    RequestFailed,
    ServerUnavailable,
)
from comfyui.prompt_run import OutputFile, PromptProgress, PromptRun
from tests.support.comfyui.standin_server import graph, node, standin
from tests.support.polling import eventually


class Server:
    """A stand-in, and the websocket whose messages go to the latest run."""

    def __init__(self, client: ComfyUIClient) -> None:
        self.client = client
        self.latest: PromptRun | None = None
        self.listening = asyncio.create_task(client.listen(self.pass_on))
        self.prompts = 0

    def pass_on(self, message: Message) -> None:
        if self.latest is not None:
            self.latest.note(message)

    def prompt(self, *nodes: dict[str, Any], **options: Any) -> PromptRun:
        self.prompts += 1
        self.latest = PromptRun(
            self.client, graph(*nodes), f"prompt-{self.prompts}", poll_s=0.2, **options
        )
        return self.latest

    async def outputs(self, *nodes: dict[str, Any], **options: Any) -> list[OutputFile]:
        run = self.prompt(*nodes, **options)
        return [each async for each in run.run() if isinstance(each, OutputFile)]

    async def seen(self) -> dict[str, Any]:
        answer = await self.client._http.get("/seen")
        seen: dict[str, Any] = answer.json()
        return seen


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with standin(tmp_path / "server") as (_, client):
        server = Server(client)
        yield server
        server.listening.cancel()


PICTURE = node("Picture", filename_prefix="job/a")


async def test_outputs_of_every_kind_are_returned_with_their_media_types(server: Server) -> None:
    files = await server.outputs(
        node("Preview"), PICTURE, node("Video", filename_prefix="job/b"), node("Note", text="hi")
    )

    assert [(each.index, each.node_id, each.media_type) for each in files] == [
        (0, "2", "image/png"),
        (1, "3", "video/mp4"),
        (2, "4", "text/plain"),
    ]
    assert [each.content for each in files[1:]] == [b"a video", b"hi"]
    assert (await server.seen())["history"] == []


async def test_progress_counts_nodes_and_the_part_of_the_present_node(server: Server) -> None:
    await eventually(lambda: server.client.is_heard)
    run = server.prompt(node("Wait", seconds=0.5), PICTURE)

    progress = [each async for each in run.run() if isinstance(each, PromptProgress)]

    assert {each.total for each in progress} == {200}
    done = [each.done for each in progress]
    assert done == sorted(done)
    assert any(0 < each.done < 100 and each.node_id == "1" for each in progress)


async def test_a_refused_graph_has_the_errors_of_its_nodes(server: Server) -> None:
    with pytest.raises(PromptRefused) as refused:
        await server.outputs(node("Read", image="missing.png"))

    assert refused.value.node_errors["1"]["errors"][0]["type"] == "value_not_in_list"


async def test_the_error_of_a_node_ends_the_prompt(server: Server) -> None:
    with pytest.raises(NodeError, match="ValueError: no") as failed:
        await server.outputs(PICTURE, node("Raise", kind="ValueError", text="no"))

    assert (failed.value.node_id, failed.value.class_type) == ("2", "Raise")


async def test_a_prompt_ends_although_the_websocket_is_cut(server: Server) -> None:
    files = await server.outputs(node("Cut"), node("Wait", seconds=0.3), PICTURE)

    assert [each.node_id for each in files] == ["3"]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([node("Forget")], PromptLost),
        ([node("Crash")], ServerUnavailable),
        ([node("Silent", seconds=600)], PromptStalled),
        ([node("Missing")], OutputMissing),
    ],
    ids=["forgotten", "crashed", "silent", "missing"],
)
async def test_a_server_that_fails_is_noticed(
    server: Server, nodes: list[dict[str, Any]], expected: type[ComfyUIError]
) -> None:
    await eventually(lambda: server.client.is_heard)
    with pytest.raises(expected):
        await server.outputs(*nodes, silence_s=1.0)


async def test_a_server_that_answers_no_request_is_noticed(server: Server) -> None:
    server.client._http.timeout = 0.5

    with pytest.raises(ServerUnavailable):
        await server.outputs(node("Mute"))


async def test_a_server_may_answer_twice_with_an_error(server: Server) -> None:
    files = await server.outputs(node("Errors", answers=2), node("Wait", seconds=0.5), PICTURE)

    assert len(files) == 1


async def test_a_server_that_answers_only_with_errors_is_noticed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comfyui.prompt_run, "_CANCEL_S", 0.3)

    with pytest.raises(RequestFailed, match="status 500"):
        await server.outputs(node("Errors", answers=10_000), node("Wait", seconds=600))


async def test_a_prompt_that_waits_behind_another_is_not_silent(server: Server) -> None:
    first = server.prompt(node("Wait", seconds=2))
    running = asyncio.create_task(anext(first.run()))
    await running

    files = await server.outputs(PICTURE, silence_s=1.0)

    assert len(files) == 1


async def test_a_prompt_behind_a_hanging_one_is_stalled_on_a_server_without_other_users(
    server: Server,
) -> None:
    await eventually(lambda: server.client.is_heard)
    async with aclosing(server.prompt(node("Wait", seconds=600)).run()) as events:
        await anext(events)
        run = server.prompt(PICTURE, silence_s=1.0, is_shared=False)

        with pytest.raises(PromptStalled):
            await anext(run.run())

        assert run.is_waiting


async def test_a_closed_run_interrupts_its_own_prompt_only(server: Server) -> None:
    run = server.prompt(node("Wait", seconds=600))
    async with aclosing(run.run()) as events:
        await anext(events)

    assert (await server.seen())["requests"] == ["interrupt prompt-1"]
    assert not run.is_stuck
    assert len(await server.outputs(PICTURE)) == 1


async def test_a_prompt_that_waits_is_removed_without_an_interrupt(server: Server) -> None:
    running = server.prompt(node("Wait", seconds=600))
    async with aclosing(running.run()) as events:
        await anext(events)
        waiting = asyncio.create_task(anext(server.prompt(PICTURE).run()))
        await eventually(lambda: is_pending(server, "prompt-2"))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not await is_pending(server, "prompt-2")
        assert (await server.seen())["requests"] == []


async def is_pending(server: Server, prompt_id: str) -> bool:
    return prompt_id in (await server.client.queue())[1]


async def test_a_graph_of_which_only_a_part_is_valid_does_not_run(server: Server) -> None:
    with pytest.raises(PromptRefused, match="Some outputs"):
        await server.outputs(PICTURE, node("Half"))

    await eventually(lambda: is_empty(server))


async def is_empty(server: Server) -> bool:
    return await server.client.queue() == (set(), set())


async def test_a_cancel_that_is_not_answered_leaves_the_prompt_stuck(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comfyui.prompt_run, "_CANCEL_S", 0.5)
    run = server.prompt(node("Wait", seconds=0.2), node("Mute"))
    server.client._http.timeout = 0.3
    with pytest.raises(ServerUnavailable):
        async for _ in run.run():
            pass

    assert run.is_stuck


async def test_a_prompt_that_ignores_the_interrupt_is_stuck(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comfyui.prompt_run, "_CANCEL_S", 0.3)
    run = server.prompt(node("Wait", seconds=600, deaf=True))
    async with aclosing(run.run()) as events:
        await anext(events)

    assert run.is_stuck


async def test_a_cancel_that_comes_together_with_a_message_is_not_lost(server: Server) -> None:
    run = server.prompt(node("Wait", seconds=600))
    events = run.run()
    await anext(events)
    waiting = asyncio.create_task(anext(events))
    await asyncio.sleep(0)
    run.note(Message("progress", {"prompt_id": "prompt-1", "value": 1, "max": 2}))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await events.aclose()


async def test_messages_about_other_prompts_are_ignored(server: Server) -> None:
    run = server.prompt(node("Wait", seconds=0.3), PICTURE)
    events = run.run()
    await anext(events)
    for name in ("execution_error", "executed", "progress"):
        run.note(Message(name, {"prompt_id": "another", "node": "1", "value": 1, "max": 1}))

    assert [each.index async for each in events if isinstance(each, OutputFile)] == [0]


async def test_outputs_above_the_limit_are_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comfyui.prompt_run, "_MOST_OUTPUT_BYTES", 6)

    with pytest.raises(ComfyUIError, match="more than 6 bytes"):
        await server.outputs(node("Video"))
