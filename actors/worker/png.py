"""Images as PNG files, with what made them in their text chunks."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo

_COMPRESSION = 4


def encode_png(pixels: NDArray[np.uint8], text: Mapping[str, str]) -> bytes:
    """`pixels`: (height, width, 3). `text` becomes iTXt if it is not Latin-1."""
    info = PngInfo()
    for name, value in text.items():
        info.add_text(name[:79], value)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", pnginfo=info, compress_level=_COMPRESSION)
    return file.getvalue()
