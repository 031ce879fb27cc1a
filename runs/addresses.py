"""Signed addresses: whoever holds one may make one transfer of one artifact, for minutes, without an API key.

Invariant: nothing in an address is believed before its signature is, and the signature covers all of it: method, tenant, artifact,
expiry and key version. They are made and checked by the platform alone.
"""

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import parse_qsl, urlencode
from uuid import UUID

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from django.conf import settings

from kernel.errors import DomainError

KEY_VERSION: Final = 1
_INFO: Final = b"smriti:artifact-address:v1"
_EXPIRES: Final = re.compile(r"[1-9]\d{9,10}", re.ASCII)
_key = HKDFExpand(algorithm=hashes.SHA256(), length=32, info=_INFO).derive(settings.MASTER_KEY)


class AddressRefused(DomainError):
    code = "address_refused"
    status = 403
    title = "This address is not valid"


class AddressExpired(DomainError):
    code = "address_expired"
    status = 403
    title = "This address has expired"


@dataclass(frozen=True, slots=True)
class Address:
    url: str
    expires_at: datetime


def sign(*, method: str, tenant: UUID, artifact_id: UUID, now: datetime) -> Address:
    """An address for `method`, PUT or GET, at the process for waits and streams."""
    expires_at = (now + timedelta(seconds=settings.ARTIFACT_URL_SECONDS)).replace(microsecond=0)
    expires = int(expires_at.timestamp())
    signature = _signature(method, tenant, artifact_id, expires)
    query = urlencode({"tenant": tenant.hex, "expires": expires, "key": KEY_VERSION, "signature": signature})
    return Address(f"{settings.WAITS_URL}/api/v1/artifacts/{artifact_id}/content?{query}", expires_at)


def verify(*, method: str, artifact_id: UUID, query: str, now: datetime) -> UUID:
    """The tenant of an address's query string. Raises AddressRefused, AddressExpired."""
    try:
        members = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=4))
        tenant = UUID(hex=members["tenant"])
        plain = set(members) == {"tenant", "expires", "key", "signature"} and members["key"] == str(KEY_VERSION)
        if not plain or members["tenant"] != tenant.hex or not _EXPIRES.fullmatch(members["expires"]):
            raise AddressRefused
        signature = members["signature"].encode()
    except (ValueError, KeyError) as error:
        raise AddressRefused from error
    expires = int(members["expires"])
    if not hmac.compare_digest(_signature(method, tenant, artifact_id, expires).encode(), signature):
        raise AddressRefused
    if datetime.fromtimestamp(expires, UTC) <= now:
        raise AddressExpired("Ask for a new one.")
    return tenant


def _signature(method: str, tenant: UUID, artifact_id: UUID, expires: int) -> str:
    message = b"\0".join(
        (_INFO, method.encode(), tenant.bytes + artifact_id.bytes, b"%d" % expires, b"%d" % KEY_VERSION)
    )
    return base64.urlsafe_b64encode(hmac.digest(_key, message, hashlib.sha256)).rstrip(b"=").decode()
