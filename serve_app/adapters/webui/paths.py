"""Where all routes of this API are."""

from __future__ import annotations

PREFIX = "/sdapi"
V1 = f"{PREFIX}/v1"
