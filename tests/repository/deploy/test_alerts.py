"""The alert rules: each fires where it should, is quiet where all is well, and is explained."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.deploy.manifests import ROOT, one
from tests.support.deploy.promtool import promtool, written
from tests.support.telemetry.known import known_metrics, sample_names

RULE_FILE = one("monitoring/alerts.yaml", "PrometheusRule")["spec"]
GROUPS: dict[str, Any] = {"groups": RULE_FILE["groups"]}
BARE: dict[str, Any] = {
    "groups": [
        {"name": "bare", "rules": [{**rule, "annotations": {}} for rule in group["rules"]]}
        for group in GROUPS["groups"]
    ]
}
"""Without the texts, which `promtool` would compare, too: values are in them."""
RULES = {rule["alert"]: rule for group in GROUPS["groups"] for rule in group["rules"]}
SERIES = re.compile(r"\bdarkroom_\w+")

WELL = {
    'darkroom_info{role="api"}': "1x90",
    'darkroom_info{role="router"}': "1x90",
    'darkroom_info{role="projection"}': "1x90",
    'darkroom_info{role="dispatcher"}': "1x90",
    'darkroom_info{role="callbacks"}': "1x90",
    'darkroom_requests_refused_total{reason="unavailable"}': "0x90",
    'darkroom_requests_refused_total{reason="internal"}': "0x90",
    "darkroom_log_fill_ratio": "0.1x90",
    "darkroom_projection_lag_seconds": "0x90",
    "darkroom_jobs_blocked": "0x90",
    'darkroom_queue_oldest_seconds{endpoint="fast"}': "3x90",
    'darkroom_queue_jobs{endpoint="fast"}': "4x90",
    'darkroom_workers{endpoint="fast",state="ready"}': "1x90",
    'darkroom_jobs_ended_total{endpoint="fast",status="completed"}': "0+60x90",
    'darkroom_jobs_ended_total{endpoint="fast",status="failed"}': "0+1x90",
    'darkroom_jobs_dead_letters_total{endpoint="fast",reason="undispatchable"}': "0x90",
    'darkroom_attempts_failed_total{endpoint="fast",cause="suspect"}': "0x90",
    'darkroom_leases_lost_total{endpoint="fast"}': "0x90",
    'darkroom_callbacks_ended_total{outcome="exhausted"}': "0x90",
    "darkroom_callback_breakers_open": "0x90",
    'darkroom_callback_tries_total{outcome="refused"}': "0x90",
}
"""A service that works, by the minute."""
GONE = ""

FIRES: dict[str, dict[str, str]] = {
    "DarkroomSilent": dict.fromkeys(WELL, GONE),
    "DarkroomRoleMissing": {'darkroom_info{role="dispatcher"}': GONE},
    "DarkroomUnavailable": {
        'darkroom_requests_refused_total{reason="unavailable"}': "0x60 0+20x30"
    },
    "DarkroomInternalErrors": {'darkroom_requests_refused_total{reason="internal"}': "0x80 1x10"},
    "DarkroomLogFilling": {"darkroom_log_fill_ratio": "0.5x60 0.75x30"},
    "DarkroomLogFull": {"darkroom_log_fill_ratio": "0.5x87 0.9x2"},
    "DarkroomProjectionLags": {"darkroom_projection_lag_seconds": "0x60 61+60x30"},
    "DarkroomJobsBlocked": {"darkroom_jobs_blocked": "0x60 2x30"},
    "DarkroomQueueOld": {'darkroom_queue_oldest_seconds{endpoint="fast"}': "0x30 0+60x60"},
    "DarkroomNoWorkerReady": {'darkroom_workers{endpoint="fast",state="ready"}': "1x60 0x30"},
    "DarkroomJobsFail": {
        'darkroom_jobs_ended_total{endpoint="fast",status="failed"}': "0x70 0+30x20"
    },
    "DarkroomDeadLetters": {
        'darkroom_jobs_dead_letters_total{endpoint="fast",reason="undispatchable"}': "0x80 1x10"
    },
    "DarkroomEnginesBreak": {
        'darkroom_attempts_failed_total{endpoint="fast",cause="suspect"}': "0x80 9x10"
    },
    "DarkroomLeasesLost": {'darkroom_leases_lost_total{endpoint="fast"}': "0x80 5x10"},
    "DarkroomCallbacksExhausted": {
        'darkroom_callbacks_ended_total{outcome="exhausted"}': "0x80 1x10"
    },
    "DarkroomBreakersOpen": {"darkroom_callback_breakers_open": "0x50 2x40"},
    "DarkroomEgressRefused": {'darkroom_callback_tries_total{outcome="refused"}': "0x80 3x10"},
}
"""What goes wrong for each alert; it fires an hour and a half later."""
OF_ROLES = {"DarkroomSilent": {"role": "api"}, "DarkroomRoleMissing": {"role": "dispatcher"}}
EVAL_TIME = "90m"


def run(folder: Path, changes: dict[str, str], firing: dict[str, list[dict[str, Any]]]) -> None:
    """Evaluate all rules, of which those of `firing` are to fire, with these labels each."""
    series = [
        {"series": name, "values": values} for name, values in (WELL | changes).items() if values
    ]
    expected = [
        {"alertname": name, "eval_time": EVAL_TIME, "exp_alerts": firing.get(name, [])}
        for name in RULES
    ]
    case = {"interval": "1m", "input_series": series, "alert_rule_test": expected}
    rules = written(folder / "rules.yaml", BARE)
    tests = {"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [case]}
    promtool("test", "rules", written(folder / "tests.yaml", tests))


def test_nothing_fires_where_all_is_well(tmp_path: Path) -> None:
    run(tmp_path, {}, {})


@pytest.mark.parametrize("alert", RULES)
def test_it_fires(tmp_path: Path, alert: str) -> None:
    rule = RULES[alert]
    labels = dict(rule["labels"])
    if "by (endpoint)" in rule["expr"]:
        labels["endpoint"] = "fast"
    labels |= OF_ROLES.get(alert, {})
    run(tmp_path, FIRES[alert], {alert: [{"exp_labels": labels}]})


def test_each_alert_has_a_paragraph_of_what_to_do() -> None:
    text = (ROOT / "docs/metrics.md").read_text()
    explained = re.findall(r"^\*\*(Darkroom\w+)\*\* \S", text, re.MULTILINE)
    assert explained == list(RULES)


async def test_rules_name_metrics_that_there_are(tmp_path: Path) -> None:
    names = sample_names(await known_metrics(tmp_path))
    used = {name for rule in RULES.values() for name in SERIES.findall(rule["expr"])}
    assert used - names == set()
