"""`darkroom infotext`: prints the request that a generation text describes."""

from __future__ import annotations

import json
import sys
from io import BytesIO
from pathlib import Path
from typing import Annotated

import typer
from PIL import Image

from cli.terminal import ExitCode, fail, stderr, wants_json
from engine.interface import (
    GenerationText,
    ParametersInvalid,
    generation_text,
    image_texts,
    parse_parameters,
    read_infotext,
)

_BEGINNINGS = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG", b"RIFF": "WEBP"}

TextArgument = Annotated[
    Path | None,
    typer.Argument(
        help="A file with the text, or an image with embedded text. Default: standard input."
    ),
]


def infotext(text: TextArgument = None) -> None:
    """Print the diffusion request that a generation text describes, as JSON.

    Settings that are not part of the request are listed on standard error.
    """
    try:
        found = _text(text.read_bytes() if text else sys.stdin.buffer.read())
        read = read_infotext(found.text)
        parse_parameters(read.request)
    except ParametersInvalid as error:
        text_of = "; ".join(f"{each.field} {each.message}" for each in error.fields)
        fail(text_of, code=ExitCode.USAGE)
    except (OSError, ValueError) as error:
        fail(str(error), code=ExitCode.USAGE)
    if (left_out := {**found.left_out, **read.left_out}) and not wants_json():
        stderr.print(f"left out: {', '.join(left_out)}", markup=False)
    typer.echo(json.dumps(read.request, indent=2))


def _text(data: bytes) -> GenerationText:
    """Return the generation text of a text file or an image. Raises ValueError."""
    kind = next((kind for start, kind in _BEGINNINGS.items() if data.startswith(start)), None)
    if kind is None:
        return generation_text({"parameters": data.decode()})
    with Image.open(BytesIO(data), formats=[kind]) as image:
        found = generation_text(image_texts(image), image.size)
    if not found.text:
        raise ValueError("This image contains no generation text.")
    return found
