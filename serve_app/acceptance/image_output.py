"""The format of the images of a job: what was asked for, else what its key has."""

from __future__ import annotations

from typing import TypedDict

from serve_app.acceptance.generate_request import GenerateRequest
from serve_app.refusals import QualityOfPng


class RecordedOutput(TypedDict):
    """Members of `Submitted`."""

    image_format: str | None
    image_quality: int | None


def recorded_output(request: GenerateRequest) -> RecordedOutput:
    """Raises QualityOfPng. A key that was made by hand may have no quality."""
    limits = request.key.limits
    image_format = request.image_format or limits.image_format or "png"
    if image_format == "png":
        if request.image_quality is not None:
            raise QualityOfPng
        return RecordedOutput(image_format=None, image_quality=None)
    quality = request.image_quality or limits.image_quality
    return RecordedOutput(image_format=image_format, image_quality=quality)
