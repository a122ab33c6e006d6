"""The way of callbacks out of here: proxy, name, rules and connection. No request is sent."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from urllib.parse import urlsplit

from events.callback_address import AddressRule, Target
from events.callback_networks import Address
from events.errors import AddressNotAllowed
from serve_app.operations.diagnosis.findings import Finding, Level
from settings.callbacks import CallbackSettings

_NOT_TRIED = "Not tried: name an address that is to be reached, with --callback-url."


class CallbackCheck:
    part = "callbacks"

    def __init__(self, settings: CallbackSettings, *, url: str | None) -> None:
        """`url`: an address that is to be reached."""
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
        except OSError as error:  # TimeoutError, ssl.SSLError and socket.gaierror among them
            return [self._unreachable(target, error)]
        return [Finding(self.part, Level.OK, f"{target.host}:{target.port} can be reached.")]

    async def _resolved(self, url: str) -> tuple[Target, Sequence[Address]]:
        """Raises AddressNotAllowed."""
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
        """To the first address, with TLS where the URL has it. Raises OSError."""
        has_tls = target.scheme == "https"
        async with asyncio.timeout(self._settings.connect_timeout_s):
            _, writer = await asyncio.open_connection(
                str(addresses[0]),
                target.port,
                ssl=ssl.create_default_context() if has_tls else None,
                server_hostname=target.host if has_tls else None,
            )
        writer.close()

    def _refused(self, error: AddressNotAllowed) -> Finding:
        remedy = (
            "DARKROOM_CALLBACK_ALLOW_NETWORKS, _DENY_NETWORKS, _PORTS and _REQUIRE_HTTPS decide."
        )
        if "does not resolve" in str(error):
            remedy = "See that this machine has a name server that knows the name."
        return Finding(self.part, Level.ERROR, f"{self._url} is refused: {error}.", remedy)

    def _unreachable(self, target: Target, error: OSError) -> Finding:
        why = str(error) or f"no connection within {self._settings.connect_timeout_s:g} s"
        text = f"{target.host}:{target.port} cannot be reached from here: {why}."
        remedy = "Open the firewall for it, or name a proxy in DARKROOM_CALLBACK_PROXY."
        return Finding(self.part, Level.ERROR, text, remedy)

    async def _through_proxy(self, url: str) -> list[Finding]:
        parts = urlsplit(url)
        place = f"{parts.hostname}:{parts.port}"
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                _, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.close()
        except OSError as error:
            why = str(error) or f"no connection within {self._settings.connect_timeout_s:g} s"
            text = f"The proxy {place} cannot be reached: {why}."
            remedy = "Correct DARKROOM_CALLBACK_PROXY, or start the proxy: no callback leaves."
            return [Finding(self.part, Level.ERROR, text, remedy)]
        return [Finding(self.part, Level.OK, f"The proxy {place} can be reached.")]


async def _resolve(host: str) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]
