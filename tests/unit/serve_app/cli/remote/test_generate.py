"""`darkroom generate`, left by Ctrl-C."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from serve_app.cli.main import app
from serve_app.cli.remote import progress as client_module
from serve_app.cli.remote.client import Client


class Calls:
    """Answers of a service whose job runs on and on, and what was asked of it."""

    def __init__(self, *, is_cancelled: bool) -> None:
        self.paths: list[str] = []
        self._is_cancelled = is_cancelled

    def answer(self, _method: str, path: str, **_options: Any) -> dict[str, Any]:
        self.paths.append(path)
        answer = {"request_id": "a-job", "status": 0, "cancelled": self._is_cancelled}
        return answer if len(self.paths) < 10 else pytest.fail("it never ends")


@pytest.mark.parametrize(
    ("options", "is_cancelled", "told"),
    [
        ((), True, "a-job is cancelled."),
        ((), False, "a-job had ended before. Its result: darkroom result a-job"),
        (("--keep",), True, "The job goes on. Its result: darkroom result a-job"),
    ],
)
def test_ctrl_c_cancels_the_job_or_says_that_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], is_cancelled: bool, told: str
) -> None:
    def interrupted(_s: float) -> None:
        raise KeyboardInterrupt

    calls = Calls(is_cancelled=is_cancelled)
    monkeypatch.setattr(Client, "_call", calls.answer)
    monkeypatch.setattr(client_module.time, "sleep", interrupted)
    result = CliRunner().invoke(app, ["generate", "a circle", "--key", "dk", *options])
    assert result.exit_code == 130
    assert told in result.stderr
    assert ("/v1/jobs/a-job/cancel" in calls.paths) is (not options)
