"""Clients of other products, as they are in the package indexes, run against Darkroom.

Only the address is another, and there is a key. Each program writes the pictures that it gets into
its folder, and the test compares them with those that it requested.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops

from examples.service import DARKROOM, free_port
from tests.clients.programs import CHECKPOINT, client_python, run
from tests.support.service import Service

HERE = Path(__file__).parent
PROMPT = "a large red circle on white"
SAMPLER = {"seed": 5, "steps": 3, "cfg": 7.0, "sampler_name": "euler_ancestral"}

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs in JavaScript, with the packages that their lock file names."""
    folder = tmp_path_factory.mktemp("javascript") / "programs"
    shutil.copytree(HERE / "javascript", folder, ignore=shutil.ignore_patterns("node_modules"))
    run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", cwd=folder)
    return folder


@pytest.fixture(scope="module")
def forwarded(service: Service, caller: Mapping[str, str]) -> Iterator[str]:
    """The host and the port of `darkroom forward`."""
    port = str(free_port())
    options = ("--url", service.url, "--key", caller["KEY"], "--port", port)
    with subprocess.Popen(
        [DARKROOM, "forward", *options], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline(), "it has ended"
        yield f"127.0.0.1:{port}"
        process.terminate()


@pytest.fixture(scope="module")
def environment(caller: Mapping[str, str]) -> dict[str, str]:
    graph = json.loads(Path("examples/workflow.json").read_text())["prompt"]
    graph["3"]["inputs"] |= SAMPLER | {"scheduler": "normal"}
    graph["4"]["inputs"]["ckpt_name"] = CHECKPOINT
    graph["6"]["inputs"]["text"] = PROMPT
    graph["7"]["inputs"]["text"] = "blurry"
    return {
        **caller,
        "CHECKPOINT": CHECKPOINT,
        "COMFY_BASE_URL": caller["URL"],
        "PROMPT": json.dumps(graph),
        "PYTHONPATH": "",
    }


@pytest.fixture(scope="module")
def expected(service: Service, environment: Mapping[str, str]) -> Callable[[str], Image.Image]:
    """The pictures of the same jobs by Darkroom's own routes."""
    known: dict[str, Image.Image] = {}
    parameters = {
        "prompt": PROMPT,
        "negative_prompt": "blurry",
        "seed": 5,
        "steps": 3,
        "cfg_scale": 7,
        "width": 64,
        "height": 64,
        "sampler_name": "Euler a",
        "compatibility": "webui",
    }
    jobs: dict[str, tuple[str, dict[str, Any]]] = {
        "graph": ("workflow", {"prompt": json.loads(environment["PROMPT"])}),
        "webui": ("diffusion", parameters),
        "webui-chosen": (
            "diffusion",
            parameters | {"scheduler": "Normal", "sd_model_checkpoint": CHECKPOINT},
        ),
    }

    def picture(name: str) -> Image.Image:
        if name not in known:
            flavour, body = jobs[name]
            result = service.ended(service.submit(flavour, body), flavour)
            [image] = result["results"]
            content = service.http.get(image["url"]).content
            (path := Path(service.data_dir.parent / f"{name}.png")).write_bytes(content)
            known[name] = Image.open(path).convert("RGB")
        return known[name]

    return picture


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("comfy_jobs", "completed"),
        ("comfyui_simplified", "pictures"),
        ("openai_images", "completed"),
        ("webui", "completed"),
    ],
)
def test_a_client_does_what_its_readme_says(
    environment: Mapping[str, str], tmp_path: Path, program: str, printed: str
) -> None:
    output = run(client_python(), HERE / f"{program}.py", cwd=tmp_path, env=environment)
    assert output.splitlines()[-1] == printed


@pytest.mark.parametrize(
    ("program", "pictures"),
    [
        ("comfy_cli", {"made": "graph"}),
        ("comfy_script", {"made": "graph"}),
        ("comfyui_mcp", {"made": "graph"}),
        ("comfyui_skill", {"made": "graph"}),
        ("litellm", {"made": PROMPT, "edited": 64}),
        ("sd_backend", {"made-comfyui": "graph", "made-webui": "webui-chosen"}),
    ],
)
def test_a_program_in_python_gets_what_it_requests(
    environment: Mapping[str, str],
    forwarded: str,
    expected: Callable[[str], Image.Image],
    tmp_path: Path,
    program: str,
    pictures: Mapping[str, str | int],
) -> None:
    known = {**environment, "FORWARDED": forwarded}
    run(client_python(), HERE / f"run_{program}.py", cwd=tmp_path, env=known)
    check(tmp_path, pictures, expected)


@pytest.mark.parametrize(
    ("program", "pictures"),
    [
        ("ai_sdk", {"made": PROMPT, "edited": 64}),
        ("comfy_ui_client", {"made": "graph", "inverted": "graph"}),
        ("comfyui_sdk", {"made": "graph", "inverted": "graph"}),
        ("librechat", {"made": PROMPT, "edited": 64}),
        ("named_workflow", {"by-agent": "graph", "by-openai": "graph"}),
        ("node_sd_webui", {"made": "webui", "again": 64, "larger": 128}),
        ("stable_canvas", {"made": "graph"}),
        ("stable_diffusion_api", {"made": "webui", "again": 64, "painted": 64, "enlarged": 128}),
    ],
)
def test_a_program_in_javascript_gets_what_it_requests(
    environment: Mapping[str, str],
    forwarded: str,
    packages: Path,
    expected: Callable[[str], Image.Image],
    tmp_path: Path,
    program: str,
    pictures: Mapping[str, str | int],
) -> None:
    Image.new("RGB", (64, 64), "red").save(tmp_path / "photo.png")
    known = {**environment, "FORWARDED": forwarded}
    run("node", packages / f"{program}.mjs", cwd=tmp_path, env=known)
    check(tmp_path, pictures, expected)


def check(
    folder: Path,
    pictures: Mapping[str, str | int],
    expected: Callable[[str], Image.Image],
) -> None:
    """Compare each picture with one of the same job, or with its prompt or its size."""
    for name, what in pictures.items():
        with Image.open(folder / f"{name}.png") as picture:
            if isinstance(what, int):
                assert picture.size == (what, what), name
            elif what == PROMPT:
                assert PROMPT in picture.text["parameters"], picture.text
            else:
                wanted = expected(what)
                if name == "inverted":
                    wanted = ImageChops.invert(wanted)
                differences = ImageChops.difference(picture.convert("RGB"), wanted).getextrema()
                # Inverting rounds down.
                assert max(most for _, most in differences) <= (name == "inverted"), name
