"""The subscriber of examples/ in Python, and what it gets. `tests/clients` has the other one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import nats

from docs.generate.asyncapi.document import asyncapi_document
from events.bus.bus import Bus
from local.nats_server import NatsServer
from tests.support.live.subscriber import WHOLE, Jobs, Subscriber, follows_replays_and_resumes

PROGRAM = Path(__file__).parents[2] / "examples" / "subscriber" / "follow.py"


async def test_it_follows_replays_and_resumes(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    subscriber = Subscriber((sys.executable, PROGRAM), nats_server, tmp_path)
    await follows_replays_and_resumes(subscriber, Jobs(bus))


async def test_messages_are_as_the_asyncapi_document_has_them(
    nats_server: NatsServer, bus: Bus
) -> None:
    document = asyncapi_document()
    client = await nats.connect(nats_server.reader_url)
    live = await client.subscribe(document["channels"]["events"]["address"].split(".")[0] + ".>")
    await client.flush()
    await Jobs(bus).run()
    replay = document["channels"]["replay"]
    question = document["components"]["messages"]["replay"]["examples"][0]["payload"] | {"seq": 1}
    stored = await client.request(replay["address"], json.dumps(question).encode())
    happened = [await live.next_msg(timeout=5) for _ in WHOLE]
    question["seq"] = 5
    end = await client.request(replay["address"], json.dumps(question).encode())
    await client.close()

    assert [type_of(message) for message in happened] == [f"darkroom.job.{n}.v1" for n in WHOLE]
    for message in (stored, *happened):
        check(document, type_of(message), message)
    check(document, "end", end)
    assert end.data == b""


def type_of(message: Any) -> str:
    return str(json.loads(message.data)["type"])


def check(document: dict[str, Any], name: str, message: Any) -> None:
    """Raises ValidationError."""
    said = document["components"]["messages"][name]
    components = {"components": document["components"]}
    jsonschema.Draft7Validator({**said["headers"], **components}).validate(dict(message.headers))
    if "payload" in said:
        payload = json.loads(message.data)
        jsonschema.Draft7Validator({**said["payload"], **components}).validate(payload)
