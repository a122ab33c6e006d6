"""ComfyUI's own page, as its user sees it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page

from tests.browser.visitor import JOB_MS, WAIT_MS
from tests.support.service import Service

_APP = "(window.comfyAPI?.app?.app ?? window.app)"
_LOADED = f"() => {_APP}?.graph?.nodes?.length > 3"
_BUILT = f"async prompt => {{ await {_APP}.loadApiJson(prompt, 'shapes'); }}"
_SHOWN = "() => document.querySelector('img[src*=\"/view?\"]')?.naturalWidth === 64"


@contextmanager
def comfyui_page(browser: Browser, service: Service) -> Generator[Page]:
    """ComfyUI's page for a visitor who enters the key as the password."""
    credentials = {"username": "anyone", "password": service.admin_key}
    context = browser.new_context(
        http_credentials=credentials, viewport={"width": 1400, "height": 900}
    )
    answered: list[str] = []
    try:
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("response", lambda answer: answered.append(answer.url))
        page.goto(f"{service.url}/comfy/")
        page.wait_for_function(_LOADED)
        yield page
    finally:
        context.close()
    own = (service.url, "data:", "blob:")
    assert [url for url in answered if not url.startswith(own)] == []


def run(page: Page, workflow: dict[str, Any], **sampling: object) -> None:
    """Queue the graph that the page builds of a workflow."""
    prompt = {
        id: {**node, "_meta": {"title": node["class_type"]}}
        for id, node in workflow["prompt"].items()
    }
    prompt["3"]["inputs"] |= sampling
    page.keyboard.press("Escape")
    page.evaluate(_BUILT, prompt)
    page.get_by_test_id("queue-button").click()


def show_all(page: Page) -> None:
    """The whole graph, as the key of the page for it does."""
    page.mouse.click(300, 750)
    page.keyboard.press(".")


def wait_for_picture(page: Page) -> None:
    """Wait for the image of 64 pixels at its node."""
    page.wait_for_function(_SHOWN, timeout=JOB_MS)
