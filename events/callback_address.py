"""Decides to which addresses a callback may be sent.

A callback is a request of this service to an address that a caller chose. It must not reach systems
that only this service can reach (OWASP: server-side request forgery). The rule is checked when a
job is accepted, and again for the address of each connection, because the name may then resolve to
another address.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Collection, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import idna

from events.errors import AddressNotAllowed
from settings.constant import constant

logger = logging.getLogger(__name__)

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# These are the special ranges of the IANA registry
# (https://www.iana.org/assignments/iana-ipv4-special-registry), multicast, class E, and the public
# address of Azure's host agent (168.63.129.16).
_DENIED_IPV4 = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "168.63.129.16/32",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
# https://www.iana.org/assignments/iana-ipv6-special-registry lists the special ranges inside the
# public block of IPv6. Some of them embed an IPv4 address (Teredo, 6to4).
_PUBLIC_IPV6 = IPv6Network("2000::/3")
_DENIED_IPV6 = tuple(
    IPv6Network(text)
    for text in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
)
LOOPBACK = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))
_NAT64 = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Own:
    """The addresses at which this service, and the services that it uses, listen.

    A service at a loopback or wildcard address counts as listening at all addresses of this
    machine.
    """

    services: Sequence[tuple[str, int]] = ()
    """The host, a name or an address, and the port of each service."""
    interfaces: Callable[[], Collection[Address]] = tuple
    """Returns the present addresses of this machine. It is called for each check."""

    def listens_at(self, address: Address, port: int | None) -> bool:
        return any(
            address == own or (_is_here(own) and (_is_here(address) or self.has(address)))
            for host, own_port in self.services
            if port in {own_port, None} and (own := literal(host)) is not None
        )

    def names_at(self, port: int) -> Generator[str]:
        """Yield the names of services that listen at `port`."""
        return (host for host, own in self.services if own == port and literal(host) is None)

    def has(self, address: Address) -> bool:
        """Return whether an interface of this machine other than loopback has the address."""
        return not address.is_loopback and address in self.interfaces()


def literal(host: str) -> Address | None:
    """Return the address in `host`, or None if `host` is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def forms(address: Address) -> Generator[Address]:
    """Yield the address, and the IPv4 address that is embedded in it, if any."""
    yield address
    if isinstance(address, IPv6Address):
        embedded = address.ipv4_mapped or address.sixtofour
        if embedded is None and address in _NAT64:
            embedded = IPv4Address(int(address) & 0xFFFFFFFF)
        if embedded is not None:
            yield embedded


def is_public(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _DENIED_IPV4)
    return address in _PUBLIC_IPV6 and not any(address in network for network in _DENIED_IPV6)


def _is_here(address: Address) -> bool:
    return address.is_loopback or address.is_unspecified


Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""A function that returns the addresses of a host name. Raises OSError if the name has none."""

CONNECT_TIMEOUT_S = constant("CALLBACK_CONNECT_TIMEOUT_S", 3.0)
"""The time-out in seconds for a connection to a receiver."""
LONGEST_URL = 2048
LONGEST_PUT_URL = 4096
"""The largest length in characters of the URL of a presigned upload, which may contain a session
token.
"""
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
    """The destination of a callback. `host` is in lower case; an IPv6 literal has no brackets."""

    scheme: str
    host: str
    port: int

    @property
    def address(self) -> Address | None:
        """The address of the host, or None if the host is a name."""
        return literal(self.host)


class AddressRule:
    """Decides which URLs and addresses may be called.

    Public addresses and those in `allow_networks` are allowed. Addresses in `deny_networks`, and
    the services of `own` at their ports, are always denied. Other ports at an address of this
    machine are allowed only if `allow_networks` contains exactly this address, not only a larger
    network. `ports`, if not empty, replaces the default ports: 80, 443 and all ports from 1024.
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
        """Check `url` and return its target. The name is not resolved. Raises AddressNotAllowed."""
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
        """Raise AddressNotAllowed if the address is denied, or is neither public nor allowed.

        If `port` is None, an address is denied if any of its ports is denied.
        """
        try:
            address = ip_address(ip) if isinstance(ip, str) else ip
        except ValueError as error:
            raise AddressNotAllowed(f"{ip!r} is not an IP address") from error
        for each in forms(address):
            if _is_in(each, self._deny_networks):
                raise AddressNotAllowed(
                    f"{address} is in a network that this service does not allow"
                )
            if self._own.listens_at(each, port) or (
                self._own.has(each) and not self._is_named(each)
            ):
                raise AddressNotAllowed(_OWN)
        if not is_public(address) and not any(map(self._is_opened, forms(address))):
            raise AddressNotAllowed(f"{address} is not a public address")

    async def addresses(self, target: Target, resolve: Resolve) -> tuple[Address, ...]:
        """Return the addresses of `target`, at least one, in the order of the resolver.

        Raises AddressNotAllowed if the name has no address, or any address that is not allowed,
        because a connection may use any of them. Only for the name localhost, which no caller
        controls, addresses that are not allowed are left out.
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
        if not answers:
            raise AddressNotAllowed(f"the host name {target.host} does not resolve")
        try:
            for answer in answers:
                self.check_ip(answer, port=target.port)
            await self._require_others(answers, target.port, resolve)
        except AddressNotAllowed as error:
            # Callers read the message, and must not learn the addresses of internal names.
            logger.info(
                "address refused",
                extra={"action": "check_address", "host": target.host, "error": str(error)},
            )
            raise AddressNotAllowed(
                f"the host name {target.host} resolves to an address that is not public, or that "
                "this service does not allow"
            ) from error
        return tuple(answers)

    async def _require_others(
        self, answers: Sequence[Address], port: int, resolve: Resolve
    ) -> None:
        """Raise AddressNotAllowed for an address of a service that `own` has by name."""
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
            raise AddressNotAllowed(f"port {port} is not allowed: the allowed ports are {listed}")
        if not self._ports and port < _FIRST_FREE_PORT and port not in _DEFAULT_PORTS.values():
            raise AddressNotAllowed(
                f"port {port} is not allowed: the allowed ports are 80, 443, and "
                f"{_FIRST_FREE_PORT} and above"
            )
        return port

    def _is_opened(self, address: Address) -> bool:
        return _is_in(address, self._allow_networks)

    def _is_named(self, address: Address) -> bool:
        return any(
            network.num_addresses == 1 and address in network for network in self._allow_networks
        )


def _is_in(address: Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks)


def _split(url: str, longest: int) -> tuple[str, str]:
    """Return the scheme in lower case, and the authority.

    The check is stricter than RFC 3986, so that the HTTP client finds the same host in the URL.
    """
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
        raise AddressNotAllowed("the URL has a fragment, which would not be sent")
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
        raise AddressNotAllowed("an IPv6 address must not have a zone")
    try:
        return str(IPv6Address(text))
    except ValueError as error:
        raise AddressNotAllowed("the host is not a valid IPv6 address") from error


def _name(host: str) -> str:
    host = host.lower()
    labels = host.split(".")
    if not host.isascii() or len(host) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise AddressNotAllowed(
            "the host must consist of letters, digits, hyphens and dots; write other scripts in "
            "Punycode"
        )
    if _NUMBER.fullmatch(labels[-1]):
        return _ipv4(host)
    if any(label.startswith("xn--") for label in labels):
        _check_punycode(host)
    return host


def _ipv4(host: str) -> str:
    """Return a canonical IPv4 address. Raises AddressNotAllowed for any other form.

    Operating systems also read 127.1, 0177.0.0.1, 0x7f000001 and 2130706433 as addresses.
    """
    try:
        return str(IPv4Address(host))
    except ValueError as error:
        raise AddressNotAllowed(
            "an IPv4 address must be written as four decimal numbers without leading zeros"
        ) from error


def _check_punycode(host: str) -> None:
    """Raise AddressNotAllowed for Punycode that httpx could not decode."""
    try:
        idna.decode(host)
    except UnicodeError as error:
        raise AddressNotAllowed("the host name is not valid Punycode") from error
