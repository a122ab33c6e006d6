"""Images that come without a name."""

import asyncio
from pathlib import Path

import pytest

from serve_app.refusals import InvalidImage, InvalidUploadName, TooManyUploadBytes
from serve_app.replica import Replica
from serve_app.uploads.names import content_name
from tests.support.edge import Edge, running_edge
from tests.support.uploads import png


@pytest.fixture
def replica(edge: Edge) -> Replica:
    replica: Replica = edge.app.state.replica
    return replica


async def test_the_same_image_is_one_file_under_one_name(edge: Edge, replica: Replica) -> None:
    first = await replica.upload_store.add_content("alice", png())
    again = await replica.upload_store.add_content("alice", png())
    assert (again.id, again.name) == (first.id, first.name)
    other = await replica.upload_store.add_content("alice", png(size=(3, 3)))
    assert other.name != first.name
    assert len(await edge.services.uploads.page("alice", limit=9)) == 2


async def test_racing_repeats_have_one_name(replica: Replica) -> None:
    adding = (replica.upload_store.add_content("alice", png()) for _ in range(4))
    assert len({each.name for each in await asyncio.gather(*adding)}) == 1


async def test_no_file_of_a_name_stands_for_an_image_that_is_sent_later(replica: Replica) -> None:
    """It would be taken as one that has been checked, whatever the bytes are."""
    for sent in (png(), b"no image"):
        name = content_name(sent)
        with pytest.raises(InvalidUploadName, match="sent images"):
            await replica.upload_store.add("alice", name, png(size=(3, 3)))
    assert (await replica.upload_store.add("alice", "sent-1.png", png())).name == "sent-1.png"


async def test_another_owner_has_a_file_of_their_own(replica: Replica) -> None:
    mine = await replica.upload_store.add_content("alice", png())
    others = await replica.upload_store.add_content("bob", png())
    assert mine.name == others.name
    assert mine.storage_key != others.storage_key


@pytest.mark.parametrize("data", [b"", b"<svg/>", b"<html></html>", png()[:40]])
async def test_what_is_no_image_is_refused(replica: Replica, data: bytes) -> None:
    with pytest.raises(InvalidImage):
        await replica.upload_store.add_content("alice", data)


async def test_it_counts_as_any_upload_does(tmp_path: Path) -> None:
    async with running_edge(tmp_path, owner_max_upload_bytes=100_000) as edge:
        store = edge.app.state.replica.upload_store
        await store.add_content("alice", png())
        with pytest.raises(TooManyUploadBytes):
            await store.add_content("alice", png(size=(3, 3)))
