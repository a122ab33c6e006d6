"""Where this service and what it works with listen, as far as its settings and machine tell."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

import psutil

from events.callback_networks import Address, literal
from settings.callbacks import CallbackSettings
from settings.http import HttpSettings
from settings.log import LogSettings
from settings.stores import StoreSettings

_PORTS = {"http": 80, "https": 443, "nats": 4222, "tls": 4222, "ws": 80, "wss": 443}
_POSTGRES_PORT = 5432


def own_services(
    http: HttpSettings, log: LogSettings, stores: StoreSettings, callbacks: CallbackSettings
) -> Generator[tuple[str, int]]:
    """Host and port of the API, of NATS, of the database and of the callbacks' proxy.

    The public URL counts where it has an address: behind a name there may be others, too.
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
    """The addresses of this machine's interfaces."""
    found = set()
    for interface in psutil.net_if_addrs().values():
        for each in interface:
            with suppress(ValueError):  # the address of a link
                found.add(ip_address(each.address.partition("%")[0]))
    return found


def _nats_url(url: str) -> str:
    """nats-py takes one without a scheme, too."""
    return url if "://" in url else f"nats://{url.strip()}"


def _host_and_port(url: str) -> tuple[str, int] | None:
    """None where the URL has no host: the database may be a file."""
    parts = urlsplit(url)
    if not parts.hostname:
        return None
    return parts.hostname, parts.port or _PORTS.get(parts.scheme, _POSTGRES_PORT)
