"""Named workflows in the console: kept from a graph, run, changed, marked and deleted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from playwright.sync_api import expect

from tests.browser.test_accessibility import violations
from tests.browser.visitor import Visitor
from tests.support.service import CHECKPOINT, Service, workflow
from tests.support.uploads import png

if TYPE_CHECKING:
    from playwright.sync_api import Page


def store(service: Service, name: str, prompt: dict[str, Any], **members: Any) -> None:
    body = {"name": name, "prompt": prompt} | members
    assert service.http.post("/v1/workflows", json=body).status_code == 201


def shows(page: Page, heading: str) -> None:
    expect(page.get_by_role("heading", name=heading, level=1)).to_be_visible()


def test_a_graph_is_kept_run_and_run_again(signed_in: Visitor, service: Service, axe: str) -> None:
    page = signed_in.page
    page.emulate_media(reduced_motion="reduce")
    signed_in.refusals.add(400)
    signed_in.go("Workflow")
    page.get_by_label("Workflow as JSON").fill(json.dumps(workflow(steps=4)))
    page.get_by_role("button", name="Keep as named workflow").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("no name")
    dialog.get_by_role("button", name="Keep").click()
    expect(dialog.get_by_label("Name")).to_have_attribute("aria-invalid", "true")
    assert violations(page, axe) == []
    dialog.get_by_label("Name").fill("kept")
    dialog.get_by_label("Description").fill("A small picture")
    dialog.get_by_role("button", name="Keep").click()

    shows(page, "kept@1")
    steps = page.get_by_label("steps", exact=True)
    expect(steps).to_have_value("4")
    expect(page.get_by_label("seed", exact=True)).to_have_value("-1")
    expect(page.locator("textarea")).to_have_count(2)
    expect(page.get_by_role("combobox", name="checkpoint")).to_have_value(CHECKPOINT)
    steps.fill("0")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(steps).to_have_attribute("aria-invalid", "true")
    expect(steps).to_have_accessible_description("must be at least 1")
    assert violations(page, axe) == []
    steps.fill("3")
    page.get_by_label("prompt", exact=True).fill("a green star")
    page.get_by_role("button", name="Run", exact=True).click()
    signed_in.completed()
    assert signed_in.pictures() == [64]


def test_a_job_is_run_again_with_the_newest_version(signed_in: Visitor, service: Service) -> None:
    page = signed_in.page
    store(service, "again", workflow()["prompt"])
    inputs = {"prompt": "a green star", "steps": 2}
    job = service.http.post("/v1/workflows/again/generate", json={"inputs": inputs}).json()
    changes = {"description": "Another version"}
    assert service.http.patch("/v1/workflows/again", json=changes).is_success
    signed_in.open(f"#/job/{job['request_id']}")
    shows(page, "again@1")
    parameters = page.get_by_role("region", name="Parameters")
    expect(parameters).to_contain_text("a green star")
    page.get_by_role("button", name="Run again with the newest version").click()
    shows(page, "again@2")
    expect(parameters).to_contain_text("a green star")
    signed_in.completed()
    parameters.get_by_role("link", name="again@2").click()
    expect(page.get_by_role("button", name="Choose inputs")).to_be_visible()


def test_inputs_are_chosen_and_versions_marked_and_deleted(
    signed_in: Visitor, service: Service
) -> None:
    page = signed_in.page
    signed_in.refusals.add(409)
    store(service, "changed", workflow()["prompt"], description="A picture")
    signed_in.go("Named workflows")
    row = page.get_by_role("row").filter(has_text="changed")
    expect(row).to_contain_text("A picture")
    row.get_by_role("link", name="changed").click()
    page.get_by_role("button", name="Choose inputs").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Keep width").uncheck()
    dialog.get_by_label("Name of prompt").fill("height")
    dialog.get_by_role("button", name="Store a new version").click()
    expect(dialog.locator(".wrong:not([hidden])")).to_have_text("Another input has this name.")
    dialog.get_by_label("Name of prompt").fill("subject")
    dialog.get_by_role("button", name="Store a new version").click()
    shows(page, "changed@2")
    expect(page.get_by_label("subject", exact=True)).to_be_visible()
    expect(page.get_by_label("width", exact=True)).to_have_count(0)

    page.get_by_role("button", name="Mark version 1").click()
    expect(page.get_by_text("The name alone means version 1, which is marked.")).to_be_visible()
    page.get_by_role("link", name="Version 1").click()
    shows(page, "changed@1")
    expect(page.get_by_role("button", name="Choose inputs")).to_have_count(0)
    signed_in.go("Named workflows")
    expect(row).to_contain_text("1 of 2, marked")
    row.get_by_role("link", name="changed").click()
    shows(page, "changed@1")
    page.get_by_role("button", name="Change the graph").click()
    page.get_by_role("button", name="Keep as named workflow").click()
    dialog.get_by_label("Name").fill("changed")
    dialog.get_by_role("button", name="Keep").click()
    page.get_by_role("button", name="Store", exact=True).click()
    shows(page, "changed@3")
    page.get_by_role("button", name="Delete").click()
    dialog.get_by_role("button", name="Delete").click()
    shows(page, "Named workflows")
    expect(row).to_have_count(0)


def test_an_input_image_is_uploaded(signed_in: Visitor, service: Service) -> None:
    page = signed_in.page
    first = {"image": ("first.png", png(size=(8, 8)), "image/png")}
    assert service.http.post("/v1/uploads", files=first).is_success
    second = {"name": "second.png", "mimeType": "image/png", "buffer": png(size=(24, 8))}
    graph = {
        "1": {"class_type": "LoadImage", "inputs": {"image": "first.png"}},
        "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
    }
    store(service, "copied", graph)
    signed_in.open("#/workflows/copied")
    file_name = page.get_by_label("image", exact=True)
    expect(file_name).to_have_value("first.png")
    page.get_by_label("or drop the file of image here").set_input_files([second])
    expect(file_name).to_have_value("second.png")
    page.get_by_role("button", name="Run", exact=True).click()
    signed_in.completed()
    assert signed_in.pictures() == [24]
    # Other tests expect that the list of uploads has only their own.
    for name in ("first.png", "second.png"):
        assert service.http.delete(f"/v1/uploads/{name}").is_success
