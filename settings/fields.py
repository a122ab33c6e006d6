"""Types of settings, and their notation in variables."""

from __future__ import annotations

import re
import shlex
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, SecretStr, StringConstraints
from pydantic_core import ErrorDetails
from pydantic_settings import NoDecode

_PROXY = re.compile(r"http://(?:[^\s/?#@]+@)?[^\s/?#@:]+:[1-9][0-9]{0,4}/?")


def _split_list(value: Any) -> Any:
    """Split a text that is a JSON list, or a list with commas such as `10.0.0.0/8,127.0.0.0/8`."""
    if not isinstance(value, str):
        return value
    return [part.strip().strip("\"'") for part in value.strip(" []").split(",") if part.strip()]


def _split_arguments(value: Any) -> Any:
    """Split a text as a shell does."""
    return shlex.split(value) if isinstance(value, str) else value


def _require_proxy(url: SecretStr | None) -> SecretStr | None:
    if url is not None and not _PROXY.fullmatch(url.get_secret_value()):
        raise ValueError("write the proxy as http://host:port or http://user:password@host:port")
    return url


def _read_network(value: Any) -> IPv4Network | IPv6Network:
    """Parse a network. Pydantic's own errors would contain names of its functions."""
    try:
        return ip_network(value)
    except ValueError:
        raise ValueError(
            "write a network as 10.0.0.0/8 or fd00::/8, with only zeros after the bits of its "
            "length"
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
"""A host name or address, `*.example.com` for every name below `example.com`, or `*` for all hosts.
"""
HostPatterns = Annotated[tuple[HostPattern, ...], NoDecode, BeforeValidator(_split_list)]
Seconds = Annotated[tuple[float, ...], NoDecode, BeforeValidator(_split_list)]
Arguments = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_arguments)]
ProxyUrl = Annotated[SecretStr | None, AfterValidator(_require_proxy)]

_NUMBER, _WHOLE = "a number is required", "a whole number is required"
_ERROR_TEXTS = {
    "bool_parsing": "true or false is required",
    "bool_type": "true or false is required",
    "enum": "{expected} is required",
    "finite_number": "a finite number is required",
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "greater_than": "more than {gt:g} is required",
    "greater_than_equal": "{ge:g} or more is required",
    "int_from_float": _WHOLE,
    "int_parsing": _WHOLE,
    "int_parsing_size": "a smaller number is required",
    "int_type": _WHOLE,
    "less_than": "less than {lt:g} is required",
    "less_than_equal": "{le:g} or less is required",
    "literal_error": "{expected} is required",
    "path_type": "a path is required",
    "string_pattern_mismatch": "a host name, an address, *.example.com or * is required",
    "string_too_long": "at most {max_length} characters are allowed",
    "string_type": "a text is required",
    "tuple_type": "a list with commas is required",
}


def error_text(error: ErrorDetails) -> str:
    """Return an error message that describes the expected form."""
    if error["type"] == "value_error":  # A function in this module raised this error.
        return str(error["ctx"]["error"])
    text = _ERROR_TEXTS.get(error["type"])
    return error["msg"] if text is None else text.format_map(error.get("ctx", {}))
