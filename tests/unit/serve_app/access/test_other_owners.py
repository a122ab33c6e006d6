"""Another owner's job answers as an unknown one does, whatever is away."""

from __future__ import annotations

import httpx
import pytest

from events.errors import DatabaseUnavailable, LogUnavailable
from events.history import HistoryObjects
from events.ids import new_id
from events.store.read_model import ReadModel
from tests.support.edge import Client, Edge, lasting_headers
from tests.support.generate_bodies import diffusion_body
from tests.support.memory.log import MemoryLog

REQUESTS = (
    ("GET", "/v1/jobs/{}"),
    ("GET", "/diffusion/v1/result?request_id={}"),
    ("POST", "/v1/jobs/{}/cancel"),
    ("GET", "/v1/jobs/{}/callbacks"),
    ("POST", "/v1/jobs/{}/callbacks/redeliver"),
    ("DELETE", "/v1/jobs/{}"),
)


async def no_database(*_: object, **__: object) -> None:
    raise DatabaseUnavailable


async def no_log(*_: object) -> None:
    raise LogUnavailable


AWAY = {
    "nothing": (),
    "database": ((ReadModel, "job", no_database), (HistoryObjects, "get", no_database)),
    "log": ((MemoryLog, "read", no_log), (MemoryLog, "last", no_log)),
}


@pytest.fixture
async def jobs(edge: Edge) -> list[str]:
    """Of Alice: one that waits, and one that has ended."""
    async with await edge.client("alice") as alice:
        answers = [await alice.post("/diffusion/v1/generate", json=diffusion_body()) for _ in "ab"]
    waiting, ended = (str(answer.json()["request_id"]) for answer in answers)
    await edge.run(ended)
    await edge.project()
    return [waiting, ended]


@pytest.mark.parametrize("away", AWAY)
async def test_it_answers_as_an_unknown_one(
    bob: Client, jobs: list[str], monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    for part, name, does in AWAY[away]:
        monkeypatch.setattr(part, name, does)
    for method, url in REQUESTS:
        unknown = await bob.request(method, url.format(new_id()))
        assert unknown.status_code == (404 if away == "nothing" else 503)
        for job_id in jobs:
            assert told(await bob.request(method, url.format(job_id))) == told(unknown)


def told(answer: httpx.Response) -> tuple[int, bytes, dict[str, str]]:
    return answer.status_code, answer.content, lasting_headers(answer)
