"""Verifies the signature of a callback by Standard Webhooks, using only the standard library.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import json
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping

from darkroom_client.errors import SignatureInvalid
from darkroom_client.values import Callback, Result

TOLERANCE_S = 300.0


def verified(
    secret: str, body: bytes, headers: Mapping[str, str], *, now: float | None = None
) -> Callback:
    """Return the callback in `body`. `secret` is the webhook secret of the API key, `whsec_…`.

    Raises SignatureInvalid unless the service signed exactly this body within the last five
    minutes. Raises ValueError if the secret is empty.
    """
    given = {name.lower(): value for name, value in headers.items()}
    try:
        id, sent_at = given["webhook-id"], int(given["webhook-timestamp"])
        signatures = given["webhook-signature"].split()
        key = b64decode(secret.removeprefix("whsec_"), validate=True)
        age_s = (time.time() if now is None else now) - sent_at
    except (KeyError, ValueError, OverflowError, binascii.Error) as error:
        raise SignatureInvalid("A header of Standard Webhooks is missing or damaged.") from error
    if not key:
        raise ValueError("The secret is empty, so anybody could sign.")
    if abs(age_s) > TOLERANCE_S:
        raise SignatureInvalid("The callback was signed too long ago, or in the future.")
    signed = f"{id}.{sent_at}.".encode() + body
    expected = "v1," + b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    if not any(hmac.compare_digest(each.encode(), expected.encode()) for each in signatures):
        raise SignatureInvalid("The callback was not signed with this secret.")
    members = json.loads(body)
    return Callback(id, members.get("event", "completed"), Result.of(members), members.get("index"))
