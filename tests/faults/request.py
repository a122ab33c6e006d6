"""What a caller asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """One body with its query, which may be sent more than once."""

    marker: str
    owner: str
    flavour: str
    body: dict[str, Any]
    query: Mapping[str, str] = field(default_factory=dict)
    idempotency_key: str | None = None
    is_guilty: bool = False

    @property
    def headers(self) -> dict[str, str]:
        return {"Idempotency-Key": self.idempotency_key} if self.idempotency_key else {}
