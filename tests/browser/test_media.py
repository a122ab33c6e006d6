"""Videos, sounds and texts: the job has them from a stand-in for ComfyUI."""

from __future__ import annotations

import re
import sys

import httpx
from playwright.sync_api import Locator, expect

from tests.browser.test_accessibility import violations
from tests.browser.visitor import Visitor
from tests.support.comfyui.standin_server import FOLDER, graph, node
from tests.support.media import sound, video
from tests.support.service import Service

FILES = {"film.webm": video("webm", "libvpx-vp9", size=(640, 360)), "beep.wav": sound()}
TEXT = "A cat\non a <b>mat</b>."


def media_job(service: Service) -> str:
    """Return a job that has ended, with a video, a sound and a text."""
    install = {"comfyui_dir": str(FOLDER), "comfyui_python": sys.executable}
    endpoint = {"id": "media", "engine": "comfyui", "min_workers": 1, "gpus": 0, "cpus": 0.1}
    answer = service.http.post("/v1/endpoints", json=endpoint | install)
    assert answer.status_code in {httpx.codes.CREATED, httpx.codes.CONFLICT}, answer.text
    for name, content in FILES.items():
        answer = service.http.post("/v1/uploads", files={"image": (name, content)})
        assert answer.is_success, answer.text
    reads = [node("Read", image=name, filename_prefix=name) for name in FILES]
    nodes = graph(*reads, node("Note", text=TEXT))
    id = service.submit("workflow", {"prompt": nodes}, endpoint="media")
    assert service.ended(id, "workflow")["status"] == 1
    return id


def plays(media: Locator) -> float:
    """Play a video or a sound. Returns its duration in seconds."""
    duration: float = media.evaluate(
        "async each => { each.muted = true; await each.play(); return each.duration }"
    )
    return duration


def test_videos_and_sounds_are_played_and_texts_are_shown(
    signed_in: Visitor, service: Service, axe: str
) -> None:
    page = signed_in.page
    id = media_job(service)
    signed_in.open(f"#/job/{id}")
    film = page.locator("video[aria-label='Video 1']")
    expect(film).to_be_visible()
    assert film.get_attribute("width") == "640"
    poster = service.http.get(f"/{film.get_attribute('poster')}")
    assert (poster.status_code, poster.headers["content-type"]) == (200, "image/jpeg")
    for media in (film, page.locator("audio[aria-label='Sound 2']")):
        assert abs(plays(media) - 2) < 0.5
    expect(page.get_by_role("group", name="Text 3")).to_have_text(TEXT)
    expect(page.get_by_text("640 × 360 · 2.0 s")).to_be_visible()
    assert violations(page, axe) == []
    with page.expect_download() as download:
        page.get_by_role("link", name="Save video 1").click()
    assert re.fullmatch(r"[0-9a-f-]{36}-0\.webm", download.value.suggested_filename)

    signed_in.go("Gallery")
    thumbnail = page.locator(f"a[href='#/job/{id}'] img")
    expect(thumbnail).to_be_visible()
    size = thumbnail.evaluate("each => each.decode().then(() => each.naturalWidth)")
    assert size == 512
    assert violations(page, axe) == []
