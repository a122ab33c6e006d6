"""The keys of the database of this machine's service, whether that runs or not."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from events.log import utc_now
from events.store.records import ApiKey
from events.webhook_secret import webhook_secret
from serve_app.access.api_keys import mint
from serve_app.access.key_bodies import KeyInfo, NewKey, NewKeyInfo
from serve_app.access.rotation import rotate
from serve_app.cli.admin_key import (
    ADMIN_KEY_FILE,
    CALLBACK_SECRET_FILE,
    replace_admin_key,
    with_keys,
)
from serve_app.cli.exit_codes import ExitCode
from serve_app.cli.terminal import fail, stderr, wants_json
from serve_app.local.embedded import with_secret
from serve_app.refusals import KeyNotFound, RequestRefused
from settings.settings import Settings


class StoredKeys:
    """Answers as the HTTP API does."""

    def __init__(self) -> None:
        self._settings = Settings.load()

    def create(self, body: NewKey) -> dict[str, Any]:
        text, key = mint(
            body.owner,
            body.name or body.owner,
            body.scopes,
            created_at=utc_now(),
            expires_at=body.expires_at,
            limits=body.limits.values(),
        )
        answer = self._shown_once(text, key)
        asyncio.run(with_keys(self._settings.stores, lambda store: store.add(key)))
        return answer

    def all(self) -> list[dict[str, Any]]:
        keys = asyncio.run(with_keys(self._settings.stores, lambda store: store.all()))
        return [_info(key) for key in keys]

    def rotate(self, key_id: str, grace: timedelta | None) -> dict[str, Any]:
        """None: as the settings have it."""
        settings = with_secret(self._settings)
        period = timedelta(seconds=settings.keys.rotation_grace_s) if grace is None else grace
        try:
            text, key = asyncio.run(
                with_keys(
                    settings.stores,
                    lambda store: rotate(store, key_id, grace=period, now=utc_now()),
                )
            )
        except RequestRefused as error:
            fail(str(error), code=_code_of(error))
        if replace_admin_key(settings.stores, key_id, text) and not wants_json():
            folder = settings.stores.data_dir
            stderr.print(
                f"It is the admin key: {folder / ADMIN_KEY_FILE} and "
                f"{folder / CALLBACK_SECRET_FILE} have the new one, too.",
                soft_wrap=True,
            )
        return self._shown_once(text, key)

    def revoke(self, key_id: str) -> None:
        if not asyncio.run(
            with_keys(self._settings.stores, lambda store: store.revoke(key_id, utc_now()))
        ):
            fail(f"no live key has the id {key_id}", code=ExitCode.NOT_FOUND)

    def _shown_once(self, text: str, key: ApiKey) -> dict[str, Any]:
        secret = webhook_secret(with_secret(self._settings).stores.secret_bytes, key.id)
        return _info(key, key=text, webhook_secret=secret)


def _code_of(refused: RequestRefused) -> ExitCode:
    return ExitCode.NOT_FOUND if isinstance(refused, KeyNotFound) else ExitCode.REFUSED


def _info(key: ApiKey, /, **secrets: str) -> dict[str, Any]:
    model = KeyInfo if not secrets else NewKeyInfo
    return model.of(key, now=utc_now(), **secrets).model_dump(mode="json", exclude_none=True)
