"""Which addresses a callback may go to. Pure: names are resolved by a function that is given.

A callback makes this service send a request where a caller says, so it must not reach what only
this service can reach (OWASP: server-side request forgery). The rule holds twice: when a job is
accepted, and again for the address that is connected to, since a name may resolve to another
address by then.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import idna

from events.errors import AddressNotAllowed

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""Host name -> its addresses. Raises OSError where it has none."""

LONGEST_URL = 2048
_DEFAULT_PORTS = {"http": 80, "https": 443}
_FIRST_FREE_PORT = 1024
_LOCALHOST = "localhost"

_URL = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<rest>.*)")
_AUTHORITY = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*)(?::(?P<port>.*))?")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")

# https://www.iana.org/assignments/iana-ipv4-special-registry, multicast and class E, and one public
# address that is a cloud's own: Azure's host agent.
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
# IPv6 has one public block. https://www.iana.org/assignments/iana-ipv6-special-registry has the
# ranges inside it that are something else; some of them carry an IPv4 address (Teredo, 6to4).
_PUBLIC_IPV6 = IPv6Network("2000::/3")
_DENIED_IPV6 = tuple(
    IPv6Network(text)
    for text in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
)
_LOOPBACK = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))


@dataclass(frozen=True, slots=True)
class Target:
    """Where a callback goes. `host` is in lower case, an IPv6 literal without its brackets."""

    scheme: str
    host: str
    port: int

    @property
    def address(self) -> Address | None:
        """The address where the host is a literal, None where it is a name."""
        try:
            return ip_address(self.host)
        except ValueError:
            return None


class AddressRule:
    """`allow_networks` opens networks that are not public; `ports` replaces 80, 443 and 1024 up."""

    def __init__(
        self,
        *,
        allow_networks: Sequence[Network] = (),
        require_https: bool = False,
        ports: Sequence[int] = (),
    ) -> None:
        self._allow_networks = tuple(allow_networks)
        self._require_https = require_https
        self._ports = frozenset(ports)
        self._allows_localhost = any(
            type(network) is type(loopback) and network.overlaps(loopback)
            for network in self._allow_networks
            for loopback in _LOOPBACK
        )

    def check_url(self, url: str) -> Target:
        """The target of `url`, its name not yet resolved. Raises AddressNotAllowed."""
        scheme, authority = _split(url)
        if scheme not in _DEFAULT_PORTS:
            raise AddressNotAllowed("the scheme must be http or https")
        if self._require_https and scheme != "https":
            raise AddressNotAllowed("the scheme must be https")
        host, port_text = _split_authority(authority)
        target = Target(scheme, host, self._port(scheme, port_text))
        if (address := target.address) is not None:
            self.check_ip(address)
        elif host == _LOCALHOST:
            if not self._allows_localhost:
                raise AddressNotAllowed("localhost is this machine, not a public address")
        elif "." not in host:
            raise AddressNotAllowed("the host name has no dot, so it is not a public one")
        return target

    def check_ip(self, ip: str | Address) -> None:
        """Raises AddressNotAllowed for an address that is neither public nor opened."""
        try:
            address = ip_address(ip) if isinstance(ip, str) else ip
        except ValueError as error:
            raise AddressNotAllowed(f"{ip!r} is not an IP address") from error
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        if self._is_opened(address) or (mapped is not None and self._is_opened(mapped)):
            return
        if not _is_public(address):
            raise AddressNotAllowed(f"{address} is not a public address")

    async def addresses(self, target: Target, resolve: Resolve) -> tuple[Address, ...]:
        """Every address of `target` that may be connected to, in the order resolved; never empty.

        One answer that is not allowed refuses the whole name: it may be the one that is taken.
        Only localhost, which needs no name server, may have an answer that is passed over.
        Raises AddressNotAllowed, also where the name has no address.
        """
        if (literal := target.address) is not None:
            self.check_ip(literal)
            return (literal,)
        try:
            answers = [ip_address(answer) for answer in await resolve(target.host)]
        except (OSError, ValueError) as error:
            raise AddressNotAllowed(f"the host name {target.host} does not resolve") from error
        if target.host == _LOCALHOST:
            answers = [each for each in answers if each.is_loopback and self._is_opened(each)]
        for answer in answers:
            try:
                self.check_ip(answer)
            except AddressNotAllowed as error:
                raise AddressNotAllowed(f"{target.host} resolves to {answer}: {error}") from None
        if not answers:
            raise AddressNotAllowed(f"the host name {target.host} does not resolve")
        return tuple(answers)

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
        return any(address in network for network in self._allow_networks)


def _split(url: str) -> tuple[str, str]:
    """Scheme in lower case, and authority; stricter than RFC 3986, so that no parsers differ."""
    if len(url) > LONGEST_URL:
        raise AddressNotAllowed(f"the URL is longer than {LONGEST_URL} characters")
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


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _DENIED_IPV4)
    return address in _PUBLIC_IPV6 and not any(address in network for network in _DENIED_IPV6)
