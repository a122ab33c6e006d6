"""The member `image_put_urls` of both flavours' bodies: where the images of a job are put."""

from __future__ import annotations

from typing import Any

from engine.errors import FieldError, ParametersInvalid
from events.callback_address import LONGEST_PUT_URL, Target
from events.errors import AddressNotAllowed
from events.store.records import ApiKey
from serve_app.acceptance.callback_check import CallbackCheck
from serve_app.refusals import CallbackHostForbidden
from settings.callbacks import ImagePutSettings
from storage.sealing import sealed

MEMBER = "image_put_urls"
_MOST_SEALED_BYTES = 2**18
"""Of all of a request: beside the longest request that is recorded, what a message has room for."""


class ImagePutCheck:
    """Whoever has such an address may write to a caller's bucket: it leaves here sealed."""

    def __init__(self, check: CallbackCheck, settings: ImagePutSettings, *, secret: bytes) -> None:
        self._check = check
        self._settings = settings
        self._secret = secret

    async def taken(self, body: Any, key: ApiKey) -> tuple[Any, tuple[str, ...] | None]:
        """A body without the member, and its addresses, sealed.

        Raises ParametersInvalid, NameServerUnavailable. No error repeats an address.
        """
        if not isinstance(body, dict) or MEMBER not in body:
            return body, None
        rest = {name: value for name, value in body.items() if name != MEMBER}
        urls = body[MEMBER]
        if urls is None or urls == []:
            return rest, None
        if not self._settings.enabled:
            raise _invalid("this service puts images nowhere")
        most = self._settings.max_urls
        if not isinstance(urls, list) or len(urls) > most:
            raise _invalid(f"must be a list of up to {most} addresses")
        targets = [self._target(url, at, key) for at, url in enumerate(urls)]
        if len(set(targets)) > 1:
            raise _invalid("all addresses must be of one host and port")
        try:
            await self._check.require_allowed(targets[0])
        except AddressNotAllowed as error:
            raise _invalid(str(error)) from error
        addresses = tuple(sealed(self._secret, url) for url in urls)
        if sum(map(len, addresses)) > _MOST_SEALED_BYTES:
            raise _invalid("all addresses are too long together")
        return rest, addresses

    def _target(self, url: object, at: int, key: ApiKey) -> Target:
        if not isinstance(url, str):
            raise _invalid("must be an address", at)
        try:
            target = self._check.target(url, key, longest=LONGEST_PUT_URL)
        except AddressNotAllowed as error:
            raise _invalid(str(error), at) from error
        except CallbackHostForbidden as error:
            raise _invalid("this key may not have this host called", at) from error
        if len(url.encode()) > LONGEST_PUT_URL:
            # All of them are in one event, beside a request that may be long.
            raise _invalid(f"the URL is longer than {LONGEST_PUT_URL} bytes", at)
        return target


def require_images(addresses: tuple[str, ...] | None, images: int) -> None:
    """Raise ParametersInvalid where there are more addresses than images, as far as that is known.

    `images` is 0 where only the run can tell.
    """
    if addresses is not None and 0 < images < len(addresses):
        raise _invalid(f"are {len(addresses)}, and {images} images are made")


def _invalid(message: str, at: int | None = None) -> ParametersInvalid:
    field = MEMBER if at is None else f"{MEMBER}.{at}"
    return ParametersInvalid((FieldError("value_error", message, field),))
