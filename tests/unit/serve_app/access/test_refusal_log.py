from pathlib import Path
from typing import Any

import httpx
import pytest

from events.store.records import Scope
from serve_app.access.api_keys import mint
from serve_app.access.refusal_log import RefusalLog
from tests.support.edge import Client, Edge, running_edge
from tests.support.events import START
from tests.support.generate_bodies import diffusion_body
from tests.support.polling import eventually

PERIOD_S = 0.05
GENERATE = "/diffusion/v1/generate"


def log_of(lines: int) -> RefusalLog:
    return RefusalLog(lines_per_s=int(lines / PERIOD_S), period_s=PERIOD_S)


def counts(caplog: pytest.LogCaptureFixture) -> list[int]:
    return [vars(record)["count"] for record in caplog.records if "count" in vars(record)]


@pytest.mark.parametrize(
    ("most", "noted", "lines", "others"),
    [(3, 3, 3, []), (3, 5000, 3, [4997]), (0, 500, 500, [])],
    ids=["few", "flood", "no limit"],
)
async def test_the_first_are_lines_and_the_others_of_a_flood_a_number(
    caplog: pytest.LogCaptureFixture, most: int, noted: int, lines: int, others: list[int]
) -> None:
    log = log_of(most)
    for number in range(noted):
        log.note({"number": number})
    log.stop()
    told = [vars(record)["number"] for record in caplog.records if "number" in vars(record)]
    assert (told, counts(caplog)) == (list(range(lines)), others)
    assert {vars(record)["action"] for record in caplog.records} == {"refuse_key"}


async def test_each_period_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    log = log_of(1)
    log.note({})
    log.note({})
    assert await eventually(lambda: counts(caplog)) == [1]
    log.note({})
    log.note({})
    await eventually(lambda: counts(caplog) == [1, 1])
    assert len(caplog.records) == 4


def refusals(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    names = ("reason", "key_id", "method", "route", "peer", "status", "count")
    return [
        {name: vars(line)[name] for name in names if name in vars(line)}
        for line in caplog.records
        if getattr(line, "action", None) == "refuse_key"
    ]


async def test_a_caller_without_a_key_is_noted(
    anyone: Client, caplog: pytest.LogCaptureFixture
) -> None:
    await anyone.get("/v1/jobs/0199a1b2-0000-7000-8000-000000000000?a=b")
    assert refusals(caplog) == [
        {
            "reason": "Send an API key as Authorization: Bearer <API_KEY>.",
            "method": "GET",
            "route": "/v1/jobs/{id}",
            "peer": "127.0.0.1",
            "status": 401,
        }
    ]


async def test_a_key_that_opens_nothing_is_noted_by_its_id_and_never_whole(
    edge: Edge, caplog: pytest.LogCaptureFixture
) -> None:
    unknown, row = mint("eve", "made up", [Scope.READ], created_at=START)
    typo = unknown[:-1] + ("a" if unknown[-1] != "a" else "b")
    for text in (unknown, typo, "a\x1b[31mb", "x" * 4000):
        async with edge.client_with(text) as eve:
            assert (await eve.get("/v1/jobs")).status_code == 401
    noted = refusals(caplog)
    assert [each.get("key_id") for each in noted] == [row.id, None, None, None]
    assert noted[0]["reason"] == "There is no such API key."
    whole = "".join(str(vars(line)) for line in caplog.records)
    assert unknown.split("_")[2] not in whole
    assert "xxx" not in whole


async def test_a_live_key_without_the_right_is_noted(
    edge: Edge, caplog: pytest.LogCaptureFixture, client: Client
) -> None:
    key_id = client.headers["Authorization"].split("_")[1]
    assert (await client.get("/v1/keys")).status_code == 403
    bound_key = await edge.key(endpoints=("elsewhere",), callback_hosts=("a.example",))
    bound_id = bound_key.split("_")[1]
    async with edge.client_with(bound_key) as bound:
        assert (await bound.post(GENERATE, json=diffusion_body())).status_code == 403
        target = "/v1/callbacks/test?callback_url=http://127.0.0.1:9999/"
        assert (await bound.post(target)).status_code == 403
    assert [(each["key_id"], each["status"], each["route"]) for each in refusals(caplog)] == [
        (key_id, 403, "/v1/keys"),
        (bound_id, 403, GENERATE),
        (bound_id, 403, "/v1/callbacks/test"),
    ]


@pytest.mark.parametrize(
    ("peer", "noted"),
    [("203.0.113.9", "203.0.113.9"), ("2001:DB8::1", "2001:db8::1"), ("a\x1b[31mb" * 999, None)],
)
async def test_a_peer_is_noted_if_it_is_an_address(
    edge: Edge, caplog: pytest.LogCaptureFixture, peer: str, noted: str | None
) -> None:
    transport = httpx.ASGITransport(edge.app, client=(peer, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://a") as anyone:
        await anyone.get("/v1/jobs")
    assert [each.get("peer") for each in refusals(caplog)] == [noted]


async def test_a_flood_is_bounded_by_the_setting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_edge(tmp_path, key_refusal_lines_per_s=2) as edge:
        async with edge.client_with(None) as anyone:
            for _ in range(50):
                await anyone.get("/v1/jobs")
        assert len(refusals(caplog)) < 20
    counted = sum(each.get("count", 1) for each in refusals(caplog))
    assert counted == 50


async def test_what_is_taken_is_not_noted(caplog: pytest.LogCaptureFixture, client: Client) -> None:
    assert (await client.get("/v1/jobs")).status_code == 200
    assert (await client.get("/v1/jobs?limit=0")).status_code == 400
    assert refusals(caplog) == []
