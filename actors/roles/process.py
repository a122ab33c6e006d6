"""RoleProcess: the Ray actor in which a role runs."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import pkgutil
import threading
from base64 import b64decode

import ray

from actors.location import Location, location
from settings.settings import Settings
from telemetry.logs import set_up_logging

logger = logging.getLogger(__name__)


class RoleProcess:
    """A role in its own process.

    The constructor only starts a thread and raises nothing, because Serve replaces no replica of a
    deployment while one of its replicas fails to start. If the role ends for any reason, the
    process ends, and Serve starts a new process.
    """

    def __init__(self, main: str, settings: str) -> None:
        """Call the coroutine function with the import path `main` (`module:name`).

        Its argument is `settings`, a pickle in base64. If the application comes from a
        configuration file, Serve converts a pydantic model to a dict, and shows this dict in the
        state of the application. The pickle prevents both.
        """
        set_up_logging()
        self._main = main
        threading.Thread(target=self._host, args=(settings,), name=main, daemon=True).start()

    def _host(self, pickled: str) -> None:
        try:
            settings: Settings = pickle.loads(b64decode(pickled))
            set_up_logging(log_format=settings.telemetry.log_format)
            asyncio.run(pkgutil.resolve_name(self._main)(settings))
        except BaseException:
            logger.exception("role ended", extra={"action": "role_end", "role": self._main})
        os._exit(1)

    def location(self) -> Location:
        return location()


RoleActor = ray.remote(RoleProcess)
