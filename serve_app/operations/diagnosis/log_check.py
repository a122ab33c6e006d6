"""The event log: whether NATS answers, has JetStream, room, and the streams as they should be."""

from __future__ import annotations

from events.bus.bus import Bus
from events.bus.telemetry.server import ServerReport, describe_server
from events.errors import LogDiffers, LogUnavailable
from serve_app.operations.diagnosis.findings import Finding, Level, clock_finding, size
from serve_app.operations.places import open_bus
from settings.log import LogSettings
from settings.stores import StoreSettings

_LITTLE_BYTES = 256 * 1024**2


class LogCheck:
    part = "event log"

    def __init__(
        self,
        log: LogSettings,
        stores: StoreSettings,
        *,
        is_up: bool,
        full_ratio: float,
        timeout_s: float = 10.0,
    ) -> None:
        """`is_up`: whether `darkroom up` runs here; `full_ratio`: how full refuses new jobs."""
        self._log = log
        self._stores = stores
        self._is_up = is_up
        self._full_ratio = full_ratio
        self._timeout_s = timeout_s

    async def run(self) -> list[Finding]:
        if self._log.nats_url is None and not self._is_up:
            text = "`darkroom up` does not run here, so its nats-server does not either."
            return [Finding(self.part, Level.NOTE, text)]
        try:
            async with open_bus(self._log, self._stores, timeout_s=self._timeout_s) as bus:
                return await self._looked_at(bus)
        except LogDiffers as error:
            remedy = "Nothing is stored or read before they are the same."
            return [Finding(self.part, Level.ERROR, str(error), remedy)]
        except LogUnavailable as error:
            remedy = (
                f"See {self._stores.nats_dir / 'nats-server.log'}."
                if self._log.nats_url is None
                else "See that DARKROOM_NATS_URL names a server that runs, with a user and "
                "password it takes, and DARKROOM_NATS_CA_FILE the authority of its certificate."
            )
            return [Finding(self.part, Level.ERROR, f"NATS cannot be used: {error}", remedy)]

    async def _looked_at(self, bus: Bus) -> list[Finding]:
        report = await describe_server(bus, replicas=self._log.replicas)
        if not report.has_jetstream:
            text = "NATS answers, but has no JetStream for this user."
            remedy = "Turn jetstream on in its configuration, and for the account of this user."
            return [Finding(self.part, Level.ERROR, text, remedy)]
        found = [*self._streams(report), *self._room(report)]
        if report.told_at is not None and report.asked_at is not None:
            found.append(clock_finding("NATS", report.told_at, report.asked_at))
        return found

    def _streams(self, report: ServerReport) -> list[Finding]:
        if report.missing:
            text = f"Streams are missing: {', '.join(report.missing)}."
            remedy = "A start of the service makes them. If it runs, see action=prepare in its log."
            return [Finding(self.part, Level.ERROR, text, remedy)]
        found = [
            Finding(
                self.part,
                Level.WARNING,
                f"The stream {name} is otherwise than this version makes it: {', '.join(members)}.",
                "A start of the service updates it; see action=prepare in its log if it does not.",
            )
            for name, members in report.differing.items()
        ]
        text = (
            f"NATS answers, with all {len(report.streams)} streams; {report.queued} jobs wait or "
            f"run, {report.callbacks} callbacks wait."
        )
        return found or [Finding(self.part, Level.OK, text)]

    def _room(self, report: ServerReport) -> list[Finding]:
        found = []
        if report.log is not None and report.log.fill >= self._full_ratio:
            text = f"The event log is {report.log.fill:.0%} full, so new jobs are refused."
            remedy = (
                "See “Fill of the log” in the operations guide: what leaves it, and how it grows."
            )
            found.append(Finding(self.part, Level.ERROR, text, remedy))
        if report.free_bytes is not None and report.free_bytes < _LITTLE_BYTES:
            text = f"The account at NATS has {size(report.free_bytes)} left for all streams."
            found.append(
                Finding(self.part, Level.WARNING, text, "Raise max_file of the account at NATS.")
            )
        return found
