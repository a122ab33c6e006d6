"""A script for ComfyUI with Python's own library alone: queue a prompt, ask for its history.

The address is all that it is given; the key is the password in it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

URL, KEY = os.environ["URL"], os.environ["KEY"]
PROMPT = json.loads(os.environ["PROMPT"])


def call(path: str, body: object = None, **query: str) -> bytes:
    url = f"{URL}{path}?{urlencode({**query, 'token': KEY})}"
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data=data)) as answer:  # says that JSON is a form
        content: bytes = answer.read()
    return content


def main() -> None:
    assert json.loads(call("/object_info/KSampler"))["KSampler"]["input"]["required"][
        "sampler_name"
    ]
    assert json.loads(call("/system_stats"))["devices"]
    id = json.loads(call("/prompt", {"prompt": PROMPT}))["prompt_id"]
    item: dict[str, Any] | None = None
    while item is None:
        time.sleep(0.2)
        item = json.loads(call("/history")).get(id)
    assert item["status"]["status_str"] == "success", item
    for output in item["outputs"].values():
        for image in output["images"]:
            assert call("/view", **image).startswith(b"\x89PNG"), image
            sys.stdout.write("picture\n")


main()
