"""What can be seen of the tables, on both databases: SQLite and Postgres."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
import sqlalchemy as sa

from events.store.maintenance import contents
from events.store.tables import JOBS
from tests.support.operations.installation import NOW, Installation


async def all_of(pages: AsyncGenerator[list[str]]) -> list[str]:
    return [each async for page in pages for each in page]


async def test_every_row_is_seen_once_page_by_page(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "_PAGE", 2)
    rows = installation.places.rows
    assert sorted(await all_of(rows.job_ids())) == sorted(installation.ids.values())
    keys = [await installation.upload() for _ in range(4)]
    assert set(keys) < set(await all_of(rows.upload_keys()))
    assert (await rows.uploads_of(keys)).keys() == set(keys)


async def test_the_segments_that_rows_name(installation: Installation) -> None:
    rows, ids = installation.places.rows, installation.ids
    first = await installation.archive(ids["completed"])
    await installation.archive(ids["cancelled"])
    lost = sa.update(JOBS).where(JOBS.c.id == ids["cancelled"]).values(segment="lost")
    await installation.database.execute(lost)
    named = await rows.segments_of([*ids.values()])
    assert named == {ids["completed"]: first, ids["cancelled"]: None}
    other = replace(first, id="other")
    await installation.places.segments.add(other, jobs=0, size_bytes=0, now=NOW)
    states = await rows.segment_states([first.id, other.id, "lost"])
    assert states == {first.id: "whole", other.id: "whole"}


async def test_everything_agrees_on_this_database(installation: Installation) -> None:
    await installation.archive(installation.ids["completed"])
    assert await installation.disagreements() == []
