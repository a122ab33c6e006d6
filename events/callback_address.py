"""Which addresses a callback may go to. Pure: names are resolved by a function that is given.

A callback makes this service send a request where a caller says, so it must not reach what only
this service can reach (OWASP: server-side request forgery). The rule holds twice: when a job is
accepted, and again for the address that is connected to, since a name may resolve to another
address by then.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

import idna

from events.callback_networks import LOOPBACK, Address, Network, Own, forms, is_public, literal
from events.errors import AddressNotAllowed

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""Host name -> its addresses. Raises OSError where it has none."""

LONGEST_URL = 2048
LONGEST_PUT_URL = 4096
"""Of one that is signed with a short-lived role, which has a token of its own."""
_DEFAULT_PORTS = {"http": 80, "https": 443}
_FIRST_FREE_PORT = 1024
_LOCALHOST = "localhost"
_OWN = "it is an address of this service itself"

_URL = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<rest>.*)")
_AUTHORITY = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*)(?::(?P<port>.*))?")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


@dataclass(frozen=True, slots=True)
class Target:
    """Where a callback goes. `host` is in lower case, an IPv6 literal without its brackets."""

    scheme: str
    host: str
    port: int

    @property
    def address(self) -> Address | None:
        """The address where the host is a literal, None where it is a name."""
        return literal(self.host)


class AddressRule:
    """`allow_networks` opens networks that are not public; `ports` replaces 80, 443 and 1024 up.

    Denied in any case are `deny_networks` and where this service itself listens. The other ports of
    this machine are opened by its very address alone, not by a network around it.
    """

    def __init__(
        self,
        *,
        allow_networks: Sequence[Network] = (),
        deny_networks: Sequence[Network] = (),
        own: Own | None = None,
        require_https: bool = False,
        ports: Sequence[int] = (),
    ) -> None:
        self._allow_networks = tuple(allow_networks)
        self._deny_networks = tuple(deny_networks)
        self._own = own or Own()
        self._require_https = require_https
        self._ports = frozenset(ports)
        self._allows_localhost = any(
            type(network) is type(loopback) and network.overlaps(loopback)
            for network in self._allow_networks
            for loopback in LOOPBACK
        )

    def check_url(self, url: str, *, longest: int = LONGEST_URL) -> Target:
        """The target of `url`, its name not yet resolved. Raises AddressNotAllowed."""
        scheme, authority = _split(url, longest)
        if scheme not in _DEFAULT_PORTS:
            raise AddressNotAllowed("the scheme must be http or https")
        if self._require_https and scheme != "https":
            raise AddressNotAllowed("the scheme must be https")
        host, port_text = _split_authority(authority)
        target = Target(scheme, host, self._port(scheme, port_text))
        if (address := target.address) is not None:
            self.check_ip(address, port=target.port)
        elif host in self._own.names_at(target.port):
            raise AddressNotAllowed(_OWN)
        elif host == _LOCALHOST:
            if not self._allows_localhost:
                raise AddressNotAllowed("localhost is this machine, not a public address")
        elif "." not in host:
            raise AddressNotAllowed("the host name has no dot, so it is not a public one")
        return target

    def check_ip(self, ip: str | Address, *, port: int | None = None) -> None:
        """Raises AddressNotAllowed for an address that is denied, or neither public nor opened.

        Without a port the address is refused where any of its ports is.
        """
        try:
            address = ip_address(ip) if isinstance(ip, str) else ip
        except ValueError as error:
            raise AddressNotAllowed(f"{ip!r} is not an IP address") from error
        for each in forms(address):
            if _is_in(each, self._deny_networks):
                raise AddressNotAllowed(f"{address} is in a network that is denied here")
            if self._own.listens_at(each, port) or (
                self._own.has(each) and not self._is_named(each)
            ):
                raise AddressNotAllowed(_OWN)
        if not is_public(address) and not any(map(self._is_opened, forms(address))):
            raise AddressNotAllowed(f"{address} is not a public address")

    async def addresses(self, target: Target, resolve: Resolve) -> tuple[Address, ...]:
        """Every address of `target` that may be connected to, in the order resolved; never empty.

        One answer that is not allowed refuses the whole name: it may be the one that is taken.
        Only localhost, which needs no name server, may have an answer that is passed over.
        Raises AddressNotAllowed, also where the name has no address.
        """
        if (address := target.address) is not None:
            self.check_ip(address, port=target.port)
            await self._require_others([address], target.port, resolve)
            return (address,)
        try:
            answers = [ip_address(answer) for answer in await resolve(target.host)]
        except (OSError, ValueError) as error:
            raise AddressNotAllowed(f"the host name {target.host} does not resolve") from error
        if target.host == _LOCALHOST:
            answers = [each for each in answers if each.is_loopback and self._is_opened(each)]
        for answer in answers:
            try:
                self.check_ip(answer, port=target.port)
            except AddressNotAllowed as error:
                raise AddressNotAllowed(f"{target.host} resolves to {answer}: {error}") from None
        if not answers:
            raise AddressNotAllowed(f"the host name {target.host} does not resolve")
        await self._require_others(answers, target.port, resolve)
        return tuple(answers)

    async def _require_others(
        self, answers: Sequence[Address], port: int, resolve: Resolve
    ) -> None:
        """Refuse where a service of ours that is known by its name listens."""
        for name in self._own.names_at(port):
            with suppress(OSError, ValueError):
                if not set(answers).isdisjoint(map(ip_address, await resolve(name))):
                    raise AddressNotAllowed(_OWN)

    def _port(self, scheme: str, text: str | None) -> int:
        if text is None or text == "":
            port = _DEFAULT_PORTS[scheme]
        elif not _PORT.fullmatch(text) or int(text) > 65535:
            raise AddressNotAllowed("the port must be a number from 1 to 65535")
        else:
            port = int(text)
        if self._ports and port not in self._ports:
            listed = ", ".join(str(each) for each in sorted(self._ports))
            raise AddressNotAllowed(f"port {port} is not one of {listed}")
        if not self._ports and port < _FIRST_FREE_PORT and port not in _DEFAULT_PORTS.values():
            raise AddressNotAllowed(f"port {port} is neither 80, 443 nor {_FIRST_FREE_PORT} and up")
        return port

    def _is_opened(self, address: Address) -> bool:
        return _is_in(address, self._allow_networks)

    def _is_named(self, address: Address) -> bool:
        return any(
            network.num_addresses == 1 and address in network for network in self._allow_networks
        )


def receiver_of(url: str) -> str:
    """Host and port, one name however the URL is spelt; empty where it can have none.

    Whether it may be called is not asked.
    """
    try:
        scheme, authority = _split(url, LONGEST_PUT_URL)
        host, port = _split_authority(authority)
    except AddressNotAllowed:
        return ""
    return f"{host}:{port or _DEFAULT_PORTS.get(scheme)}"


def _is_in(address: Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks)


def _split(url: str, longest: int) -> tuple[str, str]:
    """Scheme in lower case, and authority; stricter than RFC 3986, so that no parsers differ."""
    if len(url) > longest:
        raise AddressNotAllowed(f"the URL is longer than {longest} characters")
    if any(char.isspace() or not char.isprintable() for char in url):
        raise AddressNotAllowed("the URL has white space or control characters")
    if "\\" in url:
        raise AddressNotAllowed("the URL has a backslash")
    parts = _URL.fullmatch(url)
    if parts is None:
        raise AddressNotAllowed("the URL must have the form http://host/path or https://host/path")
    if "#" in parts["rest"]:
        raise AddressNotAllowed("the URL has a fragment, which is never sent")
    return parts["scheme"].lower(), parts["authority"]


def _split_authority(authority: str) -> tuple[str, str | None]:
    if "@" in authority:
        raise AddressNotAllowed("the URL has a user name or password")
    parts = _AUTHORITY.fullmatch(authority)
    if parts is None or not parts["host"]:
        raise AddressNotAllowed("the URL has no valid host")
    host = parts["host"]
    return (_ipv6(host) if host.startswith("[") else _name(host)), parts["port"]


def _ipv6(literal: str) -> str:
    text = literal[1:-1]
    if "%" in text:
        raise AddressNotAllowed("an IPv6 address with a zone is not public")
    try:
        return str(IPv6Address(text))
    except ValueError as error:
        raise AddressNotAllowed("the host is not a valid IPv6 address") from error


def _name(host: str) -> str:
    """A host name or a canonical IPv4 address, in lower case."""
    host = host.lower()
    labels = host.split(".")
    if not host.isascii() or len(host) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise AddressNotAllowed(
            "the host must be letters, digits, hyphens and dots; write other scripts in Punycode"
        )
    if _NUMBER.fullmatch(labels[-1]):
        return _ipv4(host)
    if any(label.startswith("xn--") for label in labels):
        _check_punycode(host)
    return host


def _ipv4(host: str) -> str:
    """Systems read 127.1, 0177.0.0.1, 0x7f000001 and 2130706433 as an address; we do not."""
    try:
        return str(IPv4Address(host))
    except ValueError as error:
        raise AddressNotAllowed(
            "an IPv4 address must be written as four decimal numbers without leading zeros"
        ) from error


def _check_punycode(host: str) -> None:
    """A host that does not decode could be accepted, but httpx could never build its request."""
    try:
        idna.decode(host)
    except UnicodeError as error:
        raise AddressNotAllowed("the host name is not valid Punycode") from error
