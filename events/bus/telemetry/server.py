"""What a NATS server says of itself, for whoever looks why the service does not work on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from events.bus.bus import Bus
from events.bus.stream_setup import StreamSetup
from events.bus.streams import CALLBACKS, QUEUE, is_log_stream, stream_specs
from events.errors import LogUnavailable
from events.log import StreamState, utc_now

_NO_LIMIT = -1


@dataclass(frozen=True, slots=True)
class ServerReport:
    """`has_jetstream` False: nothing else is known."""

    has_jetstream: bool
    asked_at: datetime | None = None
    """By the clock of this machine, at half of the time that the answer took."""
    told_at: datetime | None = None
    """By the server's clock; None where no stream of ours is there to tell it."""
    missing: tuple[str, ...] = ()
    """Streams that are not there."""
    differing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Streams that are otherwise than this version makes them, with those members."""
    streams: Mapping[str, StreamState] = field(default_factory=dict)
    free_bytes: int | None = None
    """Of the room that the account has; None where it has no limit of its own."""

    @property
    def log(self) -> StreamState | None:
        """The fullest of its streams."""
        states = [state for name, state in self.streams.items() if is_log_stream(name)]
        return max(states, key=lambda state: state.fill, default=None)

    @property
    def queued(self) -> int:
        """Entries of jobs that wait or run."""
        return self.streams[QUEUE].messages if QUEUE in self.streams else 0

    @property
    def callbacks(self) -> int:
        """Deliveries that wait."""
        return self.streams[CALLBACKS].messages if CALLBACKS in self.streams else 0


async def describe_server(bus: Bus, *, replicas: int) -> ServerReport:
    """`replicas`: how many copies of each stream there should be. Raises LogUnavailable."""
    try:
        account = await bus.ask("$JS.API.INFO", b"")
    except LogUnavailable:
        if not bus.is_connected:
            raise
        return ServerReport(has_jetstream=False)
    setup = StreamSetup(replicas=replicas, log_max_bytes=_NO_LIMIT, log_streams=bus.log_streams)
    missing: list[str] = []
    differing: dict[str, tuple[str, ...]] = {}
    states: dict[str, StreamState] = {}
    asked_at = told_at = None
    for spec in stream_specs(bus.log_streams):
        before = utc_now()
        info = await bus.describe(spec.name)  # by its name: the account may have very many
        if info is None:
            missing.append(spec.name)
            continue
        asked_at, told_at = before + (utc_now() - before) / 2, datetime.fromisoformat(info["ts"])
        states[spec.name] = _state(info)
        if found := setup.differing(spec, info["config"]):
            differing[spec.name] = found
    return ServerReport(
        has_jetstream=True,
        asked_at=asked_at,
        told_at=told_at,
        missing=tuple(missing),
        differing=differing,
        streams=states,
        free_bytes=_free_bytes(account),
    )


def _state(info: Mapping[str, Any]) -> StreamState:
    state = info["state"]
    return StreamState(
        messages=state["messages"],
        size_bytes=state["bytes"],
        max_bytes=info["config"].get("max_bytes") or _NO_LIMIT,
        last_sequence=state["last_seq"],
    )


def _free_bytes(account: Mapping[str, Any]) -> int | None:
    most = account.get("limits", {}).get("max_storage", _NO_LIMIT)
    return None if most < 0 else max(0, most - account.get("storage", 0))
