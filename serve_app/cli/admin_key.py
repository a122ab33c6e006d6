"""The admin key: made at the first start, kept in a file that the command line reads.

The secret that signs its callbacks is in a file beside it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from events.errors import DatabaseUnavailable
from events.log import utc_now
from events.store.database import Database
from events.store.keys import ApiKeys
from events.store.records import ApiKey, Scope
from events.webhook_secret import webhook_secret
from serve_app.access.api_keys import mint, parse
from serve_app.cli.terminal import fail, stderr
from serve_app.local.nats_server import write_private
from settings.stores import StoreSettings

ADMIN_KEY_FILE = "admin.key"
CALLBACK_SECRET_FILE = "admin.whsec"
_NO_KEY = f"{ADMIN_KEY_FILE} holds no key; remove it, and the next start makes a new one"
_UNSEEN = "admin.key.unseen"
"""There until a start has shown the key."""

T = TypeVar("T")


async def ensure_admin_key(settings: StoreSettings) -> str | None:
    """Make the admin key and write it to `<data>/admin.key`.

    Returns its text until `note_shown` is called, then None.
    """
    path, unseen = settings.data_dir / ADMIN_KEY_FILE, settings.data_dir / _UNSEEN
    if path.exists():
        text = path.read_text().strip()
        await _ensure_row(settings, text)
        return text if unseen.exists() else None
    text, key = mint("admin", "admin", Scope, created_at=utc_now())
    await with_keys(settings, lambda store: store.add(key))
    write_private(unseen, "")
    write_private(path, text + "\n")
    return text


def note_shown(settings: StoreSettings) -> None:
    """The key was shown: `ensure_admin_key` does not return it again."""
    (settings.data_dir / _UNSEEN).unlink(missing_ok=True)


def write_callback_secret(settings: StoreSettings) -> str:
    """Write the secret that signs the callbacks of the key in the file; returns it.

    `settings` have the secret of the service.
    """
    parsed = parse((settings.data_dir / ADMIN_KEY_FILE).read_text().strip())
    if parsed is None:
        fail(_NO_KEY)
    secret = webhook_secret(settings.secret_bytes, parsed.id)
    write_private(settings.data_dir / CALLBACK_SECRET_FILE, secret + "\n")
    return secret


async def _ensure_row(settings: StoreSettings, text: str) -> None:
    """Add the row of the key where the database is not the one of last time.

    A key that was revoked still has its row, and stays revoked.
    """
    parsed = parse(text)
    if parsed is None:
        fail(_NO_KEY)
    key = ApiKey(
        id=parsed.id,
        owner="admin",
        name="admin",
        secret_sha256=parsed.secret_sha256,
        scopes=frozenset(Scope),
        created_at=utc_now(),
    )

    async def add_missing(store: ApiKeys) -> None:
        if await store.get(key.id) is None:
            await store.add(key)

    try:
        await with_keys(settings, add_missing)
    except DatabaseUnavailable as error:  # the service waits for the database itself
        stderr.print(f"The admin key was not checked: {error}", style="yellow", markup=False)


def replace_admin_key(settings: StoreSettings, old_id: str, text: str) -> bool:
    """Write the new key, and its callback secret, where the file of the admin key has the old one.

    False where it has another one. `settings` have the secret of the service.
    """
    path = settings.data_dir / ADMIN_KEY_FILE
    parsed = parse(path.read_text().strip()) if path.exists() else None
    if parsed is None or parsed.id != old_id:
        return False
    write_private(path, text + "\n")
    write_callback_secret(settings)
    note_shown(settings)
    return True


async def with_keys(settings: StoreSettings, use: Callable[[ApiKeys], Awaitable[T]]) -> T:
    """What `use` returns. Raises DatabaseUnavailable."""
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    database = Database(settings.effective_database_url)
    try:
        await database.prepare()
        return await use(ApiKeys(database))
    finally:
        await database.close()
