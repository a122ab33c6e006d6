"""Accessibility: axe-core's rules on every page, and all of it without a mouse."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.visitor import Visitor, visit
from tests.support.service import CHECKPOINT, Service, diffusion, workflow

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PAGES = {
    "create": ".cost:not(:empty)",
    "workflow": "textarea.code",
    "workflows": "tbody td:nth-child(2):not(:empty)",
    "workflows/seen": "textarea",
    "gallery": ".tile img",
    "endpoints": "section[aria-label^=Endpoint]",
    "keys": "tbody tr",
    "use": "meter",
}
"""Each page with an element that exists only there, once all its data is loaded."""


def violations(page: Page, axe: str) -> list[str]:
    """Return each broken rule with its place. The page's policy does not apply to this script."""
    page.evaluate(axe)
    found: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']}: {node['target']} {node.get('failureSummary')}"
        for each in found["violations"]
        for node in each["nodes"]
    ]


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_breaks_a_rule(
    browser: Browser, service: Service, axe: str, scheme: str, width: int
) -> None:
    id = service.submit("diffusion", diffusion())
    service.ended(id)
    # The other runs of this test have the same service, so a 409 is expected in them.
    seen = {"name": "seen", "prompt": workflow()["prompt"], "description": "A picture"}
    assert service.http.post("/v1/workflows", json=seen).status_code in {201, 409}
    size = {"width": width, "height": 850}
    # Disable motion, because a colour during a transition has an accidental contrast.
    options = {"color_scheme": scheme, "viewport": size, "reduced_motion": "reduce"}
    with visit(browser, service.url, **options) as visitor:
        page = visitor.page
        visitor.open()
        expect(page.get_by_label("API key")).to_be_visible()
        broken = violations(page, axe)
        visitor.sign_in(service.admin_key)
        for name, shown in (PAGES | {f"job/{id}": ".stage .picture img"}).items():
            visitor.open(f"#/{name}")
            expect(page.locator(shown).first).to_be_visible()
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            broken += [f"{name}: {each}" for each in violations(page, axe)]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert broken == []


def test_a_graph_with_an_error_and_a_dialog_break_no_rule(signed_in: Visitor, axe: str) -> None:
    signed_in.refusals.add(400)
    page = signed_in.page
    page.emulate_media(reduced_motion="reduce")
    signed_in.go("Workflow")
    graph = workflow()
    graph["prompt"]["3"]["inputs"]["steps"] = -1
    page.get_by_label("Workflow as JSON").fill(json.dumps(graph))
    page.locator(".node.wrong", has_text="KSampler").click()
    assert violations(page, axe) == []
    signed_in.go("Keys")
    page.get_by_role("button", name="New key").click()
    assert violations(page, axe) == []


def test_a_picture_is_made_by_the_keyboard_alone(visitor: Visitor, service: Service) -> None:
    page, keyboard = visitor.page, visitor.page.keyboard
    visitor.open()
    expect(page.get_by_label("API key")).to_be_visible()
    focus_by_tab(page, "API key")
    keyboard.type(service.admin_key)
    keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Create")).to_be_visible()
    focus_by_tab(page, "Prompt")
    keyboard.type("a blue square")
    focus_by_tab(page, "Checkpoint")
    keyboard.type(CHECKPOINT)
    focus_by_tab(page, "Steps")
    keyboard.press("Control+A")
    keyboard.type("3")
    keyboard.press("Control+Enter")
    visitor.completed()


def focus_by_tab(page: Page, label: str) -> None:
    """Press Tab until the control of that name has the focus."""
    for _ in range(60):
        page.keyboard.press("Tab")
        name = page.evaluate("document.activeElement.labels?.[0]?.textContent")
        if name == label:
            return
    raise AssertionError(f"Tab never comes to {label}")
