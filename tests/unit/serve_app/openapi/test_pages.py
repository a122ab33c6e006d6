"""The page that tries the API out: all of it comes from us, and a setting turns it off."""

from __future__ import annotations

import re
from urllib.parse import urljoin

import httpx
import pytest

from tests.support.edge import Client
from tests.support.edge_services import URL


async def test_everything_that_the_page_loads_is_ours_and_there(anyone: Client) -> None:
    page = await anyone.get("/docs")
    assert page.status_code == 200
    named = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(named) == 4
    for each in (*named, "openapi.json"):
        url = urljoin(f"{URL}/docs", each)
        assert url.startswith(URL)
        found: httpx.Response = await anyone.get(url)
        assert found.status_code == 200
    assert "<script>" not in page.text


async def test_the_page_runs_no_other_script(anyone: Client) -> None:
    policy = (await anyone.get("/docs")).headers["Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["connect-src"] == "'self'"
    assert rules["frame-ancestors"] == "'none'"


@pytest.mark.edge(docs=False)
async def test_a_setting_turns_it_off(anyone: Client) -> None:
    for path in ("/docs", "/docs/start.js", "/openapi.json", "/redoc"):
        assert (await anyone.get(path)).status_code == 404


async def test_a_slash_behind_its_path_leads_to_it(anyone: Client) -> None:
    answer = await anyone.get("/docs/", follow_redirects=True)
    assert (answer.status_code, answer.url.path) == (200, "/docs")
