"""`darkroom infotext`: prints the request that a generation text of the WebUI describes."""

from __future__ import annotations

import json
import sys
from io import BytesIO
from pathlib import Path
from typing import Annotated

import typer
from PIL import Image
from PIL.ExifTags import IFD, Base

from cli.terminal import ExitCode, fail, stderr, wants_json
from engine.interface import ParametersInvalid, parse_parameters, read_infotext

_BEGINNINGS = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG", b"RIFF": "WEBP"}
_USER_COMMENT_CODE = b"UNICODE\0"
"""The bytes in front of a user comment in EXIF; they declare that its text is Unicode."""

TextArgument = Annotated[
    Path | None,
    typer.Argument(
        help="A file with the text, or an image with embedded text. Default: standard input."
    ),
]


def infotext(text: TextArgument = None) -> None:
    """Print the diffusion request that a generation text describes, as JSON.

    Settings that are not part of a request are listed on standard error.
    """
    try:
        read = read_infotext(_text(text.read_bytes() if text else sys.stdin.buffer.read()))
        parse_parameters(read.request)
    except ParametersInvalid as error:
        text_of = "; ".join(f"{each.field} {each.message}" for each in error.fields)
        fail(text_of, code=ExitCode.USAGE)
    except (OSError, ValueError) as error:
        fail(str(error), code=ExitCode.USAGE)
    if read.left_out and not wants_json():
        stderr.print(f"left out: {', '.join(read.left_out)}", markup=False)
    typer.echo(json.dumps(read.request, indent=2))


def _text(data: bytes) -> str:
    """Return the generation text of a text file or an image. Raises ValueError."""
    kind = next((kind for start, kind in _BEGINNINGS.items() if data.startswith(start)), None)
    if kind is None:
        return data.decode()
    with Image.open(BytesIO(data), formats=[kind]) as image:
        if kind == "PNG":
            text = getattr(image, "text", {}).get("parameters")
        else:
            text = user_comment(image)
    if text is None:
        raise ValueError("This image contains no generation text.")
    return str(text)


def user_comment(image: Image.Image) -> str | None:
    """Return the user comment in the EXIF of an open image, or None if it cannot be read."""
    value = image.getexif().get_ifd(IFD.Exif).get(Base.UserComment)
    if not isinstance(value, bytes) or not value.startswith(_USER_COMMENT_CODE):
        return None
    return value.removeprefix(_USER_COMMENT_CODE).decode("utf-16-be", "replace")
