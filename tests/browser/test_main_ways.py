"""The main tasks of visitors: an image by the form, one by a workflow, and earlier images."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from playwright.sync_api import expect

from tests.browser.visitor import JOB_MS, Visitor
from tests.support.service import CHECKPOINT, Service, diffusion

PAGE_BYTES = 300_000
"""The bytes that a first visit may load, including answers of the API."""


def test_the_page_is_small(signed_in: Visitor) -> None:
    sizes = signed_in.page.evaluate(
        "performance.getEntries().map((each) => each.transferSize ?? 0).filter((size) => size > 0)"
    )
    assert len(sizes) > 5
    assert sum(sizes) < PAGE_BYTES


def test_a_picture_develops_and_is_found_again(signed_in: Visitor) -> None:
    page = signed_in.page
    page.get_by_label("Checkpoint").select_option(CHECKPOINT)
    page.get_by_label("Pictures").fill("2")
    signed_in.generate("a (large:1.2) red circle")
    expect(page.get_by_role("progressbar")).to_be_visible()
    signed_in.completed()
    assert signed_in.pictures() == [64, 64]

    page.get_by_role("link", name="Open the job").click()
    expect(page.get_by_role("heading", name="a (large:1.2) red circle")).to_be_visible()
    expect(page.get_by_role("listitem").filter(has_text="Completed with 2 results")).to_be_visible()
    assert signed_in.pictures() == [64, 64]
    with page.expect_download() as download:
        page.get_by_role("link", name="Save picture 1").click()
    assert re.fullmatch(r"[0-9a-f-]{36}-0\.png", download.value.suggested_filename)

    signed_in.go("Gallery")
    tile = page.get_by_role("link", name=re.compile(r"a \(large:1\.2\) red circle completed"))
    expect(tile).to_be_visible()


def test_a_job_is_run_again_with_a_change_and_erased(signed_in: Visitor, service: Service) -> None:
    page = signed_in.page
    id = service.submit("diffusion", diffusion(prompt="to be run again", seed=11))
    service.ended(id)
    signed_in.open(f"#/job/{id}")
    page.get_by_role("button", name="Run again with a change").click()
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("to be run again")
    expect(page.get_by_label("Seed", exact=True)).to_have_value("11")
    page.get_by_label("Seed", exact=True).fill("12")
    page.get_by_role("button", name="Generate").click()
    signed_in.completed()
    assert re.search("seed 12", page.locator(".pictures figcaption").inner_text())

    page.get_by_role("link", name="Open the job").click()
    page.get_by_role("button", name="Erase").click()
    page.get_by_role("dialog").get_by_role("button", name="Erase").click()
    expect(page.get_by_role("heading", name="Gallery")).to_be_visible()


def test_a_workflow_is_looked_at_changed_and_run(
    signed_in: Visitor, shapes_workflow: dict[str, Any]
) -> None:
    page = signed_in.page
    signed_in.go("Workflow")
    page.get_by_label("Workflow as JSON").fill(json.dumps(shapes_workflow))
    expect(page.locator(".graph .node")).to_have_count(7)
    expect(page.locator(".cost")).to_contain_text("megapixel-steps")
    page.get_by_role("button", name=re.compile("^KSampler.*#3")).focus()
    page.keyboard.press("Enter")
    steps = page.get_by_label("steps")
    expect(steps).to_have_value("20")
    steps.fill("3")
    steps.press("Tab")
    expect(page.get_by_label("Workflow as JSON")).to_have_value(re.compile('"steps": 3'))
    page.get_by_role("button", name="Run", exact=True).click()
    signed_in.completed()
    assert signed_in.pictures() == [64]


def png_of(service: Service, prompt: str) -> bytes:
    result = service.ended(service.submit("diffusion", diffusion(prompt=prompt)))
    return service.http.get(result["results"][0]["url"]).content


def test_a_png_that_carries_its_graph_is_dropped(signed_in: Visitor, service: Service) -> None:
    page = signed_in.page
    signed_in.go("Workflow")
    given = {"png": base64.b64encode(png_of(service, "carried")).decode()}
    transfer = page.evaluate_handle(
        """({png}) => {
            const bytes = Uint8Array.from(atob(png), (each) => each.charCodeAt(0));
            const transfer = new DataTransfer();
            transfer.items.add(new File([bytes], "made.png", {type: "image/png"}));
            return transfer;
        }""",
        given,
    )
    page.locator(".drop").first.dispatch_event("drop", {"dataTransfer": transfer})
    expect(page.get_by_label("Workflow as JSON")).to_have_value(re.compile("carried"))
    expect(page.locator(".graph .node").first).to_be_visible()


def test_an_input_image_is_uploaded_and_used(signed_in: Visitor, service: Service) -> None:
    page = signed_in.page
    graph = {
        "1": {"class_type": "LoadImage", "inputs": {"image": "none.png"}},
        "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
    }
    signed_in.refusals.add(400)
    signed_in.go("Workflow")
    page.get_by_label("Workflow as JSON").fill(json.dumps(graph))
    expect(page.locator(".node.wrong", has_text="LoadImage")).to_be_visible()
    png = png_of(service, "a circle")
    image = {"name": "mine.png", "mimeType": "image/png", "buffer": png}
    page.get_by_label("or drop images, videos or audio files here").set_input_files([image])
    page.get_by_role("button", name="Use").click()
    page.get_by_role("button", name="Run", exact=True).click()
    signed_in.completed()
    assert signed_in.pictures() == [64]


def test_a_long_job_is_previewed_and_cancelled(signed_in: Visitor) -> None:
    page = signed_in.page
    page.get_by_label("Checkpoint").select_option(CHECKPOINT)
    page.get_by_label("Pictures").fill("2")
    signed_in.generate("a long one", Width="512", Height="512", Steps="150")
    said = page.locator(".said")
    # Each image has a different sampler.
    expect(said).to_contain_text(re.compile(r"Step \d+ of 300 for 2 pictures"), timeout=JOB_MS)
    expect(page.get_by_role("img", name="The picture so far")).to_be_visible(timeout=JOB_MS)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".stage .badge")).to_have_text("Cancelled", timeout=JOB_MS)


def test_an_administrator_sees_endpoints_keys_and_use(signed_in: Visitor) -> None:
    page = signed_in.page
    signed_in.go("Endpoints")
    expect(page.get_by_role("region", name="Endpoint default")).to_contain_text("Warm models")
    signed_in.go("Use")
    expect(page.get_by_text("Jobs that wait or run")).to_be_visible()
    signed_in.go("Keys")
    page.get_by_role("button", name="New key").click()
    page.get_by_label("Owner", exact=True).fill("carol")
    page.get_by_role("button", name="Make the key").click()
    expect(page.locator(".secret").first).to_have_text(re.compile("^dk_"))
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Revoke carol").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("row").filter(has_text="carol")).to_contain_text("revoked")
