"""Log lines of every process: a constant message followed by fields.

Fields and errors may contain text from a caller. Therefore every line is printable ASCII, and the
lines of an error are indented, so none is taken for another log line (OWASP: log injection).
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

from events.job import Job
from settings.log import LogFormat
from telemetry.spans import TraceIds

PACKAGES = (
    "actors",
    "cli",
    "engine",
    "events",
    "local",
    "operations",
    "serve_app",
    "settings",
    "storage",
    "telemetry",
)

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_BARE = re.compile(r"""[!-~]+""")
_MEANT = re.compile(r"""["=\\]""")
_MOST_CHARS = 1000
"""The largest length of a value, and of a line of an error."""
_MOST_ERROR_CHARS = 16_000
"""The largest length of all lines of an error in one JSON object."""
_QUOTING = (ValueError, TypeError, LookupError, AttributeError)
"""The errors whose messages may repeat a prompt."""


class FieldsFormatter(logging.Formatter):
    """Formats lines like `2026-01-31 12:00:00 INFO events.log ended action=end job_id=...`.

    A value with spaces, quotes or characters that are not printable ASCII is a JSON string.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        record.message = record.getMessage()
        record.asctime = self.formatTime(record)
        fields = _fields(record)
        line = _printable(self.formatMessage(record))
        line += "".join(f" {name}={_quoted(value)}" for name, value in fields.items())
        error = record.exc_info[1] if record.exc_info else None
        return line if error is None else "\n".join([line, *_lines(error)])


class JsonFormatter(logging.Formatter):
    """Formats one JSON object per line.

    The members are `time`, `level`, `logger`, `message`, the fields, and `error_lines` of an error.
    While a job is handled, the fields include its `job_id`, `endpoint` and `trace_id`.
    """

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": time,
            "level": record.levelname,
            "logger": record.name,
            "message": _cut(record.getMessage()),
        }
        fields, job = _fields(record), _job_fields.get()
        # A line about another job does not get the fields of this job.
        if fields.get("job_id") in {None, job.get("job_id")}:
            fields = {**job, **fields}
        line |= {name: _plain(value) for name, value in fields.items() if name not in line}
        if record.exc_info and (error := record.exc_info[1]) is not None:
            line["error_lines"] = _bounded(each.strip() for each in _lines(error))
        return json.dumps(line)


FORMATTERS: dict[LogFormat, Callable[[], logging.Formatter]] = {
    LogFormat.TEXT: FieldsFormatter,
    LogFormat.JSON: JsonFormatter,
}


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {
        name: value
        for name, value in vars(record).items()
        if name not in _STANDARD and not name.startswith("_")  # Ray's own fields have such names
    }


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return _cut(str(value))


def _quoted(value: object) -> str:
    text = str(value)
    if _BARE.fullmatch(text) and not _MEANT.search(text) and len(text) <= _MOST_CHARS:
        return text
    return json.dumps(_cut(text))


def _printable(text: str) -> str:
    return json.dumps(_cut(text))[1:-1].replace('\\"', '"')


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}…"


def _lines(error: BaseException) -> Generator[str]:
    """Yield the indented lines of an error with its traceback, followed by its causes."""
    for each in _chain(error):
        yield f"  {type(each).__qualname__}{_printable(_message(each))}"
        for line in "".join(traceback.format_tb(each.__traceback__)).splitlines():
            yield f"  {_printable(line)}"


def _bounded(lines: Iterable[str]) -> list[str]:
    """Return the first lines that fit into one JSON object."""
    kept, left_chars = list[str](), _MOST_ERROR_CHARS
    for line in lines:
        left_chars -= len(line)
        if left_chars < 0:
            return [*kept, "…"]
        kept.append(line)
    return kept


def _chain(error: BaseException) -> Generator[BaseException]:
    """Yield the error, the members of exception groups, and the causes, each error once."""
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        if cause := each.__cause__ or (None if each.__suppress_context__ else each.__context__):
            waiting.append(cause)
        if isinstance(each, BaseExceptionGroup):
            waiting += reversed(each.exceptions)


def _message(error: BaseException) -> str:
    is_ours = type(error).__module__.partition(".")[0] in PACKAGES
    return "" if isinstance(error, _QUOTING) and not is_ours else f": {error}"


def set_up_logging(
    level: int = logging.INFO,
    *,
    log_format: LogFormat = LogFormat.TEXT,
    filters: Sequence[logging.Filter] = (),
) -> None:
    """Set up the loggers of all packages. `filters` may add fields to each line."""
    # `sys.stderr` is not used, because Serve replaces it in a replica by a stream that keeps lines
    # in memory.
    handler = logging.StreamHandler(sys.__stderr__)
    handler.setFormatter(FORMATTERS[log_format]())
    for each in filters:
        handler.addFilter(each)
    for package in PACKAGES:
        package_logger = logging.getLogger(package)
        package_logger.handlers = [handler]
        package_logger.setLevel(level)
        package_logger.propagate = False


_NONE: Mapping[str, str] = {}
_job_fields: ContextVar[Mapping[str, str]] = ContextVar("log_fields", default=_NONE)


@contextmanager
def job_log_fields(job: Job) -> Generator[None]:
    """Add the job's id, endpoint and trace id to JSON log lines, also of tasks started inside."""
    token = _job_fields.set(
        {
            "job_id": job.id,
            "endpoint": job.submitted.endpoint,
            "trace_id": TraceIds.of(job).trace,
        }
    )
    try:
        yield
    finally:
        _job_fields.reset(token)
