"""The Model Context Protocol: the official client against `/mcp`."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from events.job_progress import JobProgress
from events.store.records import Scope
from serve_app.protocols.mcp import tools
from tests.support.edge import Client as HttpClient
from tests.support.edge import Edge
from tests.support.edge_services import URL
from tests.support.generate_bodies import workflow_body
from tests.support.polling import eventually
from tests.support.uploads import png
from tests.unit.serve_app.protocols.conftest import followed

Work = Callable[[str], Awaitable[None]]
OWN_TOOLS = ["generate_image", "submit_job", "wait_for_job", "cancel_job", "list_models"]


@asynccontextmanager
async def agent_with(edge: Edge, key: str | None, **options: Any) -> AsyncIterator[Client]:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    transport = httpx2.ASGITransport(edge.app)
    async with httpx2.AsyncClient(transport=transport, headers=headers) as http:
        server = streamable_http_client(f"{URL}/mcp", http_client=http)
        async with Client(server, **options) as client:
            yield client


class Agent:
    """A client of Alice that connects for each request, because its tasks end where they began."""

    def __init__(self, edge: Edge, key: str, mode: str) -> None:
        self._connect = lambda: agent_with(edge, key, mode=mode)

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **options: Any) -> Any:
            refused: MCPError | None = None
            async with self._connect() as client:
                try:
                    return await getattr(client, name)(*args, **options)
                except MCPError as error:  # In the context it would become an exception group.
                    refused = error
            raise refused

        return call


@pytest.fixture(params=["legacy", "auto"])
async def agent(edge: Edge, request: pytest.FixtureRequest) -> Agent:
    """Alice's agent, with the handshake of the older protocols and with the newest protocol."""
    return Agent(edge, await edge.key(), request.param)


async def answered(
    edge: Edge, call: Awaitable[types.CallToolResult], work: Work
) -> types.CallToolResult:
    """The answer of a call while `work` does what becomes of its job."""
    known = set(edge.log.job_ids())
    answer = asyncio.ensure_future(call)
    [job_id] = await eventually(lambda: set(edge.log.job_ids()) - known)
    await work(job_id)
    return await answer


def text_of(result: types.CallToolResult) -> str:
    [text] = [each.text for each in result.content if isinstance(each, types.TextContent)]
    return text


async def test_an_agent_makes_an_image_and_gets_it(edge: Edge, agent: Agent) -> None:
    data = png()

    async def work(job_id: str) -> None:
        await edge.run(job_id, data=data)

    result = await answered(
        edge,
        agent.call_tool("generate_image", {"prompt": "a cat", "steps": 3, "width": 64}),
        work,
    )
    assert not result.is_error
    [image] = [each for each in result.content if isinstance(each, types.ImageContent)]
    assert (b64decode(image.data), image.mime_type) == (data, "image/png")
    [link] = [each for each in result.content if isinstance(each, types.ResourceLink)]
    assert "/files/" in link.uri
    job = await edge.job(result.structured_content["request_id"])
    request = job.submitted.request
    assert (request["prompt"], request["steps"], request["width"]) == ("a cat", 3, 64)


async def test_large_images_have_only_their_link(
    edge: Edge, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "_MAX_IMAGE_BYTES", 10)

    async def work(job_id: str) -> None:
        await edge.run(job_id, data=png())

    result = await answered(edge, agent.call_tool("generate_image", {"prompt": "a cat"}), work)
    assert {type(each) for each in result.content} == {types.TextContent, types.ResourceLink}


async def test_each_named_workflow_is_a_tool(
    edge: Edge, client: HttpClient, bob: HttpClient, agent: Agent
) -> None:
    inputs = {"prompt": {"node": "6", "input": "text", "required": True}}
    body = {"name": "portrait.v2", "inputs": inputs, "description": "People"} | workflow_body()
    assert (await client.post("/v1/workflows", json=body)).status_code == 201
    assert (
        await bob.post("/v1/workflows", json={"name": "hidden"} | workflow_body())
    ).status_code == 201
    listed = (await agent.list_tools()).tools
    assert [tool.name for tool in listed] == [*OWN_TOOLS, "run_portrait_v2"]
    assert listed[-1].description == "People"
    assert listed[-1].input_schema["required"] == ["prompt"]
    refused = await agent.call_tool("run_portrait_v2", {"steps": 3})
    assert refused.is_error
    assert "inputs.prompt: is required" in text_of(refused)
    assert "inputs.steps" in text_of(refused)
    result = await answered(edge, agent.call_tool("run_portrait_v2", {"prompt": "a dog"}), edge.run)
    assert result.structured_content["workflow"] == "portrait.v2@1"
    assert not result.is_error


async def test_jobs_are_submitted_awaited_and_cancelled(edge: Edge, agent: Agent) -> None:
    submitted = await agent.call_tool(
        "submit_job", {"flavour": "workflow", "body": workflow_body()}
    )
    request_id = submitted.structured_content["request_id"]
    waiting = await agent.call_tool("wait_for_job", {"request_id": request_id, "timeout_s": 0})
    assert "Call wait_for_job" in text_of(waiting)
    cancelled = await agent.call_tool("cancel_job", {"request_id": request_id})
    assert cancelled.structured_content["state"] == "cancelled"
    unknown = await agent.call_tool("wait_for_job", {"request_id": "0", "timeout_s": 0})
    assert (unknown.is_error, text_of(unknown)) == (True, "There is no such job.")


async def test_errors_say_what_to_change(edge: Edge, agent: Agent) -> None:
    for arguments, what in (
        ({"prompt": ""}, "prompt"),
        ({"prompt": "a", "width": 1}, "width"),
        ({"prompt": "a", "size": 1}, "size"),
        ({"prompt": "a", "model": "none"}, "no model 'none'"),
    ):
        result = await agent.call_tool("generate_image", arguments)
        assert result.is_error
        assert what in text_of(result)
    assert edge.log.job_ids() == []
    with pytest.raises(MCPError, match="no tool"):
        await agent.call_tool("paint", {})


async def test_models_endpoints_and_workflows_are_listed(agent: Agent) -> None:
    listed = (await agent.call_tool("list_models", {})).structured_content
    assert listed == {"models": ["tiny.safetensors"], "endpoints": ["default"], "workflows": []}


async def test_jobs_are_resources_of_their_owner(
    edge: Edge, client: HttpClient, bob: HttpClient, agent: Agent
) -> None:
    own = (await client.post("/workflow/v1/generate", json=workflow_body())).json()["request_id"]
    other = (await bob.post("/workflow/v1/generate", json=workflow_body())).json()["request_id"]
    await edge.project()
    [listed] = (await agent.list_resources()).resources
    assert listed.uri == f"darkroom://jobs/{own}"
    [content] = (await agent.read_resource(listed.uri)).contents
    assert isinstance(content, types.TextResourceContents)
    assert json.loads(content.text)["request_id"] == own
    with pytest.raises(MCPError) as known:
        await agent.read_resource(f"darkroom://jobs/{other}")
    assert known.value.code == types.INVALID_PARAMS


async def test_progress_is_reported(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "_REPORT_PERIOD_S", 0.01)
    told: list[float] = []

    async def note(progress: float, _total: float | None, _message: str | None) -> None:
        told.append(progress)

    async def work(job_id: str) -> None:
        await edge.start(job_id)
        newest = await eventually(lambda: followed(edge))
        edge.progress.tell(job_id, JobProgress(1, 4))
        await eventually(lambda: newest.progress is None)
        await edge.store_image(job_id)
        await edge.complete(job_id)

    async with agent_with(edge, await edge.key()) as agent:
        call = agent.call_tool("generate_image", {"prompt": "a cat"}, progress_callback=note)
        await answered(edge, call, work)
    assert told == [0.25]


async def test_a_key_and_its_scopes_are_required(edge: Edge) -> None:
    async with edge.client_with(None) as anyone:
        answer = await anyone.post("/mcp", json={})
        assert answer.status_code == 401
    async with agent_with(edge, await edge.key(scopes=[Scope.READ])) as reader:
        assert await reader.list_tools()
        refused = await reader.call_tool("generate_image", {"prompt": "a cat"})
        assert "lacks the scope generate" in text_of(refused)
        refused = await reader.call_tool("cancel_job", {"request_id": "0"})
        assert "lacks the scope cancel" in text_of(refused)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b"null", b'{"jsonrpc": "2.0"}', b'{"jsonrpc":"2.0","id":1,"method":"x"}'],
)
async def test_malformed_messages_are_refused(client: HttpClient, body: bytes) -> None:
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    answer = await client.post("/mcp", content=body, headers=headers)
    assert answer.status_code in {200, 202, 400}
    answer = await client.post("/mcp", content=b"[%s]" % (b"[]," * 20_000 + b"[]"), headers=headers)
    assert answer.status_code == 413
    for method in ("GET", "DELETE"):
        assert (await client.request(method, "/mcp")).status_code == 405
