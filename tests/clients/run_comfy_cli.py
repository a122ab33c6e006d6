"""comfy-cli, which has options for a host and a port: `darkroom forward`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

PROMPT = json.loads(os.environ["PROMPT"])
HOST, _, PORT = os.environ["FORWARDED"].partition(":")
COMFY = Path(sys.executable).with_name("comfy")


def comfy(*arguments: str, code: int = 0) -> list[Any]:
    """Run the program and return its events. It keeps its settings in the folder of the test."""
    done = subprocess.run(
        [COMFY, "--skip-prompt", *arguments],
        env={**os.environ, "HOME": str(Path.cwd()), "DO_NOT_TRACK": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, (arguments, done.stdout, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def run(name: str, graph: Any, code: int = 0) -> list[Any]:
    Path(name).write_text(json.dumps(graph))
    place = ("--host", HOST, "--port", PORT, "--timeout", "60")
    return comfy("run", "--workflow", name, "--wait", "--json", *place, code=code)


def main() -> None:
    events = run("flow.json", PROMPT)
    assert events[-1]["ok"], events
    [address] = events[-1]["data"]["outputs"]
    with urlopen(address) as answer:
        Path("made.png").write_bytes(answer.read())
    broken = json.loads(json.dumps(PROMPT))
    broken["4"]["inputs"]["ckpt_name"] = "missing.safetensors"
    refused = run("broken.json", broken, code=1)
    assert "missing.safetensors" in json.dumps(refused[-1]["error"]), refused


main()
