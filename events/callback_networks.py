"""Which networks are public, and which addresses are this service's own. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

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
LOOPBACK = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))
_NAT64 = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Own:
    """Where this service and what it works with listen.

    A service at a loopback or wildcard address is at every address of this machine.
    """

    services: Sequence[tuple[str, int]] = ()
    """Host and port of each; the host is a name or an address."""
    interfaces: Callable[[], Collection[Address]] = tuple
    """The addresses of this machine; asked each time, for they change."""

    def listens_at(self, address: Address, port: int | None) -> bool:
        return any(
            address == own or (_is_here(own) and (_is_here(address) or self.has(address)))
            for host, own_port in self.services
            if port in {own_port, None} and (own := literal(host)) is not None
        )

    def names_at(self, port: int) -> Generator[str]:
        """The names of services that listen at `port`."""
        return (host for host, own in self.services if own == port and literal(host) is None)

    def has(self, address: Address) -> bool:
        """Whether it is an address of this machine; loopback is everybody's."""
        return not address.is_loopback and address in self.interfaces()


def literal(host: str) -> Address | None:
    """The address that `host` is, None where it is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def forms(address: Address) -> Generator[Address]:
    """The address, and the IPv4 address that is reached through it."""
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
