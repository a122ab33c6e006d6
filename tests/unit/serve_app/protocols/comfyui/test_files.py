"""`/view` and uploads: whose files they are, what names cannot reach, and the forms they take."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image

from tests.support.edge import Client, Edge
from tests.support.uploads import png as make_png
from tests.support.uploads import png_of
from tests.unit.serve_app.protocols.comfyui.conftest import ended, queue

NAME = "darkroom_00001_.png"


UNREACHABLE = [
    (NAME, "", "output"),
    (NAME, "{id}/..", "output"),
    (NAME, "../{id}", "output"),
    (f"../{NAME}", "{id}", "output"),
    ("../../../etc/passwd", "{id}", "output"),
    ("/etc/passwd", "", "output"),
    ("darkroom_00002_.png", "{id}", "output"),
    ("darkroom_1_.png", "{id}", "output"),
    ("darkroom_00001_.latent", "{id}", "output"),
    ("0.png", "{id}", "output"),
    ("", "{id}", "temp"),
    ("../../etc/passwd", "", "input"),
    ("..", "", "input"),
    ("\0", "", "input"),
    (NAME, "\ud7ff\0", "output"),
]


async def test_no_name_reaches_what_is_not_the_callers(edge: Edge, client: Client) -> None:
    id = await ended(edge, client)
    for name, subfolder, type in UNREACHABLE:
        params = {"filename": name, "subfolder": subfolder.format(id=id), "type": type}
        assert (await client.get("/view", params=params)).status_code in {400, 404}


FORMS = [
    ({"preview": "webp;50"}, "image/webp", "RGB"),
    ({"preview": "jpeg"}, "image/jpeg", "RGB"),
    ({"channel": "rgb"}, "image/png", "RGB"),
    ({"channel": "a"}, "image/png", "RGBA"),
]


async def test_a_picture_is_sent_in_the_form_that_is_asked_for(
    edge: Edge, client: Client, png: bytes
) -> None:
    id = await queue(client)
    await edge.run(id, data=png)
    for query, media_type, mode in FORMS:
        params = {"filename": NAME, "subfolder": id, **query}
        answer = await client.get("/view", params=params)
        assert answer.headers["content-type"] == media_type
        assert answer.headers["cache-control"].startswith("private")
        assert Image.open(io.BytesIO(answer.content)).mode == mode


async def test_a_mask_is_the_alpha_of_the_picture_that_it_was_drawn_on(
    client: Client, png: bytes
) -> None:
    await client.post("/upload/image", files={"image": ("a.png", png)})
    drawn = np.zeros((8, 8, 4), np.uint8)
    drawn[:4, :, 3] = 255
    form = {"image": ("clipspace-mask-1.png", png_of(drawn))}
    ref = {"original_ref": json.dumps({"filename": "a.png", "type": "input"})}
    answer = await client.post("/upload/mask", files=form, data=ref)
    assert answer.status_code == 200, answer.text
    params = {"filename": answer.json()["name"], "type": "input"}
    seen = np.asarray(Image.open(io.BytesIO((await client.get("/view", params=params)).content)))
    assert seen[0, 0].tolist() == [200, 200, 200, 255]
    assert seen[7, 7].tolist() == [200, 200, 200, 0]


REFERENCES = [
    ("", 400),
    ("[" * 10_000, 400),
    ('{"filename": 3}', 400),
    ('{"filename": "../a.png", "subfolder": "..", "type": []}', 404),
    ('{"filename": "b.png", "type": "input"}', 404),
]


async def test_a_mask_of_nothing_is_refused(client: Client, png: bytes) -> None:
    for ref, status in REFERENCES:
        form = {"image": ("m.png", png)}
        answer = await client.post("/upload/mask", files=form, data={"original_ref": ref})
        assert answer.status_code == status, answer.text


@pytest.mark.parametrize("form", ["webp", "jpeg"])
async def test_a_picture_too_long_for_a_form_is_sent_smaller(client: Client, form: str) -> None:
    wide = make_png(size=(70_000, 8))
    await client.post("/upload/image", files={"image": ("a.png", wide)})
    params = {"filename": "a.png", "type": "input", "preview": form}
    answer = await client.get("/view", params=params)
    assert answer.status_code == 200, answer.text
    assert 16_000 < Image.open(io.BytesIO(answer.content)).width < 70_000


async def test_texts_that_nobody_can_write_are_refused(client: Client, png: bytes) -> None:
    head = b"--x\r\nContent-Disposition: form-data; name="
    text = head + b'"subfolder"\r\n\r\n\\ud800 +2AA-\r\n'
    file = head + b'"image"; filename="a.png"\r\n\r\n' + png + b"\r\n--x--\r\n"
    for charset, status in (
        ("unicode_escape", 400),
        ("raw_unicode_escape", 400),
        ("a\0", 400),
        ("UTF-8", 200),
    ):
        headers = {"Content-Type": f"multipart/form-data; boundary=x; charset={charset}"}
        answer = await client.post("/upload/image", content=text + file, headers=headers)
        assert answer.status_code == status, answer.text
