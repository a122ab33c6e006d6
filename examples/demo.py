"""Starts the service, creates a key, runs three jobs, and receives their callbacks.

There is a job of each flavour, and a job with another family of models.

usage: make demo
"""

from __future__ import annotations

import json
import sys
from typing import Any

from darkroom_client import Darkroom
from rich.console import Console
from rich.rule import Rule

from cli.generate import save_images
from cli.progress import run_job
from examples.receiver import Receiver
from examples.service import ROOT, Service

console = Console()
DATA = ROOT / "data" / "demo"
PICTURES = DATA / "pictures"
CALLBACK_TIMEOUT_S = 60.0

DIFFUSION: dict[str, Any] = {
    "prompt": "a large red circle on a blue background",
    "negative_prompt": "",
    "width": 64,
    "height": 64,
    "sampler_name": "Euler",
    "scheduler": "Automatic",
    "steps": 20,
    "cfg_scale": 5,
    "batch_size": 2,
    "clip_skip": 1,
    "seed": -1,
}
FLOW: dict[str, Any] = {
    **DIFFUSION,
    "prompt": "a purple heart and a green star on a yellow background",
    "sd_model_checkpoint": "darkroom-z-shapes.safetensors",
    "batch_size": 1,
    "seed": 13,
}


def main() -> None:
    console.print(Rule("1. Start: nats-server, Ray, the HTTP API"))
    with Service(DATA, {"DARKROOM_CALLBACK_ALLOW_NETWORKS": "127.0.0.0/8"}) as service:
        console.print(Rule("2. An API key, and a receiver for callbacks"))
        key, webhook_secret = make_key(service)
        with Receiver(webhook_secret) as receiver, Darkroom(service.url, key) as client:
            console.print(f"key {key[:18]}..., receiver at {receiver.url}")
            workflow = json.loads((ROOT / "examples" / "workflow.json").read_text())
            jobs = (
                ("A workflow job", "workflow", workflow),
                ("A diffusion job", "diffusion", DIFFUSION),
                ("A diffusion job with a flow transformer", "diffusion", FLOW),
            )
            for number, (title, flavour, body) in enumerate(jobs, start=3):
                console.print(Rule(f"{number}. {title}"))
                run(client, receiver, flavour, body)
    console.print(Rule("Stopped"))
    console.print(f"The pictures are in {PICTURES}", soft_wrap=True)


def run(client: Darkroom, receiver: Receiver, flavour: str, body: dict[str, Any]) -> None:
    result = run_job(
        client, f"/{flavour}/v1/generate", body, console=console, callback_url=receiver.url
    )
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
    for path in save_images(client, result, PICTURES):
        console.print(f"saved {path}", soft_wrap=True)


def make_key(service: Service) -> tuple[str, str]:
    """Return the key and its webhook secret, as `darkroom keys create` prints them."""
    key, webhook_secret = service.command("keys", "create", "demo").stdout.split()
    return key, webhook_secret


if __name__ == "__main__":
    main()
