import asyncio
import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import Result
from darkroom_client import Darkroom as Client
from typer.testing import CliRunner

from cli.admin_key import ADMIN_KEY_FILE, CALLBACK_SECRET_FILE, ensure_admin_key, with_keys
from cli.keys import RemoteKeys
from cli.main import app
from cli.terminal import console
from events.log import utc_now
from events.store.records import ApiKey, KeyLimits, Scope
from events.types import Priority
from local.embedded import with_secret
from serve_app.access.api_keys import parse
from settings.settings import Settings
from storage.service_secret import webhook_secret
from tests.support.edge import Edge
from tests.unit.cli.conftest import Run

Darkroom = Callable[..., Result]


@pytest.fixture
def darkroom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Darkroom:
    monkeypatch.setenv("DARKROOM_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *words: CliRunner().invoke(app, ["keys", *words])


def rows() -> dict[str, ApiKey]:
    """By id."""
    keys = asyncio.run(with_keys(Settings.load().stores, lambda keys: keys.all()))
    return {key.id: key for key in keys}


@pytest.mark.parametrize("words", [["list"], ["create", "bob"], ["revoke", "a" * 12]])
def test_a_database_that_cannot_be_used_ends_with_one_line(
    darkroom: Darkroom, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "postgresql+asyncpg://user:password@127.0.0.1:1/darkroom"
    monkeypatch.setenv("DARKROOM_DATABASE_URL", url)
    result = darkroom(*words)
    assert result.exit_code == 6
    assert result.stderr.count("\n") == 1
    assert isinstance(result.exception, SystemExit)


def printed(result: Result) -> ApiKey:
    """The row of the key that was printed, with its webhook secret below."""
    assert result.exit_code == 0, result.output
    text, secret = result.stdout.split()
    parsed = parse(text)
    assert parsed is not None
    key = rows()[parsed.id]
    assert parsed.opens(key)
    assert secret == webhook_secret(with_secret(Settings.load()).stores.secret_bytes, key.id)
    return key


def test_a_key_has_what_was_asked_for(darkroom: Darkroom) -> None:
    options = (
        "--scope read --days 2 --rate 0.5 --burst 3 --max-open-jobs 7 --max-cost 9"
        " --no-metadata --image-format webp --image-quality 80"
        " --endpoint a --endpoint b --callback-host *.A.example"
        " --weight 2.5 --priority high"
    )
    key = printed(darkroom("create", "alice", *options.split()))
    assert (key.owner, key.name, key.scopes) == ("alice", "alice", {Scope.READ})
    assert key.expires_at is not None
    assert key.expires_at - key.created_at < timedelta(days=2, seconds=1)
    assert key.limits == KeyLimits(
        *(0.5, 3, 7, ("a", "b"), ("*.a.example",)),
        max_cost=9.0,
        embed_metadata=False,
        image_format="webp",
        image_quality=80,
        weight=2.5,
        priority=Priority.HIGH,
    )


def test_a_limit_that_makes_no_sense_is_told(darkroom: Darkroom) -> None:
    for option, value in (
        ("rate", "-1"),
        ("burst", "0"),
        ("callback-host", "http://a.b"),
        ("weight", "0"),
        ("image-format", "gif"),
    ):
        result = darkroom("create", "alice", f"--{option}", value)
        assert result.exit_code == 2
        assert option[:4] in result.stderr
    assert rows() == {}


def test_the_list_has_every_key_with_its_own_limits_and_no_secret(
    darkroom: Darkroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "width", 240)
    limits = ("--rate", "0.5", "--endpoint", "a", "--endpoint", "b")
    made = [darkroom("create", "alice", "--name", "[red]", *limits), darkroom("create", "bob")]
    listed = darkroom("list").stdout
    for each in made:
        _, id, secret, _ = each.stdout.split()[0].split("_")
        assert id in listed
        assert secret not in listed
    assert "[red]" in listed
    alice, bob = (line for line in listed.splitlines() if "│" in line)
    assert "rate_per_s=0.5 endpoints=a,b" in alice
    assert "=" not in bob


class TestRotate:
    @pytest.mark.parametrize(
        ("grace", "seconds"),
        [((), 604800), (["--grace=0s"], 0), (["--grace=90m"], 5400), (["--grace=2d"], 172800)],
    )
    def test_the_old_key_lives_on_for_the_grace(
        self, darkroom: Darkroom, grace: Sequence[str], seconds: int
    ) -> None:
        old = printed(darkroom("create", "alice", "--scope", "read", "--burst", "3"))
        new = printed(darkroom("rotate", old.id, *grace))
        assert (new.owner, new.scopes, new.limits) == (old.owner, old.scopes, old.limits)
        rotated = rows()[old.id]
        assert rotated.replaced_by == new.id
        assert rotated.expires_at is not None
        left_s = (rotated.expires_at - utc_now()).total_seconds()
        assert seconds - 60 < left_s <= seconds

    def test_a_grace_that_makes_no_sense_is_told(self, darkroom: Darkroom) -> None:
        old = printed(darkroom("create", "alice"))
        for grace in ("7", "d", "-1d", "1.5d", "1w", "367d"):
            result = darkroom("rotate", old.id, f"--grace={grace}")
            assert (result.exit_code, "grace" in result.stderr) == (2, True), grace
        assert rows() == {old.id: old}

    def test_an_unknown_key_is_told(self, darkroom: Darkroom) -> None:
        result = darkroom("rotate", "aaaaaaaaaaaa")
        assert (result.exit_code, "no such key" in result.stderr) == (4, True)

    def test_the_admin_key_is_replaced_in_its_file(
        self, darkroom: Darkroom, tmp_path: Path
    ) -> None:
        text = asyncio.run(ensure_admin_key(Settings.load().stores))
        assert text is not None
        other = printed(darkroom("create", "alice"))
        darkroom("rotate", other.id)
        paths = [tmp_path / name for name in (ADMIN_KEY_FILE, CALLBACK_SECRET_FILE)]
        assert paths[0].read_text().strip() == text
        result = darkroom("rotate", text.split("_")[1])
        assert [path.read_text().strip() for path in paths] == result.stdout.split()
        assert all(str(path) in result.stderr for path in paths)
        assert paths[0].stat().st_mode & 0o777 == 0o600
        assert asyncio.run(ensure_admin_key(Settings.load().stores)) is None


def test_a_key_is_revoked_once(darkroom: Darkroom) -> None:
    key = printed(darkroom("create", "alice"))
    assert darkroom("revoke", key.id).exit_code == 0
    again = darkroom("revoke", key.id)
    assert (again.exit_code, "no live key" in again.stderr) == (4, True)


def test_a_key_is_printed_as_json_with_its_secrets(darkroom: Darkroom) -> None:
    made = json.loads(darkroom("create", "alice", "--json").stdout)
    assert made["key"].startswith(f"dk_{made['id']}_")
    assert made["webhook_secret"].startswith("whsec_")
    [listed] = json.loads(darkroom("list", "--json").stdout)["keys"]
    assert listed == {name: made[name] for name in made.keys() - {"key", "webhook_secret"}}


class TestOfAServiceElsewhere:
    """Over its HTTP API, with the key of an administrator there."""

    @pytest.fixture
    async def admin(self, edge: Edge) -> str:
        return await edge.key("root", scopes=["admin"])

    async def test_a_key_is_made_listed_rotated_and_revoked(
        self, edge: Edge, run: Run, admin: str
    ) -> None:
        limits = ("--burst", "3", "--endpoint", "a", "--days", "2")
        made = json.loads((await run(admin, "keys", "create", "alice", *limits, "--json")).stdout)
        key = await edge.services.keys.get(made["id"])
        assert key is not None
        assert (key.owner, key.limits) == ("alice", KeyLimits(burst=3, endpoints=("a",)))
        listed = (await run(admin, "keys", "list")).stdout
        assert made["id"] in listed
        assert "burst=3 endpoints=a" in listed
        rotated = (await run(admin, "keys", "rotate", made["id"], "--grace", "90s")).stdout
        text, secret = rotated.split()
        new = parse(text)
        assert new is not None
        assert secret.startswith("whsec_")
        assert (await run(admin, "keys", "revoke", new.id)).exit_code == 0
        again = await run(admin, "keys", "revoke", new.id)
        assert (again.exit_code, "no live key" in again.stderr) == (4, True)

    async def test_the_list_has_all_pages(self, edge: Edge, url: str, admin: str) -> None:
        for number in range(4):
            await edge.key(f"owner-{number}")
        with Client(url, admin) as client:
            assert len(await asyncio.to_thread(RemoteKeys(client, page=2).all)) == 5

    async def test_strangers_are_refused_and_unknown_keys_told(
        self, edge: Edge, run: Run, admin: str
    ) -> None:
        for command in ("rotate", "revoke"):
            assert (await run(await edge.key("alice"), "keys", command, "a" * 12)).exit_code == 5
            assert (await run(admin, "keys", command, "a" * 12)).exit_code == 4
