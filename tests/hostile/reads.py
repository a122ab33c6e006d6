"""Requests for the largest answers: constant pages, and lists of all jobs of the attacker."""

from __future__ import annotations

from tests.hostile.attack import Attack, get

ATTACKS: tuple[Attack, ...] = (
    get("the OpenAPI document", "/openapi.json"),
    get("all node types", "/object_info"),
    get("all models", "/v1/models"),
    get("the history", "/history"),
    get("the history, version 2", "/history_v2"),
    get("the queue", "/queue"),
    get("the list of jobs", "/v1/jobs", limit="200", results="true"),
    get("the list of jobs of ComfyUI", "/api/jobs"),
    get("the list of jobs of Comfy API v2", "/api/v2/jobs", limit="200"),
)
