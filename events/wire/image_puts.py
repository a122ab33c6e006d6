"""Images that are put where their caller said, once the job has ended. Pure.

It is part of the job's delivery, between what is told before the end and the end: so whoever is
called back reads in the result what became of each image. Tries are recorded as those before the
end are, under a name of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from events.delivery import Delivery, about_put
from events.job import Job
from events.types import ImageStored


@dataclass(frozen=True, slots=True)
class ImagePut:
    """One image, and where it goes."""

    image: ImageStored
    sealed: str
    """The address; see `storage.sealing`."""

    @property
    def about(self) -> str:
        """Its name among what is delivered of its job."""
        return about_put(self.image.index)


def next_put(job: Job, delivery: Delivery) -> ImagePut | None:
    """The first image of an ended job that is neither put nor given up."""
    if job.end is None or delivery.is_at_end:
        return None
    return next((each for each in _puts(job) if each.about not in delivery.over), None)


def _puts(job: Job) -> Iterator[ImagePut]:
    """Of the images that there are and that have an address, by their indexes."""
    addresses = job.submitted.image_puts or ()
    for image in sorted(job.images, key=lambda image: image.index):
        if image.index < len(addresses):
            yield ImagePut(image, addresses[image.index])
