from typing import Any

import httpx
import pytest
from standardwebhooks.webhooks import Webhook

from events.webhook_secret import webhook_secret
from tests.support.api_keys import created, shown
from tests.support.edge import Edge
from tests.support.generate_bodies import workflow_body

UNKNOWN = "aaaaaaaaaaaa"
GENERATE = "/workflow/v1/generate"


class TestCreate:
    async def test_the_key_works_and_is_shown_this_once(
        self, edge: Edge, admin: httpx.AsyncClient
    ) -> None:
        answer = await admin.post("/v1/keys", json={"owner": "alice"})
        body = answer.json()
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Location"] == f"/v1/keys/{body['id']}"
        text, secret = body.pop("key"), body.pop("webhook_secret")
        assert secret == webhook_secret(edge.services.secret, body["id"])
        Webhook(secret)
        assert (await admin.get(answer.headers["Location"])).json() == body
        listed = await admin.get("/v1/keys")
        assert body in listed.json()["keys"]
        assert text.split("_")[2] not in listed.text
        assert "webhook_secret" not in listed.text
        async with edge.client_with(text) as alice:
            assert (await alice.post(GENERATE, json=workflow_body())).status_code == 202
            assert (await alice.get("/v1/keys")).status_code == 403

    async def test_what_is_left_out_has_its_usual_value(self, admin: httpx.AsyncClient) -> None:
        body = await created(admin)
        assert body["name"] == "alice"
        assert body["scopes"] == ["cancel", "generate", "read"]
        assert body["state"] == "live"
        assert body["limits"] == {}
        assert "expires_at" not in body

    async def test_what_is_said_is_kept(self, admin: httpx.AsyncClient) -> None:
        limits = {
            "rate_per_s": 0.5,
            "burst": 3,
            "max_open_jobs": 7,
            "endpoints": ["default", "fast"],
            "callback_hosts": ["*.example.com", "2001:db8::1"],
        }
        asked = {
            "owner": "Bob ●",
            "name": "phone",
            "scopes": ["read"],
            "expires_at": "2999-12-31T23:59:59Z",
            "limits": limits,
        }
        body = await created(admin, **asked)
        assert asked.items() <= body.items()

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"owner": ""}, "owner"),
            ({"owner": "a\x00b"}, "owner"),
            ({"owner": None}, "owner"),
            ({"scopes": ["root"]}, "0"),
            ({"expires_at": "2030-01-01T00:00:00"}, "expires_at"),
            ({"expires_at": "9999-12-31T23:59:59-12:00"}, "expires_at"),
            ({"expires_at": "0001-01-01T00:00:00+14:00"}, "expires_at"),
            ({"colour": "red"}, "colour"),
            ({"limits": {"rate": 1}}, "rate"),
            ({"limits": {"rate_per_s": -1}}, "rate_per_s"),
            ({"limits": {"burst": 0}}, "burst"),
            ({"limits": {"weight": 0}}, "weight"),
            ({"limits": {"priority": "highest"}}, "priority"),
            ({"limits": {"endpoints": []}}, "endpoints"),
            ({"limits": {"endpoints": ["a b"]}}, "0"),
            ({"limits": {"callback_hosts": ["https://example.com"]}}, "0"),
            ({"limits": {"callback_hosts": ["a.*.example.com"]}}, "0"),
        ],
    )
    async def test_a_body_that_makes_no_sense_is_a_bad_request(
        self, admin: httpx.AsyncClient, change: dict[str, Any], field: str
    ) -> None:
        answer = await admin.post("/v1/keys", json={"owner": "alice", **change})
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["type"] == "invalid_request"
        assert field in {each["field"] for each in error["extra_info"]["fields"]}

    @pytest.mark.parametrize(
        ("body", "status"), [(b"{", 400), (b"[]", 400), (b"", 400), (b"{}" + b" " * 600_000, 413)]
    )
    async def test_a_body_that_is_none_is_refused(
        self, admin: httpx.AsyncClient, body: bytes, status: int
    ) -> None:
        headers = {"Content-Type": "application/json"}
        answer = await admin.post("/v1/keys", content=body, headers=headers)
        assert answer.status_code == status


class TestList:
    async def test_pages_join_without_gap_or_repeat(self, admin: httpx.AsyncClient) -> None:
        ids = [(await created(admin, owner="alice"))["id"] for _ in range(5)]
        await created(admin, owner="bob")
        seen: list[str] = []
        cursor = ""
        while True:
            page = (await admin.get(f"/v1/keys?owner=alice&limit=2{cursor}")).json()
            seen += [key["id"] for key in page["keys"]]
            if "next_cursor" not in page:
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert seen == ids

    @pytest.mark.parametrize("query", ["limit=0", "limit=201", "cursor=x", "owner=%00", "owner="])
    async def test_a_bad_filter_is_a_bad_request(
        self, admin: httpx.AsyncClient, query: str
    ) -> None:
        assert (await admin.get(f"/v1/keys?{query}")).status_code == 400


class TestChange:
    async def test_what_is_absent_stays(self, admin: httpx.AsyncClient) -> None:
        limits = {"burst": 3, "max_open_jobs": 7, "endpoints": ["default"]}
        before = await created(admin, expires_at="2999-01-01T00:00:00Z", limits=limits)
        change = {
            "name": "phone",
            "limits": {"max_open_jobs": 8, "endpoints": None, "priority": "low"},
        }
        answer = await admin.patch(f"/v1/keys/{before['id']}", json=change)
        assert answer.status_code == 200
        after = answer.json()
        assert after == await shown(admin, before["id"])
        assert after["limits"] == {"burst": 3, "max_open_jobs": 8, "priority": "low"}
        assert after["name"] == "phone"
        for name in ("owner", "scopes", "expires_at", "created_at", "state"):
            assert after[name] == before[name]

    async def test_an_expiry_can_be_taken_back(self, admin: httpx.AsyncClient) -> None:
        url = f"/v1/keys/{(await created(admin))['id']}"
        body = (await admin.patch(url, json={"expires_at": "2020-01-01T00:00:00Z"})).json()
        assert body["state"] == "expired"
        answer = await admin.patch(url, json={"expires_at": None})
        assert answer.json()["state"] == "live"
        assert "expires_at" not in answer.json()

    async def test_it_holds_here_at_once(self, edge: Edge, admin: httpx.AsyncClient) -> None:
        body = await created(admin)
        async with edge.client_with(body["key"]) as alice:
            assert (await alice.get("/v1/jobs")).status_code == 200
            await admin.patch(f"/v1/keys/{body['id']}", json={"scopes": ["generate"]})
            assert (await alice.get("/v1/jobs")).status_code == 403

    async def test_an_empty_change_changes_nothing(self, admin: httpx.AsyncClient) -> None:
        body = await created(admin)
        for change in ({}, {"limits": {}}, {"name": None, "scopes": None}):
            answer = await admin.patch(f"/v1/keys/{body['id']}", json=change)
            assert answer.json() == await shown(admin, body["id"])

    async def test_it_does_not_bring_a_revoked_key_back(
        self, edge: Edge, admin: httpx.AsyncClient
    ) -> None:
        body = await created(admin)
        await admin.delete(f"/v1/keys/{body['id']}")
        answer = await admin.patch(f"/v1/keys/{body['id']}", json={"expires_at": None})
        assert answer.json()["state"] == "revoked"
        async with edge.client_with(body["key"]) as alice:
            assert (await alice.get("/v1/jobs")).status_code == 401


@pytest.mark.parametrize("key_id", [UNKNOWN, "%00", "x", "A" * 12])
@pytest.mark.parametrize(
    ("method", "tail"), [("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/rotate")]
)
async def test_an_unknown_key_is_404(
    admin: httpx.AsyncClient, key_id: str, method: str, tail: str
) -> None:
    json = {"name": "a"} if method == "PATCH" else None
    answer = await admin.request(method, f"/v1/keys/{key_id}{tail}", json=json)
    assert answer.status_code == 404


@pytest.mark.parametrize(("path", "method"), [("/v1/keys", "post"), ("/v1/keys/{id}", "patch")])
async def test_the_examples_of_the_document_are_taken(
    edge: Edge, admin: httpx.AsyncClient, path: str, method: str
) -> None:
    key_id = (await created(admin))["id"]
    example = edge.example(method, path)
    answer = await admin.request(method, path.format(id=key_id), json=example)
    assert answer.status_code in {200, 201}
    for name in ("KeyInfo", "NewKeyInfo"):
        schema = edge.app.openapi()["components"]["schemas"][name]
        assert "example" in schema
