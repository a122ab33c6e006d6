"""Connections to addresses that callers chose. Each address is checked before it is used."""

from __future__ import annotations

import asyncio
import base64
import socket
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import httpcore

from events.callback_address import Address, AddressRule, Resolve, Target

_RESOLVER_THREADS = 32


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Connects to one receiver, through the proxy if `proxy` is set.

    For each connection the name is resolved once, and all its addresses are checked. httpcore adds
    TLS, and verifies the certificate against the name.
    """

    def __init__(
        self, target: Target, *, rule: AddressRule, resolve: Resolve, proxy: Proxy | None = None
    ) -> None:
        self._target = target
        self._rule = rule
        self._resolve = resolve
        self._proxy = proxy
        self._tcp = httpcore.AnyIOBackend()

    async def connect_tcp(  # noqa: PLR0917 - httpcore's signature
        self,
        host: str,  # noqa: ARG002 - the target has it
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the target. Raises AddressNotAllowed, httpcore.ConnectError,
        httpcore.ConnectTimeout.
        """
        give_up_at = time.monotonic() + (timeout or 0)
        addresses = await self._addresses(timeout)

        async def dial(address: Address, *, time_share: float) -> httpcore.AsyncNetworkStream:
            left_s = time_share * max(0, give_up_at - time.monotonic()) if timeout else None
            if self._proxy is not None:
                return await self._proxy.connect(self._tcp, address, port, timeout_s=left_s)
            return await self._tcp.connect_tcp(
                str(address),
                port,
                timeout=left_s,
                local_address=local_address,
                socket_options=socket_options,
            )

        *others, last = _one_per_family(addresses)
        for address in others:
            with suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return await dial(address, time_share=0.5)
        return await dial(last, time_share=1)

    async def _addresses(self, timeout_s: float | None) -> Sequence[Address]:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._rule.addresses(self._target, self._resolved)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout from error

    async def _resolved(self, host: str) -> Sequence[str]:
        """Resolve a name. A failure raises ConnectError and not AddressNotAllowed, so the callback
        is sent again later.
        """
        try:
            return await self._resolve(host)
        except OSError as error:
            raise httpcore.ConnectError(f"{host} does not resolve") from error


class Resolver:
    """The system's resolver, in threads of its own, so a slow name server blocks nothing else."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_RESOLVER_THREADS, thread_name_prefix="resolve")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def resolve(self, host: str) -> Sequence[str]:
        """Return the addresses of a host. Raises OSError, often its subclass socket.gaierror."""
        answers = await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        )
        return [str(sockaddr[0]) for *_, sockaddr in answers]


def _one_per_family(addresses: Sequence[Address]) -> list[Address]:
    """Return the first IPv4 address and the first IPv6 address, in the resolver's order."""
    first: dict[int, Address] = {}
    for address in addresses:
        first.setdefault(address.version, address)
    return list(first.values())


_LONGEST_ANSWER_BYTES = 16 * 1024
_HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Proxy:
    """An outbound proxy that opens connections with CONNECT (RFC 9110).

    The proxy gets the checked address and not the name, because it could resolve the name to
    another address. It cannot read an https request, because TLS is between this service and the
    receiver.
    """

    host: str
    port: int
    authorization: str | None = None

    @classmethod
    def at(cls, url: str) -> Proxy:
        """Parse the setting, `http://host:port` or `http://user:password@host:port`."""
        parts = urlsplit(url)
        assert parts.hostname
        assert parts.port
        if parts.username is None:
            return cls(parts.hostname, parts.port)
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        return cls(parts.hostname, parts.port, f"Basic {base64.b64encode(login).decode()}")

    async def connect(
        self,
        tcp: httpcore.AsyncNetworkBackend,
        address: Address,
        port: int,
        *,
        timeout_s: float | None,
    ) -> httpcore.AsyncNetworkStream:
        """Open a connection to `address`. Raises httpcore.ConnectError, httpcore.ConnectTimeout."""
        try:
            async with asyncio.timeout(timeout_s):
                stream = await tcp.connect_tcp(self.host, self.port)
                try:
                    await stream.write(self._request(address, port))
                    await _require_tunnel(stream)
                except BaseException:
                    await stream.aclose()
                    raise
                return stream
        except TimeoutError as error:
            raise httpcore.ConnectTimeout from error
        except (httpcore.ReadError, httpcore.WriteError) as error:
            raise httpcore.ConnectError("the proxy closed the connection") from error

    def _request(self, address: Address, port: int) -> bytes:
        target = f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
        if self.authorization is not None:
            lines.append(f"Proxy-Authorization: {self.authorization}")
        return "\r\n".join(lines).encode() + _HEAD_END


async def _require_tunnel(stream: httpcore.AsyncNetworkStream) -> None:
    """Read the answer to CONNECT. Raises httpcore.ConnectError unless the answer is a response head
    with a status 2xx and without a body.
    """
    answer = b""
    while not answer.endswith(_HEAD_END):
        chunk = await stream.read(4096)
        answer += chunk
        if not chunk or _HEAD_END in answer[:-4] or len(answer) > _LONGEST_ANSWER_BYTES:
            raise httpcore.ConnectError("the answer of the proxy is not valid")
    _, _, status = answer.split(b"\r\n", 1)[0].partition(b" ")
    if not (answer.startswith(b"HTTP/1.") and status.startswith(b"2")):
        raise httpcore.ConnectError(f"the proxy answered {status[:3].decode('latin-1')}")
