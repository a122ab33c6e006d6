"""Our own client, in both forms, and its receiver, on a running service."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from darkroom_client import AsyncDarkroom, Callback, Darkroom, Options, State
from darkroom_client.receiver import callbacks
from fastapi import FastAPI

from examples.service import free_port
from tests.support.service import Service

REQUEST = {"prompt": "a large red circle on white", "width": 64, "height": 64, "steps": 4}


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(30)


def test_a_job_is_watched_saved_and_called_back(service: Service, tmp_path: Path) -> None:
    key, secret = service.command("keys", "create", "own").stdout.split()
    app, told, had = FastAPI(), list[Callback](), threading.Event()

    @callbacks(app, secret=secret)
    async def note(callback: Callback) -> None:
        told.append(callback)
        had.set()

    with serving(app) as receiver, Darkroom(service.url, key) as darkroom:
        options = Options(
            callback_url=f"{receiver}/task_completed", image_format="webp", image_quality=100
        )
        job = darkroom.diffusion(REQUEST, options=options)
        names = [event.name for event in darkroom.watch(job)]
        assert (names[0], names[-1]) == ("submitted", "completed")
        result = darkroom.wait(job, inline=True).require_completed()
        [path] = darkroom.save(result, tmp_path)
        assert path.suffix == ".webp"
        assert path.read_bytes()[8:12] == b"WEBP"
        assert had.wait(60)
    [callback] = told
    assert callback.result.request_id == job.request_id
    assert callback.result.state is State.COMPLETED


async def test_the_same_with_asyncio(service: Service) -> None:
    async with AsyncDarkroom(service.url, service.admin_key) as darkroom:
        jobs = await asyncio.gather(*[darkroom.diffusion({**REQUEST, "seed": n}) for n in (1, 2)])
        results = await asyncio.gather(*[darkroom.wait(job) for job in jobs])
        files = [await darkroom.download(result.images[0]) for result in results]
    assert all(file.startswith(b"\x89PNG") for file in files)
