"""Where a request comes from: what callers write into `X-Forwarded-For`, and what is believed."""

from __future__ import annotations

import logging

import pytest

from tests.integration.edge.conftest import Front, get
from tests.support.polling import eventually

SOURCE = "127.0.0.2"
"""Uvicorn trusts 127.0.0.1 alone, where a proxy of this machine would be."""


@pytest.mark.parametrize(
    ("source", "forwarded", "peer"),
    [
        (SOURCE, [], SOURCE),
        (SOURCE, ["X-Forwarded-For: 6.6.6.6"], SOURCE),
        (SOURCE, ["X-Forwarded-For: 6.6.6.6, 127.0.0.1"], SOURCE),
        (SOURCE, ["X-Forwarded-For: 6.6.6.6", "x-forwarded-for: 127.0.0.1"], SOURCE),
        (SOURCE, ["X-Forwarded-For:"], SOURCE),
        (SOURCE, ["Connection: X-Forwarded-For", "X-Forwarded-For: 6.6.6.6"], SOURCE),
        ("127.0.0.1", [], "127.0.0.1"),
        ("127.0.0.1", ["X-Forwarded-For: 6.6.6.6, 9.9.9.9"], "9.9.9.9"),
    ],
)
async def test_a_direct_caller_cannot_forge_where_it_is(
    front: Front,
    caplog: pytest.LogCaptureFixture,
    source: str,
    forwarded: list[str],
    peer: str,
) -> None:
    with caplog.at_level(logging.INFO):
        answer = front.ask(get("/v1/jobs", "Authorization: Bearer none", *forwarded), source=source)
        assert answer.startswith(b"HTTP/1.1 401"), answer
        peers = await eventually(
            lambda: [vars(each)["peer"] for each in caplog.records if hasattr(each, "peer")],
        )
    assert peers == [peer]
