"""A script for ComfyUI that listens first: websocket, prompt under an id of its own, history."""

from __future__ import annotations

import json
import os
import sys
import uuid
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

from websockets.sync.client import connect

URL, KEY = os.environ["URL"], os.environ["KEY"]
PROMPT = json.loads(os.environ["PROMPT"])
HEADERS = {"Authorization": f"Bearer {KEY}"}


def call(path: str, body: object = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(f"{URL}{path}", data=data, headers=HEADERS)) as answer:
        content: bytes = answer.read()
    return content


def main() -> None:
    client, id = str(uuid.uuid4()), str(uuid.uuid4())
    told: list[str] = []
    address = f"ws://{urlsplit(URL).netloc}/ws?clientId={client}"
    with connect(address, additional_headers=HEADERS) as websocket:
        asked = {"prompt": PROMPT, "client_id": client, "prompt_id": id}
        asked["extra_data"] = {"preview_method": "auto"}
        call("/prompt", asked)
        while True:
            said = websocket.recv()
            if isinstance(said, bytes):
                told.append("preview")
                assert said[:10] == b"\0\0\0\1\0\0\0\1\xff\xd8", said[:10]  # a JPEG
                continue
            message = json.loads(said)
            told.append(message["type"])
            if message["type"] == "executing" and message["data"]["node"] is None:
                assert message["data"]["prompt_id"] == id, message
                break
    outputs = json.loads(call(f"/history/{id}"))[id]["outputs"]
    for image in outputs["9"]["images"]:
        assert call(f"/view?{urlencode(image)}").startswith(b"\x89PNG")
    wanted = {"status", "execution_start", "progress", "executed", "execution_success"}
    assert wanted <= set(told), told
    sys.stdout.write(f"{len(outputs)} output\n")


main()
