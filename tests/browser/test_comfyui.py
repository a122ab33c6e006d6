"""ComfyUI's own page, unchanged, from Darkroom's origin: it loads, queues, shows and interrupts."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.visitor import JOB_MS, WAIT_MS
from tests.support.service import CHECKPOINT, Service

pytestmark = pytest.mark.skipif(
    find_spec("comfyui_frontend_package") is None, reason="run this as `make browser`"
)

APP = "(window.comfyAPI?.app?.app ?? window.app)"
LOADED = f"() => {APP}?.graph?.nodes?.length > 3"
FITTED = f"""values => {{
    for (const node of {APP}.graph.nodes)
        for (const widget of node.widgets ?? [])
            if (widget.name in values) widget.value = values[widget.name];
}}"""
PICTURES = (
    f"() => {APP}.graph.nodes.flatMap(node => node.imgs ?? []).map(each => each.naturalWidth)"
)


@pytest.fixture
def page(browser: Browser, service: Service) -> Iterator[Page]:
    """Somebody who answers the browser's question for a password with the key."""
    credentials = {"username": "anyone", "password": service.admin_key}
    context = browser.new_context(
        http_credentials=credentials, viewport={"width": 1400, "height": 900}
    )
    elsewhere: list[str] = []
    try:
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("response", lambda answer: elsewhere.append(answer.url))
        page.goto(f"{service.url}/comfy/")
        page.wait_for_function(LOADED)
        yield page
        assert {
            url for url in elsewhere if not url.startswith((service.url, "data:", "blob:"))
        } == set()
    finally:
        context.close()


def run(page: Page, **values: object) -> None:
    """Queue the graph that the page shows, with these values of its widgets."""
    page.keyboard.press("Escape")
    page.evaluate(FITTED, {"ckpt_name": CHECKPOINT, "width": 64, "height": 64, **values})
    page.get_by_test_id("queue-button").click()


def test_its_own_graph_makes_a_picture(page: Page, tmp_path: Path) -> None:
    told: list[str] = []
    page.on("websocket", lambda socket: socket.on("framereceived", told.append))
    run(page, steps=12)
    page.wait_for_function(f"{PICTURES}().length > 0".replace("() =>", "(() =>", 1), timeout=JOB_MS)
    assert page.evaluate(PICTURES) == [64]


def test_a_run_is_interrupted(page: Page, service: Service) -> None:
    run(page, steps=5000, width=256, height=256)
    page.wait_for_function("() => document.title.includes('%')", timeout=JOB_MS)
    page.evaluate("() => (window.comfyAPI?.api?.api ?? window.app.api).interrupt(null)")
    page.wait_for_function("() => !document.title.includes('%')", timeout=JOB_MS)
    [newest, *_] = service.http.get("/v1/jobs").json()["jobs"]
    assert newest["state"] == "cancelled"
