"""ComfyUI's own page, unchanged, from Darkroom's origin: it loads, queues, shows and interrupts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.comfyui_page import comfyui_page, run, wait_for_picture
from tests.browser.visitor import JOB_MS
from tests.support.service import Service

pytestmark = pytest.mark.skipif(
    find_spec("comfyui_frontend_package") is None, reason="run this as `make browser`"
)

INTERRUPTED = "() => (window.comfyAPI?.api?.api ?? window.app.api).interrupt(null)"


def wait_until(check: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + JOB_MS / 1000
    while not check():
        assert time.monotonic() < give_up_at
        time.sleep(0.1)


@pytest.fixture
def page(browser: Browser, service: Service) -> Iterator[Page]:
    with comfyui_page(browser, service) as page:
        yield page


def test_the_page_makes_a_picture(page: Page, shapes_workflow: dict[str, Any]) -> None:
    run(page, shapes_workflow)
    wait_for_picture(page)


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
