"""One trace for each job at a real receiver of OTLP, and log lines that name it."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.service import Service, diffusion
from tests.support.telemetry.otlp_receiver import OtlpReceiver
from tests.support.telemetry.traces import CALLER, SAMPLED, TRACE

pytestmark = pytest.mark.timeout(1200)

LONGEST_S = 60.0
PROMPT = "nobody is to read this"
NAMES = {
    *("accept", "append", "job", "queue", "dispatch", "attempt", "load"),
    *("text", "denoise", "vae", "store", "project", "callback"),
}


def submitted(service: Service, url: str, headers: dict[str, str]) -> str:
    answer = service.http.post(
        "/diffusion/v1/generate",
        json=diffusion(prompt=PROMPT, steps=60),
        params={"callback_url": url},
        headers=headers,
    )
    assert answer.status_code == 202, answer.text
    return str(answer.json()["request_id"])


def whole_trace(receiver: OtlpReceiver, trace: str) -> list[Any]:
    give_up_at = time.monotonic() + LONGEST_S
    spans = receiver.spans(trace)
    while not {span.name for span in spans} >= NAMES:
        assert time.monotonic() < give_up_at, [span.name for span in spans]
        time.sleep(0.2)
        spans = receiver.spans(trace)
    return spans


def lines_of(service: Service, job_id: str) -> list[dict[str, Any]]:
    log = (service.data_dir / "logs" / "darkroom.log").read_text().splitlines()
    lines = [json.loads(line) for line in log if line.startswith("{")]
    return [line for line in lines if line.get("job_id") == job_id]


def test_a_job_is_one_trace_and_its_log_lines_name_it(tmp_path: Path) -> None:
    with OtlpReceiver() as collector:
        settings = {"DARKROOM_OTLP_URL": collector.url, "DARKROOM_LOG_FORMAT": "json"}
        with Service(tmp_path / "data", **settings) as service:
            with service.receiver() as receiver:
                traced = {"traceparent": SAMPLED, "tracestate": "a=b"}
                one = submitted(service, receiver.url, traced)
                other = submitted(service, receiver.url, {})
                ends = [service.ended(job_id)["status"] for job_id in (one, other)]
                spans = whole_trace(collector, TRACE)
                beside = whole_trace(collector, other.replace("-", ""))
            lines = [lines_of(service, job_id) for job_id in (one, other)]
    assert ends == [1, 1]
    assert set(Counter(span.name for span in spans).values()) == {1}
    [accept] = [span for span in spans if span.name == "accept"]
    assert accept.parent_span_id.hex() == CALLER
    known = {span.span_id for span in spans}
    assert all(span.parent_span_id in known for span in spans if span is not accept)
    links = {link.trace_id.hex() for span in spans for link in span.links}
    assert links == {other.replace("-", "")}
    assert {link.trace_id.hex() for span in beside for link in span.links} == {TRACE}
    assert PROMPT.encode() not in b"".join(collector.bodies)
    assert service.admin_key.encode() not in b"".join(collector.bodies)
    for found, trace in zip(lines, (TRACE, other.replace("-", "")), strict=True):
        assert {line["action"] for line in found} >= {"accept", "start", "end", "callback"}
        assert {line.get("trace_id") for line in found} == {trace}
        assert {line.get("endpoint") for line in found} == {"default"}
        assert PROMPT not in json.dumps(found)
