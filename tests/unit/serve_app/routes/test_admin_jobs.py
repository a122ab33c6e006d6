"""Jobs of every owner, as administrators see and end them."""

from __future__ import annotations

from typing import Any

import pytest

from events.decisions import FailDispatch, Quarantine, Submit
from events.ids import lane_of, new_id
from events.store.records import Endpoint
from events.types import Cancelled, DeadLetter, Failed, Unknown
from tests.support.edge import ACTOR, Client, Edge, refusal
from tests.support.events import MORNING, History, submitted
from tests.support.generate_bodies import diffusion_body

JOBS = "/v1/admin/jobs"
UNKNOWN = "0199a1b2-0000-7000-8000-000000000000"
SECRET = "a very private prompt"
CALLBACK = "http://127.0.0.1:9999/a-private-path"
REASON = {"reason": "It floods the disk."}
BLOCKED = "/v1/admin/jobs/blocked"


async def submit(client: Client, query: str = "") -> str:
    answer = await client.post(f"/diffusion/v1/generate{query}", json=diffusion_body(prompt=SECRET))
    return str(answer.json()["request_id"])


async def listed(client: Client, query: str = "") -> list[str]:
    answer = await client.get(f"{JOBS}{query}")
    return [job["request_id"] for job in answer.json()["jobs"]]


async def give_up(edge: Edge, job_id: str) -> None:
    """What the dispatcher does after too many failures."""
    await edge.execute(job_id, FailDispatch(0, "the actor died", max_failures=1))


def log_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(each) for each in caplog.records if each.message == "jobs administered"]


@pytest.fixture
async def dead(edge: Edge, client: Client) -> str:
    """A job of Alice's that was given up."""
    job_id = await submit(client)
    await give_up(edge, job_id)
    return job_id


class TestList:
    async def test_it_has_every_owners_jobs_newest_first(
        self, edge: Edge, client: Client, bob: Client, admin: Client
    ) -> None:
        alices = await submit(client)
        bobs = await submit(bob)
        await edge.project()
        assert await listed(admin) == [bobs, alices]
        assert await listed(admin, "?owner=alice") == [alices]
        assert await listed(admin, "?owner=nobody") == []

    async def test_filters_narrow_it(self, edge: Edge, client: Client, admin: Client) -> None:
        waiting, dead, stopped = [await submit(client) for _ in range(3)]
        await give_up(edge, dead)
        await edge.execute(stopped, Quarantine("No."))
        await edge.project()
        expected = {
            "?status=0": [waiting],
            "?status=2": [stopped, dead],
            "?dead_letter=undispatchable": [dead],
            "?dead_letter=quarantined": [stopped],
            "?dead_letter=quarantined&dead_letter=undispatchable": [stopped, dead],
            "?endpoint=elsewhere": [],
        }
        assert {query: await listed(admin, query) for query in expected} == expected


class TestShow:
    async def test_it_has_state_sizes_and_times_and_no_content(
        self, edge: Edge, client: Client, admin: Client
    ) -> None:
        edge.name_server.answers["127.0.0.1"] = ("127.0.0.1",)
        job_id = await submit(client, f"?callback_url={CALLBACK}")
        await edge.start(job_id)
        await edge.store_image(job_id, data=b"12345")
        answer = await admin.get(f"{JOBS}/{job_id}")
        body = answer.json()
        assert body["owner"] == "alice"
        assert body["key_id"] == client.headers["Authorization"].split("_")[1]
        assert (body["status"], body["attempts"], body["actor"]) == (0, 1, ACTOR)
        assert (body["results"], body["result_bytes"], body["input_files"]) == (1, 5, 0)
        assert body["has_callback"] is True
        assert body["cost"] == (await client.get(f"/v1/jobs/{job_id}")).json()["cost"]
        assert body["request_bytes"] > len(SECRET)
        assert "queued_s" in body["timings"]
        for private in (SECRET, "a-private-path", "token=", "/files/"):
            assert private not in answer.text

    async def test_why_it_failed_is_told(self, admin: Client, dead: str) -> None:
        body = (await admin.get(f"{JOBS}/{dead}")).json()
        assert body["dead_letter"] == "undispatchable"
        assert "the actor died" in body["message"]

    async def test_every_way_to_ask_is_logged(
        self, client: Client, admin: Client, caplog: pytest.LogCaptureFixture
    ) -> None:
        job_id = await submit(client)
        caplog.set_level("INFO")
        await admin.get(JOBS)
        await admin.get(f"{JOBS}/{job_id}")
        await admin.post(f"{JOBS}/{job_id}/cancel")
        await admin.post(f"{JOBS}/{job_id}/quarantine", json=REASON)
        by = {"by_key_id": admin.headers["Authorization"].split("_")[1]}
        one = {"job_id": job_id, "owner": "alice", **by}
        expected = [
            {"action": "list_jobs", **by},
            {"action": "show_job", **one},
            {"action": "cancel_job", **one},
            {"action": "quarantine_job", **REASON, **one},
        ]
        for line, fields in zip(log_lines(caplog), expected, strict=True):
            assert fields.items() <= line.items()


class TestCancel:
    async def test_another_owners_job_ends(self, edge: Edge, client: Client, admin: Client) -> None:
        job_id = await submit(client)
        for _ in range(2):
            assert (await admin.post(f"{JOBS}/{job_id}/cancel")).json() == {"cancelled": True}
        assert isinstance((await edge.job(job_id)).end, Cancelled)
        shown = (await admin.get(f"{JOBS}/{job_id}")).json()
        assert shown["message"] == "The job was cancelled."
        assert edge.queue.removed == [("default", lane_of("alice"), job_id)]


class TestQuarantine:
    async def test_a_job_that_waits_is_never_dispatched(
        self, edge: Edge, client: Client, admin: Client
    ) -> None:
        job_id = await submit(client)
        for _ in range(2):
            answer = await admin.post(f"{JOBS}/{job_id}/quarantine", json=REASON)
            assert answer.json() == {"quarantined": True}
        end = (await edge.job(job_id)).end
        assert isinstance(end, Failed)
        assert end.dead_letter is DeadLetter.QUARANTINED
        assert edge.queue.removed == [("default", lane_of("alice"), job_id)]
        shown = (await client.get(f"/diffusion/v1/result?request_id={job_id}")).json()
        assert shown["message"] == "An administrator stopped this job: It floods the disk."

    async def test_a_job_that_has_ended_stays_as_it_is(
        self, edge: Edge, client: Client, admin: Client
    ) -> None:
        job_id = await submit(client)
        await edge.run(job_id)
        answer = await admin.post(f"{JOBS}/{job_id}/quarantine", json=REASON)
        assert answer.json() == {"quarantined": False}

    async def test_a_reason_is_needed(self, edge: Edge, client: Client, admin: Client) -> None:
        job_id = await submit(client)
        wrong = [{"reason": reason} for reason in ("", "a\nb", "a" * 501)]
        for body in (*wrong, {}, {"why": "a"}, []):
            answer = await admin.post(f"{JOBS}/{job_id}/quarantine", json=body)
            assert answer.status_code == 400, body
        assert (await edge.job(job_id)).end is None


class TestResubmit:
    async def test_a_dead_letter_becomes_a_new_job_of_the_same_owner(
        self, edge: Edge, client: Client, admin: Client
    ) -> None:
        edge.name_server.answers["127.0.0.1"] = ("127.0.0.1",)
        job_id = await submit(client, f"?callback_url={CALLBACK}")
        await give_up(edge, job_id)
        answer = await admin.post(f"{JOBS}/{job_id}/resubmit")
        retry_id = answer.json()["request_id"]
        assert answer.status_code == 202
        assert answer.json() == {"request_id": retry_id, "retry_of": job_id}
        assert answer.headers["Location"] == f"{JOBS}/{retry_id}"
        old, new = await edge.job(job_id), await edge.job(retry_id)
        assert new.submitted == old.submitted.model_copy(update={"retry_of": job_id})
        assert (old.version, new.version, new.end) == (2, 1, None)
        # The owner, who knows the old id alone, finds what it became.
        shown = (await client.get(f"/diffusion/v1/result?request_id={retry_id}")).json()
        assert shown["retry_of"] == job_id
        assert (await client.get(f"/v1/jobs/{retry_id}")).json()["retry_of"] == job_id

    async def test_a_repeat_finds_the_same_job(self, edge: Edge, admin: Client, dead: str) -> None:
        answers = [(await admin.post(f"{JOBS}/{dead}/resubmit")).json() for _ in range(2)]
        assert answers[0] == answers[1]
        await give_up(edge, answers[0]["request_id"])
        again = (await admin.post(f"{JOBS}/{answers[0]['request_id']}/resubmit")).json()
        assert again["retry_of"] == answers[0]["request_id"]

    async def test_a_job_that_has_not_failed_is_not_sent_again(
        self, edge: Edge, client: Client, admin: Client
    ) -> None:
        waiting, done, cancelled = [await submit(client) for _ in range(3)]
        await edge.run(done)
        await client.post(f"/v1/jobs/{cancelled}/cancel")
        for job_id in (waiting, done, cancelled):
            answer = await admin.post(f"{JOBS}/{job_id}/resubmit")
            assert refusal(answer) == (409, "job_not_resubmittable")

    async def test_a_job_that_was_sent_again_and_erased_stays_erased(
        self, client: Client, admin: Client, dead: str
    ) -> None:
        retry_id = (await admin.post(f"{JOBS}/{dead}/resubmit")).json()["request_id"]
        await client.delete(f"/v1/jobs/{retry_id}")
        answer = await admin.post(f"{JOBS}/{dead}/resubmit")
        assert answer.status_code == 409
        assert "erased" in answer.json()["error"]["message"]

    async def test_its_endpoint_must_still_take_its_jobs(
        self, edge: Edge, admin: Client, dead: str
    ) -> None:
        moved = (await edge.job(dead)).submitted.model_copy(update={"endpoint": "own"})
        other = "0199a1b2-0000-7000-8000-000000000001"
        await edge.services.writer.submit(other, Submit(moved))
        await give_up(edge, other)
        assert (await admin.post(f"{JOBS}/{other}/resubmit")).status_code == 404
        owner = moved.owner
        for of, draining, status in ("a", False, 404), (owner, True, 503), (owner, False, 202):
            await edge.services.endpoints.put(Endpoint("own", owner=of, draining=draining))
            assert (await admin.post(f"{JOBS}/{other}/resubmit")).status_code == status


async def test_an_unknown_and_an_erased_job_are_404(client: Client, admin: Client) -> None:
    erased = await submit(client)
    await client.delete(f"/v1/jobs/{erased}")
    for job_id in (UNKNOWN, "x", "%00", erased):
        url = f"{JOBS}/{job_id}"
        for answer in (
            await admin.get(url),
            await admin.post(f"{url}/cancel"),
            await admin.post(f"{url}/quarantine", json=REASON),
            await admin.post(f"{url}/resubmit"),
        ):
            assert answer.status_code == 404, answer.request


async def test_blocked_jobs_are_listed_page_by_page(edge: Edge, admin: Client) -> None:
    assert (await admin.get(BLOCKED)).json() == {"jobs": [], "count": 0}
    history, jobs = History(), [new_id() for _ in range(3)]
    for job_id in jobs:
        history.add(job_id, submitted(), Unknown(original_type="darkroom.job.paused.v1"))
    await edge.services.read_model.apply(history.events, expected=0)
    page = (await admin.get(BLOCKED, params={"limit": 2})).json()
    assert [each["request_id"] for each in page["jobs"]] == jobs[:2]
    assert page["count"] == 3
    [first, _] = page["jobs"]
    assert first["position"] == 2
    assert first["why"] == "an event of a later version (darkroom.job.paused.v1)"
    assert first["since"] > MORNING.isoformat()
    cursor = page["next_cursor"]
    rest = (await admin.get(BLOCKED, params={"limit": 2, "cursor": cursor})).json()
    assert [each["request_id"] for each in rest["jobs"]] == jobs[2:]
    assert "next_cursor" not in rest
