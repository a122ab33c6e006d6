"""`/ws`: what a client is told of its jobs, what it is not, and when it is cut off."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from events.decisions import Complete, FailAttempt
from events.job_progress import JobProgress
from events.types import FailedNode
from tests.support.edge import ACTOR, Client, Edge, submit
from tests.support.edge_services import URL
from tests.support.failing_log import FailingLog
from tests.support.generate_bodies import workflow_body
from tests.support.live.websocket import Websocket, connected
from tests.support.polling import eventually
from tests.unit.serve_app.protocols.comfyui.conftest import CLIENT, Connect, queue


def at(node: str, done: int = 1, preview: bytes | None = None) -> JobProgress:
    return JobProgress(done=done, total=20, node=node, class_type="KSampler", preview=preview)


def names(messages: list[Any]) -> list[str]:
    return ["preview" if isinstance(each, bytes) else each["type"] for each in messages]


async def status_of(websocket: Websocket) -> int:
    [*_, said] = await websocket.until("status")
    count: int = said["data"]["status"]["exec_info"]["queue_remaining"]
    return count


async def test_a_job_is_told_as_comfyui_tells_it(
    edge: Edge, client: Client, connect: Connect
) -> None:
    async with connect() as websocket:
        [first] = await websocket.until("status")
        assert first["data"]["sid"] == CLIENT
        id = await queue(client)
        await edge.project()
        assert await status_of(websocket) == 1
        await edge.start(id)
        began = await websocket.until("execution_cached")
        assert names(began) == ["execution_start", "execution_cached"]
        edge.progress.tell(id, at("3", preview=b"jpeg"))
        told = [await websocket.next() for _ in range(4)]
        assert names(told) == ["executing", "progress_state", "progress", "preview"]
        assert told[0]["data"] == {"node": "3", "display_node": "3", "prompt_id": id}
        assert told[2]["data"] == {"value": 1, "max": 20, "prompt_id": id, "node": "3"}
        assert told[3] == struct.pack(">II", 1, 1) + b"jpeg"
        await edge.store_image(id)
        await edge.complete(id)
        last = await websocket.until("executing")
        assert names(last) == ["executed", "execution_success", "executing"]
        [image] = last[0]["data"]["output"]["images"]
        assert (last[0]["data"]["node"], last[-1]["data"]["node"]) == ("9", None)
        assert (await client.get("/view", params=image)).content == b"pixels"
        await edge.project()
        assert await status_of(websocket) == 0


async def test_a_client_that_reads_metadata_is_told_whose_a_preview_is(
    edge: Edge, client: Client, connect: Connect
) -> None:
    async with connect() as websocket:
        await websocket.until("status")
        flags = {"type": "feature_flags", "data": {"supports_preview_metadata": True}}
        websocket.say_json(flags)
        assert (await websocket.next())["data"]["supports_preview_metadata"] is True
        id = await queue(client)
        await edge.start(id)
        await websocket.until("execution_cached")
        edge.progress.tell(id, at("3", preview=b"jpeg"))
        preview = (await websocket.until("progress") + [await websocket.next()])[-1]
        kind, length = struct.unpack(">II", preview[:8])
        metadata = json.loads(preview[8 : 8 + length])
        assert (kind, metadata["node_id"], metadata["prompt_id"]) == (4, "3", id)
        assert preview[8 + length :] == b"jpeg"


async def test_a_client_that_comes_later_goes_on_where_its_job_is(
    edge: Edge, client: Client, connect: Connect
) -> None:
    id = await queue(client)
    await edge.start(id)
    edge.progress.tell(id, at("3", done=7))
    await edge.project()
    async with connect() as websocket:
        assert await status_of(websocket) == 1
        told = await websocket.until("progress")
        assert names(told)[:3] == ["execution_start", "execution_cached", "executing"]
        assert told[-1]["data"]["value"] == 7


async def test_neither_another_client_nor_another_owner_is_told_of_a_job(
    edge: Edge, client: Client, connect: Connect
) -> None:
    bobs = {"Authorization": f"Bearer {await edge.key('bob')}"}
    async with (
        connect("/ws?clientId=other") as other,
        connected(edge.app, f"/ws?clientId={CLIENT}", headers=bobs) as bob,
        connect() as own,
    ):
        for each in (other, bob, own):
            await each.until("status")
        id = await queue(client)
        await edge.start(id)
        edge.progress.tell(id, at("3", preview=b"jpeg"))
        await edge.store_image(id)
        await edge.complete(id)
        await edge.project()
        await own.until("execution_success")
        assert await status_of(other) == 0
        assert other.sent.empty()
        assert bob.sent.empty()


async def test_failures_and_cancellations_are_told(
    edge: Edge, client: Client, connect: Connect
) -> None:
    async with connect() as websocket:
        await websocket.until("status")
        failed, stopped, waiting = [await queue(client) for _ in range(3)]
        for id in (failed, stopped):
            await edge.start(id)
        await websocket.until("execution_cached")
        edge.progress.tell(failed, at("3"))
        await websocket.until("progress")
        await edge.execute(failed, FailAttempt(ACTOR, "No room.", final=True, code="out_of_memory"))
        [error, over] = [
            each for each in await websocket.until("executing") if each["type"] != "status"
        ][-2:]
        assert error["data"]["exception_message"] == "No room."
        assert (error["data"]["node_id"], error["data"]["node_type"]) == ("3", "KSampler")
        assert over["data"] == {"node": None, "prompt_id": failed}
        await client.post("/queue", json={"delete": [waiting]})
        assert (await websocket.until("execution_interrupted"))[-1]["data"]["prompt_id"] == waiting


async def test_what_was_left_out_is_told(edge: Edge, client: Client, connect: Connect) -> None:
    notes = ["embedding_left_out: ink"]
    async with connect() as websocket:
        await websocket.until("status")
        id = await queue(client)
        await edge.start(id)
        await edge.store_image(id)
        await edge.execute(id, Complete(actor=ACTOR, images=1, notes=tuple(notes)))
        told = (await websocket.until("execution_success"))[-1]
    assert told["data"]["notes"] == notes
    history = (await client.get(f"/history/{id}")).json()[id]
    assert history["status"]["messages"][-1][1]["notes"] == notes


async def test_the_node_that_failed_is_named_and_not_the_last_sampler(
    edge: Edge, client: Client, connect: Connect
) -> None:
    failed = FailAttempt(
        ACTOR,
        "node 8 (VAEDecode): ValueError: sides differ",
        final=True,
        code="node_failed",
        node=FailedNode(id="8", class_type="VAEDecode", exception="ValueError"),
    )
    async with connect() as websocket:
        await websocket.until("status")
        id = await queue(client)
        await edge.start(id)
        edge.progress.tell(id, at("3"))
        await websocket.until("progress")
        await edge.execute(id, failed)
        told = (await websocket.until("execution_error"))[-1]["data"]
    await edge.project()
    history = (await client.get(f"/history/{id}")).json()[id]
    [name, error] = history["status"]["messages"][-1]
    job = (await client.get(f"/api/jobs/{id}")).json()
    assert name == "execution_error"
    for each in (told, error, job["execution_error"]):
        assert (each["node_id"], each["node_type"]) == ("8", "VAEDecode")
        assert (each["exception_type"], each["exception_message"]) == ("ValueError", "sides differ")


@pytest.mark.parametrize("class_type", ["SaveImageWebsocket", "ETN_SendImageWebSocket"])
async def test_pictures_for_the_websocket_itself_are_sent_on_it(
    class_type: str, edge: Edge, client: Client, connect: Connect
) -> None:
    prompt = workflow_body()["prompt"]
    prompt["9"] = {"class_type": class_type, "inputs": {"images": ["8", 0], "format": "PNG"}}
    async with connect() as websocket:
        await websocket.until("status")
        id = await queue(client, prompt=prompt)
        await edge.run(id, node="9")
        told = await websocket.until("executed")
        assert told[-2] == struct.pack(">II", 1, 2) + b"pixels"
        assert told[-3]["data"]["node"] == "9"


async def test_who_names_no_client_is_given_a_name(connect: Connect) -> None:
    for path in ("/ws", "/ws/", "/api/ws", "/comfy/ws"):
        async with connect(path) as websocket:
            [first] = await websocket.until("status")
            assert len(first["data"]["sid"]) == 32


async def test_a_key_opens_it_at_any_place_and_nothing_else_does(edge: Edge, key: str) -> None:
    text = base64.b64encode(f"anyone:{key}".encode()).decode()
    basic = {"Authorization": f"Basic {text}"}
    for path, headers in ((f"/ws?token={key}", {}), ("/ws", basic | {"Origin": URL})):
        async with connected(edge.app, path, headers=headers) as websocket:
            await websocket.until("status")
    elsewhere = basic | {"Origin": "https://evil.example"}
    for headers in ({}, elsewhere, {"Authorization": "Bearer nonsense"}):
        async with connected(edge.app, "/ws", headers=headers) as websocket:
            await eventually(lambda websocket=websocket: websocket.status is not None)
            assert websocket.status == 401
            challenges = [value for name, value in websocket.headers if name == "www-authenticate"]
            assert [each.partition(" ")[0] for each in challenges] == ["Bearer", "Basic"]


async def test_other_messages_of_a_client_change_nothing(
    edge: Edge, client: Client, connect: Connect
) -> None:
    async with connect() as websocket:
        await websocket.until("status")
        for text in ("{", "[]", "null", '{"type": "feature_flags", "data": []}', '{"type": []}'):
            websocket.say(text=text)
        websocket.say(bytes=b"\0\1")
        await websocket.until("feature_flags")
        await edge.start(await queue(client))
        await websocket.until("execution_start")


async def test_diffusion_jobs_count_and_are_not_told(
    edge: Edge, client: Client, connect: Connect
) -> None:
    async with connect() as websocket:
        await websocket.until("status")
        await submit(client)
        await edge.project()
        assert await status_of(websocket) == 1


class LateLog(FailingLog):
    """A log whose readers get no event while `released` is not set, unless they are new."""

    def __init__(self) -> None:
        super().__init__()
        self.released = asyncio.Event()
        self.released.set()

    @asynccontextmanager
    async def reader(self, *, after: int) -> AsyncGenerator[Any]:
        async with super().reader(after=after) as reader:
            yield LateReader(reader, self.released) if self.released.is_set() else reader


class LateReader:
    def __init__(self, reader: Any, released: asyncio.Event) -> None:
        self._reader = reader
        self._released = released

    async def next(self, timeout_s: float) -> Any:
        events = await self._reader.next(timeout_s)
        await self._released.wait()
        return events


class TestALateReplica:
    @pytest.fixture
    def log(self) -> LateLog:
        return LateLog()

    async def test_the_first_status_counts_a_job_that_was_accepted(
        self, edge: Edge, log: LateLog, client: Client, connect: Connect
    ) -> None:
        """comfy-api-simplified takes a status without jobs for the end of its job."""
        async with connect() as earlier:
            assert await status_of(earlier) == 0
            log.released.clear()
            await queue(client)
            async with connect() as websocket:
                waiting = asyncio.create_task(status_of(websocket))
                await asyncio.sleep(0)
                await edge.project()
                assert await waiting == 1
            log.released.set()

    async def test_a_job_that_ends_while_the_client_connects_is_told(
        self, edge: Edge, log: LateLog, client: Client, connect: Connect
    ) -> None:
        async with connect() as earlier:
            id = await queue(client)
            await edge.project()
            assert await status_of(earlier) <= 1
            log.released.clear()
            async with connect() as websocket:
                waiting = asyncio.create_task(status_of(websocket))
                await asyncio.sleep(0)
                await edge.start(id)
                await edge.store_image(id)
                await edge.complete(id)
                await edge.project()
                assert await waiting == 0
                log.released.set()
                told = names(await websocket.until("executing"))
                assert [each for each in told if each != "status"] == [
                    "execution_start",
                    "execution_cached",
                    "executed",
                    "execution_success",
                    "executing",
                ]
