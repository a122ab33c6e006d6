"""Pictures in another form: for a small preview, or with other channels."""

from __future__ import annotations

import io
from enum import StrEnum

from PIL import Image


class Channel(StrEnum):
    RGBA = "rgba"
    """As the file has them."""
    RGB = "rgb"
    A = "a"


class Form(StrEnum):
    PNG = "png"
    WEBP = "webp"
    JPEG = "jpeg"

    @property
    def media_type(self) -> str:
        return f"image/{self}"

    @property
    def max_side_px(self) -> int:
        """The longest side that a file of this form has room for: some uploads have longer ones."""
        return _MOST_PX[self]


_MOST_PX = {Form.PNG: 2**31 - 1, Form.WEBP: 16_383, Form.JPEG: 65_500}


def converted(data: bytes, channel: Channel, form: Form, *, quality: int) -> bytes:
    """`data` is a file that the service has written itself. Blocks for as long as that takes."""
    with Image.open(io.BytesIO(data)) as image:
        picture = _channels(image, channel)
    if form is Form.JPEG:
        picture = picture.convert("RGB")
    if max(picture.size) > form.max_side_px:
        picture.thumbnail((form.max_side_px, form.max_side_px))
    out = io.BytesIO()
    picture.save(out, form.upper(), quality=quality)
    return out.getvalue()


def masked(original: bytes, mask: bytes) -> bytes:
    """The original with the alpha of the mask, as a PNG; both are files of the service's own.

    A mask of another size is fitted. Blocks for as long as that takes.
    """
    with Image.open(io.BytesIO(original)) as image, Image.open(io.BytesIO(mask)) as drawn:
        picture = image.convert("RGB")
        alpha = _alpha(drawn)
    picture.putalpha(alpha if alpha.size == picture.size else alpha.resize(picture.size))
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()


def _channels(image: Image.Image, channel: Channel) -> Image.Image:
    if channel is Channel.RGB:
        return image.convert("RGB")
    if channel is Channel.A:
        alone = Image.new("RGBA", image.size)
        alone.putalpha(_alpha(image))
        return alone
    return image.copy()


def _alpha(image: Image.Image) -> Image.Image:
    """Of a picture without one it is all opaque."""
    return image.convert("RGBA").getchannel("A")
