"""The main job, from nothing: start, key, receiver, one job of each flavour, pictures.

usage: make demo
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.rule import Rule

from examples.receiver import Receiver
from serve_app.client import Client, run_job

console = Console()
DARKROOM = str(Path(sys.executable).parent / "darkroom")
ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "data" / "demo"
PICTURES = ROOT / "data" / "demo" / "pictures"
READY_TIMEOUT_S = 120.0
CALLBACK_TIMEOUT_S = 60.0

DIFFUSION: dict[str, Any] = {
    "prompt": "a large red circle on a blue background",
    "negative_prompt": "",
    "width": 256,
    "height": 256,
    "sampler_name": "Euler",
    "scheduler": "Automatic",
    "steps": 20,
    "cfg_scale": 7,
    "batch_size": 2,
    "clip_skip": 1,
    "seed": -1,
}


def main() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = os.environ | {
        "DARKROOM_PORT": str(port),
        "DARKROOM_DATA_DIR": str(DATA),
        "DARKROOM_MODELS_DIR": str(ROOT / "models"),
        "DARKROOM_CALLBACK_ALLOW_NETWORKS": "127.0.0.0/8",
    }
    console.print(Rule("1. Start: nats-server, Ray, the HTTP API"))
    with service(environment, url):
        console.print(Rule("2. An API key, and a receiver for callbacks"))
        key, webhook_secret = make_key(environment)
        with Receiver(webhook_secret) as receiver, Client(url, key) as client:
            console.print(f"key {key[:18]}..., receiver at {receiver.url}")
            workflow = json.loads((ROOT / "examples" / "workflow.json").read_text())
            for number, flavour, body in ((3, "workflow", workflow), (4, "diffusion", DIFFUSION)):
                console.print(Rule(f"{number}. A {flavour} job"))
                run(client, receiver, flavour, body)
    console.print(Rule("Stopped"))
    console.print(f"The pictures are in {PICTURES}", soft_wrap=True)


def run(client: Client, receiver: Receiver, flavour: str, body: dict[str, Any]) -> None:
    result = run_job(client, flavour, body, console=console, callback_url=receiver.url)
    console.print("result:")
    console.print_json(data=result)
    called_back = json.loads(receiver.bodies.get(timeout=CALLBACK_TIMEOUT_S))
    console.print("callback (its signature is right):")
    console.print_json(data=called_back)
    if called_back != result:
        sys.exit("the callback is not the result")
    if result["status"] != 1:
        sys.exit(f"the job failed: {result['message']}")
    console.print("They are equal.", style="green")
    for path in client.save(result, PICTURES):
        console.print(f"saved {path}", soft_wrap=True)


@contextmanager
def service(environment: dict[str, str], url: str) -> Generator[None]:
    """`darkroom up`, as a process of its own; stopped as Ctrl-C would."""
    process = subprocess.Popen([DARKROOM, "up"], env=environment, cwd=ROOT)
    try:
        wait_ready(process, url)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def wait_ready(process: subprocess.Popen[bytes], url: str) -> None:
    give_up_at = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < give_up_at:
        if process.poll() is not None:
            sys.exit("darkroom up ended; its output says why")
        try:
            if httpx.get(f"{url}/health/ready", timeout=2, trust_env=False).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    sys.exit(f"not ready within {READY_TIMEOUT_S:g} s")


def make_key(environment: dict[str, str]) -> tuple[str, str]:
    """The key and its webhook secret, as `darkroom keys create` prints them."""
    command = [DARKROOM, "keys", "create", "demo"]
    output = subprocess.run(
        command, env=environment, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    key, webhook_secret = output.split()
    return key, webhook_secret


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
