"""An outbound proxy, through which checked addresses are reached by CONNECT (RFC 9110, 9.3.6).

It is given the address that was checked and never the name, which it could resolve to another one.
TLS goes through it to the receiver, so of an https request it sees only the address.
"""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import httpcore

from events.callback_networks import Address

_LONGEST_ANSWER_BYTES = 16 * 1024
_HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Proxy:
    host: str
    port: int
    authorization: str | None = None

    @classmethod
    def at(cls, url: str) -> Proxy:
        """From `http://host:port` or `http://user:password@host:port`, the form of the setting."""
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
        """A connection to `address`. Raises httpcore.ConnectError, httpcore.ConnectTimeout."""
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
    """Raises httpcore.ConnectError unless the answer is a head with status 2xx and no more."""
    answer = b""
    while not answer.endswith(_HEAD_END):
        chunk = await stream.read(4096)
        answer += chunk
        if not chunk or _HEAD_END in answer[:-4] or len(answer) > _LONGEST_ANSWER_BYTES:
            raise httpcore.ConnectError("the proxy did not answer as one")
    _, _, status = answer.split(b"\r\n", 1)[0].partition(b" ")
    if not (answer.startswith(b"HTTP/1.") and status.startswith(b"2")):
        raise httpcore.ConnectError(f"the proxy answered {status[:3].decode('latin-1')}")
