"""Texts that a database cannot store, or that it quotes when it refuses them."""

from __future__ import annotations

import traceback

import pytest
import sqlalchemy as sa

from events.errors import RowRefused, TextNotStorable
from events.store.database import Database
from events.store.keys import ApiKeys
from events.store.tables import LEASES
from events.store.uploads import Uploads

UNSTORABLE = ["a\x00b", "\x00", "a\ud800"]
PROMPT = "a portrait of somebody"


@pytest.mark.parametrize("text", UNSTORABLE)
async def test_a_text_that_no_database_stores_is_refused_by_both_alike(
    database: Database, text: str
) -> None:
    for ask in (
        ApiKeys(database).get(text),
        Uploads(database).page(text, limit=1),
        database.execute(sa.delete(LEASES).where(LEASES.c.name.in_(["a", text]))),
        database.execute(
            sa.insert(LEASES).values([{"name": text, "holder": "a", "expires_at_s": 1}])
        ),
    ):
        with pytest.raises(TextNotStorable):
            await ask


async def test_a_row_among_many_is_refused(database: Database) -> None:
    rows = [{"name": name, "holder": "a", "expires_at_s": 1} for name in ("a", "b\x00")]
    with pytest.raises(TextNotStorable):
        async with database.write() as connection:
            await connection.execute(sa.insert(LEASES), rows)
    assert await database.fetch(sa.select(LEASES)) == []


@pytest.mark.parametrize("text", ["", "a\nb", "\x01", "\u2028", "日本", "\U0001f600"])
async def test_any_other_text_is_stored_as_it_is(database: Database, text: str) -> None:
    await database.execute(sa.insert(LEASES).values(name=text, holder="a", expires_at_s=1))
    assert [row.name for row in await database.fetch(sa.select(LEASES.c.name))] == [text]


async def test_a_refused_row_is_not_quoted(database: Database) -> None:
    row = sa.insert(LEASES).values(name=PROMPT, holder=PROMPT, expires_at_s=1)
    await database.execute(row)
    with pytest.raises(RowRefused) as refusal:
        await database.execute(row)
    assert PROMPT not in "".join(traceback.format_exception(refusal.value))
