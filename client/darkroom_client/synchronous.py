"""Darkroom: the client for programs without asyncio."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx
from httpx_sse import EventSource

from darkroom_client import core
from darkroom_client.core import Answer, Call, Clock, Flow, Lost, Now, Pause, Sent
from darkroom_client.requests import answer_of, headers_of, is_stream, request_of
from darkroom_client.stream import Watching, watching_all, watching_job
from darkroom_client.values import Event, Image, Options, Result, Upload

T = TypeVar("T")


class Darkroom:
    """A client of one service with one API key.

    Use it as `with Darkroom(url, key) as darkroom:`. A request may raise Refused, AnswerInvalid or
    Unreachable. After a temporary error, all methods except `call` repeat the request a few times.
    """

    def __init__(self, url: str, key: str, *, transport: httpx.BaseTransport | None = None) -> None:
        self._http = httpx.Client(
            base_url=url.rstrip("/"), headers=headers_of(key), transport=transport
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def workflow(
        self,
        graph: Mapping[str, Any],
        *,
        options: Options | None = None,
        idempotency_key: str | None = None,
    ) -> Result:
        """Submit a node graph in ComfyUI's API format. Returns the accepted job.

        Without an `idempotency_key`, the client generates one, so that a repeated request creates
        only one job.
        """
        body = graph if "prompt" in graph else {"prompt": graph}
        return self._run(
            core.submitted(core.WORKFLOW_PATH, body, options or Options(), idempotency_key)
        )

    def diffusion(
        self,
        parameters: Mapping[str, Any],
        *,
        options: Options | None = None,
        idempotency_key: str | None = None,
    ) -> Result:
        """Submit parameters with the names of the WebUI. See `workflow` for the other arguments."""
        return self._run(
            core.submitted(core.DIFFUSION_PATH, parameters, options or Options(), idempotency_key)
        )

    def run(
        self,
        name: str,
        inputs: Mapping[str, Any],
        *,
        options: Options | None = None,
        idempotency_key: str | None = None,
    ) -> Result:
        """Run a named workflow, such as `portrait` or `portrait@3`, with values for its inputs.

        See `workflow` for the other arguments.
        """
        path, body = core.run_path(name), {"inputs": dict(inputs)}
        return self._run(core.submitted(path, body, options or Options(), idempotency_key))

    def result(self, job: Result | str, *, inline: bool = False) -> Result:
        """Return the current state of a job.

        With `inline`, the result includes the files of small images.
        """
        return self._run(core.result(_id(job), inline=inline))

    def wait(
        self, job: Result | str, *, timeout_s: float | None = None, inline: bool = False
    ) -> Result:
        """Wait until the job has completed, failed or been cancelled. Returns its result.

        Raises NotEnded if the job has not ended within `timeout_s` seconds.
        """
        return self._run(core.waited(_id(job), timeout_s=timeout_s, inline=inline))

    def watch(self, job: Result | str) -> Generator[Event]:
        """Yield all events of a job, from the first event to the end of the job.

        If the connection is lost, the client reconnects and continues after the last event.
        """
        return self._follow(watching_job(_id(job)))

    def watch_all(self, **query: str) -> Generator[Event]:
        """Yield the events of every job of the key's owner. The stream does not end by itself.

        `query` takes the parameters of `GET /v1/events`: `endpoint`, `status` and `cursor`.
        """
        return self._follow(watching_all(query))

    def cancel(self, job: Result | str) -> bool:
        """Cancel the job. Returns False if the job had already ended in another way."""
        return self._run(core.cancelled(_id(job)))

    def erase(self, job: Result | str) -> None:
        """Remove the prompt, images and events of a job. A job that has not ended is cancelled."""
        self._run(core.erased(_id(job)))

    def upload(self, name: str, data: bytes) -> Upload:
        """Store an input file under `name`. Workflows refer to it by this name."""
        return self._run(core.uploaded(name, data))

    def download(self, image: Image) -> bytes:
        return self._run(core.downloaded(image))

    def save(self, result: Result, folder: Path) -> list[Path]:
        """Write the images to files such as `<request id>-0.png`. Returns their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for image in result.images:
            path = folder / f"{result.request_id}-{image.index}{image.suffix}"
            data = self.download(image)
            path.write_bytes(data)
            paths.append(path)
        return paths

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        json: Any = None,
    ) -> Any:
        """Call any route of the service once. Returns the parsed JSON answer.

        `path` begins with a slash, and its segments must be percent-encoded.
        """
        call = Call(method, path, query or {}, json=json, timeout_s=core.LONG_TIMEOUT_S)
        return self._run(core.called_once(call))

    def _follow(self, watching: Watching) -> Generator[Event]:
        while not watching.is_over:
            why = "The stream has ended."
            request = request_of(self._http, watching.call())
            try:
                response = self._http.send(request, stream=True)
                try:
                    if not is_stream(response):
                        response.read()
                        watching.handle_answer(answer_of(response))
                    else:
                        for sent in EventSource(response).iter_sse():
                            if (event := watching.handle_message(sent)) is not None:
                                yield event
                finally:
                    response.close()
            except httpx.TransportError as error:
                why = str(error) or type(error).__name__
            if not watching.is_over:
                time.sleep(watching.pause_s(why))

    def _run(self, flow: Flow[T]) -> T:
        sent: Sent = None
        while True:
            try:
                step = flow.send(sent)
            except StopIteration as end:
                value: T = end.value
                return value
            match step:
                case Call():
                    sent = self._answer(step)
                case Pause(seconds=seconds):
                    time.sleep(seconds)
                    sent = None
                case Clock():
                    sent = Now(time.monotonic())

    def _answer(self, call: Call) -> Answer | Lost:
        try:
            return answer_of(self._http.send(request_of(self._http, call)))
        except httpx.TransportError as error:
            return Lost(str(error) or type(error).__name__)


def _id(job: Result | str) -> str:
    return job if isinstance(job, str) else job.request_id
