"""Two services on one machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.service import Service, diffusion

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path / "data")
    try:
        yield service
    finally:
        service.close()


def test_two_instances_run_side_by_side_and_one_folder_takes_one(
    service: Service, fresh: Service
) -> None:
    # From its first answer on, a request to one is never answered by the other.
    fresh.environment["DARKROOM_HOST"] = "127.0.0.2"
    fresh.http.base_url = f"http://127.0.0.2:{fresh.port}"
    foreign_key = service.http.headers["Authorization"]
    fresh.start()
    for _ in range(50):
        answer = fresh.http.get("/v1/jobs", headers={"Authorization": foreign_key})
        assert answer.status_code == 401
        assert fresh.http.get("/v1/jobs").status_code == 200
    there = fresh.submit("diffusion", diffusion(steps=2))
    here = service.submit("diffusion", diffusion(steps=2))
    assert fresh.ended(there)["status"] == 1
    assert service.ended(here)["status"] == 1
    foreign = service.http.get("/diffusion/v1/result", params={"request_id": there})
    assert foreign.status_code == 404
    second = fresh.command("up", check=False)
    assert second.returncode == 1
    assert "another `darkroom up`" in second.stderr
