"""Checks the URLs in a request to which Darkroom will send data: callback and presigned URLs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

from engine.interface import FieldError, ParametersInvalid
from events.callback_address import LONGEST_PUT_URL, LONGEST_URL, AddressRule, Resolve, Target
from events.errors import AddressNotAllowed
from events.store.records import ApiKey
from serve_app.access.api_keys import require_callback_host
from serve_app.refusals import CallbackHostForbidden, NameServerUnavailable
from settings.constant import constant
from storage.service_secret import sealed

MEMBER = "image_put_urls"
"""The member with the presigned URLs in the body of a request, for both flavours."""
_MAX_UPLOAD_URLS = constant("IMAGE_PUT_MAX_URLS", 32)
_MOST_SEALED_BYTES = 2**18
"""The largest total size of the encrypted URLs in bytes. They fit into one event with the largest
recorded request.
"""
_TEMPORARY = {socket.EAI_AGAIN, socket.EAI_MEMORY, socket.EAI_SYSTEM}
"""Error codes of getaddrinfo for failures of the resolver, for which the name is not to blame."""


class Addresses:
    """Checks URLs against the address rule of the service and the hosts that a key allows."""

    def __init__(
        self,
        rule: AddressRule,
        resolve: Resolve,
        *,
        takes_uploads: bool,
        secret: bytes,
        timeout_s: float = 3.0,
    ) -> None:
        self._rule = rule
        self._resolve_name = resolve
        self._takes_uploads = takes_uploads
        self._secret = secret
        self._timeout_s = timeout_s

    async def require_callback(self, url: str, key: ApiKey) -> None:
        """Raises AddressNotAllowed, CallbackHostForbidden, NameServerUnavailable."""
        await self._require_allowed(self._target(url, key, longest=LONGEST_URL))

    def _target(self, url: str, key: ApiKey, *, longest: int) -> Target:
        target = self._rule.check_url(url, longest=longest)
        require_callback_host(key, target.host)
        return target

    async def _require_allowed(self, target: Target) -> None:
        """Raises AddressNotAllowed, NameServerUnavailable."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._rule.addresses(target, self._resolve)
        except TimeoutError as error:
            raise NameServerUnavailable(target.host) from error

    async def _resolve(self, host: str) -> Sequence[str]:
        try:
            return await self._resolve_name(host)
        except socket.gaierror as error:
            if error.errno in _TEMPORARY:
                raise NameServerUnavailable(host) from error
            raise

    async def presigned_uploads(self, body: Any, key: ApiKey) -> tuple[Any, tuple[str, ...] | None]:
        """Return the body without `image_put_urls`, and these URLs in encrypted form.

        The URLs grant write access, so they are encrypted, and no error message contains them.
        Raises ParametersInvalid, NameServerUnavailable.
        """
        if not isinstance(body, dict) or MEMBER not in body:
            return body, None
        rest = {name: value for name, value in body.items() if name != MEMBER}
        urls = body[MEMBER]
        if urls is None or urls == []:
            return rest, None
        if not self._takes_uploads:
            raise _invalid("this service does not support uploads of images to presigned URLs")
        if not isinstance(urls, list) or len(urls) > _MAX_UPLOAD_URLS:
            raise _invalid(f"must be a list of up to {_MAX_UPLOAD_URLS} URLs")
        targets = [self._upload_target(url, at, key) for at, url in enumerate(urls)]
        if len(set(targets)) > 1:
            raise _invalid("all URLs must have the same host and port")
        try:
            await self._require_allowed(targets[0])
        except AddressNotAllowed as error:
            raise _invalid(str(error)) from error
        addresses = tuple(sealed(self._secret, url) for url in urls)
        if sum(map(len, addresses)) > _MOST_SEALED_BYTES:
            raise _invalid("all URLs together are too long")
        return rest, addresses

    def _upload_target(self, url: object, at: int, key: ApiKey) -> Target:
        if not isinstance(url, str):
            raise _invalid("must be a URL", at)
        try:
            target = self._target(url, key, longest=LONGEST_PUT_URL)
        except AddressNotAllowed as error:
            raise _invalid(str(error), at) from error
        except CallbackHostForbidden as error:
            raise _invalid("this key may not use this host", at) from error
        if len(url.encode()) > LONGEST_PUT_URL:
            # All URLs and the request must fit into one event.
            raise _invalid(f"the URL is longer than {LONGEST_PUT_URL} bytes", at)
        return target


def require_images(addresses: tuple[str, ...] | None, images: int) -> None:
    """Raise ParametersInvalid if there are more URLs than images.

    `images` is 0 if the number of images is not known. Then nothing is raised.
    """
    if addresses is not None and 0 < images < len(addresses):
        raise _invalid(f"has {len(addresses)} URLs, but the request makes only {images} images")


def _invalid(message: str, at: int | None = None) -> ParametersInvalid:
    field = MEMBER if at is None else f"{MEMBER}.{at}"
    return ParametersInvalid((FieldError("value_error", message, field),))
