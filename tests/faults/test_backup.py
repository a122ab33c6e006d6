"""A backup of the running service, restored to a new folder and started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.service import Service, diffusion

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "first") as service:
        yield service


@pytest.fixture
def restored(service: Service, tmp_path: Path) -> Iterator[Service]:
    """As the document says: `darkroom backup`, then `darkroom restore` in a new folder."""
    backup = tmp_path / "backup"
    other = Service(tmp_path / "data")
    try:
        assert "The backup is in" in service.command("backup", str(backup)).stdout
        assert "are restored" in other.command("restore", str(backup)).stdout
        yield other
    finally:
        other.close()


def test_results_and_jobs_that_wait_are_those_of_the_backup(
    service: Service, request: pytest.FixtureRequest
) -> None:
    done = service.submit("diffusion", diffusion(steps=2))
    before = service.ended(done)
    picture = service.http.get(before["results"][0]["url"]).content
    waiting = [service.submit("diffusion", diffusion(steps=60, seed=n)) for n in range(4)]
    restored: Service = request.getfixturevalue("restored")

    restored.start()
    after = restored.result(done)
    path = httpx.URL(after["results"][0]["url"]).raw_path.decode()
    assert restored.http.get(path).content == picture
    assert restored.ended(done)["ended_at"] == before["ended_at"]
    for job_id in waiting:
        assert restored.ended(job_id)["status"] == 1
    assert restored.disagreements() == ""
    for job_id in waiting:
        assert service.ended(job_id)["status"] == 1
