"""The ways of comfy-sdk's README: files up and down, jobs run, watched, cancelled, found again.

It runs where the client does, without anything of Darkroom.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

from comfy_sdk import Comfy
from comfy_sdk.events import OutputReady, Progress, StatusChange
from comfy_sdk.exceptions import ComfyError
from comfy_sdk.outputs import Output

PNG = b"\x89PNG\r\n\x1a\n"
PROMPT = json.loads(os.environ["PROMPT"])


def graph(steps: int = 4) -> dict[str, Any]:
    sampler = PROMPT["3"]
    return PROMPT | {"3": {**sampler, "inputs": {**sampler["inputs"], "steps": steps}}}


def inverted(image: Any) -> dict[str, Any]:
    return {
        "10": {"class_type": "LoadImage", "inputs": {"image": image}},
        "11": {"class_type": "ImageInvert", "inputs": {"image": ["10", 0]}},
        "12": {
            "class_type": "SaveImage",
            "inputs": {"images": ["11", 0], "filename_prefix": "y"},
        },
    }


def refusal(call: Callable[[], object]) -> str | None:
    try:
        call()
    except ComfyError as error:
        return error.code
    return None


def makes_and_downloads(client: Comfy) -> Output:
    made = client.run(client.workflows.from_json(graph()), timeout=300)
    [output] = made.get_outputs("9")
    picture = output.to_bytes()
    assert picture.startswith(PNG)
    assert output.to_bytes(range=(1, 3)) == b"PNG"
    with tempfile.TemporaryDirectory() as folder:
        assert output.to_file(Path(folder) / output.name).read_bytes() == picture
    stream = BytesIO()
    assert output.to_stream(stream) == len(picture) == output.size_bytes
    assert output.get_download_url().url.endswith("/content")
    return output


def uploads_and_watches(client: Comfy, output: Output) -> None:
    with tempfile.TemporaryDirectory() as folder:
        photo = output.to_file(Path(folder) / "photo.png")
        asset = client.assets.from_file(photo)
        workflow = client.workflows.from_json(inverted(None))
        workflow.set_input("10", "image", asset)
        job = client.submit(workflow)
    assert asset.created_new
    seen = list(job.events())
    assert isinstance(seen[-1], StatusChange), seen
    assert seen[-1].status == "succeeded", seen
    assert any(isinstance(event, OutputReady) for event in seen)
    assert job.result().get_outputs("12")[0].to_bytes().startswith(PNG)
    again = client.assets.from_bytes(output.to_bytes(), filename="same.png")
    assert again.commit() == asset.id
    assert again.created_new is False
    assert client.assets.get(str(asset.id)).hash == asset.hash
    asset.delete()
    assert refusal(lambda: client.assets.get(str(again.id))) == "not_found"
    assert refusal(lambda: client.assets.delete(output.id)) == "asset_in_use"


def finds_again(client: Comfy, id: str) -> None:
    found = client.jobs.get(id)
    assert found.status == "succeeded"
    assert found.get_workflow().format == "api"
    assert id in {summary.id for summary in client.list_jobs(limit=1)}
    assert list(client.list_jobs(metadata={"client": "acme"})) == []


def cancels(client: Comfy) -> None:
    long = client.submit(client.workflows.from_json(graph(steps=400)))
    for event in long.events():
        if isinstance(event, Progress):
            break
    assert long.cancel().status in {"canceling", "canceled"}
    assert long.wait(timeout=120).status == "canceled"


def is_refused(client: Comfy) -> None:
    key = "a-key-of-the-test"
    repeat = client.workflows.from_json(graph(steps=1))
    first = client.submit(repeat, idempotency_key=key).wait(120)
    assert client.submit(repeat, idempotency_key=key).id == first.id
    other = client.workflows.from_json(graph(steps=2))
    assert refusal(lambda: client.submit(other, idempotency_key=key)) == "idempotency_key_reuse"
    broken = client.workflows.from_json({"1": {"class_type": "Nothing", "inputs": {}}})
    assert refusal(lambda: client.submit(broken)) == "invalid_workflow"
    wrong = Comfy(api_key="wrong")
    assert refusal(lambda: wrong.submit(repeat)) == "unauthorized"


def main() -> None:
    client = Comfy(api_key=os.environ["KEY"])
    output = makes_and_downloads(client)
    uploads_and_watches(client, output)
    finds_again(client, str(output.job_id))
    is_refused(client)
    cancels(client)
    sys.stdout.write("completed\n")


main()
