"""The whole service as its users have it: `darkroom up` in its own process."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
from httpx_sse import ServerSentEvent, connect_sse

# One token for every instance that tests start, because Ray reads it once per process.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN_PATH"] = str(Path(tempfile.mkdtemp()) / "ray.token")
# This process finds Ray on the loopback address, as `darkroom up` starts it.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"

import ray

import examples.service
from examples.receiver import Receiver
from tests.support.generate_bodies import workflow_body
from tests.support.patience import FACTOR
from tests.support.subscriber import stored_events

CHECKPOINT = "darkroom-tiny.safetensors"
READY_TIMEOUT_S = 240.0 * FACTOR
SUBMIT_TIMEOUT_S = 30.0 * FACTOR
END_TIMEOUT_S = 400.0 * FACTOR
"""Two-threaded torch is many times slower on a busy machine."""

# Short times, so that restarts happen within the time limits of tests.
TEST_SETTINGS = {
    "DARKROOM_TEST_LEASE_S": "4",
    "DARKROOM_TEST_LEASE_RENEW_S": "1",
    "DARKROOM_TEST_DISPATCHER_LEASE_S": "2",
    "DARKROOM_TEST_ENDPOINTS_PERIOD_S": "0.5",
    "DARKROOM_TEST_REQUEUE_PERIOD_S": "5",
    "DARKROOM_TEST_READY_PERIOD_S": "0.5",
    "DARKROOM_JOBS_PER_WORKER": "3",
    "DARKROOM_CALLBACK_ALLOW_NETWORKS": "127.0.0.0/8",
    "DARKROOM_CALLBACK_DELAYS_S": "0,0.5,1,2,4",
}


class Service(examples.service.Service):
    """The whole service with the settings above, with methods for tests."""

    def __init__(self, data_dir: Path, **settings: str) -> None:
        log_path = data_dir.parent / f"{data_dir.name}.log"
        super().__init__(data_dir, TEST_SETTINGS | settings, log_path=log_path)
        for name in ("RAY_AUTH_MODE", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"):
            self.environment.pop(name)  # unset, as users have it
        self.http = httpx.Client(base_url=self.url, timeout=30, trust_env=False)

    # Life.

    def start(self, *, timeout_s: float = READY_TIMEOUT_S) -> None:
        printed = len(self.output)
        super().start(timeout_s=timeout_s)
        while "Admin key" not in self.output[printed:]:  # the screen is written into it
            time.sleep(0.05)
        self.http.headers["Authorization"] = f"Bearer {self.admin_key}"

    def close(self, *, within_s: float = 30.0 * FACTOR) -> None:
        super().close(within_s=within_s)
        self.http.close()

    # Calls.

    def submit(
        self,
        flavour: str,
        body: dict[str, Any],
        *,
        idempotency_key: str | None = None,
        key: str | None = None,
        **query: str,
    ) -> str:
        """Submit a job. Like any client, try again while the service answers 503."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        give_up_at = time.monotonic() + SUBMIT_TIMEOUT_S
        while True:
            answer = self.http.post(
                f"/{flavour}/v1/generate", json=body, params=query, headers=headers
            )
            if answer.status_code == httpx.codes.ACCEPTED:
                return str(answer.json()["request_id"])
            assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE, answer.text
            assert time.monotonic() < give_up_at, answer.text
            time.sleep(0.5)

    def receiver(self) -> Receiver:
        """Return a receiver of callbacks that are signed for the admin key."""
        return Receiver((self.data_dir / "admin.whsec").read_text().strip())

    def result(self, request_id: str, flavour: str = "diffusion") -> dict[str, Any]:
        answer = self.http.get(f"/{flavour}/v1/result", params={"request_id": request_id})
        assert answer.status_code == httpx.codes.OK, answer.text
        result: dict[str, Any] = answer.json()
        return result

    def ended(self, request_id: str, flavour: str = "diffusion") -> dict[str, Any]:
        """Return the result once the job has ended, whatever fails meanwhile."""
        give_up_at = time.monotonic() + END_TIMEOUT_S
        result: dict[str, Any] = {}
        while time.monotonic() < give_up_at:
            try:
                result = self.result(request_id, flavour)
            except (httpx.TransportError, AssertionError):
                result = {}
            if result.get("status"):
                return result
            time.sleep(0.1)
        raise AssertionError(f"{request_id} has not ended: {result}")

    def followed(
        self, path: str = "/v1/events", *, after: str | None = None, timeout_s: float = 400
    ) -> Iterator[ServerSentEvent]:
        """Yield the events of a stream of the API; `after` is the id of the last known one."""
        headers = {} if after is None else {"Last-Event-ID": after}
        with connect_sse(self.http, "GET", path, headers=headers, timeout=timeout_s) as source:
            for event in source.iter_sse():
                if event.data:
                    yield event

    def stored(self, **options: Any) -> Iterator[tuple[int, str, str]]:
        """Yield id, name and job of the stored events of all jobs."""
        for event in self.followed(**options):
            if event.event not in {"progress", "queued"}:
                yield int(event.id), event.event, event.json()["subject"]

    def event_names(self, request_id: str) -> list[str]:
        """Return the names of the job's stored events in order, directly from the log."""
        return [event["type"].split(".")[-2] for event in self.events(request_id)]

    def events(self, request_id: str) -> list[dict[str, Any]]:
        return asyncio.run(stored_events(self.nats_url, request_id))

    def disagreements(self) -> str:
        """Return what `darkroom verify` reports about this instance; empty: all stores agree."""
        verified = self.command("verify", "--images", check=False)
        assert verified.returncode in (0, 1), verified.stderr
        return verified.stdout

    # Parts.

    @property
    def nats_url(self) -> str:
        """The URL with which the service itself connects."""
        if given := self.environment.get("DARKROOM_NATS_URL"):
            return given
        folder = self.data_dir / "nats"
        password = json.loads((folder / "credentials.json").read_text())["service"]
        return f"nats://service:{password}@127.0.0.1:{(folder / 'port').read_text()}"

    @property
    def reader_url(self) -> str:
        return (self.data_dir / "nats" / "reader.url").read_text().strip()

    @property
    def nats_pid(self) -> int:
        return int((self.data_dir / "nats" / "nats-server.pid").read_text())

    def processes(self, title: str) -> list[psutil.Process]:
        """Return this instance's processes whose title, as Ray sets it, contains `title`."""
        children = psutil.Process(self.pid).children(recursive=True)
        found = []
        for each in children:
            with suppress(psutil.NoSuchProcess):  # the process has ended
                if title in " ".join(each.cmdline()):
                    found.append(each)
        return found

    def engine(self) -> psutil.Process:
        """Return the engine process that has the device."""
        (engine,) = (
            each
            for each in self.processes("ray::EngineProcess")
            if any("darkroom-engine-" in socket.laddr for socket in each.net_connections("unix"))
        )
        return engine

    def actors(self, part: str) -> list[tuple[str, str]]:
        """Return names and namespaces of the actors with `part` in their name; inside `cluster`."""
        named: Any = ray.util.list_named_actors(all_namespaces=True)
        return [(each["name"], each["namespace"]) for each in named if part in each["name"]]

    @contextmanager
    def cluster(self) -> Iterator[None]:
        """Connect this process to this instance's Ray."""
        address = self.ray_address
        ray.init(address=address, namespace="darkroom", log_to_driver=False, logging_level="ERROR")
        try:
            yield
        finally:
            ray.shutdown()

    @property
    def ray_address(self) -> str:
        """The address of this instance's Ray since the last start."""
        lines = reversed(self.output.splitlines())
        return next(line.split()[-1] for line in lines if line.startswith("Ray "))


def diffusion(**changes: Any) -> dict[str, Any]:
    return {
        "prompt": "a red circle",
        "width": 64,
        "height": 64,
        "steps": 4,
        "seed": 7,
        "sampler_name": "Euler",
        "scheduler": "Automatic",
        "sd_model_checkpoint": CHECKPOINT,
    } | changes


def workflow(*, steps: int = 4, seed: int = 7, batch_size: int = 1) -> dict[str, Any]:
    body = workflow_body(steps=steps, seed=seed, cfg=7)
    body["prompt"]["4"]["inputs"]["ckpt_name"] = CHECKPOINT
    body["prompt"]["5"]["inputs"] = {"batch_size": batch_size, "height": 64, "width": 64}
    return body
