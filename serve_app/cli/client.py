"""A client of the HTTP API, for the command line and the demo."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

_JOBS = {False: "/v1/jobs", True: "/v1/admin/jobs"}
"""The path of jobs: those of the key's owner, and of every owner (True)."""
_ENDPOINTS = "/v1/endpoints"
_POLL_S = 0.2


class ClientError(Exception):
    """The service does not answer, or refuses the request; the message says which."""


class Interrupted(Exception):
    """Ctrl-C, while a job is waited for."""

    def __init__(self, request_id: str) -> None:
        super().__init__(request_id)
        self.request_id = request_id


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
        """Download the finished files of `result`. Returns their paths."""
        paths = []
        for index, item in enumerate(result["results"]):
            if item["status"] == 1:
                folder.mkdir(parents=True, exist_ok=True)
                suffix = Path(httpx.URL(item["url"]).path).suffix
                path = folder / f"{result['request_id']}_{index}{suffix}"
                path.write_bytes(self._http.get(item["url"]).raise_for_status().content)
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

    def _call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            answer = self._http.request(method, path, **options)
            body: dict[str, Any] = answer.json()
        except httpx.ConnectError as error:
            text = f"No service answers at {self._http.base_url} ({error}): start it or give --url."
            raise ClientError(text) from error
        except (httpx.TransportError, ValueError) as error:
            raise ClientError(f"{self._http.base_url}: {error}") from error
        if answer.is_error:
            raise ClientError(_explain(answer.status_code, body))
        return body


def run_job(
    client: Client, flavour: str, body: dict[str, Any], *, console: Console, **query: str
) -> dict[str, Any]:
    """Submit, show the progress, return the result of the ended job.

    Raises ClientError, Interrupted.
    """
    accepted = client.submit(flavour, body, **query)
    request_id = accepted["request_id"]
    try:
        return _follow(client, flavour, request_id, console=console)
    except KeyboardInterrupt:
        raise Interrupted(request_id) from None


def _follow(client: Client, flavour: str, request_id: str, *, console: Console) -> dict[str, Any]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bars:
        bar = bars.add_task(f"{flavour} {request_id}", total=1.0)
        while True:
            result = client.result(request_id, flavour)
            bars.update(bar, completed=1.0 if result["status"] else result.get("progress", 0.0))
            if result["status"]:
                return result
            time.sleep(_POLL_S)


def _endpoint_path(id: str) -> str:
    return f"{_ENDPOINTS}/{quote(id, safe='')}"


def _job_path(request_id: str, *, every_owner: bool) -> str:
    return f"{_JOBS[every_owner]}/{quote(request_id, safe='')}"


def _explain(status: int, body: dict[str, Any]) -> str:
    error = body.get("error", {})
    lines = [f"{status} {error.get('type')}: {error.get('message')} {error.get('details') or ''}"]
    for node_id, node in (body.get("node_errors") or {}).items():
        lines += [
            f"  node {node_id} ({node['class_type']}): {each['message']} {each['details']}"
            for each in node["errors"]
        ]
    return "\n".join(lines)
