"""Events and jobs for tests."""

from __future__ import annotations

from typing import Any

from events.types import Flavour, Submitted


def submitted(**changes: Any) -> Submitted:
    values: dict[str, Any] = {
        "flavour": Flavour.DIFFUSION,
        "owner": "alice",
        "key_id": "k1",
        "endpoint": "default",
        "lane": 3,
        "request": {"prompt": "a red circle", "seed": 7},
        "fingerprint": "f",
        "images": 1,
    }
    return Submitted(**(values | changes))
