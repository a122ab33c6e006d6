"""A ComfyUI at COMFYUI_URL that has the benchmark's checkpoint: it runs the same graphs."""

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
    """Seconds until it has run them all, which were submitted at once.

    Raises RuntimeError if one fails.
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
    """Drop what waits, and stop what runs."""
    with httpx.Client(base_url=url, timeout=_TIMEOUT_S, trust_env=False) as client:
        client.post("/queue", json={"clear": True}).raise_for_status()
        client.post("/interrupt").raise_for_status()
