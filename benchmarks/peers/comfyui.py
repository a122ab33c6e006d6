"""A ComfyUI at COMFYUI_URL, which must have the benchmark's checkpoint. It runs the same graphs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import httpx

from benchmarks.harness.graphs import Graph

URL = os.environ.get("COMFYUI_URL")
_TIMEOUT_S = 600.0
_POLL_S = 0.02


def run_all(url: str, graphs: Sequence[Graph]) -> float:
    """Submit all graphs at once. Return the time in seconds until all have run. Raises RuntimeError
    if a graph fails.
    """
    with httpx.Client(base_url=url, timeout=_TIMEOUT_S, trust_env=False) as client:
        began = time.perf_counter()
        ids = [
            client.post("/prompt", json={"prompt": each}).raise_for_status().json()["prompt_id"]
            for each in graphs
        ]
        for each in ids:
            while not (entries := client.get(f"/history/{each}").json()):
                time.sleep(_POLL_S)
            if (status := entries[each]["status"])["status_str"] != "success":
                raise RuntimeError(f"ComfyUI failed: {status['messages'][-1]}")
        return time.perf_counter() - began


def forget_queue(url: str) -> None:
    """Remove the waiting prompts and stop the running prompt."""
    with httpx.Client(base_url=url, timeout=_TIMEOUT_S, trust_env=False) as client:
        client.post("/queue", json={"clear": True}).raise_for_status()
        client.post("/interrupt").raise_for_status()
