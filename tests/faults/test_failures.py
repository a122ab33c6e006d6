"""After any kill the job still ends once, and its callback arrives."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest
from httpx_sse import SSEError

from local.nats_server import NatsServer
from tests.faults.parts.processes import RayState
from tests.support.patience import FACTOR
from tests.support.polling import eventually
from tests.support.service import CHECKPOINT, Service, diffusion, workflow
from tests.support.uploads import png

pytestmark = pytest.mark.timeout(1200)

ENDS = {"completed", "failed", "cancelled"}
LONG = {"steps": 120, "batch_size": 2, "width": 128, "height": 128}


@contextmanager
def running_job(service: Service) -> Iterator[str]:
    """A job that runs when the context begins. At its end the job has completed once, with all its
    images, and its callback has arrived.
    """
    with service.receiver() as receiver:
        job_id = service.submit("diffusion", diffusion(**LONG), callback_url=receiver.url)
        wait_running(service, job_id)
        yield job_id
        result = service.ended(job_id)
        assert result["status"] == 1, (result, service.events(job_id))
        assert [item["status"] for item in result["results"]] == [1, 1]
        assert json.loads(receiver.bodies.get(timeout=60)) == result
    check_ended_once(service, job_id)


def wait_running(service: Service, job_id: str) -> None:
    def has_progress() -> bool:
        return bool(service.result(job_id).get("progress"))

    asyncio.run(eventually(has_progress))


def check_ended_once(service: Service, job_id: str) -> None:
    events = service.event_names(job_id)
    assert [name for name in events if name in ENDS] == ["completed"], events
    assert events[-1] == "completed"
    indexes = [e["data"]["index"] for e in service.events(job_id) if "image_stored" in e["type"]]
    assert sorted(indexes) == list(range(len(indexes)))


def kill(service: Service, name: str) -> None:
    """Send SIGKILL to the process of a named actor; `name` may be a part of it."""
    for pid in RayState(service.ray_address).pids(name):
        os.kill(pid, signal.SIGKILL)


def writer_of(service: Service, job_id: str) -> str:
    """Return the name of the job actor that has started the job."""
    return str(service.events(job_id)[1]["data"]["actor"]).split("@")[0]


@pytest.mark.parametrize(
    "part", ["job", "engine", "router", "dispatcher", "projection", "callbacks"]
)
def test_a_killed_part_costs_no_job(chaos: Service, part: str) -> None:
    with running_job(chaos) as job_id:
        if part == "engine":
            chaos.engine().kill()
        else:
            kill(chaos, writer_of(chaos, job_id) if part == "job" else part)


def test_a_job_under_which_the_engine_dies_again_and_again_fails_alone(chaos: Service) -> None:
    guilty = chaos.submit("diffusion", diffusion(seed=1) | LONG | {"steps": 150, "batch_size": 4})
    neighbours = [chaos.submit("diffusion", diffusion(seed=seed) | LONG) for seed in (2, 3, 4)]
    wait_running(chaos, neighbours[0])
    attempts = 0
    while attempts := wait_for_steps(chaos, guilty, attempts):
        chaos.engine().kill()
    result = chaos.ended(guilty)
    assert result["status"] == 2
    text = r"Gave up after \d attempts, 2 of them with no other job on the engine: The engine died"
    assert re.match(text, result["message"])
    starts = [each["data"] for each in chaos.events(guilty) if each["type"].endswith("started.v1")]
    # An attempt that found no engine is not blamed, so there may be more than three.
    first, *others = [start.get("exclusive") for start in starts]
    assert first is None
    assert len(others) >= 2
    assert all(others)
    for job_id in neighbours:
        assert chaos.ended(job_id)["status"] == 1, chaos.events(job_id)
        check_ended_once(chaos, job_id)


def wait_for_steps(service: Service, job_id: str, attempts: int) -> int:
    """Wait until the engine works for a later attempt; return its number, 0 if the job ended."""
    before = service.result(job_id).get("progress")

    def some_attempt() -> list[int]:
        result = service.result(job_id)
        if result["status"] != 0:
            return [0]
        has_steps = result.get("progress") not in (None, before)
        attempt: int = service.http.get(f"/v1/jobs/{job_id}").json()["attempts"]
        return [attempt] if has_steps and attempt > attempts else []

    return asyncio.run(eventually(some_attempt))[0]


def test_nats_killed_in_the_middle_of_a_job(chaos: Service, nats: NatsServer) -> None:
    with running_job(chaos) as job_id:
        # The engine of an earlier test may have died under an earlier attempt.
        attempts = chaos.event_names(job_id).count("started")
        os.kill(nats.pid, signal.SIGKILL)
        time.sleep(1.0)
        nats.start()
    # The actor lived and kept the job.
    assert chaos.event_names(job_id).count("started") == attempts


def test_a_stopped_job_actor_is_replaced_and_adds_nothing_when_it_goes_on(chaos: Service) -> None:
    with running_job(chaos) as job_id:
        [pid] = RayState(chaos.ray_address).pids(writer_of(chaos, job_id))
        os.kill(pid, signal.SIGSTOP)
        try:
            chaos.ended(job_id)
            events = chaos.event_names(job_id)
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    # A slow machine may need a third attempt.
    assert events.count("started") >= 2
    assert chaos.event_names(job_id) == events


def test_while_the_log_is_down_nothing_is_accepted_and_no_job_appears_later(
    chaos: Service, nats: NatsServer
) -> None:
    before = job_ids(chaos)
    nats.stop()
    try:
        asyncio.run(eventually(lambda: not chaos.is_ready()))
        began = time.monotonic()
        answer = chaos.http.post("/diffusion/v1/generate", json=diffusion(seed=4711))
        assert time.monotonic() - began < 3
    finally:
        nats.start()
    assert answer.status_code == 503
    assert answer.json()["error"]["type"] == "unavailable"
    assert int(answer.headers["Retry-After"]) > 0
    asyncio.run(eventually(chaos.is_ready))
    known = asyncio.run(eventually(lambda: accepted(chaos)))
    assert chaos.ended(known)["status"] == 1
    asyncio.run(eventually(lambda: known in job_ids(chaos)))
    assert job_ids(chaos) == before | {known}


def test_a_frozen_log_leaves_the_outcome_unknown_until_the_same_key_asks_again(
    chaos: Service, nats: NatsServer
) -> None:
    for seed in range(4):  # each replica uses its copy of the log's fill for seconds
        chaos.submit("diffusion", diffusion(seed=seed, steps=1))
    os.kill(nats.pid, signal.SIGSTOP)
    try:
        answer = chaos.http.post(
            "/diffusion/v1/generate",
            json=diffusion(seed=4712),
            headers={"Idempotency-Key": "frozen-1"},
        )
    finally:
        os.kill(nats.pid, signal.SIGCONT)
    assert answer.status_code == 503
    assert answer.json()["error"]["type"] == "outcome_unknown"
    asyncio.run(eventually(chaos.is_ready))
    job_id = chaos.submit("diffusion", diffusion(seed=4712), idempotency_key="frozen-1")
    assert chaos.ended(job_id)["status"] == 1
    assert chaos.event_names(job_id).count("submitted") == 1


def test_roles_and_replica_killed_while_the_log_is_down_are_back_when_it_is(
    chaos: Service, nats: NatsServer
) -> None:
    nats.stop()
    try:
        kill(chaos, "router")
        kill(chaos, "projection")
        kill_replicas(chaos)
        asyncio.run(eventually(lambda: answers(chaos)))
    finally:
        nats.start()
    asyncio.run(eventually(chaos.is_ready))
    with running_job(chaos):
        pass


def accepted(service: Service) -> str:
    """Submit a job and return its id; empty if it is refused, as while a replica has no state of
    the log.
    """
    answer = service.http.post("/diffusion/v1/generate", json=diffusion(seed=1))
    return str(answer.json()["request_id"]) if answer.status_code == 202 else ""


def job_ids(service: Service) -> set[str]:
    jobs = service.http.get("/v1/jobs", params={"limit": 200}).json()["jobs"]
    return {job["request_id"] for job in jobs}


def answers(service: Service) -> bool:
    try:
        return service.http.get("/health/live", timeout=2).is_success
    except httpx.TransportError:
        return False


def kill_replicas(service: Service) -> None:
    for replica in service.processes("ray::ServeReplica:darkroom:Api"):
        replica.kill()


Call = tuple[str, dict[str, Any]]
"""The path and the arguments of a request that creates a job."""
CHECKPOINT_NAME = CHECKPOINT.removesuffix(".safetensors")
OF_OPENAI = {"prompt": "a circle", "model": CHECKPOINT_NAME, "quality": "low"}
WAITING: list[Call] = [
    ("/sdapi/v1/txt2img", {"json": diffusion(seed=-1)}),
    ("/v1/images/generations", {"json": OF_OPENAI | {"size": "64x64", "response_format": "url"}}),
    ("/v1/images/edits", {"data": OF_OPENAI, "files": {"image": ("a.png", png("red", (64, 64)))}}),
]
AT_ONCE: list[Call] = [
    ("/prompt", {"json": workflow(seed=1)}),
    ("/api/v2/jobs", {"json": {"workflow": workflow(seed=2)["prompt"]}}),
]


@pytest.mark.parametrize("title", ["ray::ServeReplica:darkroom:Api", "haproxy"])
def test_a_repeated_call_with_its_key_finds_the_job_of_the_broken_call(
    chaos: Service, title: str
) -> None:
    keys = {path: f"{title} {path} {time.time_ns()}" for path, _ in (*WAITING, *AT_ONCE)}

    def post(call: Call) -> httpx.Response:
        path, body = call
        headers = {"Idempotency-Key": keys[path]}
        return chaos.http.post(path, headers=headers, timeout=300 * FACTOR, **body)

    def broken(call: Call) -> bool:
        try:
            return not post(call).is_success
        except httpx.TransportError:
            return True

    def repeated(call: Call) -> str:
        def succeeded() -> str:
            with suppress(httpx.TransportError):
                answer = post(call)
                if answer.is_success:
                    return answer.text
                assert answer.status_code in {502, 503}, answer.text
            return ""

        return asyncio.run(eventually(succeeded))

    before = job_ids(chaos)
    count = len(before) + len(keys)
    engine = chaos.engine()
    with ThreadPoolExecutor() as threads:
        engine.suspend()  # so that no job ends before the kill
        try:
            for call in AT_ONCE:
                assert post(call).is_success
            waits = [threads.submit(broken, call) for call in WAITING]
            asyncio.run(eventually(lambda: len(job_ids(chaos)) == count))
            for process in chaos.processes(title):
                process.kill()
            assert [wait.result() for wait in waits] == [True] * len(WAITING)
        finally:
            engine.resume()
        answers = list(threads.map(repeated, (*WAITING, *AT_ONCE)))
    jobs = {job_id for job_id in job_ids(chaos) if job_id not in before}
    assert len(jobs) == len(keys)
    for job_id in jobs:
        result = chaos.http.get(f"/v1/jobs/{job_id}/result", params={"wait": 60}).json()
        assert result["status"] == 1, result
        assert sum(job_id in text for text in answers) == 1
        check_ended_once(chaos, job_id)
        assert chaos.event_names(job_id).count("image_stored") == 1


def test_a_killed_replica_costs_a_stream_nothing(chaos: Service) -> None:
    """Every replica is killed, so the new one has no state of the stream."""
    jobs = [chaos.submit("diffusion", diffusion(steps=40)) for _ in range(4)]
    seen: list[tuple[int, str]] = []
    is_killed = False
    give_up_at = time.monotonic() + 120
    while len(seen) < 4 * len(jobs):  # submitted, started, image_stored, completed
        assert time.monotonic() < give_up_at, seen
        try:
            for place, _, job_id in chaos.stored(after=str(seen[-1][0]) if seen else "0"):
                if job_id in jobs:
                    seen.append((place, job_id))
                if len(seen) > 5 and not is_killed:
                    is_killed = True
                    kill_replicas(chaos)
                if len(seen) == 4 * len(jobs):
                    break
        except (httpx.TransportError, SSEError):
            time.sleep(0.2)
    assert is_killed
    assert [place for place, _ in seen] == sorted({place for place, _ in seen})
    stored = {job_id: chaos.event_names(job_id) for job_id in jobs}
    assert {job_id: sum(each == job_id for _, each in seen) for job_id in jobs} == {
        job_id: len(names) for job_id, names in stored.items()
    }
