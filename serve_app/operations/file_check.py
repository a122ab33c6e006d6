"""Checks files of the image store against what names them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from events.ids import is_job_id
from serve_app.operations.disagreements import Disagreement, JobHistory, Kind, job_history
from serve_app.operations.places import Places, together
from storage.images import ImageNotFound, ImageStore
from storage.keys import UPLOADS


class FileCheck:
    """Raises ImageStoreUnavailable and what the other places raise."""

    def __init__(self, places: Places, *, digests: bool) -> None:
        """`digests`: read each file, instead of asking for its size alone."""
        self._places = places
        self._digests = digests

    async def named(
        self, key: str, *, size_bytes: int, digest: str, job_id: str | None = None
    ) -> list[Disagreement]:
        """One file that a job or an upload names."""
        try:
            found = await self._found(self._places.images, key)
        except ImageNotFound:
            text = f"The file {key} is not in the image store."
            return [Disagreement(Kind.FILE_MISSING, text, job_id, key)]
        expected = (size_bytes, digest) if self._digests else (size_bytes,)
        if found == expected:
            return []
        text = f"The file {key} has {_shown(found)}; recorded are {_shown(expected)}."
        return [Disagreement(Kind.FILE_DIFFERS, text, job_id, key)]

    async def _found(self, images: ImageStore, key: str) -> tuple[int, str] | tuple[int]:
        if not self._digests:
            return (await images.size(key),)
        data = await images.get(key)
        return len(data), f"sha256:{hashlib.sha256(data).hexdigest()}"

    async def uploads(self, keys: Sequence[str]) -> list[Disagreement]:
        """Files of uploads that have a row."""
        uploads = await self._places.rows.uploads_of(keys)
        return await together(
            self.named(each.key, size_bytes=each.size_bytes, digest=each.digest)
            for each in uploads.values()
        )

    async def stored(self, keys: Sequence[str]) -> list[Disagreement]:
        """Files of ours that are there: whether anything names them.

        Files under names that are not ours are nobody's business, as for the janitor.
        """
        uploads = [key for key in keys if key.startswith(f"{UPLOADS}/")]
        images = [key for key in keys if is_job_id(_job_of(key))]
        known = {*await self._places.rows.uploads_of(uploads)}
        known |= await self._places.read_model.image_keys({_job_of(key) for key in images})
        unknown = [key for key in images if key not in known]
        known |= await self._named_in_log(unknown)
        return [
            Disagreement(
                Kind.FILE_OF_NOTHING,
                f"No job and no upload names the file {key}.",
                _job_of(key) if is_job_id(_job_of(key)) else None,
                key,
            )
            for key in (*uploads, *images)
            if key not in known
        ]

    async def _named_in_log(self, keys: Sequence[str]) -> set[str]:
        """Those of `keys` that a job names or may name yet: the read model may lag."""
        stored = await self._places.log.stored({_job_of(key) for key in keys})
        histories = {job_id: job_history(job_id, events) for job_id, events in stored.items()}
        return {
            key
            for key in keys
            if (history := histories.get(_job_of(key))) is not None and _may_name(history, key)
        }


def _may_name(history: JobHistory, key: str) -> bool:
    job = history.job
    return job is None or job.end is None or key in {image.key for image in job.images}


def _job_of(key: str) -> str:
    return key.partition("/")[0]


def _shown(file: Sequence[int | str]) -> str:
    return " and ".join((f"{file[0]} bytes", *map(str, file[1:])))
