"""ComfyUI's own page, unchanged, from Darkroom's origin: it loads, queues, shows and interrupts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.visitor import JOB_MS, WAIT_MS
from tests.support.service import Service

pytestmark = pytest.mark.skipif(
    find_spec("comfyui_frontend_package") is None, reason="run this as `make browser`"
)

APP = "(window.comfyAPI?.app?.app ?? window.app)"
LOADED = f"() => {APP}?.graph?.nodes?.length > 3"
BUILT = f"async prompt => {{ await {APP}.loadApiJson(prompt, 'shapes'); }}"
SHOWN = "() => document.querySelector('img[src*=\"/view?\"]')?.naturalWidth === 64"
INTERRUPTED = "() => (window.comfyAPI?.api?.api ?? window.app.api).interrupt(null)"


def wait_until(check: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + JOB_MS / 1000
    while not check():
        assert time.monotonic() < give_up_at
        time.sleep(0.1)


@pytest.fixture
def page(browser: Browser, service: Service) -> Iterator[Page]:
    """Of somebody who answers the browser's question for a password with the key."""
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
        page.wait_for_function(LOADED)
        yield page
    finally:
        context.close()
    own = (service.url, "data:", "blob:")
    assert [url for url in answered if not url.startswith(own)] == []


def run(page: Page, workflow: dict[str, Any], **sampling: object) -> None:
    """Queue the graph that the page builds of a workflow."""
    prompt = {id: {**node, "_meta": {"title": id}} for id, node in workflow["prompt"].items()}
    prompt["3"]["inputs"] |= sampling
    page.keyboard.press("Escape")
    page.evaluate(BUILT, prompt)
    page.get_by_test_id("queue-button").click()


def test_the_page_makes_a_picture(page: Page, shapes_workflow: dict[str, Any]) -> None:
    run(page, shapes_workflow)
    page.wait_for_function(SHOWN, timeout=JOB_MS)


def test_the_page_interrupts_what_runs(
    page: Page, service: Service, shapes_workflow: dict[str, Any]
) -> None:
    run(page, shapes_workflow, steps=400)

    def newest() -> dict[str, Any]:
        jobs: list[dict[str, Any]] = service.http.get("/v1/jobs").json()["jobs"]
        return jobs[0]

    wait_until(lambda: newest()["state"] == "running")
    page.evaluate(INTERRUPTED)
    wait_until(lambda: newest()["state"] == "cancelled")
