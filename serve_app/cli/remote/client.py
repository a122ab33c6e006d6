"""A client of the HTTP API, for the command line and the demo."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx

from serve_app.cli.exit_codes import ExitCode, code_of_status

_JOBS = {False: "/v1/jobs", True: "/v1/admin/jobs"}
"""The path of jobs: those of the key's owner, and of every owner (True)."""
_ENDPOINTS = "/v1/endpoints"
_UPLOADS = "/v1/uploads"
_KEYS = "/v1/keys"


class ClientError(Exception):
    """The service does not answer, or refuses the request; the message says which."""

    def __init__(
        self, message: str, *, code: ExitCode, answer: Mapping[str, Any] | None = None
    ) -> None:
        """`code`: what a command exits with; `answer`: the body of a refusal."""
        super().__init__(message)
        self.code = code
        self.answer = dict(answer or {})


class Client:
    def __init__(self, url: str, key: str, *, timeout_s: float = 90.0) -> None:
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=timeout_s,
            trust_env=False,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def submit(self, flavour: str, body: dict[str, Any], **query: str) -> dict[str, Any]:
        """Submit a job. Returns its result body, which has the request id. Raises ClientError."""
        return self._call("POST", f"/{flavour}/v1/generate", json=body, params=query)

    def result(
        self, request_id: str, flavour: str | None = None, *, wait_s: float = 0
    ) -> dict[str, Any]:
        """The result body, of either flavour where none is given. Raises ClientError."""
        query = {"wait": str(wait_s)}
        if flavour is None:
            path = f"{_job_path(request_id, every_owner=False)}/result"
            return self._call("GET", path, params=query)
        query["request_id"] = request_id
        return self._call("GET", f"/{flavour}/v1/result", params=query)

    def save(self, result: dict[str, Any], folder: Path) -> list[Path]:
        """Download the finished files of `result`. Returns their paths. Raises ClientError."""
        paths = []
        for index, item in enumerate(result["results"]):
            if item["status"] == 1:
                folder.mkdir(parents=True, exist_ok=True)
                suffix = Path(httpx.URL(item["url"]).path).suffix
                path = folder / f"{result['request_id']}_{index}{suffix}"
                path.write_bytes(self._answer("GET", item["url"]).content)
                paths.append(path)
        return paths

    def jobs(self, filters: Mapping[str, Any], *, every_owner: bool = False) -> dict[str, Any]:
        """A page of jobs, newest first; `filters` as the route takes them. Raises ClientError."""
        return self._call("GET", _JOBS[every_owner], params=filters)

    def job(self, request_id: str, *, every_owner: bool = False) -> dict[str, Any]:
        """Raises ClientError."""
        return self._call("GET", _job_path(request_id, every_owner=every_owner))

    def blocked_jobs(self, filters: Mapping[str, Any]) -> dict[str, Any]:
        """A page of jobs that cannot be read on, and how many there are. Raises ClientError."""
        return self._call("GET", f"{_JOBS[True]}/blocked", params=filters)

    def cancel(self, request_id: str, *, every_owner: bool = False) -> bool:
        """False if it had ended before, in another way. Raises ClientError."""
        path = _job_path(request_id, every_owner=every_owner)
        return bool(self._call("POST", f"{path}/cancel")["cancelled"])

    def quarantine(self, request_id: str, reason: str) -> bool:
        """False if it had ended before, in another way. Raises ClientError."""
        path = _job_path(request_id, every_owner=True)
        answer = self._call("POST", f"{path}/quarantine", json={"reason": reason})
        return bool(answer["quarantined"])

    def resubmit(self, request_id: str) -> str:
        """Id of the new job. Raises ClientError."""
        path = _job_path(request_id, every_owner=True)
        return str(self._call("POST", f"{path}/resubmit")["request_id"])

    def endpoints(self) -> dict[str, Any]:
        """Those of the key's owner, and with an admin key all. Raises ClientError."""
        return self._call("GET", _ENDPOINTS)

    def endpoint(self, id: str) -> dict[str, Any]:
        """With its workers and its queue. Raises ClientError."""
        return self._call("GET", _endpoint_path(id))

    def create_endpoint(self, id: str, members: Mapping[str, Any]) -> dict[str, Any]:
        """Raises ClientError."""
        return self._call("POST", _ENDPOINTS, json={**members, "id": id})

    def change_endpoint(self, id: str, members: Mapping[str, Any]) -> dict[str, Any]:
        """Raises ClientError."""
        return self._call("PATCH", _endpoint_path(id), json=members)

    def delete_endpoint(self, id: str, *, drain_s: float | None) -> dict[str, Any]:
        """It takes no more jobs, and goes once its jobs are done. Raises ClientError."""
        query = {} if drain_s is None else {"drain_s": str(drain_s)}
        return self._call("DELETE", _endpoint_path(id), params=query)

    def upload(self, name: str, data: bytes) -> dict[str, Any]:
        """Store an input image or latent under this name. Raises ClientError."""
        return self._call("POST", _UPLOADS, files={"image": (name, data)})

    def uploads(self, filters: Mapping[str, Any]) -> dict[str, Any]:
        """A page of the uploads of the key's owner, newest first. Raises ClientError."""
        return self._call("GET", _UPLOADS, params=filters)

    def remove_upload(self, name: str) -> None:
        """Raises ClientError."""
        self._answer("DELETE", f"{_UPLOADS}/{quote(name, safe='')}")

    def models(self) -> dict[str, Any]:
        """Raises ClientError."""
        return self._call("GET", "/v1/models")

    def keys(self, filters: Mapping[str, Any]) -> dict[str, Any]:
        """A page of the keys of every owner, oldest first. Raises ClientError."""
        return self._call("GET", _KEYS, params=filters)

    def key(self, id: str) -> dict[str, Any]:
        """Raises ClientError."""
        return self._call("GET", _key_path(id))

    def create_key(self, members: Mapping[str, Any]) -> dict[str, Any]:
        """With the text of the key and its webhook secret. Raises ClientError."""
        return self._call("POST", _KEYS, json=members)

    def rotate_key(self, id: str, *, grace_s: float | None) -> dict[str, Any]:
        """As `create_key`. Raises ClientError."""
        query = {} if grace_s is None else {"grace_s": str(grace_s)}
        return self._call("POST", f"{_key_path(id)}/rotate", params=query)

    def revoke_key(self, id: str) -> dict[str, Any]:
        """Raises ClientError."""
        return self._call("DELETE", _key_path(id))

    @contextmanager
    def stream(
        self, path: str, query: Mapping[str, Any], headers: Mapping[str, str], *, silence_s: float
    ) -> Generator[httpx.Response]:
        """An answer that is read as it comes. Raises ClientError; reading raises httpx's errors.

        `silence_s`: after so long without anything it has broken off.
        """
        timeout = httpx.Timeout(silence_s, connect=10.0)
        with self._http.stream(
            "GET", path, params=query, headers=headers, timeout=timeout
        ) as answer:
            if answer.is_error:
                answer.read()
                raise _refusal(answer)
            yield answer

    def _call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        answer = self._answer(method, path, **options)
        try:
            body: dict[str, Any] = answer.json()
        except ValueError as error:
            raise self.unreachable(error) from error
        return body

    def _answer(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **options)
        except httpx.TransportError as error:
            raise self.unreachable(error) from error
        if answer.is_error:
            raise _refusal(answer)
        return answer

    def unreachable(self, error: Exception) -> ClientError:
        base = self._http.base_url
        text = f"{base}: {str(error) or type(error).__name__}"
        if isinstance(error, httpx.ConnectError):
            text = f"No service answers at {base} ({error}): start it or give --url."
        return ClientError(text, code=ExitCode.UNAVAILABLE)


def _endpoint_path(id: str) -> str:
    return f"{_ENDPOINTS}/{quote(id, safe='')}"


def _key_path(id: str) -> str:
    return f"{_KEYS}/{quote(id, safe='')}"


def _job_path(request_id: str, *, every_owner: bool) -> str:
    return f"{_JOBS[every_owner]}/{quote(request_id, safe='')}"


def job_events_path(request_id: str) -> str:
    return f"{_job_path(request_id, every_owner=False)}/events"


def _refusal(answer: httpx.Response) -> ClientError:
    """`answer`: one that is an error, and is read."""
    try:
        body = answer.json()
    except ValueError:  # of a proxy in between
        body = {}
    body = body if isinstance(body, dict) else {}
    text = _explain(answer.status_code, body) if body else f"{answer.status_code}: {answer.url}"
    return ClientError(text, code=code_of_status(answer.status_code), answer=body)


def _explain(status: int, body: dict[str, Any]) -> str:
    error = body.get("error", {})
    lines = [f"{status} {error.get('type')}: {error.get('message')} {error.get('details') or ''}"]
    for node_id, node in (body.get("node_errors") or {}).items():
        lines += [
            f"  node {node_id} ({node['class_type']}): {each['message']} {each['details']}"
            for each in node["errors"]
        ]
    return "\n".join(lines)
