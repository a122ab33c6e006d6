"""The secret that signs an API key's callbacks (Standard Webhooks, symmetric)."""

from __future__ import annotations

import base64
import hashlib
import hmac

PREFIX = "whsec_"


def webhook_secret(service_secret: bytes, key_id: str) -> str:
    """Derived, so that it is never stored; 32 bytes, as the specification asks (24 to 64).

    https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
    """
    digest = hmac.new(service_secret, f"webhook:{key_id}".encode(), hashlib.sha256).digest()
    return PREFIX + base64.b64encode(digest).decode()
