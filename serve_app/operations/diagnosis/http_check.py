"""The port of the HTTP API: who listens there, and whether the service is ready."""

from __future__ import annotations

import asyncio

import httpx

from serve_app.local.ports import PortTaken, held_port
from serve_app.operations.diagnosis.findings import Finding, Level
from settings.http import HttpSettings

_TIMEOUT_S = 5.0
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


class HttpCheck:
    part = "ports"

    def __init__(self, http: HttpSettings, *, is_up: bool) -> None:
        """`is_up`: whether `darkroom up` runs here."""
        self._http = http
        self._is_up = is_up
        host = _ANYWHERE.get(http.host)
        self._url = f"http://{http.netloc}" if host is None else f"http://{host}:{http.port}"

    async def run(self) -> list[Finding]:
        try:
            async with httpx.AsyncClient(
                base_url=self._url, timeout=_TIMEOUT_S, trust_env=False
            ) as client:
                alive = await client.get("/health/live")
                if not _is_ours(alive):
                    return [await self._taken()]
                return [self._ready(await client.get("/health/ready"))]
        except httpx.TransportError as error:
            if self._is_up:
                text = f"`darkroom up` runs, and {self._url} does not answer: {_said(error)}."
                remedy = (
                    "It may still be starting; see logs/darkroom.log in its data folder. If it was "
                    "started with --port, set DARKROOM_PORT to the same here."
                )
                return [Finding(self.part, Level.ERROR, text, remedy)]
            return [await self._taken()]

    def _ready(self, answer: httpx.Response) -> Finding:
        if answer.is_success:
            return Finding(self.part, Level.OK, f"The service answers at {self._url} and is ready.")
        why = answer.json().get("error", {}).get("details", "") if _is_json(answer) else ""
        text = f"The service answers at {self._url} and is not ready. {why}".strip()
        return Finding(
            self.part, Level.ERROR, text, "It takes no jobs; see what is said of the log."
        )

    async def _taken(self) -> Finding:
        """Whether the port is free for a start."""

        def hold() -> None:
            with held_port(self._http.host, self._http.port, patience_s=0):
                pass

        try:
            await asyncio.to_thread(hold)
        except PortTaken as error:
            remedy = "End that program, or give another port by --port or DARKROOM_PORT."
            return Finding(self.part, Level.ERROR, f"{error}, and that is no Darkroom.", remedy)
        text = f"The service does not run here; {self._http.netloc} is free for it."
        return Finding(self.part, Level.NOTE, text)


def _is_json(answer: httpx.Response) -> bool:
    return str(answer.headers.get("content-type", "")).startswith("application/json")


def _is_ours(answer: httpx.Response) -> bool:
    return answer.is_success and _is_json(answer) and "x-request-id" in answer.headers


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
