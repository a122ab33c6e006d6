"""The admin key: made at the first start, kept in a file that the command line reads."""

from __future__ import annotations

from events.errors import DatabaseUnavailable
from events.log import utc_now
from events.store.keys import ApiKeys
from events.store.records import ApiKey, Scope
from serve_app.access.api_keys import mint, parse
from serve_app.cli.database import with_keys
from serve_app.cli.terminal import fail, stderr
from serve_app.local.nats_server import write_private
from settings.stores import StoreSettings

ADMIN_KEY_FILE = "admin.key"


async def ensure_admin_key(settings: StoreSettings) -> str | None:
    """Make the admin key and write it to `<data>/admin.key`.

    Returns its text, or None where the file was there before.
    """
    path = settings.data_dir / ADMIN_KEY_FILE
    if path.exists():
        await _ensure_row(settings, path.read_text().strip())
        return None
    text, key = mint("admin", "admin", Scope, created_at=utc_now())
    await with_keys(settings, lambda store: store.add(key))
    write_private(path, text + "\n")
    return text


async def _ensure_row(settings: StoreSettings, text: str) -> None:
    """Add the row of the key where the database is not the one of last time.

    A key that was revoked still has its row, and stays revoked.
    """
    parsed = parse(text)
    if parsed is None:
        fail(f"{ADMIN_KEY_FILE} holds no key; remove it, and the next start makes a new one")
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


def replace_admin_key(settings: StoreSettings, old_id: str, text: str) -> None:
    """Write the new key to the file of the admin key where that holds the old one."""
    path = settings.data_dir / ADMIN_KEY_FILE
    parsed = parse(path.read_text().strip()) if path.exists() else None
    if parsed is not None and parsed.id == old_id:
        write_private(path, text + "\n")
