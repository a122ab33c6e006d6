"""Checks of the port of the HTTP API, and of connections to receivers of callbacks.

No callback is sent.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from urllib.parse import urlsplit

import httpx

from events.callback_address import CONNECT_TIMEOUT_S, Address, AddressRule, Target
from events.errors import AddressNotAllowed
from local.ports import PortTaken, held_port
from operations.diagnosis.findings import Finding, Level
from settings.callbacks import CallbackSettings
from settings.http import HttpSettings

_HTTP_TIMEOUT_S = 5.0
_NOT_TRIED = "Not checked: set the address of a receiver with --callback-url."
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


class HttpCheck:
    part = "ports"

    def __init__(self, http: HttpSettings, *, is_up: bool) -> None:
        """`is_up` is whether `darkroom up` runs on this machine."""
        self._http = http
        self._is_up = is_up
        host = _ANYWHERE.get(http.host)
        self._url = f"http://{http.netloc}" if host is None else f"http://{host}:{http.port}"

    async def run(self) -> list[Finding]:
        try:
            async with httpx.AsyncClient(
                base_url=self._url, timeout=_HTTP_TIMEOUT_S, trust_env=False
            ) as client:
                alive = await client.get("/health/live")
                if not _is_ours(alive):
                    return [await self._taken()]
                return [self._ready(await client.get("/health/ready"))]
        except httpx.TransportError as error:
            if self._is_up:
                text = f"`darkroom up` runs, but {self._url} does not answer: {_said(error)}."
                remedy = (
                    "The service may still be starting; see logs/darkroom.log in its data folder. "
                    "If it was started with --port, set DARKROOM_PORT to the same port here."
                )
                return [Finding(self.part, Level.ERROR, text, remedy)]
            return [await self._taken()]

    def _ready(self, answer: httpx.Response) -> Finding:
        if answer.is_success:
            return Finding(self.part, Level.OK, f"The service answers at {self._url} and is ready.")
        why = answer.json().get("error", {}).get("details", "") if _is_json(answer) else ""
        text = f"The service answers at {self._url}, but is not ready. {why}".strip()
        return Finding(
            self.part,
            Level.ERROR,
            text,
            "The service accepts no jobs. See the findings about the log.",
        )

    async def _taken(self) -> Finding:
        """Check whether the port is free, so that the service can start."""

        def hold() -> None:
            with held_port(self._http.host, self._http.port, patience_s=0):
                pass

        try:
            await asyncio.to_thread(hold)
        except PortTaken as error:
            remedy = "End that program, or set another port by --port or DARKROOM_PORT."
            return Finding(self.part, Level.ERROR, f"{error}, which is not Darkroom.", remedy)
        text = f"The service does not run here. {self._http.netloc} is free for it."
        return Finding(self.part, Level.NOTE, text)


def _is_json(answer: httpx.Response) -> bool:
    return str(answer.headers.get("content-type", "")).startswith("application/json")


def _is_ours(answer: httpx.Response) -> bool:
    return answer.is_success and _is_json(answer) and "x-request-id" in answer.headers


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


class CallbackCheck:
    part = "callbacks"

    def __init__(self, settings: CallbackSettings, *, url: str | None) -> None:
        """`url` is the URL of a receiver to which the check connects."""
        self._settings = settings
        self._url = url

    async def run(self) -> list[Finding]:
        if self._settings.proxy is not None:
            return await self._through_proxy(self._settings.proxy.get_secret_value())
        if self._url is None:
            return [Finding(self.part, Level.NOTE, _NOT_TRIED)]
        try:
            target, addresses = await self._resolved(self._url)
        except AddressNotAllowed as error:
            return [self._refused(error)]
        try:
            await self._connect(target, addresses)
        # This includes TimeoutError, ssl.SSLError and socket.gaierror.
        except OSError as error:
            return [self._unreachable(target, error)]
        return [Finding(self.part, Level.OK, f"{target.host}:{target.port} can be reached.")]

    async def _resolved(self, url: str) -> tuple[Target, Sequence[Address]]:
        """Check and resolve the URL. Raises AddressNotAllowed."""
        settings = self._settings
        rule = AddressRule(
            allow_networks=settings.allow_networks,
            deny_networks=settings.deny_networks,
            require_https=settings.require_https,
            ports=settings.ports,
        )
        target = rule.check_url(url)
        return target, await rule.addresses(target, _resolve)

    async def _connect(self, target: Target, addresses: Sequence[Address]) -> None:
        """Connect to the first address, with TLS for an https URL. Raises OSError."""
        has_tls = target.scheme == "https"
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(
                str(addresses[0]),
                target.port,
                ssl=ssl.create_default_context() if has_tls else None,
                server_hostname=target.host if has_tls else None,
            )
        writer.close()

    def _refused(self, error: AddressNotAllowed) -> Finding:
        remedy = (
            "The settings DARKROOM_CALLBACK_ALLOW_NETWORKS, _DENY_NETWORKS, _PORTS and "
            "_REQUIRE_HTTPS determine this."
        )
        if "does not resolve" in str(error):
            remedy = "Check that a name server of this machine knows the name."
        # The cause names the address, which callers do not learn.
        why = error.__cause__ if isinstance(error.__cause__, AddressNotAllowed) else error
        return Finding(self.part, Level.ERROR, f"{self._url} is not allowed: {why}.", remedy)

    def _unreachable(self, target: Target, error: OSError) -> Finding:
        why = str(error) or f"no connection within {CONNECT_TIMEOUT_S:g} s"
        text = f"{target.host}:{target.port} cannot be reached from here: {why}."
        remedy = "Open the firewall for this address, or set a proxy in DARKROOM_CALLBACK_PROXY."
        return Finding(self.part, Level.ERROR, text, remedy)

    async def _through_proxy(self, url: str) -> list[Finding]:
        parts = urlsplit(url)
        proxy = f"{parts.hostname}:{parts.port}"
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.close()
        except OSError as error:
            why = str(error) or f"no connection within {CONNECT_TIMEOUT_S:g} s"
            text = f"The proxy {proxy} cannot be reached: {why}."
            remedy = "No callback can be sent. Correct DARKROOM_CALLBACK_PROXY, or start the proxy."
            return [Finding(self.part, Level.ERROR, text, remedy)]
        return [Finding(self.part, Level.OK, f"The proxy {proxy} can be reached.")]


async def _resolve(host: str) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]
