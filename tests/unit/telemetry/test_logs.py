"""Log lines: nothing that a caller sent makes a second line, and no value is told by an error."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Generator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel

from engine.errors import NodeFailed
from events.cloud_events import MalformedEvent, decode
from events.errors import LogUnavailable
from telemetry.logs import PACKAGES, FieldsFormatter, JsonFormatter, job_log_fields, set_up_logging
from tests.support.events import folded, submitted

FORGED = "2026-01-31 12:00:00,000 INFO actors.worker.job_actor ended"
PROMPT = "a portrait of somebody"


def formatted(
    *,
    error: BaseException | None = None,
    formatter: type[logging.Formatter] = FieldsFormatter,
    **fields: object,
) -> str:
    record = logging.makeLogRecord(
        {"name": "actors.x", "levelname": "INFO", "msg": "ended", **fields}
    )
    if error is not None:
        record.exc_info = (type(error), error, error.__traceback__)
    return formatter().format(record)


def raised(call: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as found:  # noqa: PT011 - whatever it is
        call()
    return found.value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("hooks.example.com:443", "hooks.example.com:443"),
        (3, "3"),
        ("two words", '"two words"'),
        ("", '""'),
        ("a=b", '"a=b"'),
        ('a"b', r'"a\"b"'),
        (f"x\r\n{FORGED}", rf'"x\r\n{FORGED}"'),
        ("\x1b[2J", r'"\u001b[2J"'),
        ("\u202egnp.exe", r'"\u202egnp.exe"'),
        ("\u2028\x85\x7f", r'"\u2028\u0085\u007f"'),
        ("\ud800", r'"\ud800"'),
        ("猫", r'"\u732b"'),
        (["a\nb"], r'"[' + r"'a\\nb'" + r']"'),
    ],
)
def test_any_other_value_is_quoted(value: object, shown: str) -> None:
    assert formatted(text=value).endswith(f" text={shown}")


@example("x" * 10**6)
@given(st.text())
def test_a_line_is_one_printable_line(text: str) -> None:
    line = formatted(text=text)
    assert line.isascii()
    assert line.isprintable()
    assert len(line) < 2000


def test_no_line_of_an_error_begins_like_a_line_of_its_own() -> None:
    error = raised(lambda: _fail(LogUnavailable(f"x\n{FORGED}\r{FORGED}\x1b[2J")))
    first, *rest = formatted(error=error, action="end").splitlines()
    assert first.endswith("ended action=end")
    assert rest
    assert all(line.startswith("  ") and line.isprintable() for line in rest)
    assert any(LogUnavailable.__name__ in line and FORGED in line for line in rest)


def _fail(error: BaseException, cause: BaseException | None = None) -> None:
    raise error from cause


class Body(BaseModel):
    seed: int


@pytest.mark.parametrize(
    "call",
    [
        lambda: float(PROMPT),
        lambda: {}[PROMPT],
        lambda: Body.model_validate({"seed": PROMPT}),
        lambda: _fail(RuntimeError("x"), KeyError(PROMPT)),
        lambda: _fail(ExceptionGroup("several", [ValueError(PROMPT), TypeError(PROMPT)])),
        lambda: decode(b'{"id": 1, "data": "%s"}' % PROMPT.encode()),
    ],
)
def test_an_error_that_quotes_its_value_is_logged_without_it(call: Callable[[], object]) -> None:
    text = formatted(error=raised(call))
    assert PROMPT not in text
    assert "Error" in text or MalformedEvent.__name__ in text
    assert __file__.rpartition("/")[2] in text


@pytest.fixture
def _loggers() -> Generator[None]:
    """They are given back as they were."""
    loggers = [logging.getLogger(name) for name in PACKAGES]
    before = [(each, each.handlers, each.level, each.propagate) for each in loggers]
    yield
    for each, handlers, level, propagate in before:
        each.handlers, each.propagate = handlers, propagate
        each.setLevel(level)


@pytest.mark.usefixtures("_loggers")
def test_lines_of_every_package_are_written_so(capfd: pytest.CaptureFixture[str]) -> None:
    set_up_logging()
    for package in PACKAGES:
        logging.getLogger(f"{package}.part").info("done", extra={"name_of_a_caller": "a\nb"})
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == len(PACKAGES)
    assert all(line.endswith(r'done name_of_a_caller="a\nb"') for line in lines)


def test_an_error_is_told_with_its_causes_once_each() -> None:
    error = raised(lambda: _fail(NodeFailed("5", "KSampler", "no memory"), OSError("disk")))
    text = formatted(error=error)
    assert "no memory" in text
    assert "OSError: disk" in text
    one, other = RuntimeError("one"), RuntimeError("other")
    one.__cause__, other.__cause__ = other, one
    assert formatted(error=one).count("other") == 1


def as_json(**fields: Any) -> dict[str, Any]:
    text = formatted(formatter=JsonFormatter, **fields)
    assert text.isascii()
    assert "\n" not in text
    line: dict[str, Any] = json.loads(text)
    return line


def test_a_json_line_has_the_fields_as_members() -> None:
    line = as_json(action="end", job_id="a", count=3, share=0.5, nothing=None, at=float("inf"))
    assert datetime.fromisoformat(line.pop("time")).tzinfo is UTC
    assert line == {
        "level": "INFO",
        "logger": "actors.x",
        "message": "ended",
        "action": "end",
        "job_id": "a",
        "count": 3,
        "share": 0.5,
        "nothing": None,
        "at": "inf",
    }


def test_a_json_line_names_the_job_that_is_worked_on() -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    job = replace(folded([submitted()]), traceparent=f"00-{trace}-00f067aa0ba902b7-01")
    with job_log_fields(job):
        line, other = as_json(action="end"), as_json(job_id="another")
    assert line["job_id"] == job.id
    assert line["endpoint"] == "default"
    assert line["trace_id"] == trace
    assert other["job_id"] == "another"
    assert "trace_id" not in other
    assert "job_id" not in as_json()


def test_an_error_is_in_the_json_line_without_the_values_that_it_repeats() -> None:
    error = raised(lambda: int(PROMPT))
    line = as_json(error=error, text=f"x\r\n{FORGED}", long="y" * 9999)
    assert line["text"] == f"x\r\n{FORGED}"
    assert len(line["long"]) < 1100
    assert line["error_lines"][0] == "ValueError"
    assert PROMPT not in json.dumps(line)


def test_a_json_line_is_short_enough_to_be_copied_whole() -> None:
    error: Exception = RuntimeError("x" * 5000)
    for _ in range(500):
        error, cause = RuntimeError('\\ " é' * 50), error
        error.__cause__ = cause
    line = as_json(error=error)
    assert line["error_lines"][-1] == "…"
    assert len(json.dumps(line)) < 48 * 1024
