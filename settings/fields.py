"""Types of settings, and how an operator writes their values."""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, SecretStr, StringConstraints
from pydantic_settings import NoDecode

_PROXY = re.compile(r"http://(?:[^\s/?#@]+@)?[^\s/?#@:]+:[1-9][0-9]{0,4}/?")


def _split_list(value: Any) -> Any:
    """A JSON list or commas: `["10.0.0.0/8"]` and `10.0.0.0/8,127.0.0.0/8` are both lists."""
    if not isinstance(value, str):
        return value
    return [part.strip().strip("\"'") for part in value.strip(" []").split(",") if part.strip()]


def _require_proxy(url: SecretStr | None) -> SecretStr | None:
    if url is not None and not _PROXY.fullmatch(url.get_secret_value()):
        raise ValueError("write the proxy as http://host:port or http://user:password@host:port")
    return url


def _read_network(value: Any) -> IPv4Network | IPv6Network:
    """In place of pydantic's own reading, whose errors name its functions."""
    try:
        return ip_network(value)
    except ValueError:
        raise ValueError(
            "write a network as 10.0.0.0/8 or fd00::/8, with no bit set behind its length"
        ) from None


Network = Annotated[IPv4Network | IPv6Network, BeforeValidator(_read_network)]
Networks = Annotated[tuple[Network, ...], NoDecode, BeforeValidator(_split_list)]
Ports = Annotated[tuple[int, ...], NoDecode, BeforeValidator(_split_list)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_list)]
HostPattern = Annotated[
    str,
    StringConstraints(
        max_length=255,
        pattern=r"^(\*|(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|[0-9a-fA-F.]*:[0-9a-fA-F:.]*)$",
        to_lower=True,
    ),
]
"""A host name or address, `*.example.com` for every name below one, or `*` for any."""
HostPatterns = Annotated[tuple[HostPattern, ...], NoDecode, BeforeValidator(_split_list)]
Seconds = Annotated[tuple[float, ...], NoDecode, BeforeValidator(_split_list)]
ProxyUrl = Annotated[SecretStr | None, AfterValidator(_require_proxy)]
