"""ComfyUI's page at `/comfy/`, of a package that is made here: what is sent, and what it may do."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from serve_app.protocols.comfyui import page
from serve_app.protocols.credentials import ProtocolRequires
from serve_app.protocols.registry import PROTOCOLS
from tests.support.edge import Client, Edge
from tests.support.live.websocket import connected
from tests.support.polling import eventually

SCRIPT = b"start()"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Installed, with a page and a script beside a secret."""
    static = tmp_path / "site" / "comfyui_frontend_package" / "static"
    (static / "assets").mkdir(parents=True)
    (static.parent / "__init__.py").touch()
    (static / "index.html").write_bytes(b"<script>" + SCRIPT + b"</script>")
    (static / "assets" / "a.js").write_text("go()")
    (tmp_path / "site" / "secret").write_text("secret")
    (static / "assets" / "link").symlink_to(tmp_path / "site" / "secret")
    monkeypatch.syspath_prepend(tmp_path / "site")
    forget()
    yield static
    forget()


def forget() -> None:
    page.static_folder.cache_clear()
    page.page.cache_clear()


async def test_the_page_asks_for_a_key_and_says_how(anyone: Client, package: Path) -> None:
    for path, schemes in (("/comfy/", ["Bearer", "Basic"]), ("/v1/jobs", ["Bearer"])):
        answer = await anyone.get(path)
        assert answer.status_code == 401
        asked = answer.headers.get_list("www-authenticate")
        assert [each.partition(" ")[0] for each in asked] == schemes


async def test_its_own_script_alone_may_run_and_it_reaches_nobody_else(
    client: Client, package: Path
) -> None:
    answer = await client.get("/comfy/")
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    digest = base64.b64encode(hashlib.sha256(SCRIPT).digest()).decode()
    assert f"script-src 'self' 'wasm-unsafe-eval' 'sha256-{digest}';" in policy
    assert "connect-src 'self' blob: data:;" in policy
    assert "default-src 'none'" in policy


async def test_its_links_need_a_slash(client: Client, package: Path) -> None:
    answer = await client.get("/comfy")
    assert (answer.status_code, answer.headers["location"]) == (308, "./comfy/")


async def test_files_of_the_package_are_sent_and_no_others(client: Client, package: Path) -> None:
    assert (await client.get("/comfy/user.css")).status_code == 200
    answer = await client.get("/comfy/assets/a.js")
    assert answer.text == "go()"
    assert answer.headers["content-type"].startswith("text/javascript")
    assert "immutable" in answer.headers["cache-control"]
    for path in (
        "assets",
        "assets/link",
        "assets/b.js",
        "%2e%2e/__init__.py",
        "assets/%2e%2e/%2e%2e/%2e%2e/secret",
        "%2fetc/passwd",
        "%00",
        "a" * 5000,
    ):
        assert (await client.get(f"/comfy/{path}")).status_code == 404, path[:40]


async def test_where_it_is_not_installed_the_page_says_how_to_get_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "PACKAGE", "no_such_package")
    forget()
    answer = await client.get("/comfy/")
    forget()
    assert answer.status_code == 200
    assert "--editable '.[comfyui]'" in answer.text


async def test_what_the_page_asks_for_as_it_loads_is_there(client: Client) -> None:
    for path in (
        "/users",
        "/settings",
        "/settings/Comfy.TutorialCompleted",
        "/userdata?dir=workflows&recurse=true&split=false&full_info=true",
        "/userdata/user.css",
        "/extensions",
        "/i18n",
        "/features",
        "/system_stats",
        "/embeddings",
        "/models",
        "/models/checkpoints",
        "/experiment/models",
        "/experiment/models/loras",
        "/object_info",
        "/object_info/KSampler",
        "/workflow_templates",
        "/global_subgraphs",
        "/internal/folder_paths",
        "/internal/logs",
        "/internal/logs/raw",
        "/internal/files/output",
    ):
        assert (await client.get(f"/comfy/api{path}")).status_code == 200, path
    subscribed = {"clientId": "a", "enabled": True}
    answer = await client.patch("/internal/logs/subscribe", json=subscribed)
    assert answer.status_code == 200
    assert (await client.get("/object_info/Nothing")).json() == {}
    assert (await client.get("/models/nothing")).status_code == 404


FOLDERS = {
    "audio_encoders", "checkpoints", "classifiers", "clip_vision", "configs", "controlnet",
    "custom_nodes", "diffusers", "diffusion_models", "embeddings", "gligen", "hypernetworks",
    "latent_upscale_models", "loras", "model_patches", "photomaker", "style_models",
    "text_encoders", "upscale_models", "vae", "vae_approx",
}  # fmt: skip
"""The folders of ComfyUI 0.3.75."""


async def test_every_folder_of_comfyui_is_listed_though_it_is_absent(
    edge: Edge, client: Client
) -> None:
    root = edge.services.backends.catalogue.models.root
    (root / "gligen").mkdir()
    (root / "gligen" / "boxes.safetensors").touch()
    listed = {name: await client.get(f"/models/{name}") for name in FOLDERS}
    assert {answer.status_code for answer in listed.values()} == {200}
    assert listed["configs"].json() == []
    assert listed["gligen"].json() == ["boxes.safetensors"]
    assert FOLDERS.issubset((await client.get("/models")).json())
    described = {each["name"] for each in (await client.get("/experiment/models")).json()}
    assert FOLDERS - described == {"configs", "custom_nodes"}


async def test_models_are_said_to_be_unloaded(client: Client) -> None:
    for body in ({"unload_models": True, "free_memory": True}, {}):
        answer = await client.post("/free", json=body)
        assert (answer.status_code, answer.content) == (200, b"")


def test_every_route_but_files_of_the_page_asks_for_a_key() -> None:
    open_paths = set()
    for router in PROTOCOLS[0].routers:
        for route in router.routes:
            dependant = getattr(route, "dependant", None)
            asked = [] if dependant is None else dependant.dependencies
            if not any(isinstance(each.call, ProtocolRequires) for each in asked):
                open_paths.add(getattr(route, "path", ""))
    # A websocket asks by itself, since it is refused in another way.
    assert open_paths == {"/comfy/{path:path}", "/{twin:comfyui}ws"}


@pytest.mark.edge(adapter_comfyui=False)
async def test_switched_off_nothing_of_it_is_there(edge: Edge, client: Client) -> None:
    for path in ("/prompt", "/queue", "/history", "/comfy/", "/api/object_info"):
        assert (await client.get(path)).status_code == 404, path
    async with connected(edge.app, "/ws") as websocket:
        await eventually(lambda: websocket.close_code is not None)
