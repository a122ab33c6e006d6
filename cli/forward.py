"""`darkroom forward`: a proxy on this machine that adds the API key to requests."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from ipaddress import ip_address
from typing import Annotated
from urllib.parse import urlsplit

import httpx
import typer

from cli.connection import KeyOption, UrlOption, open_client, service_of
from cli.terminal import fail, tell

PortOption = Annotated[
    int, typer.Option(help="Port on this machine. ComfyUI uses 8188.", min=1, max=65535)
]
_MAX_HEAD_BYTES = 64 * 1024
_PART_BYTES = 64 * 1024
_HEAD_TIMEOUT_S = 60.0
_CONNECT_TIMEOUT_S = 10.0
_REPLACED = {"authorization", "connection", "host", "keep-alive", "upgrade", "x-api-key"}
"""The headers of a request that are not forwarded as they are."""
_LOCAL_NAMES = {"localhost", "host.docker.internal"}
"""The names under which programs on this machine reach it."""


def forward(port: PortOption = 8188, url: UrlOption = None, key: KeyOption = None) -> None:
    """Forward a port of this machine to the service, and add the API key.

    This is for programs that take only a host and a port. Requests and websockets are forwarded
    until Ctrl-C. Programs of every user of this machine can use the port.
    """
    with open_client(url, key) as client:
        # This call ends the command if the service does not answer.
        client.call("GET", "/health/live")
    service, service_key = service_of(url, key)

    def told() -> None:
        address = f"http://127.0.0.1:{port}"
        text = f"{address} leads to {service} until Ctrl-C."
        tell(text, {"url": address, "service": service})

    try:
        with suppress(KeyboardInterrupt):
            asyncio.run(_serve(Forwarder(service, service_key), port, told))
    except OSError as error:
        fail(f"Port {port} cannot be used ({error.strerror}). Choose another one: --port.")


async def _serve(forwarder: Forwarder, port: int, told: Callable[[], None]) -> None:
    server = await asyncio.start_server(forwarder.handle, "localhost", port, limit=_MAX_HEAD_BYTES)
    told()
    try:
        await asyncio.Event().wait()
    finally:
        server.close()


class Forwarder:
    """Forwards each connection to the service, for one request or one websocket.

    Only the head of the request is changed. The rest is copied in both directions.
    """

    def __init__(self, url: str, key: str) -> None:
        self._url = httpx.URL(url)
        self._key = key
        self._tls = ssl.create_default_context() if self._url.scheme == "https" else None

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of a program."""
        try:
            async with asyncio.timeout(_HEAD_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            answer = await self._forward(head, reader, writer)
        except (asyncio.LimitOverrunError, ValueError):
            answer = _error(400, "The head of the request is not valid, or it is too long.")
        except (OSError, EOFError, TimeoutError):
            answer = b""  # The program or the service has closed its connection.
        except asyncio.CancelledError:
            # The command ends. Python 3.11 prints a traceback for a cancelled handler.
            writer.close()
            return
        with suppress(OSError):
            writer.write(answer)
            await writer.drain()
        writer.close()

    async def _forward(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bytes:
        """Forward a request. Returns the answer if the service gives none.

        Raises OSError, and ValueError for an invalid head.
        """
        line, headers = _parsed(head)
        if not _is_of_this_machine(headers):
            return _error(403, "Pages of other origins may not use this port.")
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                service = await asyncio.open_connection(
                    self._url.host,
                    self._url.port or (443 if self._tls else 80),
                    ssl=self._tls,
                )
        except (OSError, TimeoutError) as error:
            return _error(502, f"No service answers at {self._url} ({error}).")
        from_service, to_service = service
        try:
            to_service.write(self._head(line, headers))
            request = asyncio.create_task(_copy_request(reader, to_service))
            answer = asyncio.create_task(_copy_answer(from_service, writer))
            # A program may close its sending side after a request. The service is not told, because
            # it would take this for a disconnect. A websocket is closed by either side.
            ends = {request, answer} if _is_websocket(headers) else {answer}
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                return answer.result() if answer.done() else b""
            finally:
                request.cancel()
                answer.cancel()
                await asyncio.gather(request, answer, return_exceptions=True)
        finally:
            to_service.close()

    def _head(self, line: str, headers: Mapping[str, str]) -> bytes:
        """Return the head for the service: with its host and key, and for one request only."""
        method, target, version = line.split(" ")
        connection = ["Connection: Upgrade", "Upgrade: websocket"]
        kept = [f"{name}: {value}" for name, value in headers.items() if name not in _REPLACED]
        lines = [
            f"{method} {self._url.path.rstrip('/')}{target} {version}",
            f"Host: {self._url.netloc.decode()}",
            f"Authorization: Bearer {self._key}",
            *(connection if _is_websocket(headers) else ["Connection: close"]),
            *kept,
        ]
        return "".join(f"{each}\r\n" for each in (*lines, "")).encode("latin-1")


async def _copy_request(program: asyncio.StreamReader, service: asyncio.StreamWriter) -> None:
    while part := await program.read(_PART_BYTES):
        service.write(part)
        await service.drain()


async def _copy_answer(service: asyncio.StreamReader, program: asyncio.StreamWriter) -> bytes:
    """Copy what the service sends until it closes the connection.

    Returns the answer if the service has sent nothing. Raises OSError.
    """
    try:
        part = await service.read(_PART_BYTES)
    except OSError:
        part = b""
    if not part:
        return _error(502, "The service has closed the connection without an answer.")
    while part:
        program.write(part)
        await program.drain()
        part = await service.read(_PART_BYTES)
    return b""


def _is_websocket(headers: Mapping[str, str]) -> bool:
    return headers.get("upgrade", "").lower() == "websocket"


def _parsed(head: bytes) -> tuple[str, dict[str, str]]:
    """Return the first line and the headers with names in lower case. Raises ValueError."""
    line, *rest = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    headers: dict[str, str] = {}
    for each in rest:
        name, colon, value = each.partition(":")
        if not colon or not name or name != name.strip():
            raise ValueError(each)
        name = name.lower()
        headers[name] = f"{headers[name]}, {value.strip()}" if name in headers else value.strip()
    return line, headers


def _is_of_this_machine(headers: Mapping[str, str]) -> bool:
    """Return whether the request comes from a program of this machine, or from a page of this port.

    A browser sends requests of any page also to this machine, and the key would be added to them.
    Such a request names another origin, or a host that the owner of the page has chosen.
    """
    host = headers.get("host", "")
    if not _is_local(urlsplit(f"//{host}").hostname or ""):
        return False
    origin = headers.get("origin")
    is_same = origin is None or origin.partition("://")[2] == host
    return is_same and headers.get("sec-fetch-site", "none") in {"none", "same-origin"}


def _is_local(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return name in _LOCAL_NAMES
    return True


def _error(status: int, message: str) -> bytes:
    """Build an answer with an error in the format of the service."""
    error = {"type": "not_forwarded", "message": message, "details": "", "extra_info": {}}
    body = json.dumps({"error": error, "node_errors": {}}).encode()
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
