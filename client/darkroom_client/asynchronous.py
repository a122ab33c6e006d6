"""The client for programs with asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx

from darkroom_client import core
from darkroom_client.core import Answer, Call, Clock, Flow, Lost, Now, Pause, Sent
from darkroom_client.requests import answer_of, headers_of, is_stream, request_of
from darkroom_client.stream import Watching
from darkroom_client.values import Event, Image, Options, Result, Upload

T = TypeVar("T")


class AsyncDarkroom:
    """`async with AsyncDarkroom(url, key) as darkroom:` calls one service with one API key.

    Every method raises Refused, AnswerInvalid and Unreachable. What may pass is tried again, for
    up to half a minute or so.
    """

    def __init__(
        self, url: str, key: str, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/"), headers=headers_of(key), transport=transport
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def workflow(
        self,
        graph: Mapping[str, Any],
        *,
        options: Options | None = None,
        idempotency_key: str | None = None,
    ) -> Result:
        """Submit a node graph in ComfyUI's API format; the job as it is then.

        Without a key of yours, one is drawn, so that a call that is tried again is one job.
        """
        body = graph if "prompt" in graph else {"prompt": graph}
        return await self._run(
            core.submitted("workflow", body, options or Options(), idempotency_key)
        )

    async def diffusion(
        self,
        parameters: Mapping[str, Any],
        *,
        options: Options | None = None,
        idempotency_key: str | None = None,
    ) -> Result:
        """Submit parameters by the WebUI's names, as `workflow` does."""
        return await self._run(
            core.submitted("diffusion", parameters, options or Options(), idempotency_key)
        )

    async def result(self, job: Result | str, *, inline: bool = False) -> Result:
        """The job as it is now; `inline`: with the files of small images."""
        return await self._run(core.result(_id(job), inline=inline))

    async def wait(
        self, job: Result | str, *, timeout_s: float | None = None, inline: bool = False
    ) -> Result:
        """The job once it has ended, whichever way. Raises NotEnded after `timeout_s`."""
        return await self._run(core.waited(_id(job), timeout_s=timeout_s, inline=inline))

    async def watch(self, job: Result | str) -> AsyncGenerator[Event]:
        """What has happened to a job, and what happens until its end.

        A connection that is lost is made again, and goes on where it was.
        """
        watching = Watching(_id(job))
        while not watching.is_over:
            why = "The stream ended before its job."
            request = request_of(self._http, watching.call())
            try:
                response = await self._http.send(request, stream=True)
                try:
                    if not is_stream(response):
                        await response.aread()
                        watching.answered(answer_of(response))
                    else:
                        async for chunk in response.aiter_bytes():
                            for event in watching.fed(chunk):
                                yield event
                finally:
                    await response.aclose()
            except httpx.TransportError as error:
                why = str(error) or type(error).__name__
            if not watching.is_over:
                await asyncio.sleep(watching.pause_s(why))

    async def cancel(self, job: Result | str) -> bool:
        """False where it had another end before."""
        return await self._run(core.cancelled(_id(job)))

    async def erase(self, job: Result | str) -> None:
        """Remove its prompt, images and events; one that has not ended is cancelled."""
        await self._run(core.erased(_id(job)))

    async def upload(self, name: str, data: bytes) -> Upload:
        """An input image, which workflows name from now on."""
        return await self._run(core.uploaded(name, data))

    async def download(self, image: Image) -> bytes:
        return await self._run(core.downloaded(image))

    async def save(self, result: Result, folder: Path) -> list[Path]:
        """The files of its images, as `<request id>-<index>.<suffix>`."""
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        paths = []
        for image in result.images:
            path = folder / f"{result.request_id}-{image.index}{image.suffix}"
            data = await self.download(image)
            await asyncio.to_thread(path.write_bytes, data)
            paths.append(path)
        return paths

    async def _run(self, flow: Flow[T]) -> T:
        sent: Sent = None
        while True:
            try:
                step = flow.send(sent)
            except StopIteration as end:
                value: T = end.value
                return value
            match step:
                case Call():
                    sent = await self._answer(step)
                case Pause(seconds=seconds):
                    await asyncio.sleep(seconds)
                    sent = None
                case Clock():
                    sent = Now(time.monotonic())

    async def _answer(self, call: Call) -> Answer | Lost:
        try:
            return answer_of(await self._http.send(request_of(self._http, call)))
        except httpx.TransportError as error:
            return Lost(str(error) or type(error).__name__)


def _id(job: Result | str) -> str:
    return job if isinstance(job, str) else job.request_id
