"""`darkroom infotext`: the request that a WebUI's generation text describes."""

from __future__ import annotations

import json
import sys
from io import BytesIO
from pathlib import Path
from typing import Annotated

import typer
from PIL import Image

from engine.errors import ParametersInvalid
from engine.webui.infotext.exif import read_user_comment
from engine.webui.infotext.reading import read_infotext
from engine.webui.parameters import parse_parameters
from serve_app.cli.exit_codes import ExitCode
from serve_app.cli.terminal import fail, stderr, wants_json

_BEGINNINGS = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG", b"RIFF": "WEBP"}

TextArgument = Annotated[
    Path | None,
    typer.Argument(
        help="A file with the text, or an image that has it; without one, standard input."
    ),
]


def infotext(text: TextArgument = None) -> None:
    """Print the diffusion request that a generation text describes, as JSON.

    Settings that have no part in a request are named on standard error.
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
    """Raises ValueError."""
    kind = next((kind for start, kind in _BEGINNINGS.items() if data.startswith(start)), None)
    if kind is None:
        return data.decode()
    with Image.open(BytesIO(data), formats=[kind]) as image:
        if kind == "PNG":
            text = getattr(image, "text", {}).get("parameters")
        else:
            text = read_user_comment(image)
    if text is None:
        raise ValueError("This image has no generation text.")
    return str(text)
