"""A gallery of 200 jobs: all of them by scrolling, each once, and found by a search."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.visitor import JOB_MS, Visitor
from tests.support.service import Service, diffusion

JOBS = 200
SOUGHT = "the needle"

pytestmark = pytest.mark.timeout(2400)


@pytest.fixture(scope="module")
def key(service: Service) -> str:
    """The key of an owner with 200 jobs; the test searches for the oldest."""
    made: str = service.http.post("/v1/keys", json={"owner": "erin"}).json()["key"]
    headers = {"Authorization": f"Bearer {made}"}
    ids = []
    for number in range(JOBS):
        prompt = SOUGHT if number == 0 else f"number {number}"
        body = diffusion(prompt=prompt, steps=1, seed=number)
        answer = service.http.post("/diffusion/v1/generate", json=body, headers=headers)
        ids.append(answer.raise_for_status().json()["request_id"])
    for id in ids:
        path = f"/v1/jobs/{id}/result"
        while service.http.get(path, params={"wait": 20}, headers=headers).json()["status"] == 0:
            pass
    return made


def test_all_are_there_once_however_far_one_scrolls(visitor: Visitor, key: str) -> None:
    visitor.sign_in(key, "#/gallery")
    tiles = visitor.page.locator(".tile")
    expect(tiles.first).to_be_visible()
    while (count := tiles.count()) < JOBS:
        visitor.page.mouse.wheel(0, 20_000)
        expect(tiles.nth(count)).to_be_attached(timeout=JOB_MS)
    addresses = tiles.evaluate_all("all => all.map((each) => each.href)")
    assert len(set(addresses)) == len(addresses) == JOBS


def test_the_oldest_is_found_by_its_prompt(visitor: Visitor, key: str) -> None:
    visitor.sign_in(key, "#/gallery")
    visitor.page.get_by_label("Search prompts, ids and messages").fill(SOUGHT)
    found = visitor.page.locator(".tile:visible")
    expect(found.filter(has_text=SOUGHT)).to_have_count(1, timeout=JOB_MS)
    expect(found).to_have_count(1)
