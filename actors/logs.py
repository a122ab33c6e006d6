"""Log lines of every process: a constant message, then the fields.

What a caller sent may be in a field or in an error, so every line is printable ASCII, and no line
of an error begins like a line of its own (OWASP: log injection).
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from datetime import UTC, datetime

from settings.log import LogFormat
from telemetry.tracing.log_fields import job_fields

PACKAGES = ("actors", "engine", "events", "serve_app", "settings", "storage", "telemetry")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_BARE = re.compile(r"""[!-~]+""")
_MEANT = re.compile(r"""["=\\]""")
_MOST_CHARS = 1000
"""The longest value, and the longest line of an error."""
_MOST_ERROR_CHARS = 16_000
"""Of all lines of an error, where they are part of one."""
_QUOTING = (ValueError, TypeError, LookupError, AttributeError)
"""Messages of these errors repeat the value that they are about, and that may be a prompt."""


class FieldsFormatter(logging.Formatter):
    """As in `2026-01-31 12:00:00 INFO actors.worker.job ended action=end job_id=...`.

    A value with blanks, quotes or characters that are not printable ASCII is a JSON string.
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
    """A JSON object a line: `time`, `level`, `logger`, `message`, the fields, and of an error its
    `error_lines`. While a job is worked on, the fields have its `job_id`, `endpoint`, `trace_id`.
    """

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": time,
            "level": record.levelname,
            "logger": record.name,
            "message": _cut(record.getMessage()),
        }
        fields, job = _fields(record), job_fields()
        if fields.get("job_id") in {None, job.get("job_id")}:  # it may be about another one
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
        if name not in _STANDARD and not name.startswith("_")  # as Ray's own are named
    }


def _plain(value: object) -> object:
    """As JSON has it, and not longer than a value may be."""
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
    """An error with where it was raised, and then what caused it; each line indented."""
    for each in _chain(error):
        yield f"  {type(each).__qualname__}{_printable(_message(each))}"
        for line in "".join(traceback.format_tb(each.__traceback__)).splitlines():
            yield f"  {_printable(line)}"


def _bounded(lines: Iterable[str]) -> list[str]:
    """As many as fit into a line that is copied whole."""
    kept, room = list[str](), _MOST_ERROR_CHARS
    for line in lines:
        room -= len(line)
        if room < 0:
            return [*kept, "…"]
        kept.append(line)
    return kept


def _chain(error: BaseException) -> Generator[BaseException]:
    """The error, those that a group has, and their causes; each once."""
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
    """`filters` may add fields to each line."""
    # Not `sys.stderr`: in a replica that is Serve's, which keeps lines in memory for long.
    handler = logging.StreamHandler(sys.__stderr__)
    handler.setFormatter(FORMATTERS[log_format]())
    for each in filters:
        handler.addFilter(each)
    for package in PACKAGES:
        package_logger = logging.getLogger(package)
        package_logger.handlers = [handler]
        package_logger.setLevel(level)
        package_logger.propagate = False
