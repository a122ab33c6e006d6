"""The service that a benchmark measures: `darkroom up` on a temporary folder."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.load import Caller
from benchmarks.harness.machine import Family
from benchmarks.harness.models import make_models
from examples.service import Service

NO_LIMITS = {
    "DARKROOM_OWNER_RATE_PER_S": "0",
    "DARKROOM_OWNER_MAX_OPEN_JOBS": "0",
    "DARKROOM_TEST_OWNER_MAX_WAITS": "0",
    "DARKROOM_OWNER_SLOTS_KEPT_FREE": "0",
}
"""Settings without limits for an owner, and without slots that are kept free for other owners."""
_QUIET_CORES = 0.3
"""A little more than the cores that the idle service uses for health checks, leases and pulls."""
_QUIET_PERIOD_S = 0.5


@dataclass(frozen=True, slots=True)
class Installation:
    service: Service
    models: Path
    family: Family

    def caller(self) -> Caller:
        return Caller(self.service.port, self.service.admin_key)

    @property
    def nats_url(self) -> str:
        """The URL with the service's own account, which may subscribe to the progress of jobs."""
        folder = self.service.data_dir / "nats"
        password = json.loads((folder / "credentials.json").read_text())["service"]
        return f"nats://service:{password}@127.0.0.1:{(folder / 'port').read_text().strip()}"

    def settle(self, *, timeout_s: float = 15.0) -> float:
        """Wait until the processes are idle. Return the time in seconds until they were idle."""
        began, before = time.monotonic(), sum(self.family.cpu_s().values())
        while time.monotonic() - began < timeout_s:
            time.sleep(_QUIET_PERIOD_S)
            now = sum(self.family.cpu_s().values())
            if now - before < _QUIET_CORES * _QUIET_PERIOD_S:
                break
            before = now
        return max(0.0, time.monotonic() - began - _QUIET_PERIOD_S)


@contextmanager
def installation(settings: Mapping[str, str], *, copies: int = 0) -> Iterator[Installation]:
    """Run the service until the end of the context. `copies`: see `make_models`."""
    with tempfile.TemporaryDirectory(prefix="darkroom-") as name:
        folder = Path(name)
        make_models(folder / "models", copies=copies)
        models = {"DARKROOM_MODELS_DIR": str(folder / "models")}
        settings = {**NO_LIMITS, **models, **settings}
        with Service(folder / "data", settings, log_path=folder / "log") as service:
            yield Installation(service, folder / "models", Family(service.pid))
