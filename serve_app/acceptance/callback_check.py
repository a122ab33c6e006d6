"""Checks the addresses of a request that the service is to call."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

from events.callback_address import LONGEST_URL, AddressRule, Resolve, Target
from events.store.records import ApiKey
from serve_app.access.permissions import require_callback_host
from serve_app.refusals import NameServerUnavailable

_TEMPORARY = {socket.EAI_AGAIN, socket.EAI_MEMORY, socket.EAI_SYSTEM}
"""Errors of getaddrinfo where it could not ask the name server. The others are about the name."""


class CallbackCheck:
    def __init__(self, rule: AddressRule, resolve: Resolve, *, timeout_s: float) -> None:
        self._rule = rule
        self._resolve_name = resolve
        self._timeout_s = timeout_s

    def target(self, url: str, key: ApiKey, *, longest: int = LONGEST_URL) -> Target:
        """Its name is not resolved yet. Raises AddressNotAllowed, CallbackHostForbidden."""
        target = self._rule.check_url(url, longest=longest)
        require_callback_host(key, target.host)
        return target

    async def require_allowed(self, target: Target) -> None:
        """Raises AddressNotAllowed, NameServerUnavailable."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._rule.addresses(target, self._resolve)
        except TimeoutError as error:
            raise NameServerUnavailable(target.host) from error

    async def _resolve(self, host: str) -> Sequence[str]:
        """A name server that does not answer is no fault of the caller."""
        try:
            return await self._resolve_name(host)
        except socket.gaierror as error:
            if error.errno in _TEMPORARY:
                raise NameServerUnavailable(host) from error
            raise
