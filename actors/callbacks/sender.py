"""Sends one HTTP request to an address that a caller chose, and returns its outcome.

It uses httpcore instead of httpx, so it handles no cookies, redirects, decompression, or proxies of
the environment. A network backend of httpcore checks the address before it connects
(`guarded_backend.py`).
"""

from __future__ import annotations

import asyncio
import random
import re
import ssl
import string
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import quote, urlsplit
from uuid import UUID

import httpcore
from pydantic import SecretStr
from standardwebhooks import Webhook

from actors.callbacks.guarded_backend import GuardedBackend, Proxy, Resolver
from actors.callbacks.receivers import PER_HOST
from events.callback_address import CONNECT_TIMEOUT_S, LONGEST_PUT_URL, AddressRule, Resolve, Target
from events.delivery import SendResult
from events.errors import AddressNotAllowed
from settings.constant import constant
from settings.version import VERSION

TIMEOUT_S = constant("CALLBACK_TIMEOUT_S", 15.0)
"""Seconds from the start of an attempt within which the receiver must answer."""
_MAX_ANSWER_BYTES = constant("CALLBACK_MAX_ANSWER_BYTES", 16 * 1024)
"""Largest number of bytes of an answer that are read."""
_MOST_IDLE_POOLS = 128
_KEEP_ALIVE_S = 10.0
_LONGEST_ERROR = 200
_STALLED = 2.0
"""An attempt that takes longer than its time-out times this factor shows that this process was
stalled.
"""
_SECONDS = re.compile(r"[0-9]{1,9}")

FAILURES = (
    TimeoutError,
    OSError,
    httpcore.TimeoutException,
    httpcore.NetworkError,
    httpcore.ProtocolError,
)


def webhook_headers(
    job_id: str,
    body: bytes,
    *,
    secrets: Sequence[str],
    now: datetime,
    traceparent: str | None = None,
    about: str | None = None,
) -> dict[str, str]:
    """Make the headers of Standard Webhooks, signed with each of `secrets` (`whsec_...`).

    `webhook-id` names the end of the job, or the event before the end (`about`). It is the same in
    all attempts, so a receiver can recognise repeats. If the caller sent no trace
    (https://www.w3.org/TR/trace-context), the trace id is the job's id.

    https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
    """
    message_id = f"msg_{job_id}" if about is None else f"msg_{job_id}_{about}"
    signatures = (Webhook(secret).sign(message_id, now, body.decode()) for secret in secrets)
    return {
        "Content-Type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(signatures),
        "traceparent": traceparent or f"00-{UUID(job_id).hex}-{random.randbytes(8).hex()}-00",
    }


@dataclass(slots=True)
class _Pool:
    connections: httpcore.AsyncConnectionPool
    users: int = 0


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    url: str
    headers: Mapping[str, str]
    content: bytes | AsyncIterator[bytes]
    timeout_s: float


class Sender:
    """Sends to addresses that the rule allows, with a small connection pool per receiver.

    One pool for all receivers was 30 times slower with 256 requests in flight, because httpcore
    scans the pool at each request.
    """

    def __init__(
        self,
        address_rule: AddressRule,
        *,
        proxy: SecretStr | None = None,
        timeout_s: float = TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        resolve: Resolve | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._rule = address_rule
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._resolver = Resolver()
        self._resolve = resolve or self._resolver.resolve
        self._ssl_context = ssl_context or httpcore.default_ssl_context()
        self._proxy = None if proxy is None else Proxy.at(proxy.get_secret_value())
        self._pools: dict[Target, _Pool] = {}
        """Pools by target, least recently used first."""

    async def close(self) -> None:
        for pool in self._pools.values():
            await pool.connections.aclose()
        self._pools.clear()
        self._resolver.close()

    def target(self, url: str) -> Target | None:
        """Return the target of the URL, or None if the URL is refused."""
        try:
            return self._rule.check_url(url, longest=LONGEST_PUT_URL)
        except AddressNotAllowed:
            return None

    async def send(self, url: str, body: bytes, headers: Mapping[str, str]) -> SendResult:
        """Send `body` with POST. See `_request`."""
        request = _Request("POST", url, headers, body, timeout_s=self._timeout_s)
        return await self._request(request)

    async def put(
        self,
        url: str,
        content: AsyncIterator[bytes],
        headers: Mapping[str, str],
        *,
        timeout_s: float,
    ) -> SendResult:
        """Send `content` with PUT. `headers` must contain the length. See `_request`."""
        request = _Request("PUT", url, headers, content, timeout_s=timeout_s)
        return await self._request(request)

    async def _request(self, request: _Request) -> SendResult:
        """Send a request. Failures are returned and not raised.

        Redirects are not followed. After the status has arrived, further failures are ignored.
        """
        url = request.url
        began = time.monotonic()
        answer: httpcore.Response | None = None
        error: str | None = None
        try:
            target = self._rule.check_url(url, longest=LONGEST_PUT_URL)
            async with (
                asyncio.timeout(request.timeout_s),
                self._borrow(target) as pool,
                pool.stream(
                    request.method,
                    httpcore.URL(
                        scheme=target.scheme,
                        host=target.host,
                        port=target.port,
                        target=path_of(url),
                    ),
                    headers=[*own_headers(url), *request.headers.items()],
                    content=request.content,
                    extensions={"timeout": {"connect": self._connect_timeout_s}},
                ) as answer,
            ):
                await _skim(answer, _MAX_ANSWER_BYTES)
        except AddressNotAllowed as refusal:
            return SendResult(time.monotonic() - began, error=str(refusal), refused=True)
        except FAILURES as failure:
            error = self._describe(failure, request.timeout_s)
        latency_s = time.monotonic() - began
        if answer is None:
            stalled = latency_s > _STALLED * request.timeout_s
            return SendResult(latency_s, error=error, stalled=stalled)
        return SendResult(latency_s, status=answer.status, retry_after_s=_retry_after_s(answer))

    @asynccontextmanager
    async def _borrow(self, target: Target) -> AsyncGenerator[httpcore.AsyncConnectionPool]:
        pool = self._pools.pop(target, None) or self._open(target)
        self._pools[target] = pool
        pool.users += 1
        try:
            yield pool.connections
        finally:
            pool.users -= 1
            await self._close_surplus()

    def _open(self, target: Target) -> _Pool:
        return _Pool(
            httpcore.AsyncConnectionPool(
                ssl_context=self._ssl_context,
                # `receivers.py` limits the connections. A wait for a connection in this pool would
                # count as a slow answer of the receiver.
                max_connections=None,
                max_keepalive_connections=PER_HOST,
                keepalive_expiry=_KEEP_ALIVE_S,
                network_backend=GuardedBackend(
                    target, rule=self._rule, resolve=self._resolve, proxy=self._proxy
                ),
            )
        )

    async def _close_surplus(self) -> None:
        idle = [target for target, pool in self._pools.items() if pool.users == 0]
        for target in idle[: max(0, len(idle) - _MOST_IDLE_POOLS)]:
            await self._pools.pop(target).connections.aclose()

    def _describe(self, failure: BaseException, timeout_s: float) -> str:
        match failure:
            case httpcore.ConnectTimeout():
                return f"no connection within {self._connect_timeout_s:g} s"
            case TimeoutError() | httpcore.TimeoutException():
                return f"no answer within {timeout_s:g} s"
            case httpcore.ReadError() | httpcore.WriteError():
                return "the connection was lost"
            case _:
                text = f"{type(failure).__name__}: {failure}".rstrip(": .")
                return text[:_LONGEST_ERROR]


async def _skim(answer: httpcore.Response, most_bytes: int) -> None:
    """Read up to `most_bytes`. The connection can be reused if this is the whole answer."""
    size = 0
    async for chunk in answer.aiter_stream():
        size += len(chunk)
        if size >= most_bytes:
            break


def own_headers(url: str) -> list[tuple[str, str]]:
    return [
        # `check_url` refuses a URL with a user name or password, so `netloc` contains neither.
        ("Host", urlsplit(url).netloc),
        ("User-Agent", _USER_AGENT),
        ("Accept", "*/*"),
        ("Accept-Encoding", "identity"),
    ]


def path_of(url: str) -> str:
    """Return path and query as given, except that characters outside ASCII are escaped."""
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return quote(path, safe=string.punctuation)


def _retry_after_s(answer: httpcore.Response) -> float | None:
    """Return the seconds until the time in the header Retry-After (RFC 9110, section 10.2.3)."""
    text = next((v.decode("latin-1") for k, v in answer.headers if k.lower() == b"retry-after"), "")
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        date = parsedate_to_datetime(text)
        from_now = date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)
    except (ValueError, OverflowError):
        return None
    return max(0.0, from_now.total_seconds())


_USER_AGENT = f"Darkroom/{VERSION}"
