"""Jobs on ComfyUI servers end once, whatever is killed, stopped or cancelled."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import signal
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from examples.receiver import Receiver
from tests.support.comfyui.core_requests import core_request
from tests.support.comfyui.standin_server import FOLDER, graph, node
from tests.support.polling import eventually
from tests.support.service import Service
from tests.support.uploads import png

pytestmark = pytest.mark.timeout(1200)

OWN = "comfyui"
PICTURE = node("Picture", filename_prefix="a")
WAIT = node("Wait", seconds=8)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with the install of a stand-in for ComfyUI."""
    data_dir = tmp_path_factory.mktemp("comfyui") / "data"
    with Service(
        data_dir,
        DARKROOM_MIN_WORKERS="0",
        DARKROOM_COMFYUI_DIR=str(FOLDER),
        DARKROOM_COMFYUI_PYTHON=sys.executable,
        DARKROOM_TEST_COMFYUI_TIMEOUT_S="3",
        DARKROOM_TEST_COMFYUI_CANCEL_S="2",
    ) as service:
        until(lambda: service.http.get(f"/v1/endpoints/{OWN}").is_success)
        assert ended(service, submit(service, PICTURE))["status"] == 1
        yield service
        assert service.disagreements() == ""
    assert servers() == []


def submit(service: Service, *nodes: dict[str, Any], endpoint: str = OWN, **query: str) -> str:
    return service.submit("workflow", {"prompt": graph(*nodes)}, endpoint=endpoint, **query)


def create(service: Service, id: str, **members: Any) -> None:
    """Create an endpoint whose worker starts a stand-in for ComfyUI."""
    install = {"comfyui_dir": str(FOLDER), "comfyui_python": sys.executable}
    body = {"id": id, "engine": "comfyui", "min_workers": 1, "gpus": 0, **install, **members}
    answer = service.http.post("/v1/endpoints", json=body)
    assert answer.status_code == httpx.codes.CREATED, answer.text


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


def content(path: Path) -> bytes:
    """Return the content of a file, decompressed."""
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def wait_running(service: Service, job_id: str) -> None:
    until(lambda: service.result(job_id, "workflow").get("progress"))


def check_completed_once(service: Service, job_id: str, files: int) -> None:
    result = ended(service, job_id)
    assert result["status"] == 1, (result, service.events(job_id))
    assert [each["status"] for each in result["results"]] == [1] * files
    names = service.event_names(job_id)
    assert names.count("completed") == 1
    assert names[-1] == "completed"


def test_a_graph_that_our_own_engine_does_not_know_runs_on_the_install(service: Service) -> None:
    result = ended(service, service.submit("workflow", {"prompt": graph(PICTURE)}))

    assert (result["status"], result["endpoint"]) == (1, OWN)


def test_the_start_shows_what_the_install_has(service: Service) -> None:
    ready = r"ComfyUI stand-in is ready, with \d\d node types\."
    shown = re.compile(rf"{ready}\nPacks that could not be imported: broken-pack\.")
    until(lambda: shown.search(service.output))


def test_files_of_every_kind_are_results(service: Service) -> None:
    text, secret = service.command("keys", "create", "admin").stdout.split()
    nodes = (PICTURE, node("Video", filename_prefix="b"), node("Note", text="hello"))
    with Receiver(secret) as receiver:
        job_id = submit(service, *nodes, key=text, callback_url=receiver.url)
        result = ended(service, job_id)
        assert json.loads(receiver.bodies.get(timeout=60)) == result

    shown = service.http.get(f"/v1/jobs/{job_id}").json()
    assert shown["comfyui"]["version"] == "stand-in"
    described = [(each["kind"], each["media_type"]) for each in result["results"]]
    assert described == [("image", "image/png"), ("video", "video/mp4"), ("text", "text/plain")]
    sizes = [(each.get("width"), each.get("height")) for each in result["results"]]
    assert sizes == [(32, 16), (None, None), (None, None)]
    answers = [service.http.get(each["url"]) for each in result["results"]]
    assert [each.content for each in answers[1:]] == [b"a video", b"hello"]
    assert [each.headers["content-type"] for each in answers[:2]] == ["image/png", "video/mp4"]


def test_a_secret_of_the_caller_reaches_the_server_and_no_file(service: Service) -> None:
    secret = "the-secret-of-a-caller"
    body = {"prompt": graph(PICTURE), "extra_data": {"api_key_comfy_org": secret}}
    job_id = service.submit("workflow", body, endpoint=OWN)

    check_completed_once(service, job_id, 1)
    arguments = [process.cmdline() for process in servers()]
    ports = [each[each.index("--port") + 1] for each in arguments]
    seen = [httpx.get(f"http://127.0.0.1:{port}/seen").json()["extra_data"] for port in ports]
    assert secret in str(seen)
    assert secret not in service.output
    files = [path for path in service.data_dir.rglob("*") if path.is_file()]
    assert [path for path in files if secret.encode() in content(path)] == []


def test_a_ready_worker_lists_the_packs_that_failed(service: Service) -> None:
    [worker] = service.http.get(f"/v1/endpoints/{OWN}").json()["workers"]

    assert worker["state"] == "ready"
    assert worker["trouble"] == "Packs that could not be imported: broken-pack"


def test_a_graph_that_the_server_refuses_fails_with_its_errors(service: Service) -> None:
    result = ended(service, submit(service, PICTURE, node("Half")))

    assert result["status"] == 2
    assert result["error"] == {"code": "invalid_input", "retryable": False}


def test_a_graph_with_a_node_that_the_server_has_not_declared_is_refused(service: Service) -> None:
    until(lambda: service.http.get("/v1/object_info", params={"endpoint": OWN}).is_success)
    answer = service.http.post(
        "/workflow/v1/generate",
        params={"endpoint": OWN},
        json={"prompt": graph(node("Unknown"))},
    )

    assert answer.status_code == httpx.codes.BAD_REQUEST
    assert answer.json()["error"]["type"] == "missing_node_type"


def test_a_diffusion_request_has_its_images_in_the_order_of_their_seeds(service: Service) -> None:
    body = core_request("txt2img", sd_model_checkpoint="sd15", n_iter=11)

    result = service.ended(service.submit("diffusion", body, endpoint=OWN))

    assert result["endpoint"] == OWN
    assert [each["seed"] for each in result["results"]] == [*range(5, 16)]
    members = {**core_request("img2img"), "init_images": [b64encode(png()).decode()], "n_iter": 2}
    members |= {"override_settings": {"sd_model_checkpoint": "sd15"}, "tiling": False}
    answer = service.http.post(f"/sdapi/v1/img2img?endpoint={OWN}", json=members)
    assert answer.status_code == httpx.codes.OK, answer.text
    info = json.loads(answer.json()["info"])
    assert (len(answer.json()["images"]), info["all_seeds"]) == (2, [5, 6])
    assert [text.startswith("a red fox\nSteps: 2") for text in info["infotexts"]] == [True, True]
    refused = service.http.post(f"/sdapi/v1/txt2img?endpoint={OWN}", json={"subseed_strength": 1})
    assert refused.status_code == httpx.codes.UNPROCESSABLE_ENTITY


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


def test_a_server_is_restarted_between_jobs_and_no_job_is_charged(service: Service) -> None:
    others = {process.pid for process in servers()}

    def pids() -> set[int]:
        return {process.pid for process in servers()} - others

    create(service, "recycled", comfyui_max_jobs=3)
    check_completed_once(service, submit(service, PICTURE, endpoint="recycled"), files=1)
    first = pids()
    jobs = [submit(service, PICTURE, endpoint="recycled") for _ in range(12)]

    for job_id in jobs:
        check_completed_once(service, job_id, files=1)
        assert service.event_names(job_id).count("started") == 1
    until(lambda: len(pids()) == 1)
    assert len(first) == 1
    assert pids() != first
    assert service.http.delete("/v1/endpoints/recycled", params={"drain_s": 0}).is_success
    until(lambda: pids() == set())


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
    before = len(servers())
    create(service, "removed", cpus=0.1)
    assert ended(service, submit(service, PICTURE, endpoint="removed"))["status"] == 1
    assert len(servers()) == before + 1
    assert service.http.delete("/v1/endpoints/removed", params={"drain_s": 0}).is_success

    until(lambda: len(servers()) == before)
