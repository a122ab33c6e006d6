"""Checks the address of a caller's URL, after its name is resolved and before connecting."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpcore

from actors.callbacks.proxy import Proxy
from events.callback_address import AddressRule, Resolve, Target
from events.callback_networks import Address

_RESOLVER_THREADS = 32


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Connects to one receiver: resolves its name once, checks every answer, dials a checked one.

    It connects through `proxy`, if there is one. TLS is left to httpcore, which verifies the name,
    not the address.
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
        """Raises AddressNotAllowed, httpcore.ConnectError, httpcore.ConnectTimeout."""
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
        """A name that does not resolve now may do so later, so it is not a refusal."""
        try:
            return await self._resolve(host)
        except OSError as error:
            raise httpcore.ConnectError(f"{host} does not resolve") from error


class Resolver:
    """The system's resolver on threads of its own: a name server that hangs holds up no others."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_RESOLVER_THREADS, thread_name_prefix="resolve")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def resolve(self, host: str) -> Sequence[str]:
        """Raises OSError; its subclass socket.gaierror gives the reason."""
        answers = await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        )
        return [str(sockaddr[0]) for *_, sockaddr in answers]


def _one_per_family(addresses: Sequence[Address]) -> list[Address]:
    """The first of IPv4 and the first of IPv6, in the order in which they came."""
    first: dict[int, Address] = {}
    for address in addresses:
        first.setdefault(address.version, address)
    return list(first.values())
