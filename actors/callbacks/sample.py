"""Sends a sample callback, so that a caller can test a receiver without a job."""

from __future__ import annotations

from actors.callbacks.api_key_data import SigningSecrets
from actors.callbacks.sender import Sender, webhook_headers
from events.delivery import RecordAttempt, tried
from events.errors import AddressNotAllowed
from events.ids import new_id
from events.log import utc_now
from events.result import ImageResult, ResultResponse, Status, UrlFor
from events.store.records import ApiKey
from events.types import CallbackAttempted, ImageStored

_IMAGE = ImageStored(
    index=0, attempt=1, key="", size_bytes=0, digest="", width=512, height=512, seed=1
)


class SampleCallback:
    def __init__(self, *, sender: Sender, secrets: SigningSecrets, url_for: UrlFor) -> None:
        self._sender = sender
        self._secrets = secrets
        self._url_for = url_for

    async def send(self, url: str, key: ApiKey) -> CallbackAttempted:
        """Make one attempt to send the sample, and return the attempt. Raises AddressNotAllowed."""
        job_id = new_id()
        body = self._result(job_id).body()
        secrets = await self._secrets.of(key.owner, key.id)
        headers = webhook_headers(job_id, body, secrets=secrets, now=utc_now())
        result = await self._sender.send(url, body, headers)
        if result.refused:
            raise AddressNotAllowed(result.error)
        return tried(RecordAttempt(result, delays_s=(0,), now=utc_now()), attempt=1)

    def _result(self, job_id: str) -> ResultResponse:
        """Make a sample result of a job that does not exist."""
        now = utc_now()
        image = ImageResult(
            status=Status.COMPLETED,
            url=self._url_for(job_id, _IMAGE),
            seed=_IMAGE.seed,
            width=_IMAGE.width,
            height=_IMAGE.height,
        )
        return ResultResponse(
            request_id=job_id,
            status=Status.COMPLETED,
            results=(image,),
            created_at=now,
            started_at=now,
            ended_at=now,
        )
