"""The console as it is served: all of it is there, is ours, and runs nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest

from tests.support.edge import Client
from tests.support.edge_services import URL

pytestmark = pytest.mark.edge(console=True)

STATIC = Path("serve_app/console/static")
MOST_BYTES = 300_000
MOST_LINES = 300
NAMED = re.compile(
    r'(?:src|href)="([^"#]+)"|^(?:import|export) .*from "([^"]+)";$|^import "([^"]+)";$'
)


def files() -> list[Path]:
    return sorted(path for path in STATIC.rglob("*") if path.is_file())


def named(text: str) -> Iterator[str]:
    for line in text.splitlines():
        for found in NAMED.finditer(line):
            yield next(filter(None, found.groups()))


async def loaded(anyone: Client) -> dict[str, httpx.Response]:
    """Everything that the page loads, by its URL."""
    answers: dict[str, httpx.Response] = {}
    wanted = [f"{URL}/"]
    while wanted:
        url = wanted.pop()
        if url in answers:
            continue
        assert url.startswith(f"{URL}/")
        answers[url] = await anyone.get(url)
        assert answers[url].status_code == 200, url
        wanted += [urljoin(url, each) for each in named(answers[url].text)]
    return answers


async def test_the_page_loads_every_file_and_nothing_else_and_is_small(anyone: Client) -> None:
    answers = await loaded(anyone)
    paths = {url.removeprefix(f"{URL}/").removeprefix("console/") for url in answers}
    assert paths - {""} == {str(path.relative_to(STATIC)) for path in files()} - {"index.html"}
    assert sum(len(each.content) for each in answers.values()) < MOST_BYTES


async def test_nothing_of_another_origin_and_no_script_of_another_place_runs(
    anyone: Client,
) -> None:
    answers = await loaded(anyone)
    for answer in answers.values():
        policy = answer.headers["Content-Security-Policy"]
        rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
        assert rules == {
            "default-src": "'none'",
            "script-src": "'self'",
            "style-src": "'self'",
            "img-src": "'self' blob: data:",
            "media-src": "'self'",
            "connect-src": "'self'",
            "frame-ancestors": "'none'",
            "base-uri": "'none'",
            "form-action": "'none'",
            "require-trusted-types-for": "'script'",
            "trusted-types": "'none'",
        }
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
    page = answers[f"{URL}/"].text
    assert not re.search(r"<script(?![^>]* src=)|<style|style=|\son\w+=", page)


async def test_it_is_sent_only_where_it_has_changed(anyone: Client) -> None:
    for path in ("/", "/console/app.js"):
        first = await anyone.get(path)
        again = await anyone.get(path, headers={"If-None-Match": f'"x", {first.headers["ETag"]}'})
        other = await anyone.get(path, headers={"If-None-Match": '"x"'})
        assert (first.status_code, again.status_code, other.status_code) == (200, 304, 200)
        assert (again.content, again.headers["ETag"]) == (b"", first.headers["ETag"])
        assert first.headers["Cache-Control"] == "no-cache"


@pytest.mark.edge(console=False)
async def test_a_setting_turns_it_off(anyone: Client) -> None:
    for path in ("/", "/console", "/console/", "/console/app.js"):
        assert (await anyone.get(path)).status_code == 404


@pytest.mark.edge(console=True, root_page="comfyui")
async def test_it_is_at_a_path_of_its_own_wherever_the_root_leads(anyone: Client) -> None:
    root, page, with_slash = [await anyone.get(path) for path in ("/", "/console", "/console/")]
    assert (root.status_code, root.headers["Location"]) == (307, "./comfy/")
    assert page.status_code == 200
    assert "console/app.js" in page.text
    assert (with_slash.status_code, with_slash.headers["Location"]) == (307, "../console")


@pytest.mark.parametrize(
    "path", ["/console/index.html", "/console/../app.js", "/console/%2e%2e/pages.py"]
)
async def test_there_is_nothing_beside_its_files(anyone: Client, path: str) -> None:
    assert (await anyone.get(path)).status_code == 404


def test_a_file_is_short_and_makes_no_html_of_texts() -> None:
    for path in files():
        text = path.read_text()
        assert text.count("\n") <= MOST_LINES, path
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text
        ), path
        elsewhere = re.findall(r"(?://|https?://)[a-z0-9.-]+\.[a-z]{2,}", text)
        assert {each.removeprefix("https:").removeprefix("http:") for each in elsewhere} <= {
            "//www.w3.org",  # a namespace, and a standard that a comment names
            "//html.spec.whatwg.org",
        }, path
