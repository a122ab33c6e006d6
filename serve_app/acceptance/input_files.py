"""Finds the uploads that a request names, and stores those that it brings along."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, TypeAlias

from events.log import utc_now
from events.types import InputFile
from serve_app.acceptance.checker import CheckedRequest, Checker
from serve_app.refusals import ImageNotFetched, InvalidImage
from serve_app.uploads.sent_images import SentImages

if TYPE_CHECKING:
    from events.store.uploads import Uploads

CheckFiles: TypeAlias = Callable[[CheckedRequest, Collection[str]], Awaitable[None]]

_LISTED_NAMES = 20


async def store_sent_images(
    sent_images: SentImages, owner: str, checker: Checker, checked: CheckedRequest
) -> CheckedRequest:
    """The request with its images as uploads. They are stored one by one: one is in memory.

    Raises GraphInvalid or ParametersInvalid for what is no image, TooManyUploadBytes, NoTurn,
    DatabaseUnavailable, ImageStoreUnavailable.
    """
    names: dict[str, str] = {}
    give_up_at = sent_images.give_up_at()
    for sent in checked.sent_images:
        try:
            name = await sent_images.name(owner, sent.image, give_up_at=give_up_at)
        except (InvalidImage, ImageNotFetched) as error:
            raise checker.refusal_of(checked, sent, str(error)) from error
        names[sent.place] = name
    return checker.with_uploads(checked, names)


async def resolve_input_files(
    uploads: Uploads, owner: str, *, checked: CheckedRequest, check: CheckFiles
) -> dict[str, InputFile] | None:
    """The files by their names, as they are now; None where the request names none.

    `check` is called with the names that there are where one is missing. Raises GraphInvalid or
    ParametersInvalid for a name that the owner has not uploaded.
    """
    if not checked.input_files:
        return None
    found = await uploads.use(owner, checked.input_files, utc_now())
    missing = set(checked.input_files) - found.keys()
    if missing:
        newest = await uploads.page(owner, limit=_LISTED_NAMES)
        listed = dict.fromkeys([*found, *(upload.name for upload in newest)])
        await check(checked, [name for name in listed if name not in missing])
    return {
        name: InputFile(
            key=upload.storage_key,
            digest=upload.digest,
            width=upload.width,
            height=upload.height,
        )
        for name, upload in found.items()
    }
