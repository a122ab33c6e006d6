"""The pictures of the console and of ComfyUI's page for the docs.

`python -m tests.browser.screenshots <folder>`
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.comfyui_page import comfyui_page, run, show_all, wait_for_picture
from tests.browser.visitor import JOB_MS, Visitor, launch, visit
from tests.support.service import Service, diffusion

CHECKPOINT = "darkroom-shapes.safetensors"
PROMPTS = [
    f"a {size} {colour} {shape} on {ground}"
    for size, colour, shape, ground in (
        ("large", "red", "circle", "white"),
        ("small", "blue", "square", "yellow"),
        ("large", "green", "star", "black"),
        ("large", "yellow", "triangle", "purple"),
        ("small", "purple", "circle", "green"),
        ("large", "blue", "star", "white"),
        ("large", "white", "square", "red"),
        ("small", "green", "triangle", "white"),
        ("large", "purple", "star", "yellow"),
        ("large", "red", "square", "blue"),
    )
]
COLOURS = 256
WIDE, NARROW = {"width": 1280, "height": 860}, {"width": 390, "height": 844}


def body(prompt: str, seed: int) -> dict[str, Any]:
    sampling = {"steps": 20, "cfg_scale": 5, "sampler_name": "DPM++ 2M", "scheduler": "Karras"}
    count = {"seed": seed, "batch_size": 2 if seed % 4 == 0 else 1}
    return diffusion(prompt=prompt, sd_model_checkpoint=CHECKPOINT, **sampling, **count)


def save(visitor: Visitor, path: Path) -> None:
    visitor.page.mouse.move(0, 0)
    save_page(visitor.page, path)


def save_page(page: Page, path: Path) -> None:
    """Save a small PNG."""
    page.wait_for_timeout(400)
    page.screenshot(path=path, animations="disabled")
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def create(visitor: Visitor, folder: Path) -> None:
    page = visitor.page
    page.get_by_label("Checkpoint").select_option(CHECKPOINT)
    page.get_by_label("Pictures").fill("4")
    page.get_by_label("CFG scale").fill("5")
    visitor.generate("a (large:1.2) [red:blue:0.6] star on white", Steps="20")
    visitor.completed()
    visitor.pictures()
    visitor.page.evaluate("scrollTo(0, 0)")
    save(visitor, folder / "create.png")


def gallery(visitor: Visitor, path: Path) -> None:
    visitor.go("Gallery")
    expect(visitor.page.get_by_text(PROMPTS[-2])).to_be_visible(timeout=JOB_MS)
    visitor.page.wait_for_load_state("load")
    save(visitor, path)


def workflow(visitor: Visitor, folder: Path) -> None:
    graph = json.loads(Path("examples/workflow.json").read_text())
    graph["prompt"]["3"]["inputs"]["sampler_name"] = "dpmpp_9m"
    visitor.go("Workflow")
    visitor.page.get_by_label("Workflow as JSON").fill(json.dumps(graph, indent=2))
    visitor.page.locator(".node.wrong", has_text="KSampler").click()
    visitor.page.evaluate("scrollTo(0, 0)")
    save(visitor, folder / "error.png")


def job(visitor: Visitor, id: str, path: Path) -> None:
    visitor.open(f"#/job/{id}")
    visitor.pictures()
    save(visitor, path)


def comfyui(browser: Browser, service: Service, path: Path) -> None:
    with comfyui_page(browser, service) as page:
        run(page, json.loads(Path("examples/workflow.json").read_text()))
        wait_for_picture(page)
        show_all(page)
        page.wait_for_timeout(2000)  # it moves there, and says meanwhile that the job has ended
        save_page(page, path)


def take(browser: Browser, service: Service, folder: Path, ids: list[str]) -> None:
    with visit(browser, service.url, viewport=WIDE) as visitor:
        visitor.sign_in(service.admin_key)
        create(visitor, folder)
        workflow(visitor, folder)
        gallery(visitor, folder / "gallery.png")
    with visit(browser, service.url, viewport=WIDE, color_scheme="dark") as visitor:
        visitor.sign_in(service.admin_key)
        job(visitor, ids[4], folder / "job-dark.png")
    with visit(browser, service.url, viewport=NARROW) as visitor:
        visitor.sign_in(service.admin_key)
        gallery(visitor, folder / "narrow.png")
    comfyui(browser, service, folder / "comfyui.png")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as data,
        Service(Path(data) / "data") as service,
        sync_playwright() as playwright,
    ):
        ids = [
            service.submit("diffusion", body(prompt, seed)) for seed, prompt in enumerate(PROMPTS)
        ]
        for id in ids:
            service.ended(id)
        browser = launch(playwright)
        take(browser, service, folder, ids)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
