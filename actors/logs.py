"""Log lines of the actors: a constant message, then the fields."""

from __future__ import annotations

import logging

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class FieldsFormatter(logging.Formatter):
    """As in `2026-01-31 12:00:00 INFO actors.worker.job ended action=end job_id=...`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        suffix = "".join(f" {name}={value}" for name, value in fields.items())
        head, separator, trace = super().format(record).partition("\n")
        return head + suffix + separator + trace


def set_up_logging(level: int = logging.INFO) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(FieldsFormatter())
    for package in ("actors", "engine", "events", "serve_app", "storage"):
        package_logger = logging.getLogger(package)
        package_logger.handlers = [handler]
        package_logger.setLevel(level)
        package_logger.propagate = False
