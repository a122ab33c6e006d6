"""Images that requests bring along become uploads of their owner."""

from __future__ import annotations

import asyncio
from functools import partial

from events.errors import FetchFailed
from serve_app.access.turns import Turns
from serve_app.checks import QUICK_BYTES, Checks
from serve_app.refusals import ImageNotFetched, InvalidImage
from serve_app.services import Fetch
from serve_app.uploads.sent_image import SentAs, decoded, sent_as
from serve_app.uploads.store import UploadStore
from settings.http import FetchSettings


class SentImages:
    def __init__(
        self,
        store: UploadStore,
        checks: Checks,
        fetch: Fetch,
        *,
        settings: FetchSettings,
        max_bytes: int,
        wait_s: float,
    ) -> None:
        """`max_bytes`: of one image. `wait_s`: how long the turn of a fetch is waited for."""
        self._store = store
        self._checks = checks
        self._fetch = fetch
        self._settings = settings
        self._max_bytes = max_bytes
        self._turns = Turns(settings.in_flight, per_owner=settings.per_owner, timeout_s=wait_s)

    def give_up_at(self) -> float:
        """When images that are sent now may no longer be fetched, by the clock of the loop."""
        return asyncio.get_running_loop().time() + self._settings.timeout_s

    async def name(self, owner: str, image: str, *, give_up_at: float | None = None) -> str:
        """The name of the upload that an image becomes: a data URL, base64, or an https URL.

        `give_up_at`: for several images of one request, which are sent one after the other.

        Raises UploadRefused, NoTurn, DatabaseUnavailable, ImageStoreUnavailable.
        """
        how = sent_as(image)
        if how is None:
            raise InvalidImage("It is neither a data URL nor base64 nor an https URL.")
        if how is SentAs.URL:
            return await self._name_of_url(owner, image, give_up_at or self.give_up_at())
        decode = partial(decoded, image, max_bytes=self._max_bytes)
        is_quick = len(image) <= QUICK_BYTES
        data = await self._checks.run(owner, decode, is_quick=is_quick)
        return (await self._store.add_content(owner, data)).name

    async def _name_of_url(self, owner: str, url: str, give_up_at: float) -> str:
        """The turn lasts until the image is stored: nothing else bounds how many are in memory."""
        if not self._settings.enabled:
            raise ImageNotFetched("This service fetches no images. Send it as a data URL.")
        async with self._turns.take(owner):
            data = await self._fetched(url, give_up_at)
            return (await self._store.add_content(owner, data)).name

    async def _fetched(self, url: str, give_up_at: float) -> bytes:
        left_s = give_up_at - asyncio.get_running_loop().time()
        try:
            return await self._fetch(url, timeout_s=max(0.0, left_s))
        except FetchFailed as error:
            raise ImageNotFetched(f"It could not be fetched: {error}.") from error
