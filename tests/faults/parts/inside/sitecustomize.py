"""Faults inside the service's own processes.

Python imports this module at its start if it finds it on its path. A file in the folder
`$FAULTS_CONTROL` activates a fault: `clock.<pid>` has the seconds by which the clock of a process
is ahead, and while `hang` exists every listing of the models folder waits.
"""

from __future__ import annotations

import datetime
import importlib.util
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

CONTROL = os.environ.get("FAULTS_CONTROL", "")
MODELS = os.environ.get("DARKROOM_MODELS_DIR", "")
POISON = "kills its engine"
"""A text that kills the process that encodes it, as a faulty device kernel would."""
REBOUND = ".rebound.example"
"""A name with this ending has an allowed address at acceptance and a forbidden one later."""
GOOD, FORBIDDEN = "127.0.0.1", "127.0.0.66"
_LONGEST_HANG_S = 60.0


class SteppedDatetime(datetime.datetime):
    """A clock that a file of this process sets forward or back."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        real = datetime.datetime.now(tz)
        try:
            text = Path(CONTROL, f"clock.{os.getpid()}").read_text()
            return real + datetime.timedelta(seconds=float(text))
        except (OSError, ValueError):
            return real


def step_clock(module: Any) -> None:
    module.datetime = SteppedDatetime


def poison_texts(module: Any) -> None:
    chunks_of = module.chunks_of

    def poisoned(prompt: str, *rest: Any, **options: Any) -> Any:
        if POISON in prompt:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        return chunks_of(prompt, *rest, **options)

    module.chunks_of = poisoned


def rebind_names() -> None:
    getaddrinfo = socket.getaddrinfo

    def rebound(host: Any, *rest: Any, **options: Any) -> Any:
        if isinstance(host, str) and host.endswith(REBOUND):
            title = Path("/proc/self/cmdline").read_bytes()
            host = GOOD if b"ServeReplica" in title else FORBIDDEN
        return getaddrinfo(host, *rest, **options)

    socket.getaddrinfo = rebound


def hang_models() -> None:
    for name in ("listdir", "scandir"):
        setattr(os, name, _hanging(getattr(os, name)))


def _hanging(look: Callable[..., Any]) -> Callable[..., Any]:
    def hanging(path: Any = ".", *rest: Any) -> Any:
        give_up_at = time.monotonic() + _LONGEST_HANG_S
        while (
            str(path).startswith(MODELS)
            and Path(CONTROL, "hang").exists()
            and time.monotonic() < give_up_at
        ):
            time.sleep(0.05)
        return look(path, *rest)

    return hanging


_CHANGES = {"events.log": step_clock, "engine.diffusion.text.encoding": poison_texts}


class ChangingFinder:
    """An import hook that changes some modules when they are imported."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        change = _CHANGES.pop(name, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(name)
        return spec and _changed(spec, change)


def _changed(spec: ModuleSpec, change: Callable[[Any], None]) -> ModuleSpec:
    loader: Any = spec.loader
    load = loader.exec_module

    def load_and_change(module: ModuleType) -> None:
        load(module)
        change(module)

    loader.exec_module = load_and_change
    return spec


if CONTROL:
    sys.meta_path.insert(0, ChangingFinder)
    rebind_names()
    hang_models()
