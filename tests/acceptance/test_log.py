"""The log of `darkroom up`, in the one file that its first screen names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.polling import eventually
from tests.support.service import Service, diffusion

pytestmark = pytest.mark.timeout(1200)


async def test_a_job_can_be_followed_from_its_request_to_its_end(service: Service) -> None:
    answer = service.http.post(
        "/diffusion/v1/generate", json=diffusion(), headers={"X-Request-ID": "order-7"}
    )
    job_id = answer.json()["request_id"]
    assert answer.headers["X-Request-ID"] == "order-7"
    named = re.search(r"^Log +(\S+);", service.output, re.MULTILINE)
    assert named is not None
    path = Path(named[1])
    assert path == service.data_dir / "logs" / "darkroom.log"
    assert path.stat().st_mode & 0o077 == 0

    def actions() -> list[str]:
        lines = [line for line in path.read_text().splitlines() if f"job_id={job_id}" in line]
        return [each for line in lines for each in re.findall(r"action=(accept|start|end)\b", line)]

    await eventually(lambda: sorted(actions()) == ["accept", "end", "start"])
    accepted = next(
        line for line in path.read_text().splitlines() if f"accept job_id={job_id}" in line
    )
    assert "x_request_id=order-7" in accepted
