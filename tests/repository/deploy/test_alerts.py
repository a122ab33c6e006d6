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
ROLES = ("api", "router", "projection", "dispatcher", "callbacks")
SERIES = re.compile(r"\bdarkroom_\w+")

CASES = (
    ("Unavailable", 'requests_refused_total{reason="unavailable"}', "0x90", "0x60 0+20x30"),
    ("InternalErrors", 'requests_refused_total{reason="internal"}', "0x90", "0x80 1x10"),
    ("LogFilling", "log_fill_ratio", "0.1x90", "0.5x60 0.75x30"),
    ("LogFull", "log_fill_ratio", "0.1x90", "0.5x87 0.9x2"),
    ("ProjectionLags", "projection_lag_seconds", "0x90", "0x60 61+60x30"),
    ("JobsBlocked", "jobs_blocked", "0x90", "0x60 2x30"),
    ("QueueOld", "queue_oldest_seconds{FAST}", "3x90", "0x30 0+60x60"),
    ("NoWorkerReady", 'workers{FAST,state="ready"}', "1x90", "1x60 0x30"),
    ("JobsFail", 'jobs_ended_total{FAST,status="failed"}', "0+1x90", "0x70 0+30x20"),
    ("DeadLetters", 'jobs_dead_letters_total{FAST,reason="undispatchable"}', "0x90", "0x80 1x10"),
    ("EnginesBreak", 'attempts_failed_total{FAST,cause="suspect"}', "0x90", "0x80 9x10"),
    ("LeasesLost", "leases_lost_total{FAST}", "0x90", "0x80 5x10"),
    ("CallbacksExhausted", 'callbacks_ended_total{outcome="exhausted"}', "0x90", "0x80 1x10"),
    ("BreakersOpen", "callback_breakers_open", "0x90", "0x50 2x40"),
    ("EgressRefused", 'callback_tries_total{outcome="refused"}', "0x90", "0x80 3x10"),
)
"""Alerts, each with a series: its values by the minute in a service that works, and what goes
wrong. The alert fires an hour and a half after the beginning.
"""
GONE = ""


def series(name: str) -> str:
    return "darkroom_" + name.replace("FAST", 'endpoint="fast"')


WELL = {
    **{series(name): well for _, name, well, _ in CASES},
    **{series(f'info{{role="{role}"}}'): "1x90" for role in ROLES},
    series("queue_jobs{FAST}"): "4x90",
    series('jobs_ended_total{FAST,status="completed"}'): "0+60x90",
}
FIRES: dict[str, dict[str, str]] = {
    "DarkroomSilent": dict.fromkeys(WELL, GONE),
    "DarkroomRoleMissing": {'darkroom_info{role="dispatcher"}': GONE},
    **{f"Darkroom{alert}": {series(name): wrong} for alert, name, _, wrong in CASES},
}
OF_ROLES = {"DarkroomSilent": {"role": "api"}, "DarkroomRoleMissing": {"role": "dispatcher"}}
EVAL_TIME = "90m"


def run(folder: Path, changes: dict[str, str], firing: dict[str, list[dict[str, Any]]]) -> None:
    """Evaluate all rules, of which those of `firing` are to fire, with these labels each."""
    given = [
        {"series": name, "values": values} for name, values in (WELL | changes).items() if values
    ]
    expected = [
        {"alertname": name, "eval_time": EVAL_TIME, "exp_alerts": firing.get(name, [])}
        for name in RULES
    ]
    case = {"interval": "1m", "input_series": given, "alert_rule_test": expected}
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
