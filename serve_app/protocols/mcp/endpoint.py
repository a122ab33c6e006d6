"""The route `/mcp`, which serves the Model Context Protocol over streamable HTTP.

The specification is at https://modelcontextprotocol.io/specification/2025-11-25. Each request is
independent, so any replica can answer it, and there are no sessions.
"""

from __future__ import annotations

import logging

import mcp_types as types
from fastapi import APIRouter, Request, Response
from mcp.server import Server, ServerRequestContext
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import Message, Receive, Scope, Send

from serve_app.bodies import require_json
from serve_app.error_responses import ApiError
from serve_app.protocols.credentials import ReadProtocolKey
from serve_app.protocols.mcp.resources import list_jobs, list_templates, read_job
from serve_app.protocols.mcp.tools import Caller, call_tool, list_tools
from serve_app.replica import replica_of
from settings.version import VERSION

PATH = "/mcp"
_MAX_CONTAINERS = 20_000
"""The most arrays and objects in a message. The library parses messages on the event loop."""
_INSTRUCTIONS = """\
Darkroom makes images. generate_image makes images from a prompt. Each tool whose name begins with
run_ runs a stored workflow. These tools wait for the result. submit_job returns at once, and
wait_for_job waits for the end of a job. list_models lists models, endpoints and workflows.
"""
_CALLER = "mcp_caller"

# The library logs the start and the end of each request.
logging.getLogger("mcp").setLevel(logging.WARNING)

router = APIRouter(include_in_schema=False)


def _caller(context: ServerRequestContext) -> Caller:
    assert context.request is not None  # Only streamable HTTP is served.
    caller: Caller = getattr(context.request.state, _CALLER)
    return caller


async def _list_tools(
    context: ServerRequestContext, _: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    return types.ListToolsResult(tools=await list_tools(_caller(context)))


async def _call_tool(
    context: ServerRequestContext, asked: types.CallToolRequestParams
) -> types.CallToolResult:
    caller = _caller(context)
    report = context.session.report_progress
    return await call_tool(caller, asked.name, asked.arguments or {}, report=report)


async def _list_jobs(
    context: ServerRequestContext, _: types.PaginatedRequestParams | None
) -> types.ListResourcesResult:
    return types.ListResourcesResult(resources=await list_jobs(_caller(context)))


async def _list_templates(
    _context: ServerRequestContext, _: types.PaginatedRequestParams | None
) -> types.ListResourceTemplatesResult:
    return types.ListResourceTemplatesResult(resource_templates=list_templates())


async def _read_job(
    context: ServerRequestContext, asked: types.ReadResourceRequestParams
) -> types.ReadResourceResult:
    return types.ReadResourceResult(contents=[await read_job(_caller(context), str(asked.uri))])


_SERVER = Server(
    "darkroom",
    version=VERSION,
    title="Darkroom",
    instructions=_INSTRUCTIONS,
    on_list_tools=_list_tools,
    on_call_tool=_call_tool,
    on_list_resources=_list_jobs,
    on_list_resource_templates=_list_templates,
    on_read_resource=_read_job,
    # A client may copy arguments to headers. None turns off the library's check of these headers,
    # which would list all tools for each call.
    get_tool_input_schema=lambda _name: None,
)


class _Answer(Response):
    """An answer of the library to a request whose body was already read."""

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self._sent = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_read = False

        async def receive_again() -> Message:
            nonlocal is_read
            if is_read:
                return await receive()
            is_read = True
            return {"type": "http.request", "body": self._sent, "more_body": False}

        size_bytes = max(len(self._sent), 1)
        manager = StreamableHTTPSessionManager(
            _SERVER, stateless=True, max_request_body_size=size_bytes
        )
        async with manager.run():
            await manager.handle_request(scope, receive_again, send)


@router.post(PATH)
async def mcp(request: Request, key: ReadProtocolKey) -> Response:
    """Answer a message of an MCP client. `GET` and `DELETE` are not allowed without sessions."""
    replica = replica_of(request)
    require_json(request)
    async with replica.submission.bodies.json_with_images(request, key.owner) as (body, _):
        if body.count(b"[") + body.count(b"{") > _MAX_CONTAINERS:
            message = f"The message has more than {_MAX_CONTAINERS} opening brackets."
            raise ApiError(413, "too_large", message)
        setattr(request.state, _CALLER, Caller(replica, request, key))
        return _Answer(body)
