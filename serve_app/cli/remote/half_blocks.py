"""A small picture in the characters of a terminal: each is two pixels, one above the other."""

from __future__ import annotations

from io import BytesIO

from PIL import Image, ImageOps
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

_UPPER_HALF = "▀"
_MOST_COLUMNS = 48
_OTHER_ROWS = 6
"""Of the terminal, which the picture leaves to the text around it."""
_LONGEST_SIDE = 4096
_COLOURFUL = {"256", "truecolor", "windows"}


def can_show(console: Console) -> bool:
    """Whether somebody looks at it, in enough colours."""
    return console.is_terminal and console.color_system in _COLOURFUL


def half_blocks(jpeg: bytes, console: Console) -> Text | None:
    """As large as the terminal allows; None for what is no picture of a sensible size."""
    columns = max(2, min(_MOST_COLUMNS, console.width))
    rows = max(2, min(_MOST_COLUMNS // 2, console.height - _OTHER_ROWS))
    try:
        with Image.open(BytesIO(jpeg), formats=["JPEG"]) as image:
            if max(image.size) > _LONGEST_SIDE:
                return None
            small = ImageOps.contain(image.convert("RGB"), (columns, 2 * rows))
    except (OSError, SyntaxError, ValueError):
        return None
    return _drawn(small)


def _drawn(image: Image.Image) -> Text:
    drawn = Text(no_wrap=True)
    width, height = image.size
    pixels = image.tobytes()

    def colour(x: int, y: int) -> Color | None:
        at = 3 * (y * width + x)
        return Color.from_rgb(*pixels[at : at + 3]) if y < height else None

    for y in range(0, height, 2):
        for x in range(width):
            drawn.append(_UPPER_HALF, Style(color=colour(x, y), bgcolor=colour(x, y + 1)))
        drawn.append("\n")
    return drawn
