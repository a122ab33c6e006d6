"""The file of the admin key, and the file of the secret that signs the callbacks of its jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from cli.terminal import fail, stderr
from events.errors import DatabaseUnavailable
from events.log import utc_now
from events.store.database import Database
from events.store.keys import ApiKeys
from events.store.records import ApiKey, Scope
from local.nats_server import write_private
from serve_app.access.api_keys import mint, parse
from settings.stores import StoreSettings
from storage.service_secret import webhook_secret

ADMIN_KEY_FILE = "admin.key"
CALLBACK_SECRET_FILE = "admin.whsec"
_NO_KEY = (
    f"{ADMIN_KEY_FILE} contains no key. Remove the file, and the next start creates a new key."
)
_UNSEEN = "admin.key.unseen"
"""The name of a file that exists until a start has shown the key to the user."""

T = TypeVar("T")


async def ensure_admin_key(settings: StoreSettings) -> str | None:
    """Create the admin key in `<data>/admin.key` if it does not exist.

    Returns the key, or None if `note_shown` has already recorded it as shown.
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
    """Record that the user has seen the key. `ensure_admin_key` then returns None."""
    (settings.data_dir / _UNSEEN).unlink(missing_ok=True)


def write_callback_secret(settings: StoreSettings) -> str:
    """Write the secret that signs the callbacks of the admin key. Returns this secret.

    `settings` must contain the secret of the service.
    """
    parsed = parse((settings.data_dir / ADMIN_KEY_FILE).read_text().strip())
    if parsed is None:
        fail(_NO_KEY)
    secret = webhook_secret(settings.secret_bytes, parsed.id)
    write_private(settings.data_dir / CALLBACK_SECRET_FILE, secret + "\n")
    return secret


async def _ensure_row(settings: StoreSettings, text: str) -> None:
    """Add the key to the database if it is missing there. A revoked key is not missing."""
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
    # The start continues without the database, because the service waits for the database.
    except DatabaseUnavailable as error:
        stderr.print(f"The admin key was not checked: {error}", style="yellow", markup=False)


def replace_admin_key(settings: StoreSettings, old_id: str, text: str) -> bool:
    """Write a new admin key and its callback secret if the file contains the key `old_id`.

    Returns False if it does not. `settings` must contain the secret of the service.
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
    """Call `use` with the API keys of the database and return its result.

    Raises DatabaseUnavailable.
    """
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    database = Database(settings.effective_database_url)
    try:
        await database.prepare()
        return await use(ApiKeys(database))
    finally:
        await database.close()
