"""Somebody who uses the console: a page of a browser, and what must not happen on it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Page, Playwright, Request, expect

from tests.support.patience import FACTOR

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WAIT_MS = 30_000 * FACTOR
JOB_MS = 240_000 * FACTOR
"""A busy machine makes the model many times slower."""

expect.set_options(timeout=WAIT_MS)


def launch(playwright: Playwright) -> Browser:
    assert CHROMIUM is not None
    # Its own sandbox needs rights that containers do not give.
    return playwright.chromium.launch(
        executable_path=CHROMIUM, args=["--no-sandbox"], timeout=WAIT_MS
    )


@dataclass
class Visitor:
    page: Page
    url: str
    refusals: set[int] = field(default_factory=set)
    """Statuses that the service is meant to answer here."""
    is_service_taken_away: bool = False
    errors: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)

    def listen(self) -> None:
        self.page.set_default_timeout(WAIT_MS)
        self.page.on("console", self._note_message)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._note_request)

    def open(self, path: str = "") -> None:
        self.page.goto(f"{self.url}/{path}")

    def sign_in(self, key: str, path: str = "") -> None:
        self.open(path)
        self.page.get_by_label("API key").fill(key)
        self.page.get_by_role("button", name="Sign in").click()
        expect(self.page.get_by_role("navigation")).to_be_visible()

    def go(self, name: str) -> None:
        self.page.get_by_role("navigation").get_by_role("link", name=name, exact=True).click()
        expect(self.page.get_by_role("heading", name=name, level=1)).to_be_visible()

    def generate(self, prompt: str, **fields: str) -> None:
        """Submit the form at `Create`. `fields`: by their labels."""
        self.page.get_by_label("Prompt", exact=True).fill(prompt)
        for label, value in ({"Width": "64", "Height": "64", "Steps": "4"} | fields).items():
            self.page.get_by_label(label, exact=True).fill(value)
        self.page.get_by_role("button", name="Generate").click()

    def completed(self) -> None:
        badge = self.page.locator(".stage .badge")
        expect(badge).to_have_text("Completed", timeout=JOB_MS)

    def pictures(self) -> list[int]:
        """The natural widths of those of the job that is shown."""
        found = self.page.locator(".pictures .picture img")
        expect(found.first).to_be_visible()
        widths: list[int] = found.evaluate_all(
            "all => Promise.all(all.map(each => each.decode().then(() => each.naturalWidth)))"
        )
        return widths

    def require_clean(self) -> None:
        """Check that no other origin was called and the page had no error."""
        assert not self.elsewhere, self.elsewhere
        assert not self.errors, self.errors

    def _note_message(self, message: ConsoleMessage) -> None:
        if message.type not in {"error", "warning"}:
            return
        status = re.search(r"responded with a status of (\d+)", message.text)
        if status and int(status[1]) in self.refusals:
            return
        if self.is_service_taken_away and ("net::ERR_" in message.text or status):
            return
        self.errors.append(message.text)

    def _note_request(self, request: Request) -> None:
        if not request.url.startswith((f"{self.url}/", "data:", f"blob:{self.url}")):
            self.elsewhere.append(request.url)


@contextmanager
def visit(browser: Browser, url: str, **options: Any) -> Iterator[Visitor]:
    """`options`: those of Playwright's contexts."""
    context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
    try:
        visitor = Visitor(context.new_page(), url)
        visitor.listen()
        yield visitor
    finally:
        context.close()
