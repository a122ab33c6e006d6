"""In which part of the callback queue a delivery is."""

from __future__ import annotations

import pytest

from events.wire.callback_keys import (
    PARTS,
    callback_key,
    job_id_of,
    part_of,
    parts_of,
    single_parts,
)
from tests.support.events import JOB_ID, submitted


def part(url: str | None, **changes: str) -> str:
    return part_of(callback_key(JOB_ID, submitted(callback_url=url, **changes)))


def test_a_key_says_part_and_job() -> None:
    key = callback_key(JOB_ID, submitted(callback_url="https://example.com/done"))
    assert (part_of(key), job_id_of(key)) == ("7", JOB_ID)
    assert (part_of(JOB_ID), job_id_of(JOB_ID)) == ("", JOB_ID), "as older versions had it"


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "https://example.com:443/done?x=1",
        "HTTPS://EXAMPLE.com/other",
        "https://example.com:/",
    ],
)
def test_a_receiver_is_in_one_part_however_it_is_spelt(url: str) -> None:
    assert part(url, owner="another") == part("https://example.com/done")


def test_receivers_are_spread_over_all_parts_but_that_of_older_versions() -> None:
    assert {part(f"https://{number}.example/") for number in range(400)} == {*PARTS} - {""}


def test_where_only_images_are_put_it_is_the_owners() -> None:
    assert {part(None, owner=f"owner {number}") for number in range(400)} == {*PARTS} - {""}


def test_what_is_no_address_has_a_part_too() -> None:
    assert part("nonsense") == part("http://user@example.com/") in PARTS


@pytest.mark.parametrize("processes", range(1, 17))
def test_every_part_is_one_process_s(processes: int) -> None:
    shares = [single_parts(parts_of(each, processes)) for each in range(1, processes + 1)]
    assert sorted(each for share in shares for each in share) == sorted(PARTS)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
