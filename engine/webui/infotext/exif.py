"""The WebUI's text in the EXIF data of JPEG and WebP files, as its user comment."""

from __future__ import annotations

from PIL import Image
from PIL.ExifTags import IFD

USER_COMMENT = 0x9286
_CODE = b"UNICODE\0"
_SPELLING = "utf-16-be"


def user_comment(text: str) -> bytes:
    """The value of the tag: the code of its characters, then these."""
    return _CODE + text.encode(_SPELLING, "surrogatepass")


def read_user_comment(image: Image.Image) -> str | None:
    """The text of an image that is open; None where it has none that can be read."""
    value = image.getexif().get_ifd(IFD.Exif).get(USER_COMMENT)
    if not isinstance(value, bytes) or not value.startswith(_CODE):
        return None
    return value.removeprefix(_CODE).decode(_SPELLING, "replace")
