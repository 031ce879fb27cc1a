"""Taking bodies apart by JSON pointer, and putting odd things in."""

import json
from collections.abc import Iterator
from typing import Any

# The write routes; `tests.contract.calls` has a body for each.
WRITES = (
    "POST runs",
    "POST runs/{run_id}/commit",
    "POST runs/{run_id}/cancel",
    "POST runs/{run_id}/recover",
    "POST runs/recover",
    "POST runs/{run_id}/signals",
    "POST runs/{run_id}/effects",
    "POST runs/{run_id}/effects/{effect_id}/outcome",
    "POST effects/{effect_id}/reconcile",
    "PUT queues/{queue}",
    "PUT queues",
    "POST gates/{gate_id}/satisfy",
    "POST gates/{gate_id}/refuse",
    "POST gates/{gate_id}/renew",
    "POST runs/{run_id}/resume",
    "POST runs/{run_id}/fork",
    "POST runs/{run_id}/artifacts",
    "POST artifacts",
    "POST work/claim",
    "POST work/{lease}/heartbeat",
    "POST schedules",
    "PATCH schedules/{schedule_id}",
    "POST outbox/retry",
    "POST outbox/{message_id}/skip",
    "POST projects",
    "POST agents",
    "PUT members/{member_id}/roles",
    "POST keys",
    "POST keys/{key_id}/rotate",
    "POST webhooks",
    "PATCH webhooks/{endpoint_id}",
    "POST webhooks/{endpoint_id}/rotate",
    "POST webhooks/{endpoint_id}/redeliver",
    "PUT tools/{tool}/versions/{version}",
    "PATCH tools/{tool}/versions/{version}",
    "PUT workflows/{workflow}/versions/{version}",
    "PATCH workflows/{workflow}/versions/{version}",
    "POST approvals/decide",
    "POST approvals/requests/{request_id}/decide",
    "POST approvals/requests/{request_id}/withdraw",
    "POST approvals/requests/{request_id}/revalidate",
    "POST approvals/requests/{request_id}/target",
    "POST approvals/requests/{request_id}/renew",
    "POST approvals/requests/{request_id}/revoke",
    "POST approvals/requests/{request_id}/comments",
    "POST approvals/policies",
    "POST approvals/policies/dry-run",
    "PATCH approvals/policies/{policy_id}",
    "POST approvals/delegations",
)
BODILESS = (
    "POST outbox/{message_id}/retry",
    "DELETE schedules/{schedule_id}",
    "POST schedules/{schedule_id}/pause",
    "POST schedules/{schedule_id}/resume",
    "POST schedules/{schedule_id}/run-now",
    "POST keys/{key_id}/revoke",
    "DELETE webhooks/{endpoint_id}",
    "POST webhooks/{endpoint_id}/ping",
    "POST webhooks/{endpoint_id}/deliveries/{delivery_id}/redeliver",
    "DELETE members/{member_id}",
    "DELETE artifacts/{artifact_id}",
    "POST artifacts/{artifact_id}/upload",
    "POST artifacts/{artifact_id}/download",
    "PUT approvals/policies/{policy_id}/approvers/{member_id}",
    "DELETE approvals/policies/{policy_id}/approvers/{member_id}",
    "DELETE approvals/delegations/{delegation_id}",
)

_MARK = "@@mark@@"


def places(value: Any, way: str = "") -> Iterator[str]:
    """A pointer to every value inside, containers too; not to the whole."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, child in children:
        yield f"{way}/{name}"
        yield from places(child, f"{way}/{name}")


def objects(value: Any) -> Iterator[str]:
    """A pointer to every object, the whole included."""
    return (pointer for pointer in ("", *places(value)) if isinstance(_reach(value, pointer), dict))


def members(value: Any) -> Iterator[str]:
    """A pointer to every member of every object."""
    return (pointer for pointer in places(value) if isinstance(_reach(value, pointer.rpartition("/")[0]), dict))


def put(body: Any, pointer: str, text: str) -> bytes:
    """The body as JSON, with raw text in the place of one value."""
    changed, way = _copy(body), pointer.rpartition("/")
    parent = _reach(changed, way[0])
    parent[way[2] if isinstance(parent, dict) else int(way[2])] = _MARK
    return json.dumps(changed).replace(f'"{_MARK}"', text).encode()


def add(body: Any, pointer: str, name: str) -> bytes:
    changed = _copy(body)
    _reach(changed, pointer)[name] = {"odd": 1}
    return json.dumps(changed).encode()


def drop(body: Any, pointer: str) -> bytes:
    changed, way = _copy(body), pointer.rpartition("/")
    del _reach(changed, way[0])[way[2]]
    return json.dumps(changed).encode()


def related(one: str, other: str) -> bool:
    """Whether one pointer leads to, or through, the other."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _copy(body: Any) -> Any:
    """Without the sharing of parts that a deep copy would keep."""
    return json.loads(json.dumps(body))


def _reach(value: Any, pointer: str) -> Any:
    for name in pointer.split("/")[1:]:
        value = value[name] if isinstance(value, dict) else value[int(name)]
    return value
