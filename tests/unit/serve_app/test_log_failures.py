import httpx
import pytest

from events.errors import LogFull, LogUnavailable, OutcomeUnknown, ReadTimeout
from events.types import Cancelled
from tests.support.edge import Client, Edge, refusal
from tests.support.edge_services import URL
from tests.support.failing_log import FailingLog
from tests.support.generate_bodies import workflow_body
from tests.support.polling import eventually

WORKFLOW = "/api/v1/workflow/generate"


@pytest.mark.parametrize(
    ("error", "type"),
    [
        (LogUnavailable(), "unavailable"),
        (LogFull(), "log_full"),
        (OutcomeUnknown(), "outcome_unknown"),
    ],
)
@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "a"}])
async def test_a_failed_append_is_a_503_that_says_when_to_try_again(
    client: Client, log: FailingLog, error: Exception, type: str, headers: dict[str, str]
) -> None:
    log.append_error = error
    answer = await client.post(WORKFLOW, json=workflow_body(), headers=headers)
    assert answer.status_code == 503
    assert answer.json()["error"]["type"] == type
    assert int(answer.headers["Retry-After"]) > 0


async def test_a_nearly_full_log_takes_no_submission(edge: Edge, client: Client) -> None:
    edge.health.full = 0.84
    assert (await client.post(WORKFLOW, json=workflow_body())).status_code == 202
    edge.health.full = 0.85
    assert refusal(await client.post(WORKFLOW, json=workflow_body())) == (503, "log_full")


async def test_a_log_that_cannot_be_written_refuses_submissions_with_the_reason(
    edge: Edge, client: Client, log: FailingLog
) -> None:
    edge.health.reason = "The event log cannot be written: no space left on device."
    log.append_error = AssertionError("The append would wait for an answer.")
    answer = await client.post(WORKFLOW, json=workflow_body())
    assert refusal(answer) == (503, "unavailable")
    assert answer.json()["error"]["message"] == edge.health.reason


async def test_nothing_is_accepted_while_the_queue_cannot_be_counted(
    edge: Edge, client: Client, log: FailingLog
) -> None:
    edge.queue.error = LogUnavailable("The event log has not said for 10 s how many jobs wait.")
    answer = await client.post(WORKFLOW, json=workflow_body())
    assert refusal(answer) == (503, "unavailable")
    assert "has not said for 10 s" in answer.text
    assert int(answer.headers["Retry-After"]) > 0
    async with log.reader(after=0) as reader:
        assert await reader.next(0.05) == []


async def test_an_unknown_outcome_without_a_key_is_withdrawn(
    edge: Edge, client: Client, log: FailingLog
) -> None:
    log.lose_answers()
    answer = await client.post(WORKFLOW, json=workflow_body())
    assert "cancelled" in answer.json()["error"]["message"]
    log.recover()
    async with log.reader(after=0) as reader:
        submitted, *_ = await reader.next(1)

    async def end() -> object:
        return (await edge.job(submitted.job_id)).end

    assert isinstance(await eventually(end), Cancelled)


@pytest.mark.parametrize("error", [LogUnavailable(), ReadTimeout()])
async def test_while_the_log_cannot_be_read_a_job_is_answered_from_its_row_alone(
    edge: Edge, client: Client, log: FailingLog, error: Exception
) -> None:
    location = (await client.post(WORKFLOW, json=workflow_body())).headers["Location"]
    log.read_error = error
    assert refusal(await client.get(location)) == (503, "unavailable")
    log.recover()
    await edge.project()
    log.read_error = error
    for wait in (0, 0.05):
        answer = await client.get(f"{location}&wait={wait}")
        assert (answer.status_code, answer.json()["status"]) == (200, 0)


async def test_a_bug_is_logged_by_the_service_and_not_raised_further(
    edge: Edge, log: FailingLog, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever serves the application would write it as it is, with what it quotes."""
    log.append_error = RuntimeError("a bug")
    headers = {"Authorization": f"Bearer {await edge.key('alice')}"}
    transport = httpx.ASGITransport(edge.app, raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url=URL, headers=headers) as client:
        answer = await client.post(WORKFLOW, json=workflow_body())
    assert refusal(answer) == (500, "internal")
    assert "a bug" not in answer.text
    [record] = [each for each in caplog.records if each.exc_info]
    assert (record.getMessage(), vars(record)["path"]) == ("request failed", WORKFLOW)
