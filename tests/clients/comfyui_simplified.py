"""comfy-api-simplified, as its README uses it: a workflow with a picture of the caller's."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from comfy_api_simplified import ComfyApiWrapper, ComfyWorkflowWrapper

URL, KEY = os.environ["URL"], os.environ["KEY"]
PROMPT = json.loads(os.environ["PROMPT"])

TITLES = {"6": "positive", "9": "Save Image"}


def main() -> None:
    api = ComfyApiWrapper(URL, user="anyone", password=KEY)
    for id, node in PROMPT.items():
        node["_meta"] = {"title": TITLES.get(id, node["class_type"])}
    workflow = ComfyWorkflowWrapper(PROMPT)
    workflow.set_node_param("positive", "text", "a large red circle on white")
    workflow.set_node_param("KSampler", "steps", 3)
    images = api.queue_and_wait_images(workflow, "Save Image")
    [(name, content)] = images.items()
    assert content.startswith(b"\x89PNG"), name
    with Path("made.png").open("wb") as file:
        file.write(content)

    uploaded = api.upload_image("made.png")
    name = f"{uploaded['subfolder']}/{uploaded['name']}"
    load = {"class_type": "LoadImage", "inputs": {"image": name}, "_meta": {"title": "Load"}}
    shown = {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}}
    loading = ComfyWorkflowWrapper({"1": load, "2": {**shown, "_meta": {"title": "Preview"}}})
    assert api.queue_and_wait_images(loading, "Preview")
    assert api.get_queue() == {"queue_running": [], "queue_pending": []}
    assert api.get_system_stats()["devices"]
    assert isinstance(api.get_embeddings(), list)
    assert "KSampler" in api.get_object_info("KSampler")
    api.interrupt()
    sys.stdout.write("pictures\n")


main()
