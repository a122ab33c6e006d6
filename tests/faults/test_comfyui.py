"""Jobs on ComfyUI servers end once, whatever is killed, stopped or cancelled."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from examples.receiver import Receiver
from tests.support.comfyui.standin_server import FOLDER, graph, node
from tests.support.polling import eventually
from tests.support.service import Service

pytestmark = pytest.mark.timeout(1200)

OWN = "comfyui"
PICTURE = node("Picture", filename_prefix="a")
WAIT = node("Wait", seconds=8)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service whose endpoint `comfyui` starts a stand-in for ComfyUI."""
    data_dir = tmp_path_factory.mktemp("comfyui") / "data"
    with Service(
        data_dir,
        DARKROOM_MIN_WORKERS="0",
        DARKROOM_TEST_COMFYUI_TIMEOUT_S="3",
        DARKROOM_TEST_COMFYUI_CANCEL_S="2",
    ) as service:
        install = {"comfyui_dir": str(FOLDER), "comfyui_python": sys.executable}
        body = {"id": OWN, "engine": "comfyui", "min_workers": 1, "gpus": 0, **install}
        answer = service.http.post("/v1/endpoints", json=body)
        assert answer.status_code == httpx.codes.CREATED, answer.text
        assert ended(service, submit(service, PICTURE))["status"] == 1
        yield service
        assert service.disagreements() == ""
    assert servers() == []


def submit(service: Service, *nodes: dict[str, Any], **query: str) -> str:
    return service.submit("workflow", {"prompt": graph(*nodes)}, endpoint=OWN, **query)


def ended(service: Service, job_id: str) -> dict[str, Any]:
    return service.ended(job_id, "workflow")


def until(check: Callable[[], Any]) -> None:
    asyncio.run(eventually(check))


def servers() -> list[psutil.Process]:
    """The processes of the stand-in."""
    found = []
    for process in psutil.process_iter():
        try:
            arguments = process.cmdline()
            is_server = process.cwd() == str(FOLDER) and "--user-directory" in arguments
        except psutil.Error:
            continue
        if is_server and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def wait_running(service: Service, job_id: str) -> None:
    until(lambda: service.result(job_id, "workflow").get("progress"))


def check_completed_once(service: Service, job_id: str, files: int) -> None:
    result = ended(service, job_id)
    assert result["status"] == 1, (result, service.events(job_id))
    assert [each["status"] for each in result["results"]] == [1] * files
    names = service.event_names(job_id)
    assert names.count("completed") == 1
    assert names[-1] == "completed"


def test_files_of_every_kind_are_results(service: Service) -> None:
    text, secret = service.command("keys", "create", "admin").stdout.split()
    nodes = (PICTURE, node("Video", filename_prefix="b"), node("Note", text="hello"))
    with Receiver(secret) as receiver:
        job_id = submit(service, *nodes, key=text, callback_url=receiver.url)
        result = ended(service, job_id)
        assert json.loads(receiver.bodies.get(timeout=60)) == result

    described = [(each["kind"], each["media_type"]) for each in result["results"]]
    assert described == [("image", "image/png"), ("video", "video/mp4"), ("text", "text/plain")]
    sizes = [(each.get("width"), each.get("height")) for each in result["results"]]
    assert sizes == [(32, 16), (None, None), (None, None)]
    answers = [service.http.get(each["url"]) for each in result["results"]]
    assert [each.content for each in answers[1:]] == [b"a video", b"hello"]
    assert [each.headers["content-type"] for each in answers[:2]] == ["image/png", "video/mp4"]


def test_a_graph_that_the_server_refuses_fails_with_its_errors(service: Service) -> None:
    result = ended(service, submit(service, node("Unknown")))

    assert result["status"] == 2
    assert result["error"] == {"code": "invalid_input", "retryable": False}
    assert "Unknown does not exist" in result["message"]


def _server(_: Service) -> psutil.Process:
    [process] = servers()
    return process


def _engine(service: Service) -> psutil.Process:
    [process] = service.processes("ray::ComfyUIEngine")
    return process


def _job_actor(service: Service) -> psutil.Process:
    return next(
        process
        for process in service.processes("ray::JobProcess")
        if "run" in " ".join(process.cmdline())
    )


@pytest.mark.parametrize(
    ("find", "number"),
    [
        (_server, signal.SIGKILL),
        (_server, signal.SIGSTOP),
        (_engine, signal.SIGKILL),
        (_job_actor, signal.SIGKILL),
    ],
    ids=["server-killed", "server-stopped", "engine-killed", "job-actor-killed"],
)
def test_a_job_survives_the_end_of_a_process(
    service: Service, find: Callable[[Service], psutil.Process], number: signal.Signals
) -> None:
    job_id = submit(service, WAIT, PICTURE)
    wait_running(service, job_id)

    os.kill(find(service).pid, number)

    check_completed_once(service, job_id, files=1)
    until(lambda: len(servers()) == 1)


def test_a_cancelled_job_frees_the_server(service: Service) -> None:
    running = submit(service, node("Wait", seconds=600, deaf=True))
    wait_running(service, running)

    assert service.http.post(f"/v1/jobs/{running}/cancel").is_success

    assert ended(service, running)["state"] == "cancelled"
    check_completed_once(service, submit(service, PICTURE), files=1)


def test_jobs_wait_for_a_server_that_is_not_there(service: Service, tmp_path: Path) -> None:
    port = 18199
    body = {"id": "attached", "engine": "comfyui", "comfyui_url": f"http://127.0.0.1:{port}"}
    assert service.http.post("/v1/endpoints", json=body).is_success
    job_id = service.submit("workflow", {"prompt": graph(PICTURE)}, endpoint="attached")

    def trouble() -> str:
        workers = service.http.get("/v1/endpoints/attached").json().get("workers") or [{}]
        return workers[0].get("trouble") or ""

    until(lambda: "ComfyUI did not start" in trouble())
    folders = {name: tmp_path / name for name in ("output", "input", "temp", "user")}
    arguments = [f"--{name}-directory={path}" for name, path in folders.items()]
    for path in folders.values():
        path.mkdir()
    with psutil.Popen(
        [sys.executable, "main.py", f"--port={port}", *arguments], cwd=FOLDER
    ) as process:
        check_completed_once(service, job_id, files=1)
        assert service.http.delete("/v1/endpoints/attached", params={"drain_s": 0}).is_success
        process.kill()


def test_a_deleted_endpoint_leaves_no_server(service: Service) -> None:
    assert service.http.delete(f"/v1/endpoints/{OWN}", params={"drain_s": 0}).is_success

    until(lambda: servers() == [])
