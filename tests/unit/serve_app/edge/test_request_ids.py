"""`X-Request-ID`: in the answer, and in each line of the request's log."""

from __future__ import annotations

import io
import logging
from collections.abc import Generator
from dataclasses import replace

import pytest

from serve_app.middleware import HEADER, RequestIdFilter
from telemetry.logs import FieldsFormatter
from tests.support.edge import Client, Edge
from tests.support.generate_bodies import diffusion_body

GENERATE = "/diffusion/v1/generate"


@pytest.fixture
def lines() -> Generator[io.StringIO]:
    """The log as a replica writes it."""
    written, serve_app = io.StringIO(), logging.getLogger("serve_app")
    handler = logging.StreamHandler(written)
    handler.setFormatter(FieldsFormatter())
    handler.addFilter(RequestIdFilter())
    level = serve_app.level
    serve_app.addHandler(handler)
    serve_app.setLevel(logging.INFO)
    yield written
    serve_app.removeHandler(handler)
    serve_app.setLevel(level)


async def test_the_callers_id_is_in_the_answer_and_in_every_line(
    client: Client, lines: io.StringIO
) -> None:
    answer = await client.post(GENERATE, json=diffusion_body(), headers={HEADER: "order-7/a"})
    assert (answer.status_code, answer.headers[HEADER]) == (202, "order-7/a")
    accepted = f"job accepted action=accept job_id={answer.json()['request_id']}"
    [line] = lines.getvalue().splitlines()
    assert accepted in line
    assert line.endswith(" x_request_id=order-7/a")


@pytest.mark.parametrize("given", [None, "", "a b", "a" * 129, "a\tb", "é".encode(), 'a"b'])
async def test_a_fresh_one_is_made_where_none_or_no_good_one_came(
    edge: Edge, given: str | bytes | None
) -> None:
    headers = {} if given is None else {HEADER: given}
    async with edge.client_with(None) as anyone:
        ids = [(await anyone.get("/health/live", headers=headers)).headers[HEADER] for _ in "ab"]
    assert [len(id) for id in ids] == [32, 32]
    assert ids[0] != ids[1]


async def test_what_serve_answers_is_not_answered_twice(edge: Edge, lines: io.StringIO) -> None:
    app = edge.services.app(is_in_serve=True)
    async with replace(edge, app=app).client_with(None) as anyone:
        answer = await anyone.get("/v1/jobs", headers={HEADER: "mine"})
    assert HEADER not in answer.headers
    assert "x_request_id=mine" in lines.getvalue()


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/jobs", 401), ("/nothing", 404), ("/v1/keys/", 401)]
)
async def test_a_refusal_has_it_too(anyone: Client, path: str, status: int) -> None:
    answer = await anyone.get(path, headers={HEADER: "mine"})
    assert (answer.status_code, answer.headers[HEADER]) == (status, "mine")


async def test_an_answer_of_500_has_it_and_so_has_its_line(
    edge: Edge, anyone: Client, lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken() -> str:
        raise RuntimeError("it broke")

    monkeypatch.setattr(edge.health, "ready", broken)
    answer = await anyone.get("/health/ready", headers={HEADER: "mine"})
    assert (answer.status_code, answer.headers[HEADER]) == (500, "mine")
    assert "request failed" in lines.getvalue()
    assert "x_request_id=mine" in lines.getvalue()


@pytest.mark.edge(log_requests=True)
async def test_a_request_is_a_line_where_that_is_asked_for(
    client: Client, lines: io.StringIO
) -> None:
    for path in ("/v1/uploads/a-secret.png?token=b", "/nothing/a-secret", "/v1/jobs/"):
        await client.get(path, headers={HEADER: "mine"})
    shown = [line.partition(" answered ")[2] for line in lines.getvalue().splitlines()]
    assert [line.partition(" took_ms=")[0] for line in shown] == [
        "action=request method=GET route=/v1/uploads/{name} status=400",
        "action=request method=GET route=- status=404",
        "action=request method=GET route=/v1/jobs status=200",
    ]
    assert all(line.endswith(" x_request_id=mine") for line in shown)
