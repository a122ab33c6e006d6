"""The keys of a service, over its HTTP API."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from serve_app.access.key_bodies import NewKey
from serve_app.cli.exit_codes import ExitCode
from serve_app.cli.remote.client import Client
from serve_app.cli.terminal import fail


class RemoteKeys:
    """Every method raises ClientError."""

    def __init__(self, client: Client, *, page: int = 200) -> None:
        """`page`: how many keys are asked for at a time."""
        self._client = client
        self._page = page

    def create(self, body: NewKey) -> dict[str, Any]:
        return self._client.create_key(body.model_dump(mode="json", exclude_none=True))

    def all(self) -> list[dict[str, Any]]:
        keys: list[dict[str, Any]] = []
        filters: dict[str, Any] = {"limit": self._page}
        while True:
            page = self._client.keys(filters)
            keys += page["keys"]
            if "next_cursor" not in page:
                return keys
            filters["cursor"] = page["next_cursor"]

    def rotate(self, key_id: str, grace: timedelta | None) -> dict[str, Any]:
        """None: as that service has it."""
        grace_s = None if grace is None else grace.total_seconds()
        return self._client.rotate_key(key_id, grace_s=grace_s)

    def revoke(self, key_id: str) -> None:
        if self._client.key(key_id)["state"] != "live":
            fail(f"no live key has the id {key_id}", code=ExitCode.NOT_FOUND)
        self._client.revoke_key(key_id)
