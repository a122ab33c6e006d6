"""`/view` and uploads: whose files they are, what names cannot reach, and the forms they take."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image

from tests.support.edge import Client, Edge
from tests.support.uploads import MKV, png_of
from tests.support.uploads import png as make_png
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


async def test_texts_of_an_upload_may_be_files(client: Client, png: bytes) -> None:
    texts = {"overwrite": "true", "subfolder": "pets", "type": "input"}
    files = {name: (name, text) for name, text in texts.items()}
    sent = {"image": ("a.png", png), **files, "workflow": ("w.json", b"{}")}
    answer = await client.post("/upload/image", files=sent)
    assert answer.json() == {"name": "a.png", "subfolder": "pets", "type": "input"}
    reference = {"original_ref": ("blob", json.dumps({"filename": "a.png", "type": "input"}))}
    answer = await client.post("/upload/mask", files={"image": ("m.png", png), **reference})
    assert answer.status_code == 200, answer.text


async def test_another_picture_of_the_same_name_gets_its_own_name(
    edge: Edge, client: Client, bob: Client
) -> None:
    """As in ComfyUI: two nodes that load the two names get the two pictures."""

    async def sent(colour: str, *, by: Client = client, **form: str) -> str:
        files = {"image": ("temp.png", make_png(colour))}
        answer = await by.post("/upload/image", files=files, data=form)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["name"])

    names = [await sent(each) for each in ("red", "blue", "blue", "red", "lime")]
    assert names == ["temp.png", "temp (1).png", "temp (1).png", "temp.png", "temp (2).png"]
    assert await sent("lime", by=bob) == "temp.png"
    prompt = {
        name: {"class_type": "LoadImage", "inputs": {"image": f"{name} [input]"}}
        for name in dict.fromkeys(names)
    }
    for name in [*prompt]:
        prompt[f"{name} shown"] = {"class_type": "PreviewImage", "inputs": {"images": [name, 0]}}
    job = await edge.job(await queue(client, prompt=prompt))
    files = job.submitted.input_files or {}
    assert files.keys() == {*names}
    assert len({each.digest for each in files.values()}) == 3
    for overwrite in ("true", "1"):
        assert await sent("black", overwrite=overwrite) == "temp.png"
    assert await sent("red", overwrite="false") == "temp (3).png"
    params = {"filename": "temp.png", "type": "input"}
    seen = await client.get("/view", params=params)
    assert Image.open(io.BytesIO(seen.content)).getpixel((0, 0)) == (0, 0, 0)


async def test_another_mask_of_the_same_name_gets_its_own_name(client: Client, png: bytes) -> None:
    await client.post("/upload/image", files={"image": ("a.png", png)})
    names = []
    for alpha in (0, 255, 0):
        drawn = np.full((8, 8, 4), alpha, np.uint8)
        form = {"image": ("mask.png", png_of(drawn))}
        ref = {"original_ref": json.dumps({"filename": "a.png", "type": "input"})}
        names.append((await client.post("/upload/mask", files=form, data=ref)).json()["name"])
    assert names == ["mask.png", "mask (1).png", "mask.png"]


REFERENCES = [
    ("", 400),
    ("[" * 10_000, 400),
    ('{"filename": 3}', 400),
    ('{"filename": "../a.png", "subfolder": "..", "type": []}', 404),
    ('{"filename": "b.png", "type": "input"}', 404),
]


async def test_a_video_is_uploaded_and_read_by_its_name(client: Client) -> None:
    answer = await client.post("/upload/image", files={"image": ("clip.webm", MKV)})
    assert answer.json() == {"name": "clip.webm", "subfolder": "", "type": "input"}
    for query in ({}, {"preview": "webp;50"}):
        params = {"filename": "clip.webm", "type": "input", **query}
        video = await client.get("/view", params=params)
        assert (video.content, video.headers["Content-Type"]) == (MKV, "video/webm")
    original = {"original_ref": json.dumps({"filename": "clip.webm", "type": "input"})}
    files = {"image": ("mask.png", make_png())}
    assert (await client.post("/upload/mask", files=files, data=original)).status_code == 400


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


@pytest.mark.parametrize("mark", [" [input]", " [output]", " [temp]", " [input] [output]"])
async def test_a_graph_gets_the_upload_of_the_answered_name(
    edge: Edge, client: Client, mark: str
) -> None:
    """A mark in the name of the sent file selects no other file than the answer names."""
    names = []
    for colour, name in (("red", "cat.png"), ("blue", f"cat.png{mark}")):
        files = {"image": (name, make_png(colour))}
        names.append((await client.post("/upload/image", files=files)).json()["name"])
    assert names == ["cat.png", "cat (1).png"]
    prompt = {
        "1": {"class_type": "LoadImage", "inputs": {"image": names[1]}},
        "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
    }
    job = await edge.job(await queue(client, prompt=prompt))
    assert [*(job.submitted.input_files or {})] == [names[1]]
