"""Signatures of Standard Webhooks (github.com/standard-webhooks/standard-webhooks, spec version 1): symmetric, `v1`.

HMAC-SHA-256 over `<webhook-id>.<webhook-timestamp>.<body>`, keyed with the bytes behind `whsec_`. One signature for each secret
that is in force, so that a receiver may change over at any moment of the overlap.
"""

import base64
import hashlib
import hmac
import os
from collections.abc import Sequence
from datetime import datetime
from typing import Final

PREFIX: Final = "whsec_"
_SECRET_BYTES: Final = 32


def new_secret() -> str:
    return PREFIX + base64.b64encode(os.urandom(_SECRET_BYTES)).decode()


def headers(*, webhook_id: str, secrets: Sequence[str], body: bytes, now: datetime) -> dict[str, str]:
    """The three headers of a request that is sent now."""
    stamp = str(int(now.timestamp()))
    signed = f"{webhook_id}.{stamp}.".encode() + body
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": stamp,
        "webhook-signature": " ".join(f"v1,{_sign(secret, signed)}" for secret in secrets),
    }


def _sign(secret: str, signed: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(PREFIX))
    return base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
