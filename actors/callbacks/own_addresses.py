"""Makes the rule for callback addresses, which denies the addresses of this service."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

import psutil

from events.callback_address import Address, AddressRule, Own, literal
from settings.callbacks import CallbackSettings
from settings.http import HttpSettings
from settings.log import LogSettings
from settings.stores import StoreSettings

_PORTS = {"http": 80, "https": 443, "nats": 4222, "tls": 4222, "ws": 80, "wss": 443}
_POSTGRES_PORT = 5432


def address_rule(
    callbacks: CallbackSettings, *, http: HttpSettings, log: LogSettings, stores: StoreSettings
) -> AddressRule:
    services = own_services(http, log, stores, callbacks)
    return AddressRule(
        allow_networks=callbacks.allow_networks,
        deny_networks=callbacks.deny_networks,
        own=Own(services=tuple(services), interfaces=interface_addresses),
        require_https=callbacks.require_https,
        ports=callbacks.ports,
    )


def own_services(
    http: HttpSettings, log: LogSettings, stores: StoreSettings, callbacks: CallbackSettings
) -> Generator[tuple[str, int]]:
    """Yield host and port of the API, of NATS, of the database, and of the proxy for callbacks.

    The public URL is included only if its host is an IP address, because other services with
    allowed addresses may have the same host name.
    """
    yield http.host, http.port
    public = _host_and_port(http.effective_public_url)
    if public is not None and literal(public[0]) is not None:
        yield public
    nats_urls = map(_nats_url, log.nats_url.get_secret_value().split(",")) if log.nats_url else []
    proxy_urls = [callbacks.proxy.get_secret_value()] if callbacks.proxy else []
    for url in (*nats_urls, *proxy_urls, stores.effective_database_url):
        if found := _host_and_port(url.strip()):
            yield found


def interface_addresses() -> set[Address]:
    found = set()
    for interface in psutil.net_if_addrs().values():
        for each in interface:
            with suppress(ValueError):  # A link-layer address is not an IP address.
                found.add(ip_address(each.address.partition("%")[0]))
    return found


def _nats_url(url: str) -> str:
    """Add the scheme if it is missing, because nats-py accepts URLs without a scheme."""
    return url if "://" in url else f"nats://{url.strip()}"


def _host_and_port(url: str) -> tuple[str, int] | None:
    """Return host and port, or None if the URL has no host, as the URL of a database file."""
    parts = urlsplit(url)
    if not parts.hostname:
        return None
    return parts.hostname, parts.port or _PORTS.get(parts.scheme, _POSTGRES_PORT)
