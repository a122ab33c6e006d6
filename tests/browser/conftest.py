"""One running service, a browser, and visitors, each with a separate tab."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from tests.support.service import Service

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.browser.visitor import Visitor

HERE = Path(__file__).parent


def missing() -> str | None:
    """Return what these tests need and this machine lacks."""
    if find_spec("playwright") is None:
        return "playwright is not installed: run `make browser`"
    if not (shutil.which("chromium") or shutil.which("chromium-browser")):
        return "there is no chromium on the path"
    return None


class SkippedModule(pytest.Module):
    """One that is not even imported."""

    def collect(self) -> NoReturn:
        pytest.skip(missing() or "")


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    return SkippedModule.from_parent(parent, path=module_path) if missing() else None


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("browser") / "data") as service:
        yield service


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    from tests.browser.visitor import launch

    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


@pytest.fixture
def visitor(browser: Browser, service: Service) -> Iterator[Visitor]:
    """Somebody with a tab in which nothing may go wrong."""
    from tests.browser.visitor import visit

    with visit(browser, service.url) as visitor:
        yield visitor
        visitor.require_clean()


@pytest.fixture
def signed_in(visitor: Visitor, service: Service) -> Visitor:
    """A visitor who is signed in with the admin key."""
    visitor.sign_in(service.admin_key)
    return visitor


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of axe-core, of the version in `axe/package-lock.json`."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("axe")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / "axe" / name, folder)
    subprocess.run(
        [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"],
        cwd=folder,
        check=True,
        timeout=300,
        capture_output=True,
    )
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text()


@pytest.fixture
def shapes_workflow() -> dict[str, Any]:
    """The example, on the tiny checkpoint."""
    text = Path("examples/workflow.json").read_text()
    workflow: dict[str, Any] = json.loads(text.replace("darkroom-shapes", "darkroom-tiny"))
    return workflow
