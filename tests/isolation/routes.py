"""Every route, and how it keeps tenants apart. A new route must be put on the list that is true of it."""

from collections.abc import Iterator
from typing import Any

from django.urls import URLPattern, get_resolver

# Reached without a tenant's key or member, and holding no tenant's data.
OPEN = {
    "healthz",
    "readyz",
    "metrics",
    "api/v1/openapi.json",
    "api/v1/docs",
    "choose/",
    "sign-in/",
}
# Of the person who is signed in.
PERSONAL = {"", "t/", "profile/", "password/", "sign-out/"}

NOWHERE = "0197b0a0-0000-7000-8000-000000000000"

# Of the key's tenant: method, path, and a body that is acceptable.
API: list[tuple[str, str, Any]] = [
    ("GET", "runs", None),
    ("POST", "runs", {"workflow": "w", "workflow_version": "1", "steps": [{"name": "a"}]}),
    ("GET", "runs/{run_id}", None),
    ("POST", "runs/{run_id}/commit", {"events": [{"type": "note"}]}),
    ("GET", "runs/{run_id}/events", None),
    ("GET", "runs/{run_id}/events/stream", None),
    ("GET", "events/stream", None),
    ("GET", "runs/{run_id}/checkpoints/latest", None),
    ("POST", "runs/{run_id}/resume", None),
    ("POST", "runs/{run_id}/fork", {"reason": "a stranger's wish"}),
    ("POST", "runs/{run_id}/cancel", {"reason": "a stranger's wish"}),
    ("GET", "runs/{run_id}/verify", None),
    ("GET", "runs/{run_id}/replay", None),
    ("POST", "runs/{run_id}/recover", {"action": "retry", "reason": "a stranger's wish"}),
    ("POST", "runs/recover", {"action": "retry", "reason": "a stranger's wish"}),
    ("POST", "runs/{run_id}/signals", {"name": "answer"}),
    (
        "POST",
        "runs/{run_id}/effects",
        {"lease": "0197b0a0-0000-7000-8000-000000000000", "epoch": 1, "tool": "pay", "business_object": "x"},
    ),
    (
        "POST",
        "runs/{run_id}/effects/{effect_id}/outcome",
        {"lease": "0197b0a0-0000-7000-8000-000000000000", "epoch": 1, "outcome": "succeeded"},
    ),
    ("GET", "effects", None),
    ("GET", "effects/{effect_id}", None),
    ("POST", "effects/{effect_id}/reconcile", {"result": "succeeded", "reason": "a stranger's wish"}),
    ("GET", "gates", None),
    ("GET", "queues", None),
    ("PUT", "queues", {"paused": True, "reason": "a stranger's wish"}),
    ("PUT", "queues/{queue}", {"paused": True, "reason": "a stranger's wish"}),
    ("POST", "gates/{gate_id}/satisfy", {"reason": "a stranger's wish"}),
    ("POST", "gates/{gate_id}/refuse", {"reason": "a stranger's wish"}),
    ("POST", "gates/{gate_id}/renew", {"reason": "a stranger's wish"}),
    ("GET", "runs/{run_id}/artifacts", None),
    ("POST", "runs/{run_id}/artifacts", {"artifact_id": "00000000-0000-7000-8000-000000000000"}),
    ("POST", "artifacts", {"name": "a", "media_type": "text/plain", "size": 1, "sha256": "0" * 64}),
    ("GET", "artifacts/{artifact_id}", None),
    ("DELETE", "artifacts/{artifact_id}", None),
    ("POST", "artifacts/{artifact_id}/upload", None),
    ("POST", "artifacts/{artifact_id}/download", None),
    ("POST", "work/claim", {"worker": "stranger"}),
    ("POST", "work/{lease}/heartbeat", {"epoch": 1}),
    ("GET", "schedules", None),
    (
        "POST",
        "schedules",
        {"name": "s", "every_seconds": 60, "run": {"workflow": "w", "workflow_version": "1", "steps": [{"name": "a"}]}},
    ),
    ("GET", "schedules/{schedule_id}", None),
    ("PATCH", "schedules/{schedule_id}", {"name": "t"}),
    ("DELETE", "schedules/{schedule_id}", None),
    ("POST", "schedules/{schedule_id}/pause", None),
    ("POST", "schedules/{schedule_id}/resume", None),
    ("POST", "schedules/{schedule_id}/run-now", None),
    ("GET", "schedules/{schedule_id}/fires", None),
    ("GET", "outbox", None),
    ("POST", "outbox/retry", {}),
    ("POST", "outbox/{message_id}/retry", None),
    ("POST", "outbox/{message_id}/skip", {"reason": "a stranger's wish"}),
    *(("GET", f"metrics/{name}", None) for name in ("runs", "steps", "tools", "cost", "queues")),
    ("GET", "approvals/requests", None),
    ("POST", "approvals/decide", {"answer": "approve", "requests": [{"request": NOWHERE, "digest": "0" * 64}]}),
    ("GET", "approvals/requests/{request_id}", None),
    ("GET", "approvals/requests/{request_id}/wait", None),
    ("POST", "approvals/requests/{request_id}/decide", {"answer": "approve", "digest": "0" * 64}),
    ("POST", "approvals/requests/{request_id}/withdraw", None),
    ("POST", "approvals/requests/{request_id}/revalidate", None),
    ("POST", "approvals/requests/{request_id}/target", {"version": "2"}),
    ("POST", "approvals/requests/{request_id}/renew", {"reason": "a stranger's wish"}),
    ("POST", "approvals/requests/{request_id}/revoke", {"reason": "a stranger's wish"}),
    ("POST", "approvals/requests/{request_id}/comments", {"text": "a stranger's wish"}),
    ("GET", "approvals/policies", None),
    ("POST", "approvals/policies", {"name": "p", "rules": {"deny": True, "match": {"tools": ["none"]}}}),
    ("POST", "approvals/policies/dry-run", {"rules": {"deny": True}}),
    ("GET", "approvals/policies/{policy_id}", None),
    ("PATCH", "approvals/policies/{policy_id}", {"enabled": False}),
    ("GET", "approvals/policies/{policy_id}/versions", None),
    ("PUT", "approvals/policies/{policy_id}/approvers/{member_id}", None),
    ("DELETE", "approvals/policies/{policy_id}/approvers/{member_id}", None),
    ("GET", "approvals/delegations", None),
    (
        "POST",
        "approvals/delegations",
        {"from": NOWHERE, "starts_at": "2100-01-01T00:00:00Z", "ends_at": "2100-01-02T00:00:00Z", "away": True},
    ),
    ("GET", "approvals/delegations/{delegation_id}", None),
    ("DELETE", "approvals/delegations/{delegation_id}", None),
    ("GET", "projects", None),
    ("POST", "projects", {"slug": "new", "name": "New"}),
    ("GET", "agents", None),
    ("POST", "agents", {"slug": "new", "name": "New"}),
    ("GET", "members", None),
    ("GET", "members/{member_id}", None),
    ("DELETE", "members/{member_id}", None),
    ("PUT", "members/{member_id}/roles", {"roles": ["viewer"]}),
    ("GET", "keys", None),
    ("POST", "keys", {"name": "new", "scopes": ["runs:read"]}),
    ("GET", "keys/{key_id}", None),
    ("POST", "keys/{key_id}/rotate", {}),
    ("POST", "keys/{key_id}/revoke", None),
    ("GET", "webhooks", None),
    ("POST", "webhooks", {"url": "https://hooks.example/new"}),
    ("GET", "webhooks/{endpoint_id}", None),
    ("PATCH", "webhooks/{endpoint_id}", {"enabled": False}),
    ("DELETE", "webhooks/{endpoint_id}", None),
    ("POST", "webhooks/{endpoint_id}/rotate", {}),
    ("POST", "webhooks/{endpoint_id}/ping", None),
    ("GET", "webhooks/{endpoint_id}/deliveries", None),
    ("POST", "webhooks/{endpoint_id}/deliveries/{delivery_id}/redeliver", None),
    ("POST", "webhooks/{endpoint_id}/redeliver", {"since": "2026-01-01T00:00:00Z"}),
    ("GET", "audit", None),
    ("GET", "audit/verify", None),
    ("GET", "tools", None),
    ("GET", "tools/{tool}", None),
    ("GET", "tools/{tool}/versions/{version}", None),
    ("PATCH", "tools/{tool}/versions/{version}", {"enabled": False, "reason": "a stranger's wish"}),
    ("GET", "workflows", None),
    ("GET", "workflows/{workflow}", None),
    ("GET", "workflows/{workflow}/versions/{version}", None),
    ("PATCH", "workflows/{workflow}/versions/{version}", {"enabled": False, "reason": "a stranger's wish"}),
]
# Served by the process for waits alone (tests/runs/test_streams.py): this one judges the key and the id, then says where to go.
ELSEWHERE = {"runs/{run_id}/events/stream", "events/stream"}
# Of the tenant whose short name is in the address: the path behind `t/{slug}/`.
PAGES = [
    "",
    "members/",
    "members/add/",
    "members/{member_id}/roles/",
    "members/{member_id}/remove/",
    "keys/",
    "keys/new/",
    "keys/{key_id}/rotate/",
    "keys/{key_id}/revoke/",
    "webhooks/",
    "webhooks/new/",
    "webhooks/{endpoint_id}/",
    "webhooks/{endpoint_id}/change/",
    "webhooks/{endpoint_id}/rotate/",
    "webhooks/{endpoint_id}/delete/",
    "notifications/",
    "runs/",
    "runs/{run_id}/",
    "runs/{run_id}/events/",
    "runs/{run_id}/events/1/",
    "runs/{run_id}/events/1/payload/",
    "runs/{run_id}/events/1/payload.json",
    "runs/{run_id}/state/",
    "runs/{run_id}/verify/",
    "runs/{run_id}/cancel/",
    "runs/{run_id}/recover/",
    "runs/{run_id}/effects/",
    "runs/{run_id}/effects/{effect_id}/",
    "runs/{run_id}/effects/{effect_id}/payload/",
    "runs/{run_id}/effects/{effect_id}/reconcile/",
    "runs/{run_id}/gates/{gate_id}/",
    "runs/{run_id}/resume/",
    "attention/",
    "attention/recover/",
    "queues/",
    "queues/*/",
    "queues/{queue}/",
    "tools/",
    "tools/{tool}/",
    "tools/{tool}/versions/{version}/",
    "workflows/",
    "workflows/{workflow}/",
    "workflows/{workflow}/versions/{version}/",
    "audit/",
    "audit/verify/",
]


def listed() -> set[str]:
    """The lists in the resolver's form."""
    converters = {"{slug}": "<slug:slug>", "/events/1/": "/events/<int:seq>/"}
    ids = (
        "run_id", "message_id", "schedule_id", "lease", "member_id", "key_id", "effect_id", "gate_id", "artifact_id", "request_id",
        "policy_id", "delegation_id", "endpoint_id", "delivery_id",
    )  # fmt: skip
    converters |= {f"{{{name}}}": f"<uuid:{name}>" for name in ids}
    converters |= {f"{{{name}}}": f"<identifier:{name}>" for name in ("tool", "workflow", "version", "queue")}
    found = {f"api/v1/{path}" for _, path, _ in API} | {f"t/{{slug}}/{path}" for path in PAGES}
    for plain, converted in converters.items():
        found = {path.replace(plain, converted) for path in found}
    return found | OPEN | PERSONAL


def resolved() -> set[str]:
    return set(_walk(get_resolver().url_patterns))


def _walk(patterns: Any, prefix: str = "") -> Iterator[str]:
    for pattern in patterns:
        if isinstance(pattern, URLPattern):
            yield f"{prefix}{pattern.pattern}"
        else:
            yield from _walk(pattern.url_patterns, f"{prefix}{pattern.pattern}")
