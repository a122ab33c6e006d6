"""How an image stands in a text, and what is no image."""

from base64 import b64encode

import pytest

from serve_app.acceptance.inline_images import InlineForm, decoded, inline_form
from serve_app.refusals import InvalidImage
from tests.support.uploads import png

DATA = png()
BASE64 = b64encode(DATA).decode()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"data:image/png;base64,{BASE64}", InlineForm.DATA_URL),
        ("DATA:text/html,hi", InlineForm.DATA_URL),
        (BASE64, InlineForm.BASE64),
        ("/9j/" + "A" * 60, InlineForm.BASE64),
        ("x" * 1025, InlineForm.BASE64),
        ("https://example.com/a.png", InlineForm.URL),
        ("HTTP://example.com/a.png", InlineForm.URL),
        ("cat.png", None),
        ("", None),
        ("iVBORw0KGgo", None),
        ("iVBORw0KGgo" + "A" * 60 + ".png", None),
        ("https.png", None),
        ("database.png", None),
        ("file:///etc/passwd", None),
        ("x" * 255, None),
    ],
)
def test_a_name_is_told_from_an_image(text: str, expected: InlineForm | None) -> None:
    assert inline_form(text) is expected


@pytest.mark.parametrize(
    "text",
    [
        BASE64,
        BASE64.rstrip("="),
        "\n".join(BASE64[at : at + 76] for at in range(0, len(BASE64), 76)),
        f"data:image/png;base64,{BASE64}",
        f"data:IMAGE/JPEG;charset=utf-8;BASE64,{BASE64}",
        f"data:application/octet-stream;base64,{BASE64}",
    ],
)
def test_the_bytes_come_back(text: str) -> None:
    assert decoded(text, max_bytes=len(DATA)) == DATA


def test_a_long_one_is_decoded_in_parts() -> None:
    data = bytes(range(256)) * 13_001
    assert decoded(b64encode(data).decode(), max_bytes=len(data)) == data


@pytest.mark.parametrize(
    "text",
    [
        "data:image/svg+xml;base64,PHN2Zy8+",
        "data:text/html;base64,PGI+",
        "data:;base64,AAAA",
        "data:image/png,AAAA",
        "data:image/png;base64",
        "data:" + ";x" * 500 + ";base64,AAAA",
        "data:image/png;base64," + "A" * 400,
        "A" * 400,
        "é" * 2000,
        "!" * 2000,
        "A" * 2001 + "=A",
        BASE64[:40] + "=" + BASE64[40:],
    ],
)
def test_what_is_no_image_or_too_large_is_refused(text: str) -> None:
    with pytest.raises(InvalidImage):
        decoded(text, max_bytes=256 if "=" not in text[:-2] or len(text) < 1000 else 4096)
