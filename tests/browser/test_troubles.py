"""How the page shows problems: wrong keys, refusals, hostile texts, an unavailable service."""

from __future__ import annotations

import json
import re
import time

from playwright.sync_api import expect

from tests.browser.visitor import JOB_MS, WAIT_MS, Visitor
from tests.support.service import CHECKPOINT, Service, diffusion, workflow

ATTACK = '<img src=x onerror="document.title=1"><script>document.title=1</script>'


def test_a_wrong_key_is_told_and_kept_nowhere(visitor: Visitor) -> None:
    visitor.refusals.add(401)
    visitor.open()
    visitor.page.get_by_label("API key").fill("dk_wrong")
    visitor.page.get_by_role("button", name="Sign in").click()
    expect(visitor.page.get_by_text("This key is not known")).to_be_visible()
    assert visitor.page.evaluate("[sessionStorage.length, localStorage.length]") == [0, 0]


def test_a_key_is_of_its_tab_alone(signed_in: Visitor) -> None:
    page = signed_in.page
    page.reload()
    expect(page.get_by_role("navigation")).to_be_visible()
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    other = page.context.new_page()
    other.goto(signed_in.url)
    expect(other.get_by_label("API key")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("API key")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


def test_a_key_that_is_revoked_signs_out(visitor: Visitor, service: Service) -> None:
    visitor.refusals.add(401)
    made = service.http.post("/v1/keys", json={"owner": "dora"}).json()
    visitor.sign_in(made["key"])
    names = visitor.page.get_by_role("navigation").get_by_role("link").all_inner_texts()
    assert names == ["Create", "Workflow", "Named workflows", "Gallery", "Use"]
    service.http.delete(f"/v1/keys/{made['id']}").raise_for_status()
    told = visitor.page.get_by_text("The key is no longer valid")
    give_up_at = time.monotonic() + WAIT_MS / 1000
    while not told.is_visible() and time.monotonic() < give_up_at:  # the key is remembered a while
        visitor.page.evaluate("dispatchEvent(new Event('hashchange'))")
        visitor.page.wait_for_timeout(250)
    expect(told).to_be_visible()


def test_a_refused_workflow_is_told_at_its_node(signed_in: Visitor) -> None:
    page = signed_in.page
    signed_in.refusals.add(400)
    signed_in.go("Workflow")
    graph = workflow()
    graph["prompt"]["3"]["inputs"]["sampler_name"] = "no such"
    page.get_by_label("Workflow as JSON").fill(json.dumps(graph))
    wrong = page.locator(".node.wrong", has_text="KSampler")
    expect(wrong).to_be_visible()
    wrong.click()
    expect(page.locator(".card .problem")).to_contain_text("no such")
    page.get_by_label("sampler_name").select_option("euler")
    expect(page.locator(".cost")).to_contain_text("megapixel-steps")
    page.get_by_label("Workflow as JSON").fill("{")
    expect(page.get_by_role("alert")).to_contain_text("This is not JSON")


def test_a_refused_field_is_told_at_the_field(signed_in: Visitor) -> None:
    page = signed_in.page
    signed_in.refusals.add(400)
    signed_in.generate("x", Steps="0")
    expect(page.get_by_label("Steps", exact=True)).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("Steps", exact=True)).to_be_focused()


def test_texts_of_callers_are_no_html(signed_in: Visitor, service: Service) -> None:
    page = signed_in.page
    id = service.submit("diffusion", diffusion(prompt=ATTACK))
    service.ended(id)
    signed_in.open(f"#/job/{id}")
    expect(page.get_by_role("heading", level=1)).to_contain_text("<img src=x")
    page.get_by_role("button", name="Run again with a change").click()
    expect(page.get_by_label("Prompt", exact=True)).to_have_value(ATTACK)
    signed_in.go("Gallery")
    expect(page.get_by_text("<img src=x").first).to_be_visible()
    assert page.title() != "1"
    assert page.locator("img[src=x]").count() == 0


def test_an_unknown_job_is_told(signed_in: Visitor) -> None:
    signed_in.refusals.add(404)
    signed_in.open("#/job/0199a1b2-0000-7000-8000-000000000000")
    expect(signed_in.page.get_by_role("alert")).to_contain_text("There is nothing here")


def test_it_goes_on_when_the_service_was_away(signed_in: Visitor, service: Service) -> None:
    page = signed_in.page
    page.get_by_label("Checkpoint").select_option(CHECKPOINT)
    page.get_by_label("Pictures").fill("2")
    # One that no machine has done before the service is gone, and that none needs to do again.
    signed_in.generate("it survives", Width="512", Height="512", Steps="150")
    expect(page.locator(".said")).to_contain_text(re.compile(r"Step \d+"), timeout=JOB_MS)
    signed_in.is_service_taken_away = True
    service.stop()
    banner = page.get_by_text("The service does not answer. Trying again")
    expect(banner).to_be_visible(timeout=WAIT_MS)
    service.start()
    expect(banner).to_be_hidden(timeout=WAIT_MS)
    badge, give_up_at = page.locator(".stage .badge"), time.monotonic() + JOB_MS / 1000
    while badge.inner_text() != "Cancelled" and time.monotonic() < give_up_at:
        # Not once alone: a replica that has just begun may still be on its way to the log.
        page.evaluate("document.querySelector('.watch .actions button:enabled')?.click()")
        page.wait_for_timeout(250)
    expect(badge).to_have_text("Cancelled")
