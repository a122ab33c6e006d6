"""Bodies that administer keys, however long."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from serve_app.access.key_bodies import KeyChanges, NewKey

BAD = [f"!{number}" for number in range(50_000)]


@pytest.mark.parametrize(
    "body",
    [
        {"scopes": BAD},
        {"limits": {"endpoints": BAD}},
        {"limits": {"callback_hosts": BAD}},
        {"limits": {"callback_hosts": ["example.com"] * len(BAD)}},
        {"limits": dict.fromkeys(BAD, 1)},
        dict.fromkeys(BAD, 1),
    ],
)
@pytest.mark.parametrize("model", [NewKey, KeyChanges])
def test_many_errors_are_counted_by_few(
    model: type[NewKey | KeyChanges], body: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError) as refused:
        model.model_validate({"owner": "alice", **body} if model is NewKey else body)
    assert refused.value.error_count() <= 2


def test_a_key_that_would_never_work_is_not_made() -> None:
    past: dict[str, Any] = {"expires_at": "2020-01-01T00:00:00Z"}
    with pytest.raises(ValidationError, match="is past"):
        NewKey.model_validate({"owner": "alice", **past})
    assert KeyChanges.model_validate(past).expires_at is not None  # it ends a key
